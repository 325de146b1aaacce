"""Sinkhorn losses between clouds of points, with gradients in closed form.

All losses are sums of the entropic transport cost W_λ, taken as its dual value. Its gradient in the
points is the plan-weighted gradient of the cost, and in the weights the potential, exact at convergence by
the envelope theorem, so no iteration is unrolled and nothing is stored for a backward pass but the gradient
itself. Second derivatives, in the points, come from the conditions of the optimum (``second_order.py``).

Equation numbers are those of Cao et al., "Don't Generate Me: Training Differentially Private Generative
Models with Sinkhorn Divergence".
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec

import torch
from torch import Tensor, nn

from dpsinkhorn.ot import exact
from dpsinkhorn.ot.ascent import Method
from dpsinkhorn.ot.costs import Cost, CostLike, as_cost
from dpsinkhorn.ot.native import small
from dpsinkhorn.ot.native.small import Small
from dpsinkhorn.ot.problem import Problem
from dpsinkhorn.ot.second_order import gradients_again
from dpsinkhorn.ot.sinkhorn import (
    Marginals,
    Storage,
    check_settings,
    penalties,
    solve,
    tolerance_of,
)

_Arguments = ParamSpec("_Arguments")
_SETTINGS = ("tolerance", "max_iterations", "method", "storage", "marginals")


def _clouds_first(loss: Callable[_Arguments, Tensor]) -> Callable[_Arguments, Tensor]:
    """Have a loss of (x, y, regularization) say so where it is called with weights among the clouds."""

    @wraps(loss)
    def call(*given: _Arguments.args, **options: _Arguments.kwargs) -> Tensor:
        if len(given) + ("regularization" in options) > 3:
            raise TypeError(
                f"{loss.__name__}: expected (x, y, regularization), weights by name: a=, b=; "
                "SamplesLoss has GeomLoss's loss(a, x, b, y)"
            )
        return loss(*given, **options)

    return call


@_clouds_first
def transport_loss(
    x: Tensor,
    y: Tensor,
    regularization: float,
    *,
    cost: CostLike = None,
    a: Tensor | None = None,
    b: Tensor | None = None,
    tolerance: float | None = None,
    max_iterations: int = 1000,
    method: Method = "newton",
    storage: Storage = "auto",
    marginals: Marginals = None,
) -> Tensor:
    """Entropic transport cost ``W_λ(x, y)``, differentiable in both clouds, twice, and in their weights.

    Points are ``(n, d)`` and ``(m, d)``, or batched; ``cost`` (``SquaredEuclidean()``, the default,
    ``Euclidean()``, ``Cityblock()``, ``L1L2()``, one of their names or your own), ``a`` and ``b`` are those
    of :class:`dpsinkhorn.ot.Problem`, the others those of :func:`dpsinkhorn.ot.solve`.

    Weights are scaled to sum to one, and gradients are of that: no multiple of the weights changes the loss.
    With relaxed ``marginals`` they count as they are given.

    >>> x = torch.tensor([[0.0], [1.0]], requires_grad=True)
    >>> loss = transport_loss(x, torch.tensor([[1.0], [3.0]]), regularization=1e-3)
    >>> loss.backward()
    >>> x.grad
    tensor([[-1.],
            [-2.]])
    """
    settings = {
        "tolerance": tolerance,
        "max_iterations": max_iterations,
        "method": method,
        "storage": storage,
        "marginals": marginals,
    }
    wanted = tuple(_wants_gradient(each) for each in (x, y, a, b))
    arguments = (x, y, as_cost(cost), a, b, regularization, settings, wanted)
    if torch._C._functorch.peek_interpreter_stack() is None:
        loss: Tensor = _TransportLoss.apply(*arguments)  # type: ignore[no-untyped-call]
        return loss
    transformed: tuple[Tensor, ...] = _Transformed.apply(*arguments)  # type: ignore[no-untyped-call]
    return transformed[0]


def _wants_gradient(each: object) -> bool:
    return isinstance(each, Tensor) and each.requires_grad and torch.is_grad_enabled()


@_clouds_first
def empirical_loss(x: Tensor, y: Tensor, regularization: float, **options: Any) -> Tensor:
    """Eq. 4: ``2 W(x, y) - W(x, x) - W(y, y)``. Zero where the clouds are equal.

    ``options`` are those of :func:`transport_loss`, weights included.

    >>> empirical_loss(torch.rand(8, 2), torch.rand(8, 2) + 5, regularization=0.1) > 0
    tensor(True)
    """
    a, b = options.pop("a", None), options.pop("b", None)
    return debiased_loss(x, y, x, y, regularization, a=a, b=b, a_again=a, b_again=b, **options)


def debiased_loss(
    x: Tensor,
    y: Tensor,
    x_again: Tensor,
    y_again: Tensor,
    regularization: float,
    *,
    a: Tensor | None = None,
    b: Tensor | None = None,
    a_again: Tensor | None = None,
    b_again: Tensor | None = None,
    **options: Any,
) -> Tensor:
    """Eq. 5: ``2 W(x, y) - W(x, x') - W(y, y')`` with second, independent batches x' and y'.

    ``a``, ``b``, ``a_again`` and ``b_again`` are the weights of x, y, x' and y'; ``options`` are those of
    :func:`transport_loss`.

    >>> clouds = torch.rand(4, 8, 2)
    >>> debiased_loss(*clouds, regularization=0.1).shape
    torch.Size([])
    """
    for name, one, other in (("a", a, a_again), ("b", b, b_again)):
        if (one is None) != (other is None):
            raise ValueError(f"{name} and {name}_again: expected weights of both batches, or of neither")
    cross = transport_loss(x, y, regularization, a=a, b=b, **options)
    of_x, of_y = (_of_own(options, side) for side in (0, 1))
    own_x = transport_loss(x, x_again, regularization, a=a, b=a_again, **of_x)
    own_y = transport_loss(y, y_again, regularization, a=b, b=b_again, **of_y)
    return 2 * cross - own_x - own_y


@_clouds_first
def semi_debiased_loss(
    x: Tensor,
    y: Tensor,
    regularization: float,
    *,
    debias: float,
    a: Tensor | None = None,
    b: Tensor | None = None,
    **options: Any,
) -> Tensor:
    """Eq. 6: ``2 W(x[0:n], y) - W(x[0:n], x[n':n+n'])`` with ``n' = floor(n * debias)``.

    ``x`` holds the n generated points of the cross term followed by the n' resampled ones; n follows from
    their number (see :func:`split_generated`). Terms in ``y`` alone are left out: ``debias=0`` is Eq. 4
    and ``debias=1`` is Eq. 5 without them.

    ``a`` has a weight for each of the n + n' points ``x``, which it carries in either term, and ``b`` one for
    each of ``y``; the weights of each term are scaled to sum to one. ``options`` are those of
    :func:`transport_loss`.

    >>> x = torch.rand(7, 2, requires_grad=True)  # n = 5, n' = 2
    >>> semi_debiased_loss(x, torch.rand(9, 2), 0.1, debias=0.4).backward()
    >>> x.grad.shape
    torch.Size([7, 2])
    """
    if not isinstance(x, Tensor) or x.ndim < 2:
        raise ValueError(
            "x: expected points, (n, d) or (batch, n, d), before the weights: loss(x, y, a=a, b=b), where "
            "GeomLoss has loss(a, x, b, y)"
        )
    total = x.shape[-2]
    generated, resampled = split_generated(total, debias)
    first, second = slice(generated), slice(resampled, generated + resampled)
    a_first = a_second = None
    if a is not None:
        if not hasattr(a, "shape") or tuple(a.shape[-1:]) != (total,):
            raise ValueError(f"a: expected a tensor of {total} weights, one for each point of x")
        a_first, a_second = a[..., first], a[..., second]
    x_first, x_second = x[..., first, :], x[..., second, :]
    cross = transport_loss(x_first, y, regularization, a=a_first, b=b, **options)
    own = transport_loss(x_first, x_second, regularization, a=a_first, b=a_second, **_of_own(options, 0))
    return 2 * cross - own


def _of_own(options: dict[str, Any], side: int) -> dict[str, Any]:
    """Options of a self term: where marginals are relaxed, both of its are as those of its cloud."""
    relaxed = penalties(options.get("marginals"))
    return {**options, "marginals": relaxed and (relaxed[side], relaxed[side])}


def split_generated(total: int, debias: float) -> tuple[int, int]:
    """The n and ``n' = floor(n * debias)`` whose sum is ``total``."""
    if not 0 <= debias <= 1:
        raise ValueError(f"debias: expected a fraction between 0 and 1, got {debias}")
    generated = math.ceil(total / (1 + debias) - 1e-9)
    resampled = count_resampled(generated, debias)
    if generated + resampled != total:
        raise ValueError(
            f"x: {total} generated points cannot be split with debias {debias}; "
            f"give {generated + resampled} (n = {generated}, n' = {resampled})"
        )
    return generated, resampled


