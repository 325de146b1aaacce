"""`moments`: sensitivity of every kind of step on real neighbours, exact sums, noise, audits."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from scipy import stats

from dpsinkhorn.mechanisms.shared import base
from dpsinkhorn.mechanisms.shared.base import Sample
from dpsinkhorn.privacy import MomentsMechanism, SeededNoise, epsilon
from dpsinkhorn.privacy.audit import sampled_gaussian_bound, threshold_bound
from support.moment_oracles import exact_norm, in_chunks, low_frequencies, moments_of, reference
from support.sanitizer_oracles import digits, neighbours

STEPS = ("means", "common covariance", "centres", "covariances")
SCALED = ("centres", "covariances")  # whose deviations are clipped in other coordinates
WEIGHT = Fraction(0.3)  # of a count beside a deviation
CLAIM = 1 + WEIGHT**2  # the square of the sensitivity of both
CLIPS = (0.3, 7.0, 30.0)  # all is clipped; some is; nothing is


def public(moments, step, seed=0):
    """The centres that a step of this kind works with: made up, all over the place, some of them equal."""
    config, draws = moments.config, torch.Generator().manual_seed(seed)
    components = config.components if step in ("centres", "covariances") else 1
    centres = torch.randn(config.kinds, components, config.coefficients, generator=draws)
    if step == "means":
        return torch.zeros_like(centres)
    if components > 2:
        centres[:, 1] = centres[:, 0]
    return centres


def coordinates_of(moments, step, seed=7):
    """W of a step of this kind: made up, its rows of very different lengths, in any basis."""
    if step not in SCALED:
        return None
    k, draws = moments.config.coefficients, torch.Generator().manual_seed(seed)
    turn = torch.linalg.qr(torch.randn(k, k, generator=draws, dtype=torch.float64))[0]
    scales = torch.linspace(0.1, 1, k, dtype=torch.float64)
    return turn * (scales / scales.norm()).unsqueeze(1)


def given(moments, step, centres=None, coordinates=None):
    """Centres, radius and coordinates of a step: all that is public."""
    centres = public(moments, step) if centres is None else centres
    if step not in SCALED:
        return centres, (1.75 if step == "means" else 1) * moments.radius, None
    coordinates = coordinates_of(moments, step) if coordinates is None else coordinates
    return centres, moments.radius / math.sqrt(moments.config.coefficients), coordinates


def what_is_noised(moments, step, sample, *, chunk=64, centres=None, coordinates=None):
    """All numbers that a step releases, before the noise: one or two parts."""
    public_values = given(moments, step, centres, coordinates)
    parts = in_chunks(sample, chunk)
    if step in ("means", "centres"):
        return moments.clipped_deviations(parts, *public_values)
    total, counts = moments.clipped_squares(parts, *public_values, pooled=step == "common covariance")
    return (total,) if counts is None else (total, counts)


def same_bits(first, second):
    return all(torch.equal(one, other.cpu()) for one, other in zip(first, second, strict=True))


def farthest(moments, step, pairs, **options):
    """Largest squared move between neighbours over the squared claim; computed without any rounding."""
    largest = Fraction(0)
    for name, before, after in pairs:
        first = what_is_noised(moments, step, before, chunk=64, **options)
        second = what_is_noised(moments, step, after, chunk=7, **options)
        assert all(bool(torch.isfinite(part).all()) for part in second), name
        moves = [exact_norm(there - here) for here, there in zip(first, second, strict=True)]
        move = moves[0] if len(moves) == 1 else (moves[0] + WEIGHT**2 * moves[1]) / CLAIM
        assert move <= 1, (name, float(move))
        largest = max(largest, move)
    return float(largest)


@pytest.mark.parametrize("step", STEPS)
class TestSensitivity:
    @pytest.mark.parametrize("clip", CLIPS)
    def test_neighbours(self, step, clip):
        moments = moments_of(clip=clip)
        pairs = neighbours(torch.zeros(10, 64), torch.arange(10))
        assert farthest(moments, step, pairs) > (0.99 if clip < 1 else 0.01)

    def test_without_labels(self, step):
        moments = moments_of(classes=0, clip=1.0)
        assert farthest(moments, step, neighbours(torch.zeros(1, 64), None)) > 0.99

    def test_a_class_without_records(self, step):
        points, labels = digits()
        kept = labels < 9
        before = Sample(points[kept][:80], labels[kept][:80])
        for one in (points[labels == 9][:1], torch.full((1, 64), math.nan), torch.ones(1, 64) * 1e30):
            after = Sample(torch.cat([before.points, one]), torch.cat([before.labels, torch.tensor([9])]))
            assert farthest(moments_of(clip=0.5), step, [("the first of its class", before, after)]) > 0.99

    def test_removed_from_the_front(self, step):
        """All others move up by one place, and into other chunks: their shares must not notice."""
        points, labels = digits()
        after, before = Sample(points[:200], labels[:200]), Sample(points[1:200], labels[1:200])
        assert farthest(moments_of(clip=0.5), step, [("the first", before, after)]) > 0.99

    def test_colour(self, step):
        draws = torch.Generator().manual_seed(1)
        after = Sample(torch.rand(30, 3 * 5 * 4, generator=draws) * 2 - 1, torch.arange(30) % 2)
        before = Sample(after.points[:-1], after.labels[:-1])
        moments = moments_of((3, 5, 4), classes=2, clip=0.5)
        assert farthest(moments, step, [("one", before, after)]) > 0.99

    def test_ties_between_centres(self, step):
        """Records half way between centres, where a last bit would decide which sum they go to."""
        moments = moments_of(classes=0, components=2, clip=0.5)
        shift = torch.zeros(moments.config.coefficients)
        shift[0] = 1 / 64
        grey = torch.zeros(1, 64)
        middle = moments.coefficients(grey)[0].float()
        centres = torch.stack([middle - shift, middle + shift])[None]
        if step in ("means", "common covariance"):
            centres = centres[:, :1]
        many = grey.repeat(500, 1)
        pairs = [("one more", Sample(many), Sample(torch.cat([torch.rand(1, 64), many])))]
        assert farthest(moments, step, pairs, centres=centres) > 0.99


@pytest.mark.parametrize("step", SCALED)
class TestCoordinates:
    """W is public, and may be anything: what a record adds keeps its bound, and is its own."""

    @pytest.mark.parametrize("size", [1e-300, 1e-9, 1e-3, 1.0, 3.0, 1e9, 1e150, 1e306])
    def test_of_any_size(self, step, size):
        moments = moments_of(clip=0.01)
        pairs = neighbours(torch.zeros(10, 64), torch.arange(10))
        moved = farthest(moments, step, pairs, coordinates=size * coordinates_of(moments, step))
        if 0.1 < size < 1e150:  # what is longer than 1 is shortened, up to where its length overflows
            assert moved > 0.99

    @pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 0.0, 1.0])
    def test_values(self, step, value):
        moments = moments_of(clip=0.01)
        pairs = neighbours(torch.zeros(10, 64), torch.arange(10))
        whole = torch.full((moments.config.coefficients,) * 2, value)  # of rank 1 at most
        farthest(moments, step, pairs, coordinates=whole)
        one = coordinates_of(moments, step)
        one[3, 2] = value
        assert farthest(moments, step, pairs, coordinates=one) > 0.99

    def test_a_long_one_is_shortened_and_nothing_else(self, step):
        points, labels = digits()
        moments, sample = moments_of(), Sample(points[:100], labels[:100])
        own = coordinates_of(moments, step)
        same = what_is_noised(moments, step, sample, coordinates=own / own.norm())
        for times in (2.0, 1024.0):
            assert same_bits(same, what_is_noised(moments, step, sample, coordinates=times * own))

    @pytest.mark.parametrize(
        ("shape", "frequencies"), [((1, 8, 8), 6), ((1, 28, 28), 20), ((3, 32, 32), 8)], ids=str
    )
    def test_the_largest_deviations(self, step, shape, frequencies):
        """A centre opposite to the record, W along the line between them: W v and its length are exact."""
        moments = moments_of(shape, classes=0, components=1, frequencies=frequencies)
        k, draws = moments.config.coefficients, torch.Generator().manual_seed(0)
        image = (torch.rand(moments.config.points, generator=draws) < 0.9) * 2.0 - 1
        sample = Sample(image.repeat(8, 1))
        own = moments.coefficients(image[None])[0]
        lengths, clipped = [], moments._clipped
        moments._clipped = lambda vectors, radius: (lengths.append(vectors), clipped(vectors, radius))[1]
        for _ in range(12):
            little = 1e-3 * torch.randn(2, k, generator=draws, dtype=torch.float64)
            centres = (2.0**moments._half * (little[0] - own / own.norm())).view(1, 1, k)
            deviation = own - moments.place(centres)[0, 0]
            matrix = torch.zeros(k, k, dtype=torch.float64)
            matrix[0] = deviation / deviation.norm() + little[1]
            whole = what_is_noised(moments, step, sample, centres=centres, coordinates=matrix, chunk=8)
            split = what_is_noised(moments, step, sample, centres=centres, coordinates=matrix, chunk=1)
            assert same_bits(whole, split)
            grid = moments._matrix(matrix)
            products = zip(grid[0].tolist(), deviation.tolist(), strict=True)
            assert Fraction(float((deviation @ grid.T)[0])) == sum(
                Fraction(a) * Fraction(b) for a, b in products
            )
        for vector in (vectors[0] for vectors in lengths):
            steps = vector * 2.0**moments._bits
            assert torch.equal(steps, steps.round())
            assert Fraction(float((vector * vector).sum())) == sum(Fraction(x) ** 2 for x in vector.tolist())

    def test_sums_half_way_between_steps(self, step):
        """A last bit of W v would decide whether a record adds a vector of norm 1 or nothing at all."""
        moments = moments_of(classes=0, components=1, clip=1e-20)
        k, draws = moments.config.coefficients, torch.Generator().manual_seed(0)
        record = Sample(torch.ones(1, 64))
        centres = (moments.coefficients(record.points) - 1 / 8).view(1, 1, k)
        for _ in range(20):
            matrix = torch.rand(k, k, generator=draws, dtype=torch.float64) / k**2  # not shortened
            matrix[:, -1] = 4 * 2.0**-moments._bits - matrix[:, :-1].sum(1)
            alone = what_is_noised(moments, step, record, centres=centres, coordinates=matrix)
            for count in (2, 4, 8, 64):
                many = Sample(record.points.repeat(count, 1))
                for chunk in (1, 3, count):
                    found = what_is_noised(
                        moments, step, many, chunk=chunk, centres=centres, coordinates=matrix
                    )
                    assert same_bits([count * part for part in alone], found)

    def test_another_shape_is_refused(self, step):
        moments = moments_of()
        for shape in [(21, 20), (21,), (1, 21, 21), (0, 0)]:
            with pytest.raises(ValueError, match="coordinates") as error:
                what_is_noised(moments, step, Sample(torch.ones(1, 64)), coordinates=torch.ones(shape))
            assert "\n" not in str(error.value)


class TestExact:
    @pytest.mark.parametrize("shape", [(1, 8, 8), (3, 5, 4), (1, 1, 9), (1, 28, 28)])
    @pytest.mark.parametrize("frequencies", [1, 4, 100])
    def test_coefficients(self, shape, frequencies):
        moments = moments_of(shape, frequencies=frequencies)
        points = torch.rand(12, math.prod(shape), generator=torch.Generator().manual_seed(0)) * 2 - 1
        found = moments.coefficients(points)
        np.testing.assert_allclose(found, low_frequencies(moments.config, points), atol=2e-6)

    def test_the_generator_turns_them_back_into_images(self):
        """With all frequencies, a mixture without spread renders the image that its centre is."""
        from dpsinkhorn.generators import build_generator, draw_latents

        points, _ = digits()
        moments = moments_of(classes=0, components=1, frequencies=15)
        generator = build_generator(moments.config, seed=0)
        with torch.no_grad():
            generator.centres.copy_(moments.coefficients(points[:1])[None])
            generator.factors.zero_()
            image = generator(draw_latents(1, moments.config.latent), None)
        torch.testing.assert_close(image.flatten(), points[0], atol=1e-5, rtol=0)

    @pytest.mark.parametrize("step", STEPS)
    def test_sums_do_not_depend_on_order_or_company(self, step):
        points, labels = digits()
        moments = moments_of()
        whole = what_is_noised(moments, step, Sample(points[:500], labels[:500]), chunk=500)
        order = torch.randperm(500, generator=torch.Generator().manual_seed(3))
        for chunk in (1, 13, 499):
            other = what_is_noised(moments, step, Sample(points[order], labels[order]), chunk=chunk)
            assert same_bits(whole, other)

    @pytest.mark.parametrize("step", STEPS)
    def test_a_sum_is_that_of_its_records_as_fractions(self, step):
        points, labels = digits()
        moments = moments_of(frequencies=3)

        def fractions(start, stop):
            parts = what_is_noised(moments, step, Sample(points[start:stop], labels[start:stop]))
            return [Fraction(value) for part in parts for value in part.flatten().tolist()]

        total = fractions(0, 1)
        for row in range(1, 60):
            total = [a + b for a, b in zip(total, fractions(row, row + 1), strict=True)]
        assert fractions(0, 60) == total

    @pytest.mark.parametrize("scaled", [False, True])
    @pytest.mark.parametrize("clip", CLIPS)
    def test_against_the_reference(self, clip, scaled):
        """Records one by one, in numpy: up to the grids, whose steps are public."""
        points, labels = digits()
        moments = moments_of(clip=clip)
        centres = public(moments, "centres")
        labels = labels[:300].clone()
        labels[::50] = 99  # of no class
        sample = [Sample(points[:300], labels)]
        matrix = coordinates_of(moments, "centres") if scaled else None
        radius = given(moments, "centres" if scaled else "common covariance")[1]
        sums, counts = moments.clipped_deviations(sample, centres, radius, matrix)
        squares, none = moments.clipped_squares(sample, centres, radius, matrix, pooled=False)
        assert none is None
        expected = reference(
            moments.config,
            points[:300].numpy(),
            labels.numpy(),
            centres.numpy(),
            radius,
            None if matrix is None else matrix.numpy(),
        )
        np.testing.assert_array_equal(counts, expected[1])
        np.testing.assert_allclose(sums, expected[0], atol=300 * 2e-4)
        np.testing.assert_allclose(squares, expected[2], atol=300 * 2e-4)
        pooled = moments.clipped_squares(sample, centres, radius, matrix, pooled=True)[0][0]
        np.testing.assert_allclose(squares.sum(0), pooled)

    @pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
    @pytest.mark.parametrize("step", STEPS)
    def test_a_gpu_finds_the_same_bits(self, step):
        points, labels = digits()
        moments = moments_of()
        here = what_is_noised(moments, step, Sample(points[:500], labels[:500]))
        matrix = coordinates_of(moments, step)
        there = what_is_noised(
            moments,
            step,
            Sample(points[:500].cuda(), labels[:500].cuda()),
            centres=public(moments, step).cuda(),
            coordinates=None if matrix is None else matrix.cuda(),
        )
        assert same_bits(here, there)

    def test_too_many_records_for_exact_sums_are_refused(self):
        with pytest.raises(ValueError, match="lower frequencies") as error:
            moments_of((1, 64, 64), classes=0, frequencies=60, most=2**40)
        assert "\n" not in str(error.value)

    @pytest.mark.parametrize("clip", [1e-40, 1e40])
    def test_a_clip_out_of_range_is_refused(self, clip):
        with pytest.raises(ValueError, match="clip"):
            moments_of(clip=clip)

    @pytest.mark.parametrize("clip", [1e-28, 1e28])
    def test_an_extreme_clip(self, clip):
        moments = moments_of(clip=clip)
        pairs = neighbours(torch.zeros(10, 64), torch.arange(10))
        for step in STEPS:
            farthest(moments, step, pairs)


class TestNoise:
    """With no records at all, what is released is the noise."""

    def values(self, sigma=1.7):
        moments = moments_of(sigma=sigma)
        noise = SeededNoise(8)
        empty = [Sample(torch.empty(0, 64), torch.empty(0, dtype=torch.int64))]
        found = {"deviations": [], "counts": [], "diagonal": [], "above": []}
        k = moments.config.coefficients
        rows, columns = torch.triu_indices(k, k, 1)
        for _ in range(30):
            centres, radius, matrix = given(moments, "centres")
            sums = moments.deviations(empty, centres, radius, noise, coordinates=matrix)
            found["deviations"].append(sums.deviations.flatten())
            found["counts"].append(sums.counts.flatten())
            released = moments.squares(empty, centres, radius, noise, pooled=False, coordinates=matrix)
            squares = released.matrices
            assert torch.equal(squares, squares.mT)
            found["diagonal"].append(squares.diagonal(dim1=1, dim2=2).flatten())
            found["above"].append(squares[:, rows, columns].flatten())
        return {name: torch.cat(values).numpy() for name, values in found.items()}

    def test_variances(self):
        """The claim is noise σ on each coordinate of what moves by at most 1, squares counted above once."""
        sigma, both = 1.7, math.sqrt(1.09)
        scales = {"deviations": both, "counts": both / 0.3, "diagonal": 1, "above": math.sqrt(0.5)}
        for name, values in self.values(sigma).items():
            scaled = values / (scales[name] * sigma)
            low, high = stats.chi2.ppf([1e-6, 1 - 1e-6], len(scaled)) / len(scaled)
            assert low < (scaled**2).mean() < high, name
            assert stats.kstest(scaled, "norm").pvalue > 1e-6, name

    def test_all_coordinates_of_a_step_are_counted_for_rounding(self, monkeypatch):
        """The lattice widens the noise by what all numbers of the release cost together."""
        seen, original = [], base.add_gaussian

        def watch(values, **options):
            seen.append((values.numel(), options["coordinates"], options["sensitivity"]))
            return original(values, **options)

        monkeypatch.setattr(base, "add_gaussian", watch)
        moments = moments_of()
        kinds, k = 10, moments.config.coefficients
        moments.squares([], public(moments, "covariances"), 1.0, SeededNoise(0), pooled=False)
        moments.deviations([], public(moments, "centres"), 1.0, SeededNoise(0))
        assert seen[0] == (kinds * k, kinds * k * (k + 1) // 2, 1.0)
        assert seen[1] == (kinds * k * (k - 1) // 2, kinds * k * (k + 1) // 2, pytest.approx(math.sqrt(0.5)))
        assert seen[2] == (kinds * 3 * k, kinds * 3 * (k + 1), pytest.approx(math.sqrt(1.09)))
        assert seen[3] == (kinds * 3, kinds * 3 * (k + 1), pytest.approx(math.sqrt(1.09) / 0.3))


class TestAudit:
    """A canary alone, or nothing: what the real code releases of it, against the claim."""

    @pytest.mark.parametrize("step", STEPS)
    def test_below_the_claim_and_above_half_of_it(self, step):
        moments = moments_of((1, 2, 2), classes=2, components=2, clip=0.5, sigma=1.0, frequencies=3)
        centres, radius, matrix = given(moments, step)
        canary = Sample(torch.ones(1, 4), torch.tensor([1]))
        nothing = Sample(torch.empty(0, 4), torch.empty(0, dtype=torch.int64))
        both = math.sqrt(1.09)

        def scaled(deviations, counts):
            return torch.cat([deviations.flatten(), 0.3 * counts.flatten()]) / both

        def released(sample, noise):
            if step in ("means", "centres"):
                sums = moments.deviations([sample], centres, radius, noise, coordinates=matrix)
                return scaled(sums.deviations, sums.counts)
            pooled = step == "common covariance"
            found = moments.squares([sample], centres, radius, noise, pooled=pooled, coordinates=matrix)
            return found.matrices.flatten()

        parts = what_is_noised(moments, step, canary)
        move = scaled(*parts) if len(parts) == 2 else parts[0].flatten()
        assert 0.999 < float(move.norm()) <= 1
        noise = SeededNoise(4)
        present, absent = (
            np.array([float(released(sample, noise) @ move) for _ in range(1200)])
            for sample in (canary, nothing)
        )
        claimed = epsilon(MomentsMechanism(0.5, 1.0).charge(), 1e-5)
        found = sampled_gaussian_bound(
            present - 0.5, absent - 0.5, sampling_rate=1.0, steps=1, delta=1e-5, confidence=0.95
        )
        assert claimed / 2 < found.epsilon < claimed
        assert 0 < threshold_bound(present, absent, delta=1e-5).epsilon < claimed
