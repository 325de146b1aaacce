"""The two-stage cost: the sensitivity of <c, π̂> at fixed potentials, and both charges."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats

from dpsinkhorn.privacy import Budget, Ledger, SeededNoise, epsilon
from dpsinkhorn.transport import (
    Clouds,
    NoisySinkhorn,
    Setting,
    TransportError,
    TwoStageMechanism,
    linear_sensitivity,
    two_stage,
    two_stage_cost,
)
from dpsinkhorn.transport.algorithm import coupling


def linear(C, phi, psi, eta) -> float:
    return float((coupling(C, phi, psi, eta) * C).sum())


class TestSensitivity:
    @pytest.mark.parametrize("eta", [0.2, 1.0, 5.0])
    def test_no_neighbours_are_farther_apart_and_some_attain_it(self, eta):
        rng = np.random.default_rng(0)
        worst = 0.0
        for _ in range(200):
            n, m = (int(size) for size in rng.integers(1, 6, size=2))
            phi, psi = (torch.tensor(rng.normal(size=size)) for size in (n, m))
            allowed = linear_sensitivity(Setting(n, m, 1.0), eta, phi.numpy(), psi.numpy())
            C = torch.tensor(rng.random((n, m)))
            other, row = C.clone(), rng.random() < 0.5
            peak = min(eta, 1.0)
            ends = torch.tensor([0.0, peak]).double()
            index = int(phi.argmax()) if row else int(psi.argmax())
            for matrix, value in ((C, ends[0]), (other, ends[1])):
                if row:
                    matrix[index] = value
                else:
                    matrix[:, index] = value
            change = abs(linear(C, phi, psi, eta) - linear(other, phi, psi, eta))
            assert change <= allowed
            worst = max(worst, change / allowed)
        assert worst > 0.999999

    def test_random_neighbours(self):
        rng = np.random.default_rng(1)
        for _ in range(300):
            n, m, eta = 4, 3, float(rng.choice([0.1, 0.5, 2.0]))
            phi, psi = (torch.tensor(rng.normal(size=size)) for size in (n, m))
            C = torch.tensor(rng.random((n, m)))
            other = C.clone()
            if rng.random() < 0.5:
                other[0] = torch.tensor(rng.random(m))
            else:
                other[:, 0] = torch.tensor(rng.random(n))
            change = abs(linear(C, phi, psi, eta) - linear(other, phi, psi, eta))
            assert change <= linear_sensitivity(Setting(n, m, 1.0), eta, phi.numpy(), psi.numpy())

    def test_too_small_a_regularization_is_refused_before_anything_is_spent(self, tmp_path):
        with Ledger.open(tmp_path / "ledger", epsilon, budget=Budget(2.0, 1e-5)) as ledger:
            with pytest.raises(TransportError, match="at least"):
                two_stage_cost(
                    [0.0], [1.0], epsilon=1, delta=1e-5, cost_bound=1, regularization=1e-4, ledger=ledger
                )
            assert ledger.epsilon() == 0
        found = two_stage_cost(
            [0.0], [1.0], epsilon=1, delta=1e-5, cost_bound=1, regularization=1.2e-2, noise=SeededNoise(0)
        )
        assert math.isfinite(found.released)


class TestRelease:
    def test_costs_what_it_says(self, tmp_path):
        rng = np.random.default_rng(0)
        x, y = rng.random((2, 60, 2))
        with Ledger.open(tmp_path / "ledger", epsilon, budget=Budget(2.0, 1e-5)) as ledger:
            found = two_stage_cost(
                x, y, epsilon=2, delta=1e-5, cost_bound=2, ledger=ledger, noise=SeededNoise(0)
            )
            assert 1.0 < ledger.epsilon() <= 2.0
        assert found.method == "two-stage"
        assert epsilon(found.charge, 1e-5) <= 2.0

    @pytest.mark.parametrize("share", [0.1, 0.9])
    def test_both_stages_are_charged(self, share):
        """The larger one alone is most of ε already; together they are no more than ε."""
        found = two_stage_cost(
            [0.0, 1.0], [1.0], epsilon=2, delta=1e-5, cost_bound=1, share=share, noise=SeededNoise(0)
        )
        alone = NoisySinkhorn.plan(
            Setting(2, 1, 1.0), regularization=1.0, epsilon=2 * share, delta=1e-5
        ).charge
        laplace = 2 * (1 - share)
        total = epsilon(found.charge, 1e-5)
        assert max(laplace, epsilon(alone, 1e-5)) < total <= 2.0
        assert total > 0.9 * 2

    @pytest.mark.parametrize("public", ["x", "y"])
    def test_a_public_side(self, public):
        """Both potentials enter, so both are noised as if both sides were private; the second stage gains."""
        rng = np.random.default_rng(0)
        x, y = rng.random((40, 1)), rng.random((30, 1))
        options = {"epsilon": 5, "delta": 1e-5, "cost_bound": 1, "share": 0.5, "iterations": 1}
        found = two_stage_cost(x, y, public=public, noise=SeededNoise(0), **options)
        both = two_stage_cost(x, y, noise=SeededNoise(0), **options)
        assert epsilon(found.charge, 1e-5) == epsilon(both.charge, 1e-5)
        widths = [each.interval[1] - max(each.interval[0], 0) for each in (found, both)]
        assert widths[0] <= widths[1]

    def test_second_stage_noise(self, monkeypatch):
        """With the potentials held fixed, what varies is Laplace noise of the stated scale."""
        rng = np.random.default_rng(0)
        x, y = rng.random((2, 40, 2))
        seen = []
        plain = two_stage.add_laplace

        def spy(value, **options):
            noisy = plain(value, **options)
            seen.append((float(noisy - value), options["sensitivity"] / options["epsilon"]))
            return noisy

        monkeypatch.setattr(two_stage, "add_laplace", spy)
        noise = SeededNoise(0)
        for _ in range(400):
            two_stage_cost(x, y, epsilon=3, delta=1e-3, cost_bound=2, share=0.7, iterations=1, noise=noise)
        scaled = [error / scale for error, scale in seen]
        assert stats.kstest(scaled, stats.laplace.cdf).pvalue > 1e-3
        assert np.std(scaled) == pytest.approx(math.sqrt(2), rel=0.2)

    def test_interval_covers_the_value_also_above_the_bound(self, monkeypatch):
        """π̂ is no plan: <c, π̂> passes the bound in one of five runs here."""
        rng = np.random.default_rng(0)
        x, y = rng.random((2, 30, 2))
        seen = []
        plain = two_stage.add_laplace
        monkeypatch.setattr(
            two_stage, "add_laplace", lambda value, **o: seen.append(float(value)) or plain(value, **o)
        )
        inside = 0
        for seed in range(150):
            found = two_stage_cost(
                x, y + 0.3, epsilon=2, delta=1e-5, cost_bound=1, share=0.5, iterations=1, confidence=0.9,
                noise=SeededNoise(seed),
            )  # fmt: skip
            inside += found.interval[0] <= seen[-1] <= found.interval[1]
            assert 0 <= found.cost <= 1
        assert sum(value > 1 for value in seen) > 10
        assert 0.83 < inside / 150 < 0.97

    @pytest.mark.parametrize("change", [{"confidence": 1.0}, {"share": 1 - 1e-12}, {"regularization": 9e-3}])
    def test_refused_before_anything_is_spent(self, tmp_path, change):
        with Ledger.open(tmp_path / "ledger", epsilon, budget=Budget(2.0, 1e-5)) as ledger:
            with pytest.raises(TransportError):
                two_stage_cost([0.0], [1.0], epsilon=1, delta=1e-5, cost_bound=1, ledger=ledger, **change)
            assert ledger.epsilon() == 0

    def test_every_potential_leaves_noise_that_float64_holds(self):
        """At the smallest regularization, whatever the noise made of the potentials."""
        rng = np.random.default_rng(0)
        for seed in range(20):
            x, y = rng.random((2, int(rng.integers(1, 30)), 2))
            found = two_stage_cost(
                x, y, epsilon=1, delta=1e-5, cost_bound=1, regularization=0.01, iterations=1, share=0.5,
                noise=SeededNoise(seed),
            )  # fmt: skip
            assert math.isfinite(found.released)

    @pytest.mark.parametrize("public", [None, "x"])
    def test_planned_before_any_point_is_seen(self, public):
        """The plan has the charge and the prediction of the release that follows it."""
        rng = np.random.default_rng(0)
        x, y = rng.random((25, 1)), rng.random((20, 1))
        options = {"epsilon": 3.0, "delta": 1e-5, "iterations": 2}
        found = two_stage_cost(x, y, cost_bound=1, public=public, noise=SeededNoise(0), **options)
        plan = TwoStageMechanism.plan(
            Setting(25, 20, 1.0, public, dimension=1), regularization=1.0, **options
        )
        assert (found.charge, found.predicted_error) == (plan.charge, plan.predicted_error)
        clouds = Clouds.of(x, y, cost_bound=1, public=public)
        assert plan.release(clouds, SeededNoise(0))[0] == found.released

    def test_bad_share(self):
        with pytest.raises(TransportError, match="share"):
            two_stage_cost([0.0], [1.0], epsilon=1, delta=1e-5, cost_bound=1, share=1.0)