def count_resampled(generated: int, debias: float) -> int:
    """``n' = floor(n * debias)``, safe against products such as 100 * 0.29 = 28.999999999999996."""
    return math.floor(generated * debias + 1e-9)


class SinkhornLoss(nn.Module):
    """The semi-debiased Sinkhorn loss as a module: ``loss(generated, data)`` in anyone's training loop.

    With ``generated`` = x, of n points and n' = floor(n * debias) further ones, and ``data`` = y::

        loss = 2 W(x[0:n], y) - W(x[0:n], x[n':n+n']),   W = min over plans P of <C, P> + λ KL(P | a b^T).

    The term W(y, y) of the data alone is left out, as it has no gradient in x. So the value is no divergence:
    it is not zero at x = y. :func:`empirical_loss` has both self terms, :func:`debiased_loss` takes them
    between independent batches, :func:`transport_loss` is W alone.

    GeomLoss's ``debias`` switches the self terms on; here that of x is always there, and ``debias`` says how
    much of x is sampled anew for it. docs/solver.md has what each loss is called elsewhere.

    Args:
        regularization: λ, in the units of the cost.
        cost: of a pair: ``SquaredEuclidean()``, the default, ``Euclidean()``, ``Cityblock()``, ``L1L2()``, by
            name (``"sqeuclidean"``, ``"euclidean"``, ``"cityblock"``, ``"l1l2"``) or your own; the papers use
            ``L1L2(l1_weight=1)`` on MNIST.
        debias: fraction p of generated points that are sampled twice; 0 is the biased loss, 1 the
            debiased one.
        options: ``tolerance``, ``max_iterations``, ``method``, ``storage`` and ``marginals`` of
            :func:`dpsinkhorn.ot.solve`. Relaxed ``marginals=(ρ1, ρ2)`` hold for W(x, y); the self term of x
            has ρ1 on both sides.

    Weights of the points go to the call, ``loss(x, y, a=a, b=b)``.

    >>> loss = SinkhornLoss(regularization=0.05, debias=0.4)
    >>> generated = torch.rand(14, 3, requires_grad=True)
    >>> loss(generated, torch.rand(10, 3)).backward()
    """

    def __init__(
        self, regularization: float, *, cost: CostLike = None, debias: float = 0.0, **options: Any
    ) -> None:
        super().__init__()
        if not 0 <= debias <= 1:
            raise ValueError(f"debias: expected a fraction between 0 and 1, got {debias}")
        for name in options:
            if name in ("a", "b"):
                raise TypeError(
                    f"{name}: weights belong to the points: give them to the call, loss(x, y, a=, b=)"
                )
            if name not in _SETTINGS:
                raise TypeError(f"{name}: no option of SinkhornLoss; there are {', '.join(_SETTINGS)}")
        check_settings(regularization, **options)
        self.regularization = regularization
        self.cost = as_cost(cost)
        self.debias = debias
        self.options = options

    def forward(
        self, generated: Tensor, data: Tensor, a: Tensor | None = None, b: Tensor | None = None
    ) -> Tensor:
        """Loss of ``generated``, ``(n + n', d)``, against ``data``, ``(m, d)``; both may be batched.

        ``a``, ``(n + n',)``, and ``b``, ``(m,)``, are their weights, uniform by default.
        """
        return semi_debiased_loss(
            generated,
            data,
            self.regularization,
            debias=self.debias,
            cost=self.cost,
            a=a,
            b=b,
            **self.options,
        )

    def extra_repr(self) -> str:
        return f"regularization={self.regularization}, cost={self.cost}, debias={self.debias}"


