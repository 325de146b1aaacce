"""Second derivatives, by differentiating the conditions of the optimum; and the loss of a cost matrix.

The plan P is the gradient of W in the costs. Where they change by dC, potentials by df and dg, and P by
``-P (dC - df - dg) / λ``, its marginals stay: a linear system in df and dg, with Newton's Laplacian.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from dpsinkhorn.ot.costs import L1L2, Cityblock, Cost, Euclidean, SquaredEuclidean
from dpsinkhorn.ot.problem import Array, MatrixProblem
from dpsinkhorn.ot.sinkhorn import solve


def change_of_plan(plan: Tensor, change: Tensor, regularization: float) -> Tensor:
    """How the plan ``(..., n, m)`` changes with the costs, at given marginals; symmetric as an operator.

    >>> plan = torch.full((2, 2), 0.25).double()
    >>> change_of_plan(plan, torch.tensor([[1.0, 0.0], [0.0, 1.0]]).double(), 0.5)
    tensor([[-0.2500,  0.2500],
            [ 0.2500, -0.2500]], dtype=torch.float64)
    """
    P, moved = plan.double(), plan.double() * change.double()
    a, b = P.sum(-1), P.sum(-2)
    inverse = torch.where(a > 0, 1 / a, 0.0).unsqueeze(-1)
    matrix = torch.diag_embed(b + (b <= 0)) - P.mT @ (inverse * P) + b.unsqueeze(-1) * b.unsqueeze(-2)
    rows, columns = moved.sum(-1, keepdim=True), moved.sum(-2).unsqueeze(-1)
    dg = torch.linalg.solve(matrix, columns - P.mT @ (inverse * rows))
    df = inverse * (rows - P @ dg)
    change = (P * (df + dg.mT)).sub_(moved)
    return change.div_(regularization)


class _Plan(torch.autograd.Function):
    """The plan as a function of the costs, at a solution that is known."""

    generate_vmap_rule = True

    @staticmethod
    def forward(costs: Tensor, plan: Tensor, regularization: float) -> Tensor:  # noqa: ARG004
        return plan.to(costs.dtype).clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, float], output: Tensor) -> None:  # noqa: ARG004
        _, plan, ctx.regularization = inputs
        ctx.save_for_backward(plan)

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        (plan,) = ctx.saved_tensors
        return _ChangeOfPlan.apply(plan, upstream, ctx.regularization), None, None  # type: ignore[no-untyped-call]


class _ChangeOfPlan(torch.autograd.Function):
    """:func:`change_of_plan`, whose derivative is refused: it would be a third one."""

    generate_vmap_rule = True

    @staticmethod
    def forward(plan: Tensor, upstream: Tensor, regularization: float) -> Tensor:
        return change_of_plan(plan, upstream, regularization).to(upstream.dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        raise NotImplementedError("the losses of dpsinkhorn.ot have first and second derivatives only")


def gradients_again(
    cost: Cost,
    x: Tensor,
    y: Tensor,
    a: Tensor | None,
    b: Tensor | None,
    potentials: tuple[Tensor, Tensor],
    regularization: float,
    upstream: Tensor,
) -> tuple[Tensor | None, ...]:
    """The gradients of W in both clouds, as functions of them that autograd can follow once more."""
    costs, pull = torch.func.vjp(_tracked(cost), x, y)  # type: ignore[misc]
    f, g = potentials
    weights = [
        torch.full_like(potential, 1 / potential.shape[-1])
        if each is None
        else (each / each.sum(-1, keepdim=True)).to(potential.dtype)
        for each, potential in ((a, f), (b, g))
    ]
    exponents = (f.unsqueeze(-1) + g.unsqueeze(-2) - costs.detach().double()) / regularization
    plan = weights[0].unsqueeze(-1) * weights[1].unsqueeze(-2) * exponents.exp()
    tracked = _Plan.apply(costs, plan, regularization)  # type: ignore[no-untyped-call]
    found: tuple[Tensor | None, ...] = pull(tracked * upstream[..., None, None])
    return found


def _tracked(cost: Cost) -> Callable[[Tensor, Tensor], Tensor]:
    """``pairwise`` in operations that can be differentiated twice."""

    def differences(x: Tensor, y: Tensor) -> Tensor:
        return x.unsqueeze(-2) - y.unsqueeze(-3)

    def euclidean(x: Tensor, y: Tensor) -> Tensor:
        squares = differences(x, y).square().sum(-1)
        apart = squares > 0
        return torch.where(apart, squares, 1.0).sqrt() * apart

    def squared(x: Tensor, y: Tensor) -> Tensor:
        centre = y.detach().mean(-2, keepdim=True)
        x, y = x - centre, y - centre
        return x.square().sum(-1).unsqueeze(-1) + y.square().sum(-1).unsqueeze(-2) - 2 * x @ y.mT

    if type(cost) is SquaredEuclidean:
        return squared
    if type(cost) is Euclidean:
        return euclidean
    if type(cost) in (Cityblock, L1L2):
        pixels = cost.pixels  # type: ignore[attr-defined]

        def combined(x: Tensor, y: Tensor) -> Tensor:
            between = differences(x, y)
            costs: Tensor = (pixels.squared * between.square() + pixels.absolute * between.abs()).sum(-1)
            return costs

        return combined
    return cost.pairwise


def matrix_loss(
    matrix: Tensor, regularization: float, *, a: Array | None = None, b: Array | None = None, **settings: Any
) -> Tensor:
    """Entropic transport cost ``W_λ`` of a cost matrix, ``(..., n, m)``, twice differentiable in it.

    Its gradient is the plan. ``a`` and ``b`` are those of :class:`dpsinkhorn.ot.MatrixProblem`; ``settings``
    those of :func:`dpsinkhorn.ot.solve`.

    >>> costs = torch.tensor([[0.0, 1.0], [1.0, 0.0]], requires_grad=True)
    >>> matrix_loss(costs, 0.01).backward()
    >>> costs.grad.round(decimals=4)
    tensor([[0.5000, 0.0000],
            [0.0000, 0.5000]])
    """
    if isinstance(matrix, Tensor):
        loss: Tensor = _MatrixLoss.apply(matrix, regularization, a, b, settings)  # type: ignore[no-untyped-call]
        return loss
    return solve(MatrixProblem(matrix, a, b), regularization, **settings).value


class _MatrixLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, matrix: Tensor, regularization: float, a: Any, b: Any, settings: dict[str, Any]
    ) -> Tensor:
        for name, weights in (("a", a), ("b", b)):
            if isinstance(weights, Tensor) and weights.requires_grad:
                raise ValueError(f"{name}: no gradient in the weights here; take the potentials of solve")
        result = solve(MatrixProblem(matrix, a, b), regularization, **settings)
        ctx.save_for_backward(matrix, result.plan)
        ctx.regularization, ctx.once = regularization, settings.get("marginals") is not None
        return result.value.to(matrix.dtype if matrix.dtype == torch.float64 else torch.float32)

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        matrix, plan = ctx.saved_tensors
        if torch.is_grad_enabled():
            if ctx.once or ctx.regularization == 0:
                raise NotImplementedError("second derivatives are of balanced, entropic transport only")
            plan = _Plan.apply(matrix, plan, ctx.regularization)  # type: ignore[no-untyped-call]
        return upstream[..., None, None] * plan, None, None, None, None
