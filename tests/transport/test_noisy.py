"""Noisy Sinkhorn: the algorithm line by line, sensitivity on neighbours found by search, noise, audit."""

from __future__ import annotations

import math
from decimal import Decimal, localcontext

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from dpsinkhorn.ot import Cityblock, MatrixProblem, solve
from dpsinkhorn.privacy import (
    Adjacency,
    Budget,
    BudgetExceededError,
    GaussianMechanism,
    Ledger,
    SeededNoise,
    epsilon,
)
from dpsinkhorn.transport import (
    Clouds,
    NoisySinkhorn,
    Setting,
    TransportError,
    noisy,
    noisy_sinkhorn,
    paper_sensitivity,
    step_sensitivity,
)
from dpsinkhorn.transport.algorithm import coupling, exact_step, project_span
from dpsinkhorn.transport.certified import rounding
from dpsinkhorn.transport.noisy import gaussian_multiplier


def naive_step(C, psi, eta):
    """Lines 3 to 5 by loops."""
    n, m = C.shape
    phi_tilde = [
        -eta * math.log(sum(math.exp((psi[j] - C[i, j]) / eta) for j in range(m)) / m) for i in range(n)
    ]
    mean = sum(phi_tilde) / n
    phi = [value - mean for value in phi_tilde]
    psi_new = [
        -eta * math.log(sum(math.exp((phi[i] - C[i, j]) / eta) for i in range(n)) / n) for j in range(m)
    ]
    return phi_tilde, phi, psi_new