def _solved(
    x: Tensor,
    y: Tensor,
    cost: Cost,
    a: Tensor | None,
    b: Tensor | None,
    regularization: float,
    settings: dict[str, Any],
    wanted: tuple[bool, ...],
) -> tuple[Tensor | None, ...]:
    """Value and gradients in one solve, and potentials."""
    problem = Problem(x, y, cost, a, b)
    wrt_x, wrt_y, wrt_a, wrt_b = wanted
    relaxed = penalties(settings["marginals"])
    result = None if relaxed else _small(problem, regularization, wrt_x, wrt_y, settings)
    if result is None:
        found = solve(problem, regularization, **settings)
        in_x, in_y = found.gradients(wrt_x=wrt_x, wrt_y=wrt_y) if wrt_x or wrt_y else (None, None)
        result = Small(found.value, found.f, found.g, in_x, in_y)
    in_a: Tensor | None
    in_b: Tensor | None
    if relaxed:
        in_a, in_b = found.gradients_in_weights(wrt_a=wrt_a, wrt_b=wrt_b)
    else:
        in_a = _in_weights(result.f, problem.a, a) if wrt_a else None
        in_b = _in_weights(result.g, problem.b, b) if wrt_b else None
    value = result.value.to(problem.x.dtype)
    return value, result.in_x, result.in_y, in_a, in_b, result.f, result.g


