"""The direct mechanism: sensitivity on real neighbours, noise, an audit, and what must not be shown."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
import torch
from scipy import stats

from dpsinkhorn.ot import (
    L1L2,
    Cityblock,
    Cost,
    Euclidean,
    MatrixProblem,
    Problem,
    SquaredEuclidean,
    native,
    solve,
)
from dpsinkhorn.privacy import (
    Adjacency,
    Budget,
    BudgetExceededError,
    Ledger,
    RecordMechanism,
    SeededNoise,
    epsilon,
)
from dpsinkhorn.transport import (
    Clouds,
    DirectMechanism,
    Setting,
    TransportError,
    certified,
    cost_sensitivity,
    private_cost,
)
from dpsinkhorn.transport.certified import certified_value, evaluate, rounding, sinkhorn_until
from support.problems import exact_cost

BOUND = 2.0


def clouds(x, y, **options) -> Clouds:
    return Clouds.of(x, y, cost_bound=BOUND, **options)


def plan(setting: Setting, quantity: str, regularization: float, epsilon: float = 1.0, **options):
    return DirectMechanism.plan(setting, quantity, regularization=regularization, epsilon=epsilon, **options)


def value(x, y, quantity: str, regularization: float) -> float:
    """The quantity itself, by a linear program or a solve to 1e-12."""
    both = clouds(x, y)
    if quantity == "exact":
        n, m = both.setting.n, both.setting.m
        return exact_cost(both.costs().numpy(), np.full(n, 1 / n), np.full(m, 1 / m))
    w = {s: float(solve(both.problem(s), regularization, tolerance=1e-12).value) for s in ("xy", "xx", "yy")}
    return w["xy"] if quantity == "entropic" else 2 * w["xy"] - w["xx"] - w["yy"]


def neighbours(rng: np.random.Generator, n: int, m: int):
    """A data set and one that differs in one point: random ones, and ones at the extremes of the cost."""
    far = math.sqrt(BOUND) * 1.01
    kind = rng.integers(3)
    places = np.array([[0.0, 0.0], [far, 0.0], [0.0, far], [far / 2, 0.0]])
    if kind == 0:
        x, y, new = rng.normal(size=(n, 2)), rng.normal(size=(m, 2)), rng.normal(size=2) * 5
    else:
        top = 2 if kind == 1 else 4
        x, y, new = (places[rng.integers(top, size=size)] for size in (n, m, 1))
        new = new[0]
    x2, y2 = x.copy(), y.copy()
    side = rng.integers(2)
    (x2, y2)[side][0] = new
    return (x, y), (x2, y2), "xy"[side]


class TestSensitivity:
    @pytest.mark.parametrize(
        ("quantity", "regularization"),
        [("exact", 0.0), ("entropic", 0.05), ("entropic", 2.0), ("divergence", 0.1), ("divergence", 20.0)],
    )
    def test_no_neighbours_are_farther_apart(self, quantity, regularization):
        rng = np.random.default_rng(1)
        worst = {"x": 0.0, "y": 0.0}
        for _ in range(120):
            n, m = (int(size) for size in rng.integers(1, 7, size=2))
            first, second, side = neighbours(rng, n, m)
            change = abs(value(*first, quantity, regularization) - value(*second, quantity, regularization))
            public = {"x": "y", "y": "x"}[side]
            allowed = cost_sensitivity(Setting(n, m, BOUND, public), quantity)
            assert change <= allowed * (1 + 1e-9)
            assert allowed <= cost_sensitivity(Setting(n, m, BOUND), quantity)
            worst[side] = max(worst[side], change / allowed)
        least = 0.45 if quantity == "divergence" else 0.99  # the search comes near the bound
        assert min(worst.values()) > least

    @pytest.mark.parametrize("regularization", [0.0, 0.1, 10.0])
    def test_the_bound_of_a_cost_is_attained(self, regularization):
        n, m = 7, 4
        x, y, moved = np.zeros((n, 1)), np.zeros((m, 1)), np.zeros((n, 1))
        moved[0] = 100.0
        quantity = "entropic" if regularization else "exact"
        change = value(moved, y, quantity, regularization) - value(x, y, quantity, regularization)
        assert change == pytest.approx(BOUND / n, rel=1e-9)
        change = value(y, moved, quantity, regularization) - value(y, x, quantity, regularization)
        assert change == pytest.approx(BOUND / n, rel=1e-9)

    @pytest.mark.parametrize("n", [5, 20, 80])
    def test_the_bound_of_the_divergence_is_approached(self, n):
        x, y = np.zeros((n, 1)), np.full((n, 1), 100.0)
        moved = x.copy()
        moved[0] = 100.0  # from among the others x to among the y
        change = value(x, y, "divergence", 1e3 * BOUND) - value(moved, y, "divergence", 1e3 * BOUND)
        allowed = cost_sensitivity(Setting(n, n, BOUND), "divergence")
        assert change == pytest.approx((1 - 0.5 / n) * allowed, rel=1e-2)
        assert change <= allowed

    def test_one_person_on_both_sides_adds_up(self):
        n = 6
        x, y = np.zeros((n, 1)), np.zeros((n, 1))
        moved = [cloud.copy() for cloud in (x, y)]
        moved[0][0], moved[1][0] = 100.0, -100.0
        change = value(*moved, "entropic", 1e3) - value(x, y, "entropic", 1e3)
        assert BOUND / n * 1.5 < change <= cost_sensitivity(Setting(n, n, BOUND, paired=True), "entropic")

    def test_the_linear_part_exceeds_it_and_must_not_be_released_with_it(self):
        """<C, P> moves by more than c̄/n: the plan moves too."""
        costs = (
            torch.tensor([[0.5, 1.0], [0.0, 1.0]]).double(),
            torch.tensor([[1.0, 0.0], [0.0, 1.0]]).double(),
        )
        results = [solve(MatrixProblem(c), 0.2) for c in costs]  # one row is replaced; c̄ = 1, n = 2
        change = abs(float(results[0].value_linear - results[1].value_linear))
        assert change > 1.09 * 1.0 / 2
        assert abs(float(results[0].value - results[1].value)) <= 1.0 / 2

    def test_what_is_computed_stays_within_the_sensitivity(self):
        rng = np.random.default_rng(5)
        for quantity, regularization in (("entropic", 0.1), ("exact", 0.0), ("divergence", 0.5)):
            for _ in range(40):
                n, m = (int(size) for size in rng.integers(1, 9, size=2))
                first, second, _ = neighbours(rng, n, m)
                mechanism = plan(Setting(n, m, BOUND, dimension=2), quantity, regularization, gap=0.3)
                values = [mechanism.value(clouds(*each)) for each in (first, second)]
                assert abs(values[0] - values[1]) <= mechanism.sensitivity
                assert mechanism.sensitivity >= cost_sensitivity(mechanism.setting, quantity) + 0.3


class TestRounding:
    @pytest.mark.parametrize("cost", [SquaredEuclidean(), Euclidean(), L1L2(0.5), L1L2(0.0), Cityblock()])
    @pytest.mark.parametrize("compiled", [True, False])
    def test_an_outlier_does_not_disturb_other_pairs(self, monkeypatch, cost, compiled):
        """Costs by a product of centred matrices would: one far point takes all digits from the others.

        At sizes from which on `dpsinkhorn.ot` takes that product, and where it has no compiled loops.
        """
        if not compiled:
            monkeypatch.setattr(native, "library", None)
        rng = np.random.default_rng(0)
        x, y = rng.random((2, 50 if not compiled else 1700, 3))
        far = y.copy()
        far[0] = 1e20
        for rows in (slice(None), slice(3, 20)):
            costs, other = (clouds(x, each, cost=cost).problem().block(rows) for each in (y, far))
            assert torch.equal(costs[:, 1:], other[:, 1:])
            assert bool((other[:, 0] == BOUND).all())

    def test_a_product_of_centred_matrices_would_not_do(self, monkeypatch):
        monkeypatch.setattr(native, "library", None)
        rng = np.random.default_rng(0)
        x, far = rng.random((2, 50, 3))
        costs = clouds(x, far).costs()
        far[0] = 1e20
        product = SquaredEuclidean().against(torch.tensor(far))(torch.tensor(x))[:, 1:]
        assert float((product.clamp(max=BOUND) - costs[:, 1:]).abs().max()) > 0.1

    def test_a_subclass_keeps_its_own_costs(self):
        class Twice(SquaredEuclidean):
            def pairwise(self, x, y):
                return 2 * super().pairwise(x, y)

        class Named(SquaredEuclidean):
            pass

        x, y = np.zeros((1, 1)), np.full((1, 1), 0.5)
        assert float(clouds(x, y, cost=Twice()).costs()) == 0.5
        assert float(clouds(x, y, cost=Named()).costs()) == 0.25

    def test_without_the_compiled_loops_costs_are_the_same(self, monkeypatch):
        rng = np.random.default_rng(0)
        x, y = rng.normal(size=(2, 30, 4))
        for cost in (None, Euclidean(), Cityblock(), L1L2(0.7)):
            fast = clouds(x, y, cost=cost).costs()
            with monkeypatch.context() as patch:
                patch.setattr(native, "library", None)
                slow = clouds(x, y, cost=cost).costs()
            torch.testing.assert_close(fast, slow, rtol=1e-14, atol=0)

    def test_values_are_within_the_rounding_that_is_claimed(self):
        """Against the same sums in extended precision."""
        rng = np.random.default_rng(3)
        for regularization in (1e-3, 0.1, 50.0):
            both = clouds(rng.random((40, 3)), rng.random((30, 3)))
            g = torch.tensor(rng.uniform(-1, 1, 30))
            found, _ = evaluate(both.problem(), g, regularization, BOUND)
            C = ((both.x.numpy().astype(np.longdouble)[:, None] - both.y.numpy()[None]) ** 2).sum(-1)
            C, h = np.minimum(C, BOUND), g.numpy().astype(np.longdouble)
            h = h - (h.max() + h.min()) / 2
            lam = np.longdouble(regularization)
            e = (h - C) / lam
            top = e.max(1, keepdims=True)
            f = -lam * (np.log(np.exp(e - top).mean(1)) + top[:, 0])
            assert abs(float(f.mean() + h.mean() - found)) <= rounding(both.setting, regularization)


class TestCertificate:
    @pytest.mark.parametrize("regularization", [2e-3, 0.05, 1.0, 100.0])
    def test_gap_is_above_the_true_one(self, regularization):
        rng = np.random.default_rng(2)
        both = clouds(rng.random((30, 2)), rng.random((20, 2)) + 0.3)
        best = float(solve(both.problem(), regularization, tolerance=1e-12, max_iterations=10_000).value)
        for scale in (0.0, 1e-6, 0.1, 3.0):
            g = torch.tensor(rng.normal(size=20)) * scale
            found, gap = evaluate(both.problem(), g, regularization, BOUND)
            assert -1e-12 <= best - found <= gap

    @pytest.mark.parametrize("times", [1, 10])
    def test_gap_can_be_attained(self, times):
        """Costs 0 to one y, c̄ to the other, the potential farthest from the best; wider ones are clamped."""
        both = clouds(np.zeros((3, 1)), np.array([[0.0], [9.0]]))
        best = float(solve(both.problem(), 0.01, tolerance=1e-12).value)
        start = times * torch.tensor([BOUND / 2, -BOUND / 2]).double()
        found, gap = evaluate(both.problem(), start, 0.01, BOUND)
        assert 0.99 * gap < best - found <= gap

    def test_gaps_of_a_divergence_add_up_to_its_own(self, monkeypatch):
        """W(x, y) counts twice."""
        from dpsinkhorn.transport import direct

        asked = []
        monkeypatch.setattr(direct, "certified_value", lambda *_, gap, **__: asked.append(gap) or 0.0)
        mechanism = plan(Setting(4, 3, BOUND), "divergence", 0.5)
        mechanism.value(clouds(np.zeros((4, 1)), np.zeros((3, 1))))
        cross, *own = asked
        assert 0.99 * mechanism.gap < 2 * cross + sum(own) < mechanism.gap

    def test_a_solver_that_warns_is_not_heard(self, monkeypatch):
        from dpsinkhorn.transport import direct

        monkeypatch.setattr(
            direct, "certified_value", lambda *_, **__: warnings.warn("hard data", stacklevel=1) or 0.0
        )
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            plan(Setting(1, 1, BOUND), "entropic", 0.5).value(clouds(np.zeros((1, 1)), np.zeros((1, 1))))
        assert not heard

    def test_rounding_is_paid_for(self):
        """Where n and λ are so large that it shows."""
        for quantity, times in (("entropic", 1), ("divergence", 4)):
            setting = Setting(10**6, 10**6, BOUND)
            mechanism = plan(setting, quantity, 1e4 * BOUND)
            off = times * rounding(setting, 1e4 * BOUND)
            needed = cost_sensitivity(setting, quantity) + mechanism.gap + 2 * off
            assert mechanism.sensitivity >= needed * (1 - 1e-12) > cost_sensitivity(setting, quantity) + off

    def test_reached_whatever_the_solver_does(self, monkeypatch):
        """A solver that gives up at once: Sinkhorn's own iteration goes on to the gap, in silence."""
        rng = np.random.default_rng(2)
        both = clouds(rng.random((15, 2)), rng.random((12, 2)) + 0.3)
        true = float(solve(both.problem(), 0.05, tolerance=1e-12).value)
        monkeypatch.setattr(certified, "_ATTEMPTS", ((1, 1.0),))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            found = certified_value(both.problem(), 0.05, bound=BOUND, gap=1e-7)
        assert 0 <= true - found + 1e-12 <= 1e-7 + 1e-12
        zeros = torch.zeros(12, dtype=torch.float64)
        assert sinkhorn_until(both.problem(), zeros, 0.05, bound=BOUND, gap=1e-7) == pytest.approx(
            true, abs=1e-7
        )

    def test_large_problems_start_in_float32(self, monkeypatch):
        """Coordinates that float32 cannot hold raise nothing, and the certificate is float64's."""
        rng = np.random.default_rng(2)
        x = rng.random((40, 2))
        x[0], x[1] = 1e200, -1e30
        both = clouds(x, rng.random((30, 2)) + 0.3)
        true = float(solve(both.problem(), 0.1, tolerance=1e-12).value)
        monkeypatch.setattr(certified, "_LARGE", 100)
        seen = []
        plain = certified.solve
        monkeypatch.setattr(
            certified, "solve", lambda p, *a, **o: seen.append(p.points.dtype) or plain(p, *a, **o)
        )
        found = certified_value(both.problem(), 0.1, bound=BOUND, gap=1e-5)
        assert -1e-12 <= true - found <= 1e-5
        assert seen[0] == torch.float32

    def test_sinkhorn_survives_underflow(self):
        far = Problem(torch.zeros(3, 1).double(), torch.tensor([[0.0], [30.0], [60.0]]).double())
        zeros = torch.tensor([3600.0, 0.0, -100.0], dtype=torch.float64)
        found = sinkhorn_until(far, zeros, 1.0, bound=3600.0, gap=1e-6)
        assert found == pytest.approx((900 + 3600) / 3, abs=1e-6)

    @pytest.mark.parametrize("sizes", [(1, 1), (1, 4), (6, 6), (7, 5), (40, 60), (120, 120), (200, 150)])
    def test_exact_against_a_linear_program(self, sizes):
        rng = np.random.default_rng(sum(sizes))
        both = clouds(rng.random((sizes[0], 3)), rng.random((sizes[1], 3)) + 0.2)
        uniform = [np.full(size, 1 / size) for size in sizes]
        true = exact_cost(both.costs().numpy(), *uniform)
        gap = 0.01 * BOUND / min(sizes)
        found = certified.certified_exact_value(both, gap=gap)
        assert -1e-12 <= true - found <= gap + 1e-12
        if max(sizes) < 10:
            last = certified._by_sinkhorn(both.costs().numpy(), *uniform, BOUND, 0.05)
            assert -1e-12 <= true - last <= 0.05

    def test_exact_falls_back_in_silence(self, monkeypatch):
        rng = np.random.default_rng(0)
        both = clouds(rng.random((6, 2)), rng.random((4, 2)))
        monkeypatch.setattr(certified, "_PIVOTS", 1)
        true = value(both.x.numpy(), both.y.numpy(), "exact", 0.0)
        assert 0 <= true - certified.certified_exact_value(both, gap=0.02) <= 0.02

    def test_wide_potentials_lose_no_digits(self):
        """However far a solver's potentials are spread, the bound is computed from narrow ones."""
        rng = np.random.default_rng(0)
        costs = rng.random((30, 20))
        a, b = np.full(30, 1 / 30), np.full(20, 1 / 20)
        for scale in (1.0, 1e6, 1e12):
            g = rng.normal(size=20) * scale
            found = certified._below(costs, g, a, b)
            f = (costs - g).min(1)
            h = (costs - f[:, None]).min(0).astype(np.longdouble)
            h = h - h[0]  # exactly, as both have the digits of float64
            true = (costs - h).min(1).mean() + h.mean()
            assert abs(float(true) - found) < 1e-14
            assert found <= exact_cost(costs, a, b) + 1e-12

    def test_repeated_points_and_equal_costs(self):
        assert certified.certified_exact_value(clouds(np.zeros((9, 2)), np.zeros((6, 2))), gap=1e-9) == 0.0
        same = clouds(np.zeros((9, 2)), np.full((9, 2), 50.0))
        assert certified.certified_exact_value(same, gap=1e-9) == pytest.approx(BOUND)