class TestAlgorithm:
    @given(st.integers(1, 6), st.integers(1, 6), st.floats(0.05, 20), st.integers(0, 10**6))
    def test_lines_3_to_5(self, n, m, eta, seed):
        rng = np.random.default_rng(seed)
        C, psi = rng.random((n, m)), rng.normal(size=m)
        found = exact_step(torch.tensor(C), torch.tensor(psi), eta)
        for ours, slow in zip((found.phi_tilde, found.phi, found.psi), naive_step(C, psi, eta), strict=True):
            np.testing.assert_allclose(ours.numpy(), slow, atol=1e-12)

    def test_lines_6_to_9(self):
        """The noise of mode paper: σ² times the step taken, plus M, per coordinate."""
        rng = np.random.default_rng(0)
        x, y = rng.random((2, 4000, 1))
        plan = NoisySinkhorn(Setting(4000, 4000, 1.0), 1.0, 1, 1.0, 1e-5, "paper", adaptive=0.4, floor=0.01)
        clouds = Clouds.of(x, y, cost_bound=1.0)
        found = plan.release(clouds, SeededNoise(0))
        first = exact_step(clouds.costs(), torch.zeros(4000).double(), 1.0)
        variance = 0.4**2 * float(first.phi.square().sum() + first.psi.square().sum()) + 0.01
        assert found.noise_std[0] == pytest.approx(math.sqrt(variance), rel=1e-9)
        for got, exact in zip((found.phi, found.psi), (first.phi, first.psi), strict=True):
            assert float((torch.from_numpy(got) - exact).std()) == pytest.approx(
                math.sqrt(variance), rel=0.05
            )

    @pytest.mark.parametrize("sizes", [(12, 12), (15, 9)])
    def test_without_noise_it_is_the_solver(self, sizes):
        rng = np.random.default_rng(1)
        both = Clouds.of(rng.random((sizes[0], 3)), rng.random((sizes[1], 3)), cost_bound=2.0)
        plan = NoisySinkhorn(both.setting, 0.3, 400, math.inf, 0.5, "paper")
        found = plan.release(both, SeededNoise(0))
        true = solve(both.problem(), 0.3, tolerance=1e-12)
        shift = float(true.f.mean())
        np.testing.assert_allclose(found.phi, true.f.numpy() - shift, atol=1e-6)
        np.testing.assert_allclose(found.psi, true.g.numpy() + shift, atol=1e-6)
        assert found.cost == pytest.approx(float(true.value), abs=1e-6)
        plan_of = coupling(both.costs(), torch.tensor(found.phi), torch.tensor(found.psi), 0.3)
        np.testing.assert_allclose(plan_of.numpy(), true.plan.numpy(), atol=1e-6)

    def test_level_of_psi_does_not_matter(self):
        plan = NoisySinkhorn(Setting(4, 3, 1.0), 0.5, 1, 1.0, 1e-5, multiplier=1.0)
        psi = torch.tensor([1e9, 1e9 + 0.25, 1e9 + 7.0]).double()
        prepared = plan._prepare(psi)
        assert float(prepared.abs().max()) <= 0.5
        assert float(prepared[1] - prepared[0]) <= 0.25
        C = torch.rand(4, 3).double()
        moved = exact_step(C, prepared + 1.0, 0.5)
        torch.testing.assert_close(moved.psi, exact_step(C, prepared, 0.5).psi)

    def test_potentials_are_within_the_rounding_that_is_paid_for(self):
        rng = np.random.default_rng(0)
        for eta in (0.01, 0.3, 50.0):
            C, psi = rng.random((20, 15)), rng.uniform(-0.5, 0.5, 15)
            found = exact_step(torch.tensor(C), torch.tensor(psi), eta)
            L, h, lam = (np.longdouble(1) * value for value in (C, psi, eta))

            def transform(potential, costs, lam=lam):
                e = (potential - costs) / lam
                top = e.max(1, keepdims=True)
                return -lam * (np.log(np.exp(e - top).mean(1)) + top[:, 0])

            phi = transform(h, L)
            phi = phi - phi.mean()
            allowed = 3 * rounding(Setting(20, 15, 1.0), eta)
            assert float(np.abs(found.phi.numpy() - phi).max()) <= allowed
            assert float(np.abs(found.psi.numpy() - transform(phi, L.T)).max()) <= allowed

    def test_large_clouds_go_through_in_blocks(self, monkeypatch):
        from dpsinkhorn.transport import algorithm

        C, psi = torch.rand(50, 30).double(), torch.rand(30).double()
        whole = exact_step(C, psi, 0.2)
        monkeypatch.setattr(algorithm, "_BLOCK", 64)
        parts = exact_step(C, psi, 0.2)
        torch.testing.assert_close(whole.psi, parts.psi, rtol=1e-13, atol=0)

    @given(st.lists(st.floats(-10, 10), min_size=1, max_size=12), st.floats(0.01, 5))
    def test_projection_is_the_nearest(self, values, span):
        found = project_span(values, span)
        assert np.ptp(found) <= span
        at = np.linspace(min(values) - span, max(values), 400)
        best = min(float(((np.clip(values, a, a + span) - values) ** 2).sum()) for a in at)
        assert float(((found - values) ** 2).sum()) <= best + 1e-9

    def test_coupling_gives_the_costs_away(self):
        C = torch.rand(4, 5).double()
        phi, psi = torch.rand(4).double(), torch.rand(5).double()
        back = phi[:, None] + psi - 0.7 * torch.log(coupling(C, phi, psi, 0.7) * 20)
        torch.testing.assert_close(back, C)


def moved(C, D, psi, eta, public=None) -> torch.Tensor:
    first, second = exact_step(C, psi, eta), exact_step(D, psi, eta)
    change = (first.psi - second.psi).square().sum()
    if public != "y":
        change = change + (first.phi - second.phi).square().sum()
    return change.sqrt()


def with_new(C: torch.Tensor, new: torch.Tensor, side: str) -> torch.Tensor:
    return torch.cat([new[None], C[1:]]) if side == "x" else torch.cat([new[:, None], C[:, 1:]], 1)


