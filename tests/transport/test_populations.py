"""Intervals for populations: of samples of one law, whose own cost is 0, and of known ones."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dpsinkhorn.privacy import SeededNoise
from dpsinkhorn.transport import Setting, private_cost
from dpsinkhorn.transport.clouds import of_populations

COMMON = {"epsilon": 100.0, "cost_bound": 1.0}


def test_an_interval_of_samples_misses_the_populations_and_theirs_does_not():
    rng, missed = np.random.default_rng(0), 0
    for run in range(20):
        x, y = rng.random((2, 40, 2)) / 2
        found = private_cost(x, y, **COMMON, noise=SeededNoise(run))
        missed += found.interval[0] > 0
        assert found.population_interval[0] == 0
        assert found.population_interval[1] > found.interval[1]
    assert missed == 20


def test_the_upper_end_is_above_the_populations_cost():
    """Of two points each, at a cost of 1/4 from one another: 1/4 times the difference of their weights."""
    rng, above = np.random.default_rng(0), 0
    for run in range(200):
        x, y = ((rng.random((30, 1)) < share) / 2.0 for share in (0.3, 0.7))
        found = private_cost(x, y, epsilon=100.0, cost_bound=0.25, confidence=0.5, noise=SeededNoise(run))
        above += found.population_interval[1] >= 0.1
    assert above >= 100  # half of all, at least


def test_binned_populations_are_within_both_ends():
    rng = np.random.default_rng(0)
    support = np.array([[0.0], [0.5]])
    for run in range(50):
        x, y = ((rng.random((4000, 1)) < share) / 2.0 for share in (0.1, 0.9))
        found = private_cost(x, y, **COMMON, support=support, method="histogram", noise=SeededNoise(run))
        low, high = found.population_interval
        assert 0.15 < low < 0.2 < high < 0.25


def test_where_none_is_proved():
    x, y = np.random.default_rng(0).random((2, 10, 2))
    for options in ({"paired": True}, {"public": "x"}, {"debiased": True}):
        found = private_cost(x, y, **COMMON, **options, noise=SeededNoise(0))
        assert found.population_interval is None
        assert found.to_json()["population_interval"] is None


def test_reach():
    """McDiarmid: exp(-2 t² / (span² (1/n + 1/m))) is a quarter of what may go wrong, at either end."""
    low, high = of_populations(
        lambda at: (2.0, 3.0 + at), Setting(50, 200, 1.0), confidence=0.9, span=0.5, excess=0.25
    )
    reach = high - 3.95
    assert math.exp(-2 * reach**2 / (0.25 * (1 / 50 + 1 / 200))) == pytest.approx(0.1 / 4)
    assert low == pytest.approx(1.75 - reach)