class TestNoise:
    def test_scale(self):
        mechanism = plan(Setting(4, 2, BOUND), "entropic", 0.5, epsilon=0.5)
        both = clouds(np.array([0.0, 0.5, 0.6, 1.0]), np.array([0.2, 1.1]))
        true = mechanism.value(both)
        noise = SeededNoise(0)
        assert mechanism.release(both, SeededNoise(1)) == mechanism.noised(true, SeededNoise(1))
        draws = np.array([mechanism.noised(true, noise) - true for _ in range(3000)])
        assert mechanism.scale == pytest.approx((BOUND / 2 * 1.01) / 0.5, rel=1e-6)
        assert stats.kstest(draws / mechanism.scale, stats.laplace.cdf).pvalue > 1e-3
        assert draws.std() == pytest.approx(math.sqrt(2) * mechanism.scale, rel=0.1)

    @pytest.mark.parametrize(("quantity", "regularization"), [("entropic", 0.5), ("exact", 0.0)])
    def test_audit_is_below_the_claim_and_near_it(self, quantity, regularization):
        target, runs = 1.0, 4000
        mechanism = plan(Setting(2, 2, BOUND), quantity, regularization, epsilon=target, gap=1e-3)
        near = clouds(np.zeros((2, 1)), np.zeros((2, 1)))
        moved = clouds(np.array([[9.0], [0.0]]), np.zeros((2, 1)))
        values, noise = [mechanism.value(data) for data in (moved, near)], SeededNoise(1)
        above = [sum(mechanism.noised(v, noise) >= values[0] for _ in range(runs)) for v in values]
        low = stats.beta.ppf(0.005, above[0], runs - above[0] + 1)
        high = stats.beta.ppf(0.995, above[1] + 1, runs - above[1])
        found = math.log(low / high)
        assert 0.8 * target < found < target
        assert epsilon(mechanism.charge, 0.0) == pytest.approx(target)

    def test_intervals_cover_as_often_as_they_say(self):
        rng = np.random.default_rng(0)
        x, y = rng.random((2, 8, 2))
        for quantity, options in (
            ("entropic", {"regularization": 0.3}),
            ("exact", {"regularization": 0}),
            ("divergence", {"regularization": 0.3, "debiased": True}),
        ):
            true = value(x, y, quantity, 0.3)
            noise = SeededNoise(3)
            inside = 0
            for _ in range(300):
                found = private_cost(
                    x, y, epsilon=2, cost_bound=BOUND, confidence=0.8, noise=noise, gap=0.05, **options
                )
                inside += found.interval[0] <= true <= found.interval[1]
            assert 0.74 < inside / 300 < 0.90
            assert found.quantity == quantity

    @pytest.mark.parametrize("regularization", [0.0, 2e-4, 0.1, 2e3])
    def test_every_gap_can_be_reached(self, regularization):
        """At a huge ε the gap asked for is below rounding; the one that is taken is not."""
        rng = np.random.default_rng(0)
        x, y = rng.random((60, 2)), rng.random((45, 2))
        for target in (1e3, 1e9):
            found = private_cost(
                x, y, epsilon=target, cost_bound=BOUND, regularization=regularization, noise=SeededNoise(0)
            )
            quantity = "entropic" if regularization else "exact"
            true = value(x, y, quantity, regularization) if regularization != 2e-4 else found.cost
            assert found.cost == pytest.approx(true, abs=1e-3)

    def test_values_never_leave_the_lattice(self):
        """At n ε in the millions the lattice of the noise would clamp a value that is far from 0."""
        x, y = np.zeros((2000, 1)), np.full((2000, 1), 1.2)
        found = private_cost(x, y, epsilon=1e6, cost_bound=BOUND, noise=SeededNoise(0))
        assert found.cost == pytest.approx(1.44, abs=1e-4)
        assert found.interval[0] <= 1.44 <= found.interval[1]


