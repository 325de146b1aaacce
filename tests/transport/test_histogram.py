"""Public supports: noisy histograms, and transport between them as post-processing."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import optimize, stats

import ot as pot
from dpsinkhorn.privacy import SeededNoise, epsilon
from dpsinkhorn.transport import Clouds, HistogramMechanism, TransportError, private_cost, release
from dpsinkhorn.transport.histogram import NoisyHistograms, _sum_of_positive_parts, project_to_simplex

SUPPORT = np.array([[0.0], [1.0], [2.0]])


def mechanism(x, y, target=1.0, support=SUPPORT, **options):
    clouds = Clouds.of(x, y, cost_bound=3.0, **options)
    return HistogramMechanism.plan(clouds, support, epsilon=target), clouds


class TestSensitivity:
    def test_replacing_a_point_moves_two_counts_by_one(self):
        rng = np.random.default_rng(0)
        for _ in range(100):
            x, y = rng.normal(size=(6, 1)) * 2, rng.normal(size=(4, 1)) * 2
            other = x.copy()
            other[rng.integers(6)] = rng.normal() * 1e3
            plan, clouds = mechanism(x, y)
            moved = (plan._counts(clouds.x) - plan._counts(Clouds.of(other, y, cost_bound=3.0).x)).abs().sum()
            assert float(moved) in (0.0, 2.0)
            assert moved <= plan.sensitivity == 2.0
        assert mechanism(x, y, paired=True)[0].sensitivity == 4.0

    def test_noise_and_public_side(self, monkeypatch):
        x, y = np.zeros((50, 1)), np.ones((40, 1))
        plan, clouds = mechanism(x, y, target=0.5, public="y", support=np.linspace(0, 2, 5)[:, None])
        noise, draws, plain = SeededNoise(0), [], release.add_laplace
        monkeypatch.setattr(
            release, "add_laplace", lambda v, **o: draws.append((plain(v, **o) - v).numpy()) or v
        )
        for _ in range(400):
            found = plan.release(clouds, noise)
        np.testing.assert_array_equal(found.y, np.array([0, 0, 1.0, 0, 0]))
        assert len(draws) == 400  # x alone
        assert stats.kstest(np.concatenate(draws) / 4.0, stats.laplace.cdf).pvalue > 1e-3
        assert epsilon(plan.charge, 0.0) == pytest.approx(0.5)

    def test_the_lattice_knows_of_all_counts(self, monkeypatch):
        """Both sides are one release: rounding is paid for by the number of all counts."""
        plan, clouds = mechanism(np.zeros((5, 1)), np.ones((4, 1)))
        seen = []
        monkeypatch.setattr(
            release, "add_laplace", lambda values, **options: seen.append(options["coordinates"]) or values
        )
        plan.release(clouds, SeededNoise(0))
        assert seen == [6, 6]

    def test_audit_is_below_the_claim_and_near_it(self, monkeypatch):
        """Counts of two cells move in opposite directions: both together carry ε."""
        target, runs = 1.0, 3000
        near, far = np.zeros((2, 1)), np.array([[2.0], [0.0]])
        noise, plain, counts, hits = SeededNoise(0), release.add_laplace, [], []
        monkeypatch.setattr(release, "add_laplace", lambda v, **o: counts.append(plain(v, **o)) or v)
        for data in (far, near):
            plan, clouds = mechanism(
                data, np.zeros((2, 1)), target, public="y", support=np.array([[0.0], [2.0]])
            )
            counts.clear()
            for _ in range(runs):
                plan.release(clouds, noise)
            hits.append(sum(bool(c[1] >= 1 and c[0] <= 1) for c in counts))
        low = stats.beta.ppf(0.005, hits[0], runs - hits[0] + 1)
        high = stats.beta.ppf(0.995, hits[1] + 1, runs - hits[1])
        assert 0.75 * target < math.log(low / high) <= target


class TestPostProcessing:
    @given(st.lists(st.floats(-2, 2), min_size=1, max_size=8))
    def test_projection_against_a_general_solver(self, values):
        found = project_to_simplex(np.array(values))
        assert found.min() >= 0
        assert found.sum() == pytest.approx(1)
        start = np.full(len(values), 1 / len(values))
        best = optimize.minimize(
            lambda p: ((p - values) ** 2).sum(), start, bounds=[(0, 1)] * len(values),
            constraints={"type": "eq", "fun": lambda p: p.sum() - 1}, method="SLSQP", tol=1e-14,
        )  # fmt: skip
        assert ((found - values) ** 2).sum() <= best.fun + 1e-7

    def test_transport_against_pot(self):
        rng = np.random.default_rng(0)
        a, b = rng.dirichlet(np.ones(5)), rng.dirichlet(np.ones(5))
        a[2] = 0.0
        a /= a.sum()
        C = rng.random((5, 5))
        found = NoisyHistograms(a, b, C)
        assert found.cost("exact", 0.0) == pytest.approx(pot.emd2(a, b, C), abs=1e-5)

    def test_error_is_within_its_bounds(self):
        """Total variation of what is released, and the quantile of its noise."""
        rng = np.random.default_rng(0)
        x, y = rng.integers(3, size=(200, 1)) * 1.0, rng.integers(2, size=(150, 1)) * 1.0
        for options in ({"regularization": 0}, {"regularization": 0.3}):
            true = private_cost(
                x, y, epsilon=1e6, cost_bound=3.0, method="direct", noise=SeededNoise(0), **options
            ).cost
            errors, estimates, inside, noise = [], [], 0, SeededNoise(1)
            for _ in range(80):
                found = private_cost(
                    x, y, epsilon=1, cost_bound=3.0, method="histogram", support=SUPPORT, noise=noise,
                    confidence=0.8, **options,
                )  # fmt: skip
                errors.append(abs(found.cost - true))
                estimates.append(found.predicted_error)
                inside += found.interval[0] <= true <= found.interval[1]
            bound = HistogramMechanism.plan(
                Clouds.of(x, y, cost_bound=3.0), SUPPORT, epsilon=1, quantity=found.quantity, **options
            )
            assert np.mean(errors) <= bound.predicted_error
            assert inside / 80 >= 0.8
            ratios = np.array(estimates) / np.mean(errors)
            assert ((ratios > 1 / 3) & (ratios < 3)).mean() > 0.9

    def test_a_public_side_stays_as_it_is_where_the_error_is_estimated(self):
        x, y = np.zeros((50, 1)), np.ones((50, 1))
        for target, most in ((1e5, 1e-3), (0.5, 3.0)):
            clouds = Clouds.of(x, y, cost_bound=3.0, public="y")
            mechanism = HistogramMechanism.plan(clouds, SUPPORT, epsilon=target)
            found = mechanism.release(clouds, SeededNoise(0))
            assert 0 < mechanism.estimated_error(found) < most
            assert found.y.max() == 1

    @pytest.mark.parametrize("count", [1, 4, 60])
    def test_quantile_of_positive_parts(self, count):
        rng = np.random.default_rng(0)
        sums = np.maximum(rng.laplace(size=(100_000, count)), 0).sum(1)
        for chance in (0.2, 0.01):
            assert (sums > _sum_of_positive_parts(count, chance)).mean() == pytest.approx(chance, rel=0.15)

    def test_auto_prefers_the_direct_cost_and_says_why(self):
        found = private_cost(
            np.zeros((99, 1)), np.ones((99, 1)), epsilon=1, cost_bound=3.0, support=SUPPORT, delta=1e-5,
            regularization=0.15, noise=SeededNoise(0),
        )  # fmt: skip
        assert found.method == "direct"
        assert "histogram" in found.reason
        assert "noisy-sinkhorn" in found.reason

    def test_bad_support(self):
        with pytest.raises(TransportError, match="dimension"):
            private_cost([0.0], [1.0], epsilon=1, cost_bound=1, method="histogram", support=np.zeros((3, 2)))
