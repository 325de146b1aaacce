"""Warm starts, histories, forbidden pairs, costs that are functions, half precision."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from dpsinkhorn.ot import MatrixProblem, Problem, native, solve, transport_loss


@pytest.fixture(autouse=True, params=[True, False], ids=["compiled", "torch"])
def _with_and_without_compiled_loops(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch):
    if not request.param:
        monkeypatch.setattr(native, "library", None)


def draw(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


@pytest.mark.parametrize("batch", [(), (1,), (3,)])
@pytest.mark.parametrize("rows", [25, 40], ids=["flipped", "as it is"])
def test_a_warm_start_takes_less_than_half_the_way(batch: tuple[int, ...], rows: int):
    x, y = draw(*batch, rows, 3), draw(*batch, 30, 3, seed=1) + 1
    before = solve(Problem(x, y), 0.05)
    moved = Problem(x + 0.01 * draw(*batch, rows, 3, seed=2), y)
    cold, warm = solve(moved, 0.05), solve(moved, 0.05, init=before)
    again = solve(moved, 0.05, init=(before.f, before.g))
    assert warm.converged.all()
    assert again.iterations == warm.iterations < cold.iterations / 2
    torch.testing.assert_close(warm.value, cold.value, rtol=1e-8, atol=0)
    torch.testing.assert_close(warm.plan, cold.plan, rtol=0, atol=1e-8)


def test_a_start_that_is_no_use_does_no_harm():
    problem = Problem(draw(20, 2), draw(15, 2, seed=1))
    cold = solve(problem, 0.01)
    warm = solve(problem, 0.01, init=(cold.f * 100, -cold.g * 100))
    assert warm.converged
    assert warm.iterations <= cold.iterations + 1
    torch.testing.assert_close(warm.value, cold.value)


@pytest.mark.parametrize("init", [3, (torch.zeros(4),), (torch.zeros(4), torch.zeros(4)), (None, None)])
def test_a_start_of_another_kind(init: object):
    with pytest.raises(ValueError, match=r"^init: expected"):
        solve(Problem(draw(4, 2), draw(3, 2)), 0.1, init=init)
    with pytest.raises(ValueError, match=r"^init: expected finite"):
        solve(Problem(draw(4, 2), draw(3, 2)), 0.1, init=(torch.zeros(4), torch.full((3,), math.nan)))


def test_the_history_ends_at_the_error():
    result = solve(Problem(draw(30, 2), draw(20, 2, seed=1)), 0.01)
    evaluations, stages, errors = zip(*result.history, strict=True)
    assert evaluations[-1] == result.iterations
    assert list(evaluations) == sorted(evaluations)
    assert stages[-1] == 0.01
    assert list(stages) == sorted(stages, reverse=True)
    assert min(errors) == pytest.approx(float(result.marginal_error), rel=1e-6)


@pytest.mark.parametrize("regularization", [0.1, 0.01])
def test_forbidden_pairs_against_plain_scaling(regularization: float):
    matrix, a = draw(8, 10).abs(), draw(8, seed=2).abs() + 0.1
    matrix[draw(8, 10, seed=1) < -0.6] = math.inf
    result = solve(MatrixProblem(matrix, a), regularization)
    kernel, v, b = torch.exp(-matrix / regularization), torch.ones(10).double(), torch.tensor(0.1).double()
    for _ in range(20_000):
        u = a / a.sum() / (kernel @ v)
        v = b / (kernel.T @ u)
    assert result.converged
    assert not result.plan[matrix == math.inf].any()
    torch.testing.assert_close(result.plan, u[:, None] * kernel * v, rtol=0, atol=1e-8)
    exact = solve(MatrixProblem(matrix, a), 0)
    assert not exact.plan[matrix == math.inf].any()
    assert exact.value <= result.value + 1e-9


@pytest.mark.parametrize("regularization", [0.1, 0.0])
def test_pairs_that_cannot_all_be_avoided(regularization: float):
    matrix = torch.tensor([[1.0, math.inf], [math.inf, 1.0]])
    result = solve(MatrixProblem(matrix), regularization)
    torch.testing.assert_close(result.plan, torch.eye(2, dtype=result.plan.dtype) / 2)
    with pytest.raises(ValueError, match=r"^matrix: no plan with these marginals avoids"):
        solve(MatrixProblem(matrix, torch.tensor([0.3, 0.7])), regularization)


def test_a_cost_may_be_a_function():
    x, y = draw(6, 2).requires_grad_(), draw(5, 2, seed=1)
    loss = transport_loss(x, y, 0.3, cost=lambda x, y: (x.unsqueeze(-2) - y.unsqueeze(-3)).square().sum(-1))
    expected = transport_loss(x, y, 0.3)
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(torch.autograd.grad(loss, x), torch.autograd.grad(expected, x))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_promoted(dtype: torch.dtype):
    x, y = draw(6, 2, dtype=dtype).requires_grad_(), draw(5, 2, seed=1).to(dtype)
    loss = transport_loss(x, y, 0.3)
    loss.backward()
    assert loss.dtype == torch.float32
    assert x.grad is not None
    assert x.grad.dtype == dtype
    torch.testing.assert_close(loss, transport_loss(x.float(), y.float(), 0.3))
    if dtype == torch.float16:
        result = solve(Problem(x.detach().numpy(), y.numpy(), "euclidean"), 0.3)
        assert result.plan.dtype == torch.float32
