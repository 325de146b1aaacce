"""Unregularised transport: ``regularization=0``."""

from __future__ import annotations

import pytest
import torch

from dpsinkhorn.ot import Cityblock, MatrixProblem, Problem, native, solve, transport_loss
from support.problems import exact_cost, generate


def changed(*arguments: object) -> None:  # noqa: ARG001
    raise TypeError("emd_c() takes other arguments in this version")


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("without", ["nothing", "compiled loops", "POT's compiled function"])
def test_value_plan_and_potentials(seed: int, without: str, monkeypatch: pytest.MonkeyPatch):
    if without == "compiled loops":
        monkeypatch.setattr(native, "library", None)
    if without == "POT's compiled function":
        monkeypatch.setattr("ot.lp.emd_wrap.emd_c", changed)
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


@pytest.mark.parametrize("scale", [1e-300, 1e-9, 1e-3, 1e5, 1e12, 1e300])
def test_units_of_the_cost_do_not_matter(scale: float):
    costs = torch.rand(30, 20, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    one, other = solve(MatrixProblem(costs), 0), solve(MatrixProblem(scale * costs), 0)
    torch.testing.assert_close(other.value / scale, one.value, rtol=1e-12, atol=0)
    torch.testing.assert_close(other.plan, one.plan)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_loss_and_solve_agree(dtype: torch.dtype):
    """The loss takes a shorter way to the same; and says where a cost is beyond its type."""
    x, y = (
        torch.rand(count, 3, generator=torch.Generator().manual_seed(count)).to(dtype) for count in (8, 11)
    )
    points, others = x.clone().requires_grad_(), y.clone().requires_grad_()
    loss = transport_loss(points, others, 0)
    loss.backward()
    result = solve(Problem(x, y), 0)
    expected = result.value.to(dtype), *result.gradients()
    torch.testing.assert_close((loss.detach(), points.grad, others.grad), expected)
    for entry in (lambda x: transport_loss(x, y, 0), lambda x: solve(Problem(x, y), 0)):
        with pytest.raises(ValueError, match=f"cost: has values that are not finite in {dtype}"):
            entry(x * float(torch.finfo(dtype).max))


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
