"""Unregularised transport: ``regularization=0``."""

from __future__ import annotations

import pytest
import torch

from dpsinkhorn.ot import Cityblock, MatrixProblem, Problem, solve, transport_loss
from support.problems import exact_cost, generate


@pytest.mark.parametrize("seed", range(12))
def test_value_plan_and_potentials(seed: int):
    case = generate(seed)
    costs = case.cost.pairwise(case.x, case.y)
    a, b = case.a / case.a.sum(), case.b / case.b.sum()
    result = solve(case.problem(), 0)
    size = float(costs.abs().max())
    assert result.converged
    assert result.value.item() == pytest.approx(
        exact_cost(costs.numpy(), a.numpy(), b.numpy()), abs=1e-6 * size
    )
    torch.testing.assert_close(result.value_linear, result.value, rtol=0, atol=1e-9 * size)  # no gap
    assert (result.f[:, None] + result.g - costs).max() <= 1e-9 * size
    torch.testing.assert_close(result.plan.sum(1), a, rtol=0, atol=1e-9)


def test_batches_types_and_gradients():
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.rand(3, count, 2, generator=generator) for count in (6, 9))
    together = solve(Problem(x, y, Cityblock()), 0)
    assert together.plan.shape == (3, 6, 9)
    assert together.plan.dtype == torch.float32
    for k in range(3):
        alone = solve(MatrixProblem(Cityblock().pairwise(x[k], y[k])), 0)
        torch.testing.assert_close(together.value[k], alone.value)
    points = x[0].double().requires_grad_()
    transport_loss(points, y[0].double(), 0).backward()
    nearly = x[0].double().requires_grad_()
    transport_loss(nearly, y[0].double(), 1e-5).backward()
    torch.testing.assert_close(points.grad, nearly.grad, rtol=0, atol=1e-4)
