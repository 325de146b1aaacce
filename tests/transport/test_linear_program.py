"""The private linear program: a plan of mass that is there, its value, its interval, its noise."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import optimize

from dpsinkhorn.privacy import SeededNoise, epsilon
from dpsinkhorn.transport import (
    Clouds,
    HistogramMechanism,
    LinearProgramMechanism,
    TransportError,
    private_cost,
)

GRID = np.stack(np.meshgrid([0.1, 0.5, 0.9], [0.1, 0.5, 0.9]), -1).reshape(-1, 2)
RNG = np.random.default_rng(0)
X, Y = RNG.random((3000, 2)), RNG.random((2000, 2)) ** 2


def mechanism(target=1.0, confidence=0.9, **options):
    clouds = Clouds.of(X, Y, cost_bound=2.0, **options)
    return LinearProgramMechanism(HistogramMechanism.plan(clouds, GRID, epsilon=target), confidence), clouds


def weights_of(clouds, plan):
    found = plan.histogram.binned(clouds)
    return {"x": found.x, "y": found.y}


class TestProgram:
    def test_value_is_that_of_the_linear_program(self):
        """Row sums at most a, column sums at most b, the largest cost for what is not moved."""
        plan, clouds = mechanism()
        weights = plan.release(clouds, SeededNoise(0))
        found = plan.solve(weights)
        sure = {
            side: np.maximum(weights[side] - plan.shift / size, 0)
            for side, size in (("x", 3000), ("y", 2000))
        }
        costs, largest = plan.histogram.costs, plan.histogram.costs.max()
        k = len(costs)
        sums = np.concatenate([np.kron(np.eye(k), np.ones(k)), np.kron(np.ones(k), np.eye(k))])
        limits = np.concatenate([sure["x"], sure["y"]])
        best = optimize.linprog((costs - largest).ravel(), A_ub=sums, b_ub=limits)
        assert found.value == pytest.approx(largest + best.fun, abs=1e-9)
        assert (found.mass.sum(1) <= sure["x"] + 1e-12).all()
        assert (found.mass.sum(0) <= sure["y"] + 1e-12).all()

    def test_without_noise_or_shift_it_is_the_transport_cost(self):
        plan, clouds = mechanism(target=1e7)
        weights = plan.release(clouds, SeededNoise(0))
        assert plan.solve(weights).value == pytest.approx(
            plan.histogram.binned(clouds).cost("exact", 0.0), abs=1e-3
        )

    def test_all_is_left_where_there_is_too_much_noise(self):
        plan, clouds = mechanism(target=1e-3, confidence=0.99)
        found = plan.solve(plan.release(clouds, SeededNoise(0)))
        assert found.value == pytest.approx(plan.histogram.costs.max())
        assert found.unserved == pytest.approx((1.0, 1.0), abs=0.2)


class TestConstraints:
    def test_none_is_broken_as_often_as_is_said(self):
        plan, clouds = mechanism(target=0.5, confidence=0.7)
        binned, noise, kept, covered = weights_of(clouds, plan), SeededNoise(0), 0, 0
        true = plan.histogram.binned(clouds).cost("exact", 0.0)
        runs = 300
        for _ in range(runs):
            weights = plan.release(clouds, noise)
            found = plan.solve(weights)
            inside = all(
                (found.mass.sum(1 - side) <= binned[name] + 1e-12).all() for side, name in enumerate("xy")
            )
            kept += inside
            low, high = plan.interval(weights, 0.7)
            covered += low <= true <= high
            assert found.value >= true or not inside
        assert kept > 0.7 * runs - 3 * math.sqrt(0.21 * runs)
        assert kept < runs  # it is noise, and not truncated
        assert covered >= kept

    def test_a_public_side_is_taken_as_it_is(self):
        plan, clouds = mechanism(public="y")
        found = plan.solve(plan.release(clouds, SeededNoise(0)))
        assert found.unserved[1] == pytest.approx(0.0, abs=1e-9)
        assert plan.shift == pytest.approx(2 * math.log(9 / 0.2), rel=1e-3)


def test_charge_noise_and_result():
    options = {"epsilon": 1.0, "cost_bound": 2.0, "support": GRID, "noise": SeededNoise(0)}
    found = private_cost(X, Y, method="linear-program", **options)
    assert epsilon(found.charge, 0.0) == pytest.approx(1.0)
    assert (found.quantity, found.delta, found.method) == ("exact", 0.0, "linear-program")
    assert found.interval[0] < found.cost == found.interval[1]
    low, high = found.population_interval
    assert low <= found.interval[0]
    assert high > found.interval[1]
    plan, clouds = mechanism(confidence=0.95)
    true = plan.histogram.binned(clouds).cost("exact", 0.0)
    assert found.predicted_error / 3 < found.cost - true < 3 * found.predicted_error
    assert found.cost - true < plan.predicted_error
    assert any("upper bound" in note for note in found.notes)
    assert any("moved to the nearest points" in note for note in found.notes)


@pytest.mark.parametrize("change", [{"support": None}, {"regularization": 0.1}])
def test_bad_input(change):
    options = {"epsilon": 1.0, "cost_bound": 2.0, "support": GRID, **change}
    with pytest.raises(TransportError, match="linear-program needs a public support"):
        private_cost(X, Y, method="linear-program", **options)
