"""The paper's bounds: against their own derivations, and where they hold."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from dpsinkhorn.ot import MatrixProblem, solve
from dpsinkhorn.transport import TransportError, bounds
from dpsinkhorn.transport.algorithm import iterate

SMALL = {"bound": 0.1, "regularization": 1.0}  # where nothing overflows


def dual_gap(C: torch.Tensor, phi: torch.Tensor, psi: torch.Tensor, eta: float) -> float:
    """F(θ) - F*, F as in the paper."""
    best = float(solve(MatrixProblem(C), eta, tolerance=1e-12).value)
    value = phi.mean() + psi.mean() - eta * (torch.exp((phi[:, None] + psi - C) / eta).mean() - 1)
    return best - float(value)


def simulated_gap(C: torch.Tensor, eta: float, floor: float, iterations: int, runs: int, seed: int) -> float:
    """Mean of F(θ_K) - F* over runs of Algorithm 1 with σ = 0."""
    generator = torch.Generator().manual_seed(seed)

    def add_noise(exact, *_):
        draw = [
            potential
            + math.sqrt(floor) * torch.randn(len(potential), generator=generator, dtype=torch.float64)
            for potential in (exact.phi, exact.psi)
        ]
        return draw[0], draw[1]

    gaps = [dual_gap(C, *iterate(C, eta, iterations, add_noise), eta) for _ in range(runs)]
    return float(np.mean(gaps))


class TestConstants:
    def test_lemmas(self):
        assert bounds.lemma1(0.5) == (1.0, 1.5)
        smooth, convex = bounds.lemma2(**SMALL)
        assert smooth * convex == pytest.approx(0.25)
        gap, descent = bounds.lemma3(**SMALL)
        assert (gap, descent) == pytest.approx((4 * smooth**2 / convex, convex / 2))
        assert bounds.lemma4(**SMALL, floor=0.2, adaptive=0.5) == pytest.approx(
            (gap, descent * 0.75, descent * 0.2)
        )
        # ρ of Theorem 1 is descent over gap
        assert bounds.theorem1_rate(**SMALL) == pytest.approx(descent / gap)

    def test_theorem1_is_its_own_recursion(self):
        rate = bounds.theorem1_rate(**SMALL, adaptive=0.3)
        _, convex = bounds.lemma2(**SMALL)
        a = 0.7
        for k in range(1, 6):
            a = (1 - rate) * a + convex * 0.01 / 2
            found = bounds.theorem1(0.7, k, **SMALL, floor=0.01, adaptive=0.3)
            assert found == pytest.approx(a)

    def test_theorem1_survives_underflow(self):
        found = bounds.theorem1(0.5, 3, bound=1.0, regularization=1e-3, floor=0.1)
        assert found == pytest.approx(0.5)

    def test_theorem2_inverts(self):
        for target in (0.1, 1.0, 30.0):
            floor = bounds.theorem2_noise(target, 1e-6, 4, 50, 2.0, 0.7)
            found = bounds.theorem2(4, 1e-6, n=50, bound=2.0, regularization=0.7, floor=floor)
            assert found == pytest.approx(target)
        assert bounds.remark2(0.1, 0.5, 0.9, 3) == pytest.approx(0.1 + 0.25 * 0.729)

    def test_optimal_order(self):
        order, part = bounds.optimal_order(2.0, 1e-5)
        assert (order - 1) ** 2 == pytest.approx(math.log(1e5) * order / 2.0)
        assert 0 < part < 2.0

    def test_simplified_constant_is_above_the_exact_one_up_to_its_missing_order(self):
        """C_η α >= C̃_η: log(1 + y) <= y and -1/log(1 - x) <= 1/x, with the α that the text drops."""
        for n in (10, 1000):
            settings = {"n": n, "bound": 0.05, "regularization": 1.0}
            order, part = bounds.optimal_order(1.0, 1e-5)
            simple = bounds._simple_constant(**settings) * order
            exact = 2 * order * math.exp(18 * 0.05) * math.log1p(4 * 0.05 / n * math.exp(0.3))
            exact /= -math.log1p(-math.exp(-24 * 0.05) / 8)
            assert simple >= exact
            found = bounds.equation17(1.0, 1e-5, **settings, initial_gap=0.3)
            assert found == pytest.approx(exact / (1 - part) * (0.3 - math.log(exact / (1 - part))))

    def test_infinite_rather_than_overflow(self):
        settings = {"n": 10, "bound": 1.0, "regularization": 1e-3}
        assert bounds.corollary1(1.0, 1e-5, **settings, initial_gap=1.0) == math.inf
        assert bounds.equation17(1.0, 1e-5, **settings, initial_gap=1.0) == math.inf
        assert bounds.theorem6(1.0, 1, **settings, floor=0.1) == math.inf
        assert bounds.lemma5(10, 1.0, 1e-3) == pytest.approx(0.2 + 1e-3 * math.log(10))

    def test_two_stages(self):
        options = {"n": 20, "bound": 0.01, "initial_gap": 0.01, "suboptimality": 0.5}
        with pytest.raises(TransportError, match="at most"):
            bounds.theorem3(1.0, 1.0, 1e-5, regularization=1.0, **options)
        first, second = bounds.theorem3(1.0, 1.0, 1e-5, regularization=3e-4, **options)
        expected = 4 * math.sqrt(2) * 0.01 / 20
        assert first == pytest.approx(expected + bounds.theorem4(20, 3e-4, 0.5))
        assert second > 0
        best = bounds.corollary2(2.0, 1e-5, **options)
        assert best.value <= first + second
        assert best.epsilon1 + best.epsilon2 == pytest.approx(2.0)
        assert bounds.theorem5(0.2, 0.4) == 0.5

    def test_equation13_has_both_terms(self):
        options = {"n": 100, "bound": 1.0, "initial_gap": 1.0, "suboptimality": 5.0}
        eta = bounds.regularization_by_equation13(1.0, 1e-5, **options)
        found = bounds.equation13(eta, 1.0, 1e-5, **options)
        for other in (eta / 2, min(eta * 2, 100.0)):
            assert found <= bounds.equation13(other, 1.0, 1e-5, **options)
        assert bounds.equation13(eta, 4.0, 1e-5, **options) < found


class TestAgainstSimulation:
    def test_theorem1_holds_somewhere(self):
        C = torch.tensor(np.random.default_rng(0).random((30, 30)))
        start = dual_gap(C, torch.zeros(30).double(), torch.zeros(30).double(), 1.0)
        found = simulated_gap(C, 1.0, 1e-6, 2, runs=3, seed=0)
        assert found <= bounds.theorem1(start, 2, bound=1.0, regularization=1.0, floor=1e-6)

    def test_theorem1_fails_elsewhere(self):
        """n = 100, η = c̄ = 1, M = 0.1, K = 1: noise costs η (e^(M/η²) - 1), not τ M / 2."""
        C = torch.tensor(np.random.default_rng(0).random((100, 100)))
        start = dual_gap(C, torch.zeros(100).double(), torch.zeros(100).double(), 1.0)
        found = simulated_gap(C, 1.0, 0.1, 1, runs=20, seed=0)
        assert found > 1.1 * bounds.theorem1(start, 1, bound=1.0, regularization=1.0, floor=0.1)
        assert found == pytest.approx(math.expm1(0.1), rel=0.2)

    def test_lemma1(self):
        rng = np.random.default_rng(0)
        for _ in range(50):
            C = torch.tensor(rng.integers(2, size=(6, 6)) * 1.0)
            psi = torch.tensor(rng.normal(size=6) * 5)
            from dpsinkhorn.transport.algorithm import exact_step

            step = exact_step(C, psi, 0.3)
            assert float(step.phi.abs().max()) <= bounds.lemma1(1.0)[0]
            assert float(step.psi.abs().max()) <= bounds.lemma1(1.0)[1]

    def test_lemma5_bounds_the_linear_part(self):
        rng = np.random.default_rng(0)
        for _ in range(60):
            n, eta = 4, float(rng.choice([0.05, 0.3, 2.0]))
            C = torch.tensor(rng.random((n, n)))
            D = C.clone()
            D[0] = torch.tensor(rng.random(n))
            change = [float(solve(MatrixProblem(c), eta).value_linear) for c in (C, D)]
            assert abs(change[0] - change[1]) <= bounds.lemma5(n, 1.0, eta)
