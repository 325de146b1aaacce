"""Weights and regularizations at the ends of their ranges: right, or said to be wrong."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import ot as pot
from dpsinkhorn.ot import ConvergenceWarning, MatrixProblem, Problem, native, solve
from support.problems import exact_cost


def cloud(n: int, seed: int, d: int = 2) -> torch.Tensor:
    return torch.rand(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.fixture(autouse=True, params=[True, False], ids=["compiled", "torch"])
def _with_and_without_compiled_loops(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch):
    if not request.param:
        monkeypatch.setattr(native, "library", None)


@pytest.mark.parametrize("size", [1e308, 1e-320])
def test_weights_whose_sum_leaves_the_range(size: float):
    weights = torch.full((20,), size, dtype=torch.float64)
    found = solve(Problem(cloud(20, 0), cloud(15, 1), a=weights), 0.1)
    expected = solve(Problem(cloud(20, 0), cloud(15, 1)), 0.1)
    assert found.converged
    torch.testing.assert_close(found.value, expected.value)


@pytest.mark.parametrize("regularization", [1e3, 1e6, 1e9, 1e12, 1e18, 1e100])
def test_value_and_potentials_at_large_regularizations(regularization: float):
    """To first order the potentials are the mean costs, and the value is the cost of the product plan."""
    x, y = cloud(20, 0), cloud(15, 1)
    a, b = cloud(20, 2, 1).squeeze(1), cloud(15, 3, 1).squeeze(1)
    a, b = a / a.sum(), b / b.sum()
    costs = (x[:, None] - y).square().sum(-1)
    mean = a @ costs @ b
    result = solve(Problem(x, y, a=a, b=b), regularization)
    assert result.converged
    rest = costs - (costs @ b)[:, None] - a @ costs + mean
    second_order = a @ rest.square() @ b / (2 * regularization)
    torch.testing.assert_close(result.value, mean - second_order, rtol=1e-9 + regularization**-2, atol=0)
    assert second_order > 0
    g = result.g - (b @ result.g)
    expected = a @ costs - mean
    torch.testing.assert_close(g, expected, rtol=0, atol=float(expected.abs().max()) * 1e-2)


@pytest.mark.filterwarnings(f"ignore::{ConvergenceWarning.__module__}.ConvergenceWarning")
@pytest.mark.parametrize("regularization", [1e-6, 1e-9, 1e-12, 1e-15])
def test_the_error_reported_at_small_regularizations_is_the_plans_own(regularization: float):
    result = solve(Problem(cloud(20, 0), cloud(15, 1)), regularization)
    plan = result.plan
    error = float((plan.sum(0) - 1 / 15).abs().sum() + (plan.sum(1) - 1 / 20).abs().sum())
    assert float(result.marginal_error) == pytest.approx(error, rel=0.1, abs=1e-11)
    assert bool(result.converged) == (error <= 1e-9)
    assert (regularization < 1e-10) == (error > 1e-6)


@pytest.mark.parametrize("means", [(30, 40, 10), (20, 60, 10), (30, 40, 3)])
@pytest.mark.parametrize("regularization", [1e-1, 1e-2, 1e-3])
def test_histograms_with_gaussian_tails(means: tuple[int, int, int], regularization: float):
    """Weights down to 1e-85, costs to 1e4: ε-scaling alone does not get there."""
    first, second, width = means
    a = pot.datasets.make_1D_gauss(100, m=first, s=10)
    b = pot.datasets.make_1D_gauss(100, m=second, s=width)
    costs = pot.utils.dist0(100)
    result = solve(MatrixProblem(costs, a, b), regularization, tolerance=1e-3)
    assert result.converged
    plan = result.plan.numpy()
    assert np.abs(plan.sum(0) - b).sum() + np.abs(plan.sum(1) - a).sum() <= 1e-3
    exact = exact_cost(costs, a, b)
    assert exact * (1 - 1e-6) <= float(result.value) <= exact + regularization * np.log(100**2)
