"""Exact costs of data with many equal points: merged, with the same value and the same certificate."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpsinkhorn.transport import Clouds, certified
from dpsinkhorn.transport.certified import certified_exact_value, exact_value
from support.problems import exact_cost


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 40), st.integers(1, 40), st.integers(1, 6), st.integers(0, 2**32), st.sampled_from([1, 3])
)
def test_value_is_that_of_all_points(n, m, most, seed, dimension):
    rng = np.random.default_rng(seed)
    x, y = rng.integers(0, most, (n, dimension)), rng.integers(0, most, (m, dimension))
    clouds = Clouds.of(x, y, cost_bound=20)
    true = exact_cost(clouds.costs().numpy(), np.full(n, 1 / n), np.full(m, 1 / m))
    assert -1e-9 <= true - certified_exact_value(clouds, gap=1e-4) <= 1e-4 + 1e-9


def sizes_solved(monkeypatch, x, y):
    seen = []
    plain = certified.exact_value
    monkeypatch.setattr(
        certified, "exact_value", lambda costs, *a, **o: seen.append(costs.shape) or plain(costs, *a, **o)
    )
    certified_exact_value(Clouds.of(x, y, cost_bound=10), gap=1e-4)
    return seen


@pytest.mark.parametrize("m", [750, 1000])
def test_the_problem_is_as_small_as_the_data_are(monkeypatch, m):
    rng = np.random.default_rng(0)
    assert sizes_solved(monkeypatch, rng.integers(0, 5, (1000, 2)), rng.integers(0, 5, (m, 2))) == [(25, 25)]


@settings(max_examples=100, deadline=None)
@given(
    st.integers(1, 40), st.integers(1, 40), st.integers(0, 2**32), st.sampled_from([1, 1e-150, 1e-12, 1e150])
)
def test_the_simplex_reaches_the_gap_at_any_scale(n, m, seed, scale):
    """Ties, tiny weights, tiny and huge costs: the last resort, which is slow, is not needed."""
    rng = np.random.default_rng(seed)
    costs = scale * rng.choice([rng.random((n, m)), rng.integers(0, 3, (n, m)) / 2, rng.random((n, m)) ** 20])
    a, b = (w / w.sum() for w in (rng.random(size) ** rng.integers(1, 60) + 1e-300 for size in (n, m)))
    with pytest.MonkeyPatch.context() as patch:
        patch.delattr(certified, "_by_sinkhorn")
        exact_value(costs, a, b, bound=scale, gap=1e-7 * scale)


def test_there_is_one_zero(monkeypatch):
    assert sizes_solved(monkeypatch, np.array([[0.0], [-0.0], [0.0]]), np.zeros((2, 1))) == [(1, 1)]
