"""What a released figure is of: entropic or exact, of the data or of the data moved to a support."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

import ot as pot
from dpsinkhorn.privacy import SeededNoise
from dpsinkhorn.transport import Clouds, DirectMechanism, measure_tradeoff, private_cost, two_stage_cost

RNG = np.random.default_rng(0)
X, Y = RNG.random((300, 2)), RNG.random((250, 2)) + 0.5


@pytest.mark.parametrize("support", [[[0.5, 0.5], [0.6, 0.6]], [[0.5, 0.5]]])
def test_auto_never_takes_a_coarse_support(support):
    options = {"epsilon": 1, "cost_bound": 5, "regularization": 0, "support": support}
    found = private_cost(X, Y, **options, noise=SeededNoise(0))
    true = pot.emd2([], [], pot.dist(X, Y), numItermax=1_000_000)
    assert found.method == "direct"
    assert found.interval[0] < true < found.interval[1]
    assert "histogram is left out" in found.reason
    binned = private_cost(X, Y, **options, method="histogram", noise=SeededNoise(0))
    assert binned.interval[1] < true / 2  # so coarse that it tells nothing: which is said
    assert any("moved to the nearest points of the support" in note for note in binned.notes)
    assert json.loads(json.dumps(binned.to_json()))["notes"] == list(binned.notes)
    rows = measure_tradeoff(
        X, Y, cost_bound=5, regularization=0, support=support, epsilons=[1.0], runs=2
    ).rows
    assert [row.method for row in rows if row.chosen] == ["direct"]


def test_an_entropic_cost_says_that_it_is_one():
    found = private_cost(X, X, epsilon=50, cost_bound=3, regularization=0.15, noise=SeededNoise(0))
    most = found.regularization * math.log(len(X))
    assert found.quantity == "entropic"
    assert 0.1 < found.interval[0] < found.interval[1] < most
    (note,) = found.notes
    assert f"{most:.3g}" in note
    assert "not 0 for equal data" in note
    exact = private_cost(X, X, epsilon=50, cost_bound=3, noise=SeededNoise(0))
    assert (exact.quantity, exact.interval[0]) == ("exact", 0)
    assert exact.notes == ("The transport cost of these samples itself, without regularization.",)
    (note,) = private_cost(X, X, epsilon=1, cost_bound=3, debiased=True, noise=SeededNoise(0)).notes
    assert "divergence" in note


@pytest.mark.parametrize(
    ("sizes", "options", "quantity"),
    [
        ((2000, 2000), {}, "exact"),
        ((2001, 1), {}, "entropic"),
        ((1, 2001), {}, "entropic"),
        ((5, 5), {"debiased": True}, "divergence"),
        ((5, 5), {"method": "noisy-sinkhorn", "delta": 1e-5}, "entropic"),
    ],
)
def test_the_default_is_exact_where_public_sizes_allow_it(sizes, options, quantity):
    x, y = (np.arange(size) % 7 / 7 for size in sizes)
    found = private_cost(x, y, epsilon=1, cost_bound=1, noise=SeededNoise(0), **options)
    assert (found.quantity, found.regularization) == (quantity, 0.0 if quantity == "exact" else 0.05)


@pytest.mark.parametrize("at", [0.01, 0.1, 1.0])
def test_entropic_costs_are_above_by_at_most_what_is_said(at):
    clouds = Clouds.of(X[:80], Y[:50], cost_bound=5)

    def value(quantity, regularization):
        return DirectMechanism.plan(
            clouds.setting, quantity, regularization=regularization, epsilon=1, gap=1e-6
        ).value(clouds)

    excess = value("entropic", at) - value("exact", 0.0)
    assert -1e-5 < excess < at * math.log(50) + 1e-5


def test_two_stage_does_not_call_itself_exact():
    found = two_stage_cost(X, Y, epsilon=5, delta=1e-5, cost_bound=5, noise=SeededNoise(0))
    assert found.quantity == "plan-cost"
    (note,) = found.notes
    assert "neither the exact nor the entropic cost" in note
    assert "leaves out the entropy" in note
