"""The private two-sample test: sensitivity, noise, audit, level, power, ledger, bad input."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import integrate, stats

from dpsinkhorn.ot import Cost, as_cost, sliced_cost, whole_bases
from dpsinkhorn.privacy import Budget, BudgetExceededError, Ledger, SeededNoise, epsilon, read_ledger
from dpsinkhorn.transport import Clouds, Setting, TransportError, TwoSampleMechanism, private_test
from dpsinkhorn.transport.statistics import kernel, mmd, sliced

BOUND = 2.0
STATISTICS = ("mmd", "sliced", "exact")


def clouds(x, y, **options) -> Clouds:
    return Clouds.of(x, y, cost_bound=BOUND, **{"cost": "euclidean", **options})


def plan(n: int, m: int, statistic: str, epsilon: float = 1.0, **options) -> TwoSampleMechanism:
    setting = Setting(n, m, BOUND, dimension=2, paired=options.pop("paired", False))
    return TwoSampleMechanism.plan(setting, statistic, epsilon=epsilon, **options)


OPTIONS_OF_EFFECT = {"epsilon": 100, "cost_bound": BOUND, "effect_share": 0.5, "noise": SeededNoise(0)}


class Chebyshev(Cost):
    def pairwise(self, x, y):
        return (x[:, None] - y[None]).abs().amax(-1)


class TestSensitivity:
    @pytest.mark.parametrize("paired", [False, True])
    @pytest.mark.parametrize("statistic", STATISTICS)
    def test_no_neighbours_are_farther_apart(self, statistic, paired):
        """For every labelling, and for what is released."""
        rng = np.random.default_rng(0)
        far, farthest, most = 1e3, 0.0, 0.0
        for run in range(40):
            n, m = (5, 5) if paired else tuple(rng.integers(2, 8, size=2))
            mechanism = plan(n, m, statistic, permutations=19, paired=paired)
            places = np.array([[0.0, 0.0], [far, 0.0], [0.0, far]])
            x, y = (
                (rng.random((size, 2)) if run % 2 else places[rng.integers(2, size=size)]) for size in (n, m)
            )
            other = [x.copy(), y.copy()]
            for side in (0, 1) if paired else (int(rng.integers(2)),):
                other[side][0] = places[rng.integers(3)]
            seen = []
            for data in ((x, y), other):
                noise = SeededNoise(run)
                values, at = mechanism.values(clouds(*data, paired=paired), noise)
                seen.append((values, mechanism.excess(values, at, noise)))
            moved = float((seen[0][0] - seen[1][0]).abs().max())
            assert moved <= mechanism.moves
            assert abs(seen[0][1] - seen[1][1]) <= mechanism.sensitivity
            farthest = max(farthest, moved / mechanism.moves)
            most = max(most, float(abs(seen[0][1] - seen[1][1])) / mechanism.sensitivity)
        assert farthest > (0.5 if statistic == "sliced" else 0.7 if paired else 0.98)
        assert most > 0.3

    @pytest.mark.parametrize("name", ["euclidean", "sqeuclidean", "cityblock", "l1l2"])
    def test_kernels(self, name):
        """Positive definite, from 0 to 1, whatever the distances."""
        points = torch.from_numpy(np.random.default_rng(0).random((60, 3)) * 5)
        points[0] = 1e300
        k = kernel(as_cost(name), 1.0)(points, points)
        assert k.diagonal().eq(1).all()
        assert 0 <= k.min() <= k.max() <= 1
        assert torch.linalg.eigvalsh(k).min() > -1e-12

    def test_mmd_is_what_it_says(self):
        rng = np.random.default_rng(0)
        x, y = torch.from_numpy(rng.random((7, 2))), torch.from_numpy(rng.random((4, 2)))
        k = kernel(as_cost("euclidean"), BOUND)
        assert k(x, y)[2, 3] == pytest.approx(math.exp(-32 * float((x[2] - y[3]).square().sum()) / BOUND**2))
        labels = (torch.arange(11) < 7)[None]
        expected = math.sqrt(k(x, x).mean() + k(y, y).mean() - 2 * k(x, y).mean())
        assert float(mmd(torch.cat([x, y]), labels, k)) == pytest.approx(expected, rel=1e-9)

    def test_sliced_is_the_mean_along_lines(self):
        rng = np.random.default_rng(0)
        pool = torch.from_numpy(rng.random((9, 2)).round(1))  # with equal projections
        labels = torch.from_numpy(rng.permuted(np.tile(np.arange(9) < 4, (5, 1)), axis=1))
        found = sliced(pool @ whole_bases(2).T, labels)
        for row, value in zip(labels, found, strict=True):
            assert float(value) == pytest.approx(sliced_cost(pool[row], pool[~row]), abs=1e-12)

    def test_rounding_is_within_what_is_claimed(self):
        mechanism = plan(300, 200, "mmd", permutations=19)
        same = clouds(np.zeros((300, 2)), np.zeros((200, 2)))
        values, _ = mechanism.values(same, SeededNoise(0))
        assert values.max() < mechanism.rounding < 1e-3 * mechanism.moves

    @pytest.mark.parametrize("statistic", STATISTICS)
    def test_values_are_of_the_data(self, statistic):
        rng = np.random.default_rng(1)
        x, y = rng.random((6, 2)), rng.random((4, 2))
        mechanism = plan(6, 4, statistic, permutations=19)
        found = [mechanism.values(clouds(x, y), SeededNoise(seed)) for seed in range(6)]
        assert len({at for _, at in found}) > 2
        own = [float(values[at]) for values, at in found]
        assert np.ptp(own) < 2 * (mechanism.gap + mechanism.rounding)
        assert found[0][0].std() > 0.01


class TestNoise:
    def test_law(self):
        """The margin's own noise, and that of those it is compared with, have one law."""
        mechanism = plan(4, 4, "mmd", epsilon=0.5, permutations=1, level=0.5)
        assert mechanism.scale == pytest.approx(2 * math.sqrt(2) / 4 / 0.5, rel=1e-4)
        noise, values = SeededNoise(0), torch.zeros(2).double()
        own = [mechanism.margin(torch.tensor(0.0).double(), noise) for _ in range(2000)]
        others = [float(mechanism.excess(values, 0, noise)) for _ in range(2000)]
        for draws in (own, others):
            scaled = np.array(draws) / mechanism.scale
            assert stats.kstest(scaled, stats.laplace.cdf).pvalue > 1e-3
            assert scaled.std() == pytest.approx(math.sqrt(2), rel=0.1)

    def test_audit_is_below_the_claim_and_near_it(self):
        """Values as far apart as neighbours' can be: the statistic up by Δ, all others down by Δ."""
        target, runs = 1.0, 4000
        mechanism = plan(4, 4, "mmd", epsilon=target, permutations=1, level=0.5)
        up = torch.tensor([mechanism.moves, -mechanism.moves]).double()
        excess = [mechanism.excess(values, 0, SeededNoise(3)) for values in (up, torch.zeros(2).double())]
        assert 0.99 * mechanism.sensitivity < excess[0] - excess[1] <= mechanism.sensitivity
        noise = SeededNoise(1)
        above = [sum(mechanism.margin(e, noise) >= excess[0] for _ in range(runs)) for e in excess]
        low = stats.beta.ppf(0.005, above[0], runs - above[0] + 1)
        high = stats.beta.ppf(0.995, above[1] + 1, runs - above[1])
        assert 0.8 * target < math.log(low / high) < target
        assert epsilon(mechanism.charge, 0.0) == pytest.approx(target)

    def test_a_rank_would_not_be_private(self):
        """Point 5 of the proof, for B = 400 and ε = 8: the middle rank is more than e^ε times as likely."""
        target, count, upper = 8.0, 400, 202  # of those at Δ
        b = 2 / target  # in units of Δ
        at = stats.laplace(scale=b)

        def chance(own: float, groups: list[tuple[int, float]]) -> float:
            def density(t: float) -> float:
                (n1, first), (n2, second) = groups
                j = np.arange(count // 2 + 1)  # of the first group at least t
                both = stats.binom.pmf(j, n1, at.sf(t - first)) * stats.binom.pmf(
                    count // 2 - j, n2, at.sf(t - second)
                )
                return float(at.pdf(t - own) * both.sum())

            return float(integrate.quad(density, -2, 3, points=[-1, 0, 1, 2], limit=400)[0])

        before = chance(2.0, [(count // 2, 0.0), (count // 2, 0.0)])
        after = chance(1.0, [(upper, 1.0), (count - upper, -1.0)])
        assert after / before > 1.3 * math.exp(target)

    def test_intervals_cover_as_often_as_they_say(self):
        x, y = np.random.default_rng(0).random((2, 8, 2))
        for statistic in STATISTICS:
            mechanism, noise, inside = plan(8, 8, statistic, permutations=1, level=0.5), SeededNoise(3), 0
            values, at = mechanism.values(clouds(x, y), SeededNoise(0))
            for _ in range(300):
                found = private_test(
                    x, y, epsilon=4, cost_bound=BOUND, statistic=statistic, permutations=1, level=0.5,
                    effect_share=0.5, confidence=0.8, noise=noise,
                )  # fmt: skip
                inside += found.effect_interval[0] <= float(values[at]) <= found.effect_interval[1]
            assert 0.74 < inside / 300 < 0.9

    def test_intervals_of_populations(self):
        """Of one population, at 0, where those of the samples never are."""
        rng, covered, of_samples = np.random.default_rng(0), 0, 0
        for run in range(40):
            x, y = rng.random((2, 60, 2))
            found = private_test(
                x, y, epsilon=100, cost_bound=BOUND, permutations=1, level=0.5, effect_share=0.5,
                confidence=0.5, noise=SeededNoise(run),
            )  # fmt: skip
            covered += found.population_interval[0] == 0
            of_samples += found.effect_interval[0] == 0
        assert (covered, of_samples) == (40, 0)
        shifted = private_test(
            x, y + 3, epsilon=100, cost_bound=BOUND, effect_share=0.5, noise=SeededNoise(0)
        )
        assert 0 < shifted.population_interval[0] < shifted.effect < shifted.population_interval[1]
        exact = private_test(x, y, **OPTIONS_OF_EFFECT, statistic="exact", permutations=1, level=0.5)
        assert exact.population_interval[0] == 0 < exact.effect < exact.population_interval[1]
        lines = private_test(x, y + 3, **OPTIONS_OF_EFFECT, statistic="sliced")
        assert lines.population_interval[0] < lines.effect < lines.population_interval[1]


class TestLevel:
    @pytest.mark.parametrize(
        ("statistic", "n", "m", "runs", "discrete", "paired"),
        [
            ("mmd", 30, 20, 600, False, False),
            ("mmd", 12, 12, 600, True, False),
            ("mmd", 25, 25, 600, False, True),
            ("exact", 12, 9, 300, False, False),
            ("sliced", 20, 30, 300, False, False),
        ],
    )
    def test_at_most_what_it_says_and_near_it(self, statistic, n, m, runs, discrete, paired):
        rng, rejected = np.random.default_rng(0), 0
        for run in range(runs):
            x, y = rng.random((n, 2)), rng.random((m, 2))
            if discrete:
                x, y = x.round(), y.round()
            if paired:  # far from independent, but exchangeable
                common = rng.normal(size=(n, 2))
                x, y = x + common, y + common
            found = private_test(
                x, y, epsilon=8, cost_bound=BOUND, statistic=statistic, level=0.1, permutations=19,
                paired=paired, noise=SeededNoise(run),
            )  # fmt: skip
            rejected += found.rejected
        assert stats.binomtest(rejected, runs, 0.1, alternative="greater").pvalue > 1e-3
        assert rejected > 0.04 * runs

    def test_equal_values_do_not_reject(self):
        """With next to no noise: all points in one place."""
        x = np.zeros((20, 2))
        found = [private_test(x, x, epsilon=1e12, cost_bound=BOUND, noise=SeededNoise(s)) for s in range(40)]
        assert sum(each.rejected for each in found) <= 7

    def test_the_rank_is_never_rounded_up(self):
        assert plan(2, 2, "mmd", level=0.05, permutations=199).rank == 10
        assert plan(2, 2, "mmd", level=math.nextafter(0.05, 0), permutations=199).rank == 9


class TestPower:
    @pytest.mark.parametrize(
        ("statistic", "n", "paired"),
        [("mmd", 200, False), ("mmd", 200, True), ("sliced", 100, False), ("exact", 60, False)],
    )
    def test_a_shift_is_seen(self, statistic, n, paired):
        rng = np.random.default_rng(0)
        found = [
            private_test(
                rng.normal(0.5, 0.1, (n, 2)), rng.normal(0.7, 0.1, (n, 2)), epsilon=2, cost_bound=1.5,
                statistic=statistic, permutations=39, paired=paired, effect_share=0.25,
                noise=SeededNoise(run),
            )
            for run in range(8)
        ]  # fmt: skip
        assert sum(each.rejected for each in found) >= 7
        assert all((each.p_value == 0.05) == each.rejected for each in found)
        assert found[0].effect is not None


class TestLedger:
    def test_charged_before_any_cost_is_computed(self, tmp_path):
        class Own(Cost):
            def pairwise(self, x, y):
                assert not torch.cat([x, y]).any(), "looked"
                return torch.zeros(len(x), len(y)).double()

        x, y = [[1.0], [2.0]], [[1.0]]
        with Ledger.open(tmp_path / "ledger", epsilon, budget=Budget(0.5, 0.0)) as ledger:
            with pytest.raises(BudgetExceededError):
                private_test(x, y, epsilon=1, cost_bound=1, cost=Own(), ledger=ledger)
            assert ledger.epsilon() == 0
            with pytest.raises(AssertionError, match="looked"):
                private_test(x, y, epsilon=0.5, cost_bound=1, cost=Own(), ledger=ledger)
            assert ledger.epsilon() == pytest.approx(0.5)

    @pytest.mark.parametrize("share", [0.0, 0.1, 1 / 3, 0.7])
    @pytest.mark.parametrize("target", [0.1, 3.0, 49.0])
    def test_a_budget_of_its_own_epsilon_is_enough(self, tmp_path, target, share):
        path = tmp_path / "ledger"
        found = private_test(
            [[1.0], [2.0]], [[1.0]], epsilon=target, cost_bound=1, effect_share=share, ledger=path
        )
        assert not found.seeded
        assert epsilon(read_ledger(path).total(), 0.0) == pytest.approx(target)
        assert (found.effect is None) == (share == 0)


GOOD = {"x": [[0.0], [1.0]], "y": [[1.0]], "epsilon": 1.0, "cost_bound": 1.0}


class TestBadInput:
    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"epsilon": 0.0}, "epsilon must be a positive number"),
            ({"epsilon": 1e-12}, "no noise can be had"),
            ({"epsilon": 1e-7, "effect_share": 0.01}, "no noise can be had"),
            ({"cost_bound": float("nan")}, "cost_bound must be a positive number"),
            ({"level": 0.0}, "level must be between 0 and 1"),
            ({"level": "5%"}, "level must be between 0 and 1"),
            ({"level": 0.001}, "permutations must be at least 999 at level 0.001, not 199"),
            ({"permutations": 0}, "permutations must be a whole number"),
            ({"permutations": 19.0}, "permutations must be a whole number"),
            ({"statistic": "ks"}, "statistic must be auto, mmd, sliced or exact"),
            ({"statistic": "mmd", "cost": Chebyshev()}, "mmd needs a cost of"),
            ({"statistic": "sliced", "cost": "cityblock"}, "sliced methods are of the Euclidean distance"),
            ({"center": [1.0, 2.0, 3.0]}, "center must be a point"),
            ({"effect_share": 1.0}, "effect_share must be from 0 to below 1"),
            ({"confidence": 1.0}, "confidence"),
            ({"paired": True}, "row i of x and row i of y"),
            ({"x": [[float("nan")]]}, "not finite"),
            ({"y": [[1.0, 2.0]]}, "same number of columns"),
            ({"noise": 3}, "noise must be"),
            ({"budget": 2.0}, "budget is that of a new ledger"),
        ],
    )
    def test_one_line_and_nothing_is_spent(self, tmp_path, change, message):
        with Ledger.open(tmp_path / "ledger", epsilon, budget=Budget(9.0, 0.0)) as ledger:
            with pytest.raises(TransportError, match=message) as caught:
                private_test(**{**GOOD, "ledger": ledger, **change})
            assert ledger.epsilon() == 0
        assert "\n" not in str(caught.value)

    def test_a_cost_of_ones_own_takes_the_exact_statistic(self):
        found = private_test(**GOOD, cost=Chebyshev(), noise=SeededNoise(0))
        assert (found.statistic, found.seeded) == ("exact", True)
        assert private_test(**GOOD).statistic == "mmd"