class _TransportLoss(torch.autograd.Function):
    """The loss; its backward pass is a multiplication."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor | None:
        output = _solved(*inputs)
        _keep(ctx, inputs, output)
        return output[0]

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        return _backward(ctx, upstream)


class _Transformed(torch.autograd.Function):
    """The same for torch.func: it wants all that is kept among the outputs, and takes its time."""

    forward = staticmethod(_solved)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor | None, ...]) -> None:
        _keep(ctx, inputs, output)
        ctx.mark_non_differentiable(*(each for each in output[1:] if each is not None))

    @staticmethod
    def backward(ctx: Any, upstream: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        return _backward(ctx, upstream)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *arguments: Any) -> tuple[Any, Any]:
        """Clouds that ``torch.func.vmap`` goes through are a batch."""
        x, y, cost, a, b, *others = (
            each.movedim(at, 0) if isinstance(each, Tensor) and at is not None else each
            for each, at in zip(arguments, in_dims, strict=True)
        )
        if x.ndim != (2 if in_dims[0] is None else 3) or y.ndim != (2 if in_dims[1] is None else 3):
            raise ValueError("vmap: expected clouds (n, d) in the function; of batches one is enough")
        x, y = (each if each.ndim == 3 else each.expand(info.batch_size, -1, -1) for each in (x, y))
        output = _Transformed.apply(x.contiguous(), y.contiguous(), cost, a, b, *others)  # type: ignore[no-untyped-call]
        return output, tuple(None if each is None else 0 for each in output)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor | None, ...]) -> None:
    x, y, ctx.cost, a, b, ctx.regularization, settings, _ = inputs
    ctx.save_for_backward(*output[1:], x, y, a, b)
    ctx.relaxed = settings["marginals"] is not None


def _backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
    in_x, in_y, in_a, in_b, f, g, x, y, a, b = ctx.saved_tensors
    if torch.is_grad_enabled():  # a graph of this pass is wanted
        if ctx.relaxed or ctx.regularization == 0 or in_a is not None or in_b is not None:
            raise NotImplementedError(
                "second derivatives are those of balanced, entropic transport in the points only"
            )
        again = gradients_again(ctx.cost, x, y, a, b, (f, g), float(ctx.regularization), upstream)
        return (*again, None, None, None, None, None, None)
    scale = upstream[..., None, None]
    of_points = [None if saved is None else scale * saved for saved in (in_x, in_y)]
    of_weights: list[Tensor | None] = [None, None]
    for k, (saved, weights) in enumerate(((in_a, a), (in_b, b))):
        if saved is not None:  # weights may be shared by a batch
            of_weights[k] = (upstream[..., None] * saved).sum_to_size(weights.shape).to(weights)
    return (*of_points, None, *of_weights, None, None, None)


def _small(
    problem: Problem, regularization: float, wrt_x: bool, wrt_y: bool, settings: dict[str, Any]
) -> Small | None:
    check_settings(regularization, **settings)
    if settings["method"] != "newton" or settings["storage"] == "streamed":
        return None
    if regularization == 0:
        return exact.transport(problem, wrt_x=wrt_x, wrt_y=wrt_y)
    return small.transport(
        problem,
        float(regularization),
        tolerance=tolerance_of(settings["tolerance"], problem.x.dtype),
        max_iterations=settings["max_iterations"],
        wrt_x=wrt_x,
        wrt_y=wrt_y,
    )


def _in_weights(potential: Tensor, scaled: Tensor, weights: Tensor | None) -> Tensor:
    """Gradient of W in ``weights``, which were ``scaled`` to sum to one, ``(..., n)``, float64.

    In the scaled weights it is the potential, whose free constant the scaling takes away.
    """
    assert weights is not None
    mean = (scaled * potential).sum(-1, keepdim=True)
    return (potential - mean) / weights.detach().to(potential).sum(-1, keepdim=True)