class TestLedger:
    def test_charged_before_any_cost_is_computed(self, tmp_path):
        def refuse(x, y):  # costs of one's own are tried on points at 0, never on the data
            if x.any() or y.any():
                raise AssertionError("looked at the data")
            return x.new_zeros(len(x), len(y))

        class Seen(Cityblock):
            def pairwise(self, x, y):
                return refuse(x, y)

        class Own(Cost):
            def pairwise(self, x, y):
                return refuse(x, y)

        for number, cost in enumerate((Seen(), Own())):
            with Ledger.open(tmp_path / str(number), epsilon, budget=Budget(0.5, 0.0)) as ledger:
                with pytest.raises(BudgetExceededError):
                    private_cost([0.0], [1.0], epsilon=1, cost_bound=1, cost=cost, ledger=ledger)
                assert ledger.epsilon() == 0.0
        with Ledger.open(tmp_path / "room", epsilon, budget=Budget(1.0, 0.0)) as ledger:
            with pytest.raises(AssertionError, match="looked"):
                private_cost([0.0], [1.0], epsilon=1, cost_bound=1, cost=Own(), ledger=ledger)
            assert ledger.epsilon() == pytest.approx(1.0)  # it counts, whatever happened afterwards

    @pytest.mark.parametrize("target", [0.1, 3.0, 49.0, 98.0, 103.0, 1e-4])
    @pytest.mark.parametrize("method", ["direct", "histogram"])
    def test_a_budget_of_its_own_epsilon_is_enough(self, tmp_path, target, method):
        """1/(1/49) is above 49 in float64."""
        with Ledger.open(tmp_path / "ledger", epsilon, budget=Budget(target, 0.0)) as ledger:
            private_cost(
                [0.0],
                [1.0],
                epsilon=target,
                cost_bound=1,
                method=method,
                support=[[0.0], [1.0]],
                ledger=ledger,
            )
            assert 0.999 * target < ledger.epsilon() <= target

    def test_shared_with_training(self, tmp_path):
        """Add-or-remove and replace-one meet as replace-one."""
        training = RecordMechanism(clip=1.0, noise_multiplier=2.0).sampled(0.1, 100)
        with Ledger.open(tmp_path / "ledger", epsilon, budget=Budget(20.0, 1e-5)) as ledger:
            ledger.spend(training, run="a-record-00000000")
            before = ledger.epsilon()
            private_cost([0.0, 1.0], [1.0], epsilon=1, cost_bound=1, ledger=ledger, noise=SeededNoise(0))
            total = ledger.statement().total()
            assert total.adjacency is Adjacency.REPLACE_ONE
            assert ledger.epsilon() > max(before, epsilon(training.to_replace_one(), 1e-5))

    def test_the_result_says_what_it_cost(self):
        found = private_cost([0.0, 1.0], [1.0], epsilon=0.7, cost_bound=1, noise=SeededNoise(0))
        assert epsilon(found.charge, 0.0) == pytest.approx(0.7)
        assert found.charge.adjacency is Adjacency.REPLACE_ONE
        assert found.seeded
        assert not private_cost([0.0], [1.0], epsilon=0.7, cost_bound=1).seeded


