"""Problems whose answer is known, and laws that every transport cost obeys."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dpsinkhorn.ot import L1L2, Cityblock, Problem, SquaredEuclidean, solve
from support.problems import gaussian_entropic_cost

COSTS = [SquaredEuclidean(), Cityblock(), L1L2(0.5)]
seeds = st.integers(0, 2**31)
sizes = st.integers(1, 12)
dims = st.integers(1, 6)
regularizations = st.floats(-3, 3).map(lambda power: 10**power)
common = settings(max_examples=40, deadline=None, derandomize=True)


def cloud(seed: int, n: int, d: int) -> torch.Tensor:
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@common
@given(seeds, sizes, dims, regularizations, st.sampled_from(COSTS))
def test_from_a_dirac_everything_moves_from_one_place(seed, n, d, regularization, cost):
    x, y = cloud(seed, 1, d), cloud(seed + 1, n, d)
    b = cloud(seed + 2, 1, n).abs().squeeze(0)
    expected = (cost.pairwise(x, y).squeeze(0) * b / b.sum()).sum()
    result = solve(Problem(x, y, cost, b=b), regularization)
    assert result.converged
    torch.testing.assert_close(result.value, expected)
    torch.testing.assert_close(result.value_linear, expected)


@common
@given(seeds, st.integers(2, 12), dims)
def test_well_separated_permutation_is_found(seed, n, d):
    x = cloud(seed, n, d) + 100 * torch.arange(n, dtype=torch.float64).unsqueeze(-1)
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    result = solve(Problem(x, x[order]), 0.05)
    assert torch.equal(result.plan.argmax(1), order.argsort())
    torch.testing.assert_close(result.value_linear, torch.zeros((), dtype=torch.float64), atol=1e-9, rtol=0)
    # the entropy of a permutation against the product of its marginals is log n
    torch.testing.assert_close(result.value.item(), 0.05 * math.log(n), atol=1e-9, rtol=1e-9)


@common
@given(seeds, sizes, dims, regularizations)
def test_translation_adds_its_square(seed, n, d, regularization):
    """Under squared L2, W(x, y + t) = W(x, y) + |t|^2 + 2 <t, mean y - mean x>: exact for every λ."""
    x, y, t = cloud(seed, n, d), cloud(seed + 1, n, d), cloud(seed + 2, 1, d)
    here = solve(Problem(x, y), regularization).value
    there = solve(Problem(x, y + t), regularization).value
    expected = here + t.square().sum() + 2 * (t * (y.mean(0) - x.mean(0))).sum()
    torch.testing.assert_close(there, expected, rtol=1e-7, atol=1e-9)


@common
@given(seeds, sizes, sizes, dims, regularizations, st.sampled_from(COSTS))
def test_exchange_of_the_clouds(seed, n, m, d, regularization, cost):
    x, y = cloud(seed, n, d), cloud(seed + 1, m, d)
    forth, back = solve(Problem(x, y, cost), regularization), solve(Problem(y, x, cost), regularization)
    torch.testing.assert_close(forth.value, back.value, rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(forth.plan, back.plan.mT, rtol=1e-5, atol=1e-8)


@common
@given(seeds, sizes, sizes, dims, regularizations, st.floats(0.01, 100))
def test_change_of_units(seed, n, m, d, regularization, unit):
    """Points times t, λ times t^2: squared L2 values times t^2."""
    x, y = cloud(seed, n, d), cloud(seed + 1, m, d)
    small = solve(Problem(x, y), regularization).value
    large = solve(Problem(unit * x, unit * y), unit**2 * regularization).value
    torch.testing.assert_close(large, unit**2 * small, rtol=1e-7, atol=1e-10)


@common
@given(seeds, st.integers(2, 12), sizes, dims, regularizations)
def test_splitting_a_point_changes_nothing(seed, n, m, d, regularization):
    x, y = cloud(seed, n, d), cloud(seed + 1, m, d)
    a = cloud(seed + 2, 1, n).abs().squeeze(0)
    twice = torch.cat([x, x[:1]])
    split = torch.cat([a, 0.3 * a[:1]])
    split[0] *= 0.7
    whole, parts = (
        solve(Problem(x, y, a=a), regularization),
        solve(Problem(twice, y, a=split), regularization),
    )
    torch.testing.assert_close(whole.value, parts.value, rtol=1e-7, atol=1e-9)


@common
@given(seeds, st.integers(2, 12), sizes, dims, regularizations)
def test_points_without_weight_do_not_count(seed, n, m, d, regularization):
    x, y = cloud(seed, n, d), cloud(seed + 1, m, d)
    a = torch.ones(n, dtype=torch.float64)
    a[0] = 0
    with_point, without = solve(Problem(x, y, a=a), regularization), solve(Problem(x[1:], y), regularization)
    torch.testing.assert_close(with_point.value, without.value, rtol=1e-7, atol=1e-9)
    assert with_point.plan[0].sum() == 0
    assert torch.isfinite(with_point.f).all()


@pytest.mark.parametrize("regularization", [0.05, 0.5, 5.0])
@pytest.mark.parametrize(("mean", "s", "t"), [(0.0, 1.0, 1.0), (2.0, 0.7, 1.4)])
def test_gaussians(mean: float, s: float, t: float, regularization: float):
    """Finely discretised Gaussians have the closed-form entropic cost."""
    grid = torch.linspace(-9, 11, 401, dtype=torch.float64)
    a, b = torch.exp(-((grid / s) ** 2) / 2), torch.exp(-(((grid - mean) / t) ** 2) / 2)
    result = solve(Problem(grid.unsqueeze(-1), grid.unsqueeze(-1), a=a, b=b), regularization)
    assert result.converged
    assert float(result.value) == pytest.approx(gaussian_entropic_cost(mean, s, t, regularization), abs=1e-7)


def test_small_regularization_tends_to_exact_transport_on_the_line():
    """In one dimension exact transport sorts."""
    x, y = cloud(0, 40, 1), cloud(1, 40, 1) * 2 + 1
    exact = (x.sort(0).values - y.sort(0).values).square().mean()
    result = solve(Problem(x, y), 1e-4)
    torch.testing.assert_close(result.value_linear, exact, rtol=1e-3, atol=0)
