"""The claims of docs/proofs: neighbours compared, figures recomputed without the accountants.

Sanitizers are written out here as plain NumPy oracles of what the pages describe.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from dp_accounting.pld import pld_pmf
from dp_accounting.pld import privacy_loss_distribution as pld
from scipy import fft, integrate, optimize, stats

from dpsinkhorn.privacy import (
    Adjacency,
    BatchMechanism,
    GaussianMechanism,
    ImageMechanism,
    LaplaceMechanism,
    RecordMechanism,
    _pld,
    compose,
    epsilon,
    published_epsilon,
)

DELTA = 1e-5


def clip(value: np.ndarray, bound: float) -> np.ndarray:
    norm = np.linalg.norm(value)
    return value if norm <= bound else value * (bound / norm)


def largest_move(release, rng, records: int = 400, size: int = 4) -> float:
    """The largest change over random neighbours (R, R + y) and (∅, y), and the extreme ones y, -y."""
    moves = []
    for trial in range(records):
        scale = 10.0 ** rng.uniform(-3, 3)
        rest = [scale * rng.standard_normal(6) for _ in range(rng.integers(0, size))]
        record = scale * rng.standard_normal(6)
        if trial % 4 == 0 and rest:
            rest = [-1000 * record / np.linalg.norm(record)]
        moves.append(np.linalg.norm(release([*rest, record]) - release(rest)))
    return max(moves)


class TestSensitivity:
    images = np.random.default_rng(1).standard_normal((5, 6))  # generated, public

    def gradient(self, batch):
        """Any function of a batch: here rows that pull each image towards the batch; 0 for the empty one."""
        if not batch:
            return np.zeros_like(self.images)
        return self.images - np.sum(batch, axis=0)

    def test_batch_sensitivity(self):
        mechanism = BatchMechanism(clip=0.5, noise_multiplier=1.0)
        move = largest_move(lambda b: clip(self.gradient(b), 0.5), np.random.default_rng(0))
        assert move <= mechanism.sensitivity * (1 + 1e-12)
        # attained: opposite batches
        record = np.full(6, 1e9)
        released = clip(self.gradient([record]), 0.5) - clip(self.gradient([record, -2 * record]), 0.5)
        assert np.linalg.norm(released) == pytest.approx(mechanism.sensitivity)

    def test_batch_sensitivity_with_an_empty_batch(self):
        released = clip(self.gradient([np.full(6, 1e9)]), 0.5) - clip(self.gradient([]), 0.5)
        assert np.linalg.norm(released) <= BatchMechanism(0.5, 1.0).sensitivity

    def test_image_sensitivity(self):
        mechanism = ImageMechanism(clip=0.5, row_noise_multiplier=1.0, rows=5)

        def release(batch):
            return np.stack([clip(row, 0.5) for row in self.gradient(batch)])

        move = largest_move(release, np.random.default_rng(0))
        assert move <= mechanism.sensitivity * (1 + 1e-12)
        record = np.full(6, 1e9)
        attained = np.linalg.norm(release([record]) - release([record, -2 * record]))
        assert attained == pytest.approx(mechanism.sensitivity)
        assert attained > 2 * 0.5 * 1.01  # the sensitivity of one row would not do

    def test_record_sensitivity(self):
        mechanism = RecordMechanism(clip=2.0, noise_multiplier=1.0)

        def release(batch):
            return sum((clip(record, 2.0) for record in batch), np.zeros(6))

        move = largest_move(release, np.random.default_rng(0), size=50)
        assert move <= mechanism.sensitivity * (1 + 1e-9)
        assert move == pytest.approx(mechanism.sensitivity)


def distinguish(shift: float, rate: float, steps: int, delta: float, cells=20_001, grid=1e-3, size=2**19):
    """A lower bound on ε, from a test that anyone who sees the released values can carry out.

    A step's released value x, along the direction of the record's gradient and in units of the noise, is
    N(0, 1) without the record, and with it N(shift, 1) in a share `rate` of the steps. The test sums whole
    numbers w(x) over the steps and says "the record is there" above a threshold. Both error probabilities are
    computed exactly (the second one tilted by e^w, which keeps its digits), and
    ε >= log((P(says so | there) - δ) / P(says so | not there)).
    """
    edges = np.concatenate([[-np.inf], np.linspace(-9, shift + 9, cells - 1), [np.inf]])

    def masses(mean):
        low, high = edges[:-1] - mean, edges[1:] - mean
        upper_side = low > 0
        return np.where(
            upper_side, stats.norm.sf(low) - stats.norm.sf(high), stats.norm.cdf(high) - stats.norm.cdf(low)
        )

    absent = masses(0.0)
    there = (1 - rate) * absent + rate * masses(shift)
    score = np.round(np.log(there / absent) / grid).astype(int)
    least = score.min()

    def summed(probability, start):
        """Distribution of the sum of the scores from `start` on; the transform is periodic in `size`."""
        single = np.bincount(score - least, probability)
        total = np.fft.irfft(np.fft.rfft(single, size) ** steps, size)
        return np.maximum(total[(np.arange(start, start + size) - steps * least) % size], 0.0)

    start = int(steps * np.sum(there * score)) - size // 2
    tilted = absent * np.exp(score * grid)
    says_so_if_there = np.cumsum(summed(there, start)[::-1])[::-1]
    with np.errstate(divide="ignore"):
        log_mass = np.log(summed(tilted / tilted.sum(), start)) - (start + np.arange(size)) * grid
    log_says_so_if_absent = steps * math.log(tilted.sum()) + np.logaddexp.accumulate(log_mass[::-1])[::-1]
    usable = says_so_if_there > 1.01 * delta
    return float(np.max(np.log(says_so_if_there[usable] - delta) - log_says_so_if_absent[usable]))


class TestThePublishedEpsilonOfImage:
    """docs/proofs/image-published-epsilon.md"""

    rows, noise, rate, steps = 50, 1.5, 1 / 1200, 160_000

    def test_counting_suspicious_steps_already_refutes_it(self):
        shift = math.sqrt(self.rows) / (2 * self.noise)  # all rows move by Δ; noise 2 Δ σ
        threshold, count = 3.535, 80
        quiet = stats.norm.sf(threshold)
        loud = (1 - self.rate) * quiet + self.rate * stats.norm.sf(threshold - shift)
        found = stats.binom.sf(count - 1, self.steps, loud) - DELTA
        least = math.log(found) - stats.binom.logsf(count - 1, self.steps, quiet)
        published = published_epsilon(
            ImageMechanism(0.5, self.noise, self.rows), self.rate, self.steps, DELTA
        )
        assert published == pytest.approx(10.0, abs=0.1)
        assert least > 15 > published

    def test_empty_against_one_record(self):
        least = distinguish(math.sqrt(self.rows) / (2 * self.noise), self.rate, self.steps, DELTA)
        assert least >= 29.7
        # and no more than the accountant says of this very pair: the two meet
        most = epsilon(
            RecordMechanism(1.0, 2 * self.noise / math.sqrt(self.rows)).sampled(self.rate, self.steps), DELTA
        )
        assert least <= most <= least * 1.01

    def test_the_sound_epsilon_is_attained_too(self):
        """With the rows at opposite ends of their range the sound figure is what an observer achieves."""
        shift = math.sqrt(self.rows) / self.noise
        least = distinguish(shift, self.rate, self.steps, DELTA, grid=2e-3, size=2**20)
        most = epsilon(ImageMechanism(0.5, self.noise, self.rows).sampled(self.rate, self.steps), DELTA)
        assert 0.99 * most < least <= most


def hockey_stick(upper, lower, alpha: float) -> float:
    """∫ [upper - α lower]₊ over the plane, on a grid."""
    line = np.linspace(-9, 9, 361)
    x, y = np.meshgrid(line, line)
    gap = np.maximum(upper(x, y) - alpha * lower(x, y), 0.0)
    return float(integrate.trapezoid(integrate.trapezoid(gap, line), line))


def mixture(rate: float, noise: float, point: np.ndarray):
    def density(x, y):
        def bump(a, b):
            return np.exp(-((x - a) ** 2 + (y - b) ** 2) / (2 * noise**2)) / (2 * math.pi * noise**2)

        return (1 - rate) * bump(0, 0) + rate * bump(*point)

    return density


class TestSubsampledGaussian:
    """docs/proofs/subsampled-gaussian.md"""

    @pytest.mark.parametrize("alpha", [0.5, 1.0, 1.3, 3.0])
    def test_a_shorter_move_costs_less(self, alpha):
        def cost(length):
            with_record = mixture(0.3, 1.0, np.array([length, 0.0]))
            without = mixture(0.0, 1.0, np.zeros(2))
            return hockey_stick(with_record, without, alpha), hockey_stick(without, with_record, alpha)

        costs = [cost(length) for length in (0.0, 0.3, 0.6, 1.0)]
        for before, after in itertools.pairwise(costs):
            assert all(a <= b + 1e-9 for a, b in zip(before, after, strict=True))


def laplace_divergence(moves, alpha: float, cells: int = 300) -> float:
    """Hockey-stick divergence of independent Laplace(moveᵢ, 1) from Laplace(0, 1), from below.

    Every coordinate is clamped to [0, move], where all of the loss is, and cut into cells: post-processing.
    """
    upper, lower = np.ones(1), np.ones(1)
    for move in moves:
        edges = np.concatenate([[-np.inf], np.linspace(0, move, max(2, round(cells * move)) + 1), [np.inf]])
        cuts = [np.diff(stats.laplace.cdf(edges, centre)) for centre in (move, 0.0)]
        upper, lower = (
            np.multiply.outer(old, new).ravel() for old, new in zip((upper, lower), cuts, strict=True)
        )
        # cells of nearly the same loss are joined: post-processing again
        _, place = np.unique(np.round(np.log(upper / lower) * cells), return_inverse=True)
        upper, lower = (np.bincount(place, values) for values in (upper, lower))
    return float(np.maximum(upper - alpha * lower, 0.0).sum())


class TestLaplace:
    """docs/proofs/laplace.md"""

    @pytest.mark.parametrize("total", [0.3, 2.0])
    def test_one_coordinate_that_takes_the_whole_move_is_the_worst(self, total):
        rng = np.random.default_rng(0)
        for coordinates in (2, 2, 3, 4):
            moves = total * rng.dirichlet(np.ones(coordinates))
            merged = [moves[0] + moves[1], *moves[2:]]
            for alpha in np.exp(total * np.array([-0.9, -0.4, 0.0, 0.2, 0.7])):
                spread, fewer = laplace_divergence(moves, alpha), laplace_divergence(merged, alpha)
                assert spread <= fewer + 2e-3 * total
                # a single coordinate in closed form
                assert spread <= max(1 - math.sqrt(alpha * math.exp(-total)), 1 - alpha) + 1e-12

    @pytest.mark.parametrize("rate", [1.0, 0.2])
    def test_the_accountant_covers_a_spread_move(self, rate):
        charge = LaplaceMechanism(3.0, 0.8).sampled(rate, steps=1)
        for moves in ([1 / 0.8], [0.9 / 0.8, 0.1 / 0.8], [0.25 / 0.8] * 4):
            for delta in (1e-3, 0.05):
                alpha = math.exp(epsilon(charge, delta))
                assert rate * laplace_divergence(moves, (alpha - 1 + rate) / rate) <= delta


class TestComposingAdjacencies:
    """docs/proofs/composing-adjacencies.md"""

    @pytest.mark.parametrize("rate", [0.05, 0.5])
    @pytest.mark.parametrize("alpha", [0.7, 1.0, 1.1, 2.0])
    def test_opposite_records_are_the_worst_replacement(self, rate, alpha):
        """Among addends of norm at most 1, v and -v of norm 1 have the largest hockey-stick divergence."""
        rng = np.random.default_rng(0)
        worst = hockey_stick(
            mixture(rate, 1.0, np.array([1.0, 0.0])), mixture(rate, 1.0, np.array([-1.0, 0.0])), alpha
        )
        for _ in range(12):
            old, new = (clip(v, 1.0) for v in 1.5 * rng.standard_normal((2, 2)))
            assert hockey_stick(mixture(rate, 1.0, old), mixture(rate, 1.0, new), alpha) <= worst + 1e-9

    def test_a_sampled_step_agrees_with_numerical_integration(self):
        noise, rate = 0.9, 0.2
        points = np.linspace(-15, 15, 600_001)

        def density(sign):
            return (1 - rate) * stats.norm.pdf(points, 0, noise) + rate * stats.norm.pdf(points, sign, noise)

        def excess(e):
            return (
                float(integrate.trapezoid(np.maximum(density(1) - math.exp(e) * density(-1), 0), points))
                - DELTA
            )

        charge = RecordMechanism(1.0, noise).sampled(rate, 1).to_replace_one()
        exact = optimize.brentq(excess, 0.0, 50.0)
        assert epsilon(charge, DELTA) == pytest.approx(exact, rel=2e-3)
        assert epsilon(charge, DELTA) >= exact - 1e-6

    def test_a_gaussian_doubles_its_sensitivity_once(self):
        converted = GaussianMechanism(1.0, 4.0).charge().to_replace_one()
        native = GaussianMechanism(2.0, 2.0, Adjacency.REPLACE_ONE).charge()
        for accountant in ("pld", "rdp", "rdp-classic"):
            assert epsilon(converted, DELTA, accountant) == epsilon(native, DELTA, accountant)
        # the unit is noise / sensitivity under either adjacency
        assert epsilon(native, DELTA) == epsilon(GaussianMechanism(1.0, 2.0).charge(), DELTA)

    def test_laplace_too(self):
        converted = LaplaceMechanism(1.0, 4.0).charge().to_replace_one()
        assert epsilon(converted, 0.0) == pytest.approx(0.5)

    def test_training_and_transport_together(self):
        training = RecordMechanism(1.0, 2.0).sampled(0.05, steps=200)
        transport = GaussianMechanism(1.0, 3.0, Adjacency.REPLACE_ONE).charge(5)
        release = LaplaceMechanism(1.0, 5.0, Adjacency.REPLACE_ONE).charge()
        together = compose(training, transport, release, adjacency=Adjacency.REPLACE_ONE)
        parts = [training.to_replace_one(), transport, release]
        spent = epsilon(together, DELTA)
        assert spent > max(epsilon(part, DELTA) for part in parts)
        assert spent < sum(epsilon(part, DELTA / 3) for part in parts)
        # replacing is removing and adding: at least what adding alone costs, at most what a group of two does
        assert epsilon(training, DELTA) < epsilon(parts[0], DELTA)
        group = 2 * epsilon(training, DELTA / (1 + math.exp(epsilon(training, DELTA / 100))))
        assert epsilon(parts[0], DELTA) < group


class TestNumericalAccounting:
    """docs/proofs/numerical-accounting.md"""

    @staticmethod
    def one_step():
        return pld.from_gaussian_mechanism(
            1.1, sampling_prob=0.01, value_discretization_interval=2.0**-12, log_mass_truncation_bound=-40.0
        )._pmf_remove.to_dense_pmf()

    @pytest.mark.skipif(
        np.finfo(np.longdouble).eps >= np.finfo(float).eps, reason="NOT TESTED HERE: needs extended precision"
    )
    def test_rounding_of_the_transform_is_within_its_allowance(self):
        """Self-composition of a step's distribution in double against extended precision."""
        single, steps = self.one_step(), 100_000
        composed = _pld._repeat_pmf(single, steps, 1e-11)
        first = composed._lower_loss - steps * single._lower_loss
        size = fft.next_fast_len(2 * composed.size)
        base = fft.fft(single._probs.astype(np.longdouble), size)
        power, count = np.ones_like(base), steps
        while count:
            power = power * base if count & 1 else power
            base, count = base * base, count >> 1
        reference = np.roll(np.real(fft.ifft(power)), -first)[: composed.size]
        assert reference.sum() == pytest.approx(1, abs=1e-9)
        assert float(np.abs(composed._probs - reference).sum()) < _pld._ROUNDING * steps

    def test_what_is_cut_off_goes_to_infinite_loss(self):
        """A window so narrow that it matters never gives a smaller δ than a wide one, at any ε."""
        single, steps = self.one_step(), 1000
        wide, narrow = (_pld._repeat_pmf(single, steps, tail) for tail in (1e-14, 1e-2))
        assert narrow.size < 0.7 * wide.size
        for e in np.linspace(0, 3, 31):
            assert narrow.get_delta_for_epsilon(e) >= wide.get_delta_for_epsilon(e)
        # and the mass that a step has at infinity already adds up
        leaky = pld_pmf.DensePLDPmf(2.0**-12, single._lower_loss, single._probs, 1e-6, True)
        assert _pld._repeat_pmf(leaky, steps, 1e-14)._infinity_mass == pytest.approx(
            -math.expm1(-1e-3), rel=1e-5
        )

    @pytest.mark.parametrize(("noise", "rate", "steps"), [(1.0, 0.1, 100), (2.0, 0.01, 10_000)])
    def test_a_coarser_grid_never_gives_less(self, noise, rate, steps, monkeypatch):
        charge = RecordMechanism(1.0, noise).sampled(rate, steps)
        spent = []
        for width in (2.0**-7, 2.0**-9, 2.0**-11, 2.0**-13):
            monkeypatch.setattr(_pld, "_interval", lambda *_, width=width: width)
            spent.append(epsilon(charge, DELTA))
        assert spent == sorted(spent, reverse=True)
        assert spent[-2] == pytest.approx(spent[-1], rel=0.01)