class TestRealData:
    def test_error_follows_the_bound_over_n_and_epsilon(self):
        """Digits 3 and 8 in five dimensions: measured error against c̄ / (n ε)."""
        from sklearn.datasets import load_digits
        from sklearn.decomposition import PCA

        images, labels = load_digits(return_X_y=True)
        points = PCA(5, random_state=0).fit_transform(images) / 40
        for n in (20, 80, 160):
            x, y = points[labels == 3][:n], points[labels == 8][:n]
            for target in (0.2, 5.0):
                mechanism = plan(Setting(n, n, BOUND, dimension=5), "entropic", 0.1, epsilon=target)
                true = mechanism.value(clouds(x, y))
                assert 0.05 < true < BOUND
                noise = SeededNoise(n)
                errors = [abs(mechanism.release(clouds(x, y), noise) - true) for _ in range(60)]
                assert np.mean(errors) == pytest.approx(BOUND / (n * target), rel=0.45)


class TestBadInput:
    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"epsilon": 0.0}, "epsilon must be a positive number, not 0$"),
            ({"y": [[1.0, 2.0]]}, "x and y must have the same number of columns, not 1 and 2"),
            ({"x": [[float("nan")]]}, "not finite"),
            ({"x": np.zeros((0, 1))}, "empty"),
            ({"x": np.zeros((1, 1, 1))}, "shape"),
            ({"x": ["a"]}, "numbers"),
            ({"regularization": 1e-9}, "regularization must be from"),
            ({"cost_bound": 1e250}, "cost_bound must be from"),
            ({"epsilon": 1e-300}, "no noise can be had"),
            ({"epsilon": 1e-9, "method": "histogram", "support": [[0.0], [1.0]]}, "no noise can be had"),
            ({"debiased": True, "regularization": 0}, "needs a regularization"),
            ({"public": "x", "paired": True}, "paired"),
        ],
    )
    def test_one_line(self, change, message):
        arguments = {"x": [[0.0], [1.0]], "y": [[1.0]], "epsilon": 1.0, "cost_bound": 1.0, **change}
        with pytest.raises(TransportError, match=message) as caught:
            private_cost(arguments.pop("x"), arguments.pop("y"), **arguments)
        assert "\n" not in str(caught.value)

    def test_auto_does_not_pay_a_delta_for_nothing(self):
        """Where all errors are as large as the bound the method without δ is taken."""
        found = private_cost([0.0], [1.0], epsilon=0.1, delta=1e-5, cost_bound=2.0, noise=SeededNoise(0))
        assert (found.method, found.delta, found.predicted_error) == ("direct", 0.0, 2.0)

    def test_an_epsilon_too_small_for_one_method_leaves_the_others(self):
        found = private_cost([0.0], [1.0], epsilon=1e-5, delta=1e-12, cost_bound=2.0, noise=SeededNoise(0))
        assert found.method == "direct"

    def test_one_point_is_as_noisy_as_it_must_be(self):
        found = private_cost([0.0], [1.0], epsilon=1, cost_bound=2.0, noise=SeededNoise(0))
        assert found.predicted_error == pytest.approx(2.0, rel=0.02)
        assert 0 <= found.cost <= 2.0