def worst_found(n, m, eta, psi, side, public=None, seed=0, tries=3, steps=40) -> float:
    """Search over costs in [0, 1] and a replaced row or column: extreme points, random ones, then ascent."""
    torch.manual_seed(seed)
    best = 0.0
    for k in range(tries):
        raw, new = torch.randn(n, m).double(), torch.randn(m if side == "x" else n).double()
        if k % 3 == 1:
            raw, new = 9 * raw.sign(), 9 * new.sign()
        if k % 3 == 2:  # the structure that hurts most: all rows alike, the new one their opposite
            raw[:, : m // 3], raw[:, m // 3 :] = 6.0, -6.0
            if side == "x":
                new[: m // 3], new[m // 3 :] = -6.0, 6.0
        variables = [raw.requires_grad_(), new.requires_grad_()]
        climb = torch.optim.Adam(variables, lr=0.3)
        for _ in range(steps):
            C = torch.sigmoid(variables[0])
            change = moved(C, with_new(C, torch.sigmoid(variables[1]), side), psi, eta, public)
            best = max(best, float(change.detach()))
            climb.zero_grad()
            (-change).backward()
            climb.step()
    return best


def in_decimals(n: int, psi: list[float], ratio: float) -> float:
    """U of docs/proofs/noisy-sinkhorn.md at c̄ = 1, with 700 digits."""
    with localcontext() as digits:
        digits.prec = 700
        eta = Decimal(1 / ratio)
        q, m = (-1 / eta).exp(), len(psi)
        terms = [((Decimal(value) - Decimal(max(psi))) / eta).exp() for value in psi]
        w = [term / sum(terms) for term in terms]
        low = [q / (1 - share + share * q) for share in w]
        high = [1 / (share + (1 - share) * q) for share in w]
        most = [(h - lo) / (n * lo) for h, lo in zip(high, low, strict=True)]
        alone = sum((1 + a).ln() ** 2 for a in most)
        peaks = [min(a, Decimal("3.92155363456750509")) for a in most]
        slopes = [(1 + a).ln() ** 2 / a if a else Decimal(0) for a in peaks]
        over = max(k / (n * lo * share) for k, lo, share in zip(slopes, low, w, strict=True))
        together = 2 * (1 - q) / (1 + q) * over
        first = Decimal(m).sqrt() / n + eta * min(alone, together).sqrt()
        shares = [h / ((n - 1) * lo + h) for h, lo in zip(high, low, strict=True)]
        each = Decimal(1) / n
        second = sum(max(each, 2 * v - each) ** 2 for v in shares).sqrt()
        return float(min(first, second))


class TestSensitivity:
    @pytest.mark.parametrize("eta", [0.2, 1.0, 4.0])
    @pytest.mark.parametrize(("n", "m"), [(1, 3), (6, 6), (25, 8), (8, 25)])
    def test_search_never_exceeds_the_bound(self, n, m, eta):
        rng = np.random.default_rng(n + m)
        for psi in (
            torch.zeros(m).double(),
            torch.tensor(rng.random(m)),
            torch.tensor(rng.integers(2, size=m) * 1.0),
            torch.eye(m)[0].double(),  # nearly all weight on the y that is replaced
        ):
            bounds = step_sensitivity(Setting(n, m, 1.0), eta, psi.numpy())
            alone = step_sensitivity(Setting(n, m, 1.0, public="y"), eta, psi.numpy())
            assert worst_found(n, m, eta, psi, "x") <= bounds.x
            assert worst_found(n, m, eta, psi, "y") <= bounds.y
            assert worst_found(n, m, eta, psi, "x", public="y") <= alone.x
            assert alone.y == 0.0

    @pytest.mark.parametrize("eta", [1.0, 4.0])
    def test_bound_is_near_what_is_found(self, eta):
        n = m = 150
        psi = torch.zeros(m).double()
        bounds = step_sensitivity(Setting(n, m, 1.0), eta, psi.numpy())
        assert worst_found(n, m, eta, psi, "x", tries=3, steps=25) > 0.9 * bounds.x
        assert worst_found(n, m, eta, psi, "y", tries=3, steps=25) > 0.9 * bounds.y
        alone = step_sensitivity(Setting(n, m, 1.0, public="y"), eta, psi.numpy())
        assert worst_found(n, m, eta, psi, "x", public="y", tries=3, steps=25) > 0.25 * alone.x

    @pytest.mark.parametrize("n", [1000, 4000])
    def test_the_papers_value_is_exceeded(self, n):
        """Real points: all at 0, and x_1 is replaced by a far one. With n the paper's value goes to 0."""
        points = np.zeros((n, 1))
        other = points.copy()
        other[0] = 50.0
        costs = [Clouds.of(each, np.zeros((n, 1)), cost_bound=1.0).costs() for each in (points, other)]
        change = float(moved(*costs, torch.zeros(n).double(), 1.0))
        assert change > 0.999
        assert paper_sensitivity(n, 1.0, 1.0) < 0.97 * change
        assert change <= step_sensitivity(Setting(n, n, 1.0), 1.0, np.zeros(n)).x < 1.02

    @pytest.mark.parametrize("side", ["x", "y"])
    def test_the_same_search_exceeds_the_papers_value(self, side):
        n, psi = 1000, torch.zeros(1000).double()
        found = worst_found(n, n, 1.0, psi, side, tries=1, steps=30)
        bounds = step_sensitivity(Setting(n, n, 1.0), 1.0, psi.numpy())
        assert paper_sensitivity(n, 1.0, 1.0) < found <= getattr(bounds, side)

    def test_real_points_at_every_iteration(self):
        """Neighbouring data sets under the same noise: each released step stays within its sensitivity."""
        rng = np.random.default_rng(4)
        for _ in range(20):
            n, m = 12, 9
            x, y = rng.random((n, 2)), rng.random((m, 2))
            x2, y2 = x.copy(), y.copy()
            side = rng.choice(["x", "y"])
            (x2 if side == "x" else y2)[0] = rng.normal(size=2) * 3
            psi = torch.tensor(project_span(rng.normal(size=m), 1.5))
            costs = [
                Clouds.of(*each, cost_bound=1.5, cost=Cityblock()).costs() for each in ((x, y), (x2, y2))
            ]
            bounds = step_sensitivity(Setting(n, m, 1.5), 0.8, psi.numpy())
            assert float(moved(*costs, psi, 0.8)) <= getattr(bounds, side)

    @pytest.mark.parametrize("ratio", [1e-8, 0.5, 40.0, 150.0, 299.0])
    @pytest.mark.parametrize("n", [1, 3, 1000])
    def test_never_below_the_theorem_in_decimals(self, n, ratio):
        """Where one weight is nearly 1 float64 would take the others for 0, and with them the bound down."""
        for psi in ([0.5], [1.0, 0.0], [1.0, 0.6], [1.0, 0.0, 0.0], [0.2, 0.9, 0.25], [0.0, 0.0, 0.0, 0.0]):
            exact = in_decimals(n, psi, ratio)
            found = step_sensitivity(Setting(n, len(psi), 1.0, public="y"), 1 / ratio, psi).x
            assert exact <= found <= exact * (1 + 1e-8)

    @pytest.mark.parametrize("sizes", [(1, 1), (1, 5), (5, 1), (6, 6), (40, 7), (7, 40)])
    def test_bound_for_y_is_the_theorem(self, sizes):
        """The largest over α, by trying many, at the largest weight."""
        n, m = sizes
        rng = np.random.default_rng(n)
        for eta in (0.05, 0.5, 1.0, 20.0):
            for psi in (np.zeros(m), rng.random(m), np.eye(m)[0]):
                w = np.exp(psi / eta) / np.exp(psi / eta).sum()
                s = eta * math.log(1 + (math.exp(1 / eta) - 1) * w.max())
                alpha = np.linspace(0, s, 20_001)
                squared = n * (s**2 - alpha**2) + (m - 1) * (s + alpha) ** 2 + (1 + s + alpha) ** 2
                found = step_sensitivity(Setting(n, m, 1.0), eta, psi)
                assert found.y == pytest.approx(math.sqrt(squared.max()), rel=1e-7)
                slack = 6 * rounding(Setting(n, m, 1.0), eta) * math.sqrt(n + m)
                assert found.total - max(found.x, found.y) >= 0.99 * slack

    def test_a_wide_psi_is_refused(self):
        with pytest.raises(TransportError, match="project"):
            step_sensitivity(Setting(3, 3, 1.0), 1.0, [0.0, 0.0, 1.5])

    @pytest.mark.parametrize("eta", [1e-4, 1e-3, 1e-2])
    def test_finite_where_exponentials_are_not(self, eta):
        for setting in (Setting(1, 1, 1.0), Setting(50, 40, 1.0), Setting(50, 40, 1.0, public="y")):
            found = step_sensitivity(setting, eta, np.zeros(setting.m))
            assert 0 < found.total < 100

    def test_paired_adds_and_public_drops(self):
        zeros, n = np.zeros(200), 200
        both = step_sensitivity(Setting(n, n, 1.0), 1.0, zeros)
        paired = step_sensitivity(Setting(n, n, 1.0, paired=True), 1.0, zeros)
        assert paired.total == pytest.approx(both.x + both.y, rel=1e-6)
        assert step_sensitivity(Setting(n, n, 1.0, public="y"), 1.0, zeros).total < 0.5 * both.x


class TestPrivacy:
    def test_multiplier_meets_the_budget_and_no_more(self):
        for target, uses in ((0.1, 1), (1.0, 3), (10.0, 20)):
            z = gaussian_multiplier(target, 1e-5, uses)
            plan = NoisySinkhorn(Setting(5, 5, 1.0), 1.0, uses, target, 1e-5, multiplier=z)
            assert 0.99 * target < epsilon(plan.charge, 1e-5) <= target

    @pytest.mark.parametrize("public", [None, "y", "x"])
    def test_noise_of_every_coordinate(self, public):
        rng = np.random.default_rng(0)
        x, y = rng.random((300, 2)), rng.random((200, 2))
        options = {"epsilon": 2.0, "delta": 1e-5, "cost_bound": 2.0, "iterations": 1, "public": public}
        both = Clouds.of(x, y, cost_bound=2.0, public=public)
        exact = exact_step(both.costs(), torch.zeros(200).double(), 2.0)
        if public == "x":
            other = exact_step(both.costs().mT, torch.zeros(300).double(), 2.0)
        draws = []
        for seed in range(20):
            found = noisy_sinkhorn(x, y, noise=SeededNoise(seed), **options)
            if public != "y":
                reference = exact.phi if public is None else other.psi
                draws.append(found.phi - reference.numpy())
            if public != "x":
                draws.append(found.psi - exact.psi.numpy())
        assert (found.phi is None) == (public == "y")
        assert (found.psi is None) == (public == "x")
        std = found.noise_std[0]
        setting = both.setting if public != "x" else both.flipped().setting
        expected = step_sensitivity(setting, 2.0, np.zeros(setting.m)).total
        assert std == pytest.approx(gaussian_multiplier(2.0, 1e-5, 1) * expected)
        assert stats.kstest(np.concatenate(draws) / std, "norm").pvalue > 1e-3

    @pytest.mark.parametrize("public", [None, "y"])
    def test_noise_of_every_iteration_follows_the_released_psi(self, monkeypatch, public):
        """Each step's noise is z times the sensitivity at the projected ψ it started from."""
        rng = np.random.default_rng(0)
        both = Clouds.of(rng.random((12, 1)), rng.random((7, 1)), cost_bound=1.0, public=public)
        plan = NoisySinkhorn.plan(both.setting, regularization=0.5, epsilon=5.0, delta=1e-5, iterations=3)
        seen = []
        plain = noisy.add_gaussian

        def spy(values, **options):
            released = plain(values, **options)
            seen.append((options["sensitivity"], options["noise_multiplier"], released))
            return released

        monkeypatch.setattr(noisy, "add_gaussian", spy)
        found = plan.release(both, SeededNoise(0))
        psi, levels = np.zeros(7), set()
        for (sensitivity, multiplier, released), std in zip(seen, found.noise_std, strict=True):
            expected = step_sensitivity(both.setting, 0.5, project_span(psi, 1.0)).total
            assert sensitivity == pytest.approx(expected, rel=1e-9)
            assert multiplier == plan.multiplier
            assert std == pytest.approx(expected * plan.multiplier, rel=1e-6)
            levels.add(round(expected, 9))
            psi = released[-7:].numpy()
        assert len(levels) == 3
        assert released.shape == ((7,) if public else (19,))

    def test_audit_is_below_the_claim_and_near_it(self):
        """The worst neighbours, the likelihood ratio, and Clopper and Pearson's bounds."""
        target, delta, n, runs = 4.0, 1e-5, 100, 2000
        plan = NoisySinkhorn.plan(
            Setting(n, n, 1.0), regularization=4.0, epsilon=target, delta=delta, iterations=1
        )
        near = np.zeros((n, 1))
        far = near.copy()
        far[0] = 50.0
        data = [Clouds.of(each, near, cost_bound=1.0) for each in (far, near)]
        exact = [exact_step(each.costs(), torch.zeros(n).double(), 4.0) for each in data]
        means = [torch.cat([step.phi, step.psi]).numpy() for step in exact]
        direction = means[0] - means[1]
        noise = SeededNoise(5)
        scores = []
        for each in data:
            found = [plan.release(each, noise) for _ in range(runs)]
            scores.append(np.array([direction @ (np.concatenate([f.phi, f.psi]) - means[1]) for f in found]))
        # Errors of a threshold test bound the distance μ of the two normal laws from below, and μ bounds ε.
        threshold = np.mean([score.mean() for score in scores])
        errors = [(scores[0] <= threshold).sum(), (scores[1] > threshold).sum()]
        most = [stats.beta.ppf(0.999, k + 1, runs - k) for k in errors]
        distance = -stats.norm.ppf(most[0]) - stats.norm.ppf(most[1])
        found = epsilon(GaussianMechanism(1.0, 1 / distance, Adjacency.REPLACE_ONE).charge(), delta)
        assert 0.75 * target < found <= target

    def test_the_papers_claim_is_broken_by_an_audit(self):
        """At n = 20,000 Theorem 2 promises ε = 0.5, and one run tells two neighbours apart."""
        n = 20_000
        plan = NoisySinkhorn.plan(
            Setting(n, n, 1.0), regularization=1.0, epsilon=0.5, delta=1e-5, iterations=1, mode="paper"
        )
        std = math.sqrt(plan.floor)
        # φ(x_1) moves by 1 (see above): the Gaussian mechanism on that coordinate alone already costs
        alone = stats.norm.cdf(0.5 / std - 0.5 * std) - math.exp(0.5) * stats.norm.cdf(-0.5 / std - 0.5 * std)
        assert alone > 10 * 1e-5

    def test_paper_mode_is_labelled_and_refused_by_a_budget(self, tmp_path):
        x = np.random.default_rng(0).random((20, 1))
        options = {"epsilon": 1.0, "delta": 1e-5, "cost_bound": 1.0, "mode": "paper"}
        found = noisy_sinkhorn(x, x, noise=SeededNoise(0), **options)
        assert not found.private
        assert epsilon(found.charge, 1e-5) == math.inf
        with Ledger.open(tmp_path / "ledger", epsilon, budget=Budget(100.0, 1e-5)) as ledger:
            with pytest.raises(BudgetExceededError):
                noisy_sinkhorn(x, x, ledger=ledger, **options)
            noisy_sinkhorn(x, x, ledger=ledger, noise=SeededNoise(0), **{**options, "mode": "sound"})
            assert 0.98 < ledger.epsilon() <= 1.0
            assert ledger.statement().runs[0].startswith("transport-potentials-record-")

    def test_charged_before_any_cost_is_computed(self, tmp_path):
        class Seen(Cityblock):
            def pairwise(self, x, y):  # a cost of one's own is tried on points at 0, never on the data
                if x.any() or y.any():
                    raise AssertionError("looked at the data")
                return x.new_zeros(len(x), len(y))

        with Ledger.open(tmp_path / "ledger", epsilon, budget=Budget(0.5, 1e-5)) as ledger:
            with pytest.raises(BudgetExceededError):
                noisy_sinkhorn([0.0], [1.0], epsilon=1, delta=1e-5, cost_bound=1, cost=Seen(), ledger=ledger)
            assert ledger.epsilon() == 0.0


class TestUtility:
    def test_shortfall_bounds_the_gap(self):
        rng = np.random.default_rng(0)
        for eta in (0.3, 1.0, 3.0):
            for _ in range(30):
                C = torch.tensor(rng.integers(2, size=(8, 6)) * 1.0)
                true = float(solve(MatrixProblem(C), eta, tolerance=1e-12).value)
                for k, start in (
                    (1, torch.zeros(6).double()),
                    (2, torch.tensor(rng.integers(2, size=6) * 1.0)),
                ):
                    plan = NoisySinkhorn(Setting(8, 6, 1.0), eta, k, 1.0, 1e-5)
                    below = true - float(exact_step(C, start, eta).psi.mean())
                    assert -1e-9 <= below <= plan.shortfall

    @pytest.mark.parametrize("eta", [0.02, 0.1, 0.2])
    def test_shortfall_may_pass_the_bound(self, eta):
        """ψ holds all rows but one down, and that one all columns: the estimate is negative."""
        C = torch.ones(50, 50).double()
        C[0, 1:] = C[1:, 0] = 0.0
        psi = torch.zeros(50).double()
        psi[0] = 1.0
        true = float(solve(MatrixProblem(C), eta, tolerance=1e-12, max_iterations=10_000).value)
        below = true - float(exact_step(C, psi, eta).psi.mean())
        assert below <= NoisySinkhorn(Setting(50, 50, 1.0), eta, 2, 1.0, 1e-5).shortfall
        if eta < 0.15:
            assert below > 1.1

    def test_public_side_gets_far_less_noise(self):
        both = NoisySinkhorn.plan(Setting(2000, 100, 1.0), regularization=1.0, epsilon=1.0, delta=1e-5)
        alone = NoisySinkhorn.plan(
            Setting(2000, 100, 1.0, public="y"), regularization=1.0, epsilon=1.0, delta=1e-5
        )
        assert alone.predicted_std < both.predicted_std / 20

    def test_iterations_are_chosen_by_the_predicted_error(self):
        plan = NoisySinkhorn.plan(
            Setting(10**5, 100, 1.0, public="y"), regularization=1.0, epsilon=1.0, delta=1e-5
        )
        assert plan.iterations > 1
        for k in (1, 20):
            other = NoisySinkhorn.plan(
                plan.setting, regularization=1.0, epsilon=1.0, delta=1e-5, iterations=k
            )
            assert plan.predicted_error <= other.predicted_error

    def test_converges_where_one_side_is_public(self):
        """20,000 private points, 50 public ones: the released potential is near the true one."""
        rng = np.random.default_rng(0)
        x, y = rng.random((20_000, 2)), rng.random((50, 2))
        found = noisy_sinkhorn(
            x, y, epsilon=2, delta=1e-6, cost_bound=2, regularization=2, public="y", noise=SeededNoise(0)
        )
        true = solve(Clouds.of(x, y, cost_bound=2).problem(), 2.0)
        centred = found.psi - found.psi.mean() - (true.g - true.g.mean()).numpy()
        assert np.abs(centred).max() < 0.05
        assert centred.std() < 1.5 * found.noise_std[-1] < 0.025
        assert found.cost == pytest.approx(float(true.value), abs=0.02)


class TestBadInput:
    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"adaptive": 0.5}, "paper only"),
            ({"regularization": 1e-200}, "regularization must be from"),
            ({"epsilon": 1e-6, "delta": 1e-12}, "accountant"),
            ({"epsilon": 1e300}, "at most 1e"),
        ],
    )
    def test_one_line(self, change, message):
        options = {"epsilon": 1.0, "delta": 1e-5, "cost_bound": 1.0, **change}
        with pytest.raises(TransportError, match=message) as caught:
            noisy_sinkhorn([0.0, 1.0], [1.0], **options)
        assert "\n" not in str(caught.value)
