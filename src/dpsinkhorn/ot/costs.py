"""Ground costs c(x, y): their pairwise values and plan-weighted gradients.

A transport loss needs two things of its cost: the matrix ``C[i, j] = c(x_i, y_j)``, and, for gradients,
the sums ``sum_j P[i, j] * grad_x c(x_i, y_j)`` under a plan ``P``. The costs here give both without ever
building an ``n x m x d`` tensor.

To add your own, subclass :class:`Cost` and write ``pairwise``. Without a ``gradient`` of its own it is
differentiated by autograd, which has NaN for the root of 0: a norm at equal points needs a ``gradient``, or a
small number under the root. Set ``symmetric = True`` where c(x, y) = c(y, x): it is then faster.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from dpsinkhorn.kernels import launch, pairs
from dpsinkhorn.ot import native

# Dimensions, or terms in all, up to which squared distances are sums of differences, compiled: no slower than
# by a product (without compiled loops, of float64). The last is for float64 with AVX-512.
_DIRECT_DIMENSIONS, _DIRECT_TERMS, _DIRECT_TERMS_64 = 32, 2**23, 2**28
# The same for gradients in float32: a product needs no more exactness there.
_DIRECT_GRADIENT = 2**21
# Beside so few points of so many dimensions, to centre and square the other cloud takes longer than all else.
_FEW_POINTS, _MANY_DIMENSIONS = 32, 256
# Terms from which on a float32 product goes to oneDNN, which is twice as fast as others on some CPUs.
_LARGE_PRODUCT = 2**18
# Elements of the tile of differences in an L1 cost on the CPU, and of a temporary in its gradient.
_L1_TILE, _SLOPES = 2**20, 2**24


class Cost(ABC):
    """A differentiable ground cost between two clouds of points.

    Shapes: ``x`` is ``(..., n, d)``, ``y`` is ``(..., m, d)``, a plan is ``(..., n, m)``.
    """

    #: Whether c(x, y) = c(y, x). Say so where it is: problems may then be turned round without transposing,
    #: and gradients in ``y`` come from :meth:`gradient`.
    symmetric: bool = False

    @abstractmethod
    def pairwise(self, x: Tensor, y: Tensor) -> Tensor:
        """Cost of every pair, ``(..., n, m)``."""

    def against(self, y: Tensor) -> Callable[[Tensor], Tensor]:
        """``pairwise`` with ``y`` held fixed, for many blocks of ``x``: a place to prepare ``y`` once."""
        return lambda x: self.pairwise(x, y)

    def gradient(self, x: Tensor, y: Tensor, plan: Tensor) -> Tensor:
        """``sum_j plan[i, j] * grad_x c(x_i, y_j)``, of the shape of ``x``."""
        return _autograd(self, x, y, plan, wrt=0)

    def gradient_y(self, x: Tensor, y: Tensor, plan: Tensor) -> Tensor:
        """``sum_i plan[i, j] * grad_y c(x_i, y_j)``, of the shape of ``y``."""
        if self.symmetric:
            return self.gradient(y, x, plan.mT)
        return _autograd(self, x, y, plan, wrt=1)


@dataclass(frozen=True)
class PixelCost:
    """``squared * |x - y|^2 + absolute * |x - y|_1``: what loops and kernels know of a built-in cost.

    Labels are coordinates too (:func:`with_labels`): between two classes, two differ by the label weight.
    """

    squared: bool
    absolute: float

    @classmethod
    def of(cls, cost: Cost) -> PixelCost | None:
        """Return a cost in this form; None for one that has no such form, or may have a rule of its own."""
        if type(cost) is SquaredEuclidean or type(cost) is Cityblock or type(cost) is L1L2:
            return cost.pixels
        return None

    def of_difference(self, difference: float) -> float:
        """Return the cost of one coordinate that differs by so much, which is not negative.

        >>> PixelCost(squared=True, absolute=1.0).of_difference(15.0)
        240.0
        """
        return self.squared * difference**2 + self.absolute * difference


@dataclass(frozen=True)
class SquaredEuclidean(Cost):
    """``c(x, y) = |x - y|^2`` (no factor 1/2).

    >>> x, y = torch.tensor([[0.0, 0.0]]), torch.tensor([[3.0, 4.0], [0.0, 1.0]])
    >>> SquaredEuclidean().pairwise(x, y)
    tensor([[25.,  1.]])
    """

    symmetric = True
    pixels = PixelCost(squared=True, absolute=0.0)

    def pairwise(self, x: Tensor, y: Tensor) -> Tensor:
        if (costs := _squares_by_differences(x, y)) is not None:
            return costs
        if x.dtype == torch.float32 and x.is_cpu and x.numel() * y.shape[-2] <= _DIRECT_TERMS:
            return self.against(y.double())(x.double()).float()
        return self.against(y)(x)

    def against(self, y: Tensor) -> Callable[[Tensor], Tensor]:
        around_y, squares, centre = centred(y)  # distances do not change, cancellation does

        def costs(x: Tensor) -> Tensor:
            if (found := _squares_by_differences(x, y)) is not None:
                return found
            around_x, own, _ = centred(x, centre)
            products = product(around_x, around_y.mT)
            if native.finish(x, y, (own, squares), products):
                return products
            return torch.add(own.unsqueeze(-1), squares.unsqueeze(-2)).sub_(products, alpha=2).clamp_(min=0)

        return costs

    def gradient(self, x: Tensor, y: Tensor, plan: Tensor) -> Tensor:
        direct = _direct(x, y) if y.dtype == torch.float64 else _direct(x, y, 0, _DIRECT_GRADIENT)
        if direct and (gradient := native.gradient(x, y, plan, SquaredEuclidean.pixels)) is not None:
            return gradient
        y, _, centre = centred(y)  # far from the origin the two terms below would cancel
        masses = plan.sum(-1, keepdim=True)
        return (x - centre).mul_(2 * masses).sub_(product(plan, y), alpha=2)


@dataclass(frozen=True)
class Euclidean(Cost):
    """``c(x, y) = |x - y|``, the distance itself, with the subgradient 0 at equal points.

    Distances and gradients are sums of differences, pair by pair: exact for close points wherever they lie.

    >>> x, y = torch.tensor([[0.0, 0.0]]), torch.tensor([[3.0, 4.0], [0.0, 1.0]])
    >>> Euclidean().pairwise(x, y)
    tensor([[5., 1.]])
    """

    symmetric = True

    def pairwise(self, x: Tensor, y: Tensor) -> Tensor:
        if (squares := native.pairwise(x, y, SquaredEuclidean.pixels)) is not None:
            return squares.sqrt_()
        return torch.cdist(x, y, compute_mode="donot_use_mm_for_euclid_dist")

    def gradient(self, x: Tensor, y: Tensor, plan: Tensor) -> Tensor:
        return _slopes_over_pairs(x, y, plan, distances=self.pairwise(x, y), p=2.0)


@dataclass(frozen=True)
class Cityblock(Cost):
    """``c(x, y) = |x - y|_1``, with the subgradient sign(0) = 0.

    >>> Cityblock().pairwise(torch.tensor([[0.0, 0.0]]), torch.tensor([[3.0, -4.0]]))
    tensor([[7.]])
    """

    symmetric = True
    pixels = PixelCost(squared=False, absolute=1.0)

    def pairwise(self, x: Tensor, y: Tensor) -> Tensor:
        if (costs := _by_differences(x, y, Cityblock.pixels)) is not None:
            return costs
        if x.device.type != "cpu":
            return torch.cdist(x, y, p=1.0)
        # On a CPU three vectorised passes over a tile that stays in cache are three times faster.
        out = x.new_empty(*x.shape[:-1], y.shape[-2])
        rows = max(1, _L1_TILE // max(1, y.numel()))
        for at in range(0, x.shape[-2], rows):
            tile = x[..., at : at + rows, None, :] - y[..., None, :, :]
            torch.sum(tile.abs_(), dim=-1, out=out[..., at : at + rows, :])
        return out

    def gradient(self, x: Tensor, y: Tensor, plan: Tensor) -> Tensor:
        if (gradient := native.gradient(x, y, plan, Cityblock.pixels)) is not None:
            return gradient
        # Entries whose sum is below the rounding of the row's total can be left out; at the small
        # regularizations of the papers that leaves a handful a row.
        floor = plan.sum(-1, keepdim=True) * (torch.finfo(plan.dtype).eps / plan.shape[-1])
        edges = (plan > floor).nonzero(as_tuple=True)
        on_cpu = x.device.type == "cpu"  # the scatter below has no fixed order of summation on a GPU
        if on_cpu and len(edges[0]) * 8 < plan.numel():
            return _signs_over_edges(x, y, plan[edges], edges)
        return _slopes_over_pairs(x, y, plan, distances=plan, p=1.0)  # p = 1 does not read them


@dataclass(frozen=True)
class L1L2(Cost):
    """The papers' mixture ``c_m(x, y) = |x - y|^2 + l1_weight * |x - y|_1``.

    >>> L1L2(l1_weight=2.0).pairwise(torch.tensor([[0.0, 0.0]]), torch.tensor([[3.0, -4.0]]))
    tensor([[39.]])
    """

    symmetric = True
    l1_weight: float = 1.0

    @property
    def pixels(self) -> PixelCost:
        """The same cost for loops and kernels."""
        return PixelCost(squared=True, absolute=float(self.l1_weight))

    def pairwise(self, x: Tensor, y: Tensor) -> Tensor:
        costs = _by_differences(x, y, self.pixels) if self.l1_weight else None
        return self._mixed(lambda part: part.pairwise(x, y)) if costs is None else costs

    def gradient(self, x: Tensor, y: Tensor, plan: Tensor) -> Tensor:
        gradient = native.gradient(x, y, plan, self.pixels) if self.l1_weight else None
        return self._mixed(lambda part: part.gradient(x, y, plan)) if gradient is None else gradient

    def _mixed(self, of: Callable[[Cost], Tensor]) -> Tensor:
        squared = of(SquaredEuclidean())
        return squared.add_(of(Cityblock()), alpha=self.l1_weight) if self.l1_weight else squared


@dataclass(frozen=True)
class CostFunction(Cost):
    """A function of clouds ``(..., n, d)`` and ``(..., m, d)`` that returns all costs, ``(..., n, m)``."""

    function: Callable[[Tensor, Tensor], Tensor]

    def pairwise(self, x: Tensor, y: Tensor) -> Tensor:
        return self.function(x, y)


CostLike: TypeAlias = "Cost | str | Callable[[Tensor, Tensor], Tensor] | None"

_NAMED: dict[str, type[Cost]] = {
    "sqeuclidean": SquaredEuclidean,
    "cityblock": Cityblock,
    "l1l2": L1L2,
    "euclidean": Euclidean,
}
COST_NAMES = tuple(_NAMED)
"""The names that stand for costs, on the command line and in `cost=`."""
BUILT_IN = frozenset(_NAMED.values())


def as_cost(cost: CostLike, *, l1_weight: float = 1.0) -> Cost:
    """The cost itself, the one of this name, or that of a function; None is the squared L2 distance.

    Names are ``"sqeuclidean"``, ``"euclidean"``, ``"cityblock"`` and ``"l1l2"``, which has an ``l1_weight``.

    >>> as_cost("l1l2", l1_weight=2.0)
    L1L2(l1_weight=2.0)
    """
    if cost is None:
        return SquaredEuclidean()
    if isinstance(cost, str) and cost in _NAMED:
        cost = L1L2(l1_weight) if cost == "l1l2" else _NAMED[cost]()
    if callable(cost) and not isinstance(cost, type):
        return CostFunction(cost)
    if not isinstance(cost, Cost):
        raise ValueError(
            "cost: expected a Cost such as SquaredEuclidean(), Cityblock() or L1L2(), or one of their names "
            f"({', '.join(COST_NAMES)}), got {shown(cost)}"
        )
    if isinstance(cost, L1L2) and not _is_weight(cost.l1_weight):
        raise ValueError(f"cost: expected an l1_weight from 0 upwards, got {shown(cost.l1_weight)}")
    return cost


def _is_weight(value: object) -> bool:
    try:
        return not isinstance(value, str | bool) and 0 <= float(value) < math.inf  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return False


def shown(value: object) -> str:
    """A value in an error, on one line and not too long."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if value is None:
        return "None"
    text = repr(value) if isinstance(value, str | int | float) else f"an object of {type(value).__name__}"
    return text if len(text) <= 60 else f"{text[:57]}..."


def check_costs(cost: Cost, costs: object, x: Tensor, y: Tensor) -> Tensor:
    """What ``pairwise`` of a cost returned for these clouds, or a ``ValueError`` that says what it must be.

    Of another shape it would be read beyond its end, or broadcast to other numbers.

    >>> x, y = torch.rand(2, 3), torch.rand(4, 3)
    >>> check_costs(Cityblock(), torch.rand(2, 4), x, y).shape
    torch.Size([2, 4])
    """
    shape = (*x.shape[:-1], y.shape[-2])
    if not isinstance(costs, Tensor):
        found = f"an object of {type(costs).__name__}"
    elif (
        costs.shape == shape
        and (costs.dtype == x.dtype or costs.dtype == torch.float64)
        and costs.device == x.device
        and costs.layout == torch.strided
    ):
        return costs
    else:
        found = f"{tuple(costs.shape)}, {costs.dtype} on {costs.device}"
    raise ValueError(
        f"cost: pairwise of {type(cost).__name__} must return a tensor of shape {shape}, {x.dtype} on "
        f"{x.device}, for x of {tuple(x.shape)} and y of {tuple(y.shape)}; got {found}"
    )


def with_labels(points: Tensor, labels: Tensor, classes: int, label_weight: float = 15.0) -> Tensor:
    """Append ``label_weight * onehot(label)`` to every point, so that any cost also sees the class.

    This is the papers' class-conditional cost: both clouds are augmented, and pairs of different classes
    become expensive (by ``2 * label_weight**2`` under the squared L2 cost). Gradients flow to ``points``.

    >>> with_labels(torch.zeros(2, 1), torch.tensor([0, 1]), classes=2, label_weight=3.0)
    tensor([[0., 3., 0.],
            [0., 0., 3.]])
    """
    if labels.shape != points.shape[:-1]:
        raise ValueError(f"labels: expected shape {tuple(points.shape[:-1])}, got {tuple(labels.shape)}")
    if labels.is_floating_point():
        raise ValueError(f"labels: expected integers from 0 to {classes - 1}, got {labels.dtype}")
    if labels.numel() and not (int(labels.min()) >= 0 and int(labels.max()) < classes):
        raise ValueError(f"labels: expected integers from 0 to {classes - 1}")
    onehot = torch.nn.functional.one_hot(labels.long(), classes).to(points)
    return torch.cat([points, label_weight * onehot], dim=-1)


def _by_differences(x: Tensor, y: Tensor, pixels: PixelCost) -> Tensor | None:
    """Costs by the compiled loops on a CPU, by a kernel on a GPU; None where there is neither."""
    if x.ndim == 2 and launch.available(x.device) and max(x.numel(), y.numel()) < 2**31:
        return pairs.costs(x, y, squared=pixels.squared, absolute=pixels.absolute)
    return native.pairwise(x, y, pixels)


def _squares_by_differences(x: Tensor, y: Tensor) -> Tensor | None:
    """Squared distances by the compiled loops, where that is no slower or more exact than by a product."""
    return native.pairwise(x, y, SquaredEuclidean.pixels) if _direct(x, y) else None


def _direct(x: Tensor, y: Tensor, dimensions: int = _DIRECT_DIMENSIONS, terms: int = _DIRECT_TERMS) -> bool:
    n, m, d = x.shape[-2], y.shape[-2], y.shape[-1]
    if y.dtype == torch.float64 and native.instructions() == 2:
        terms = _DIRECT_TERMS_64
    few = min(n, m) <= _FEW_POINTS and d >= _MANY_DIMENSIONS
    return few or d <= dimensions or x.numel() * m <= terms


def centred(x: Tensor, around: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """``x - c``, its squared lengths, and c, ``(..., 1, d)``: ``around``, or the mean of x."""
    if (found := native.centre(x, around)) is not None:
        return found[0], found[1], found[2].view(1, -1)
    centre = x.mean(-2, keepdim=True) if around is None else around
    x = x - centre
    return x, torch.linalg.vecdot(x, x), centre


def product(x: Tensor, y: Tensor) -> Tensor:
    """``x @ y``; large ones of float32 by oneDNN, which may be twice as fast as what PyTorch calls."""
    if (
        x.dtype == torch.float32
        and x.ndim == 2
        and x.device.type == "cpu"
        and x.numel() * y.shape[-1] >= _LARGE_PRODUCT
        and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")  # PyTorch's own: not promised
        and not (x.requires_grad or y.requires_grad)
    ):
        found: Tensor = torch.ops.mkldnn._linear_pointwise(x, y.mT, None, "none", [], "")
        return found
    return x @ y


def _signs_over_edges(x: Tensor, y: Tensor, weights: Tensor, edges: tuple[Tensor, ...]) -> Tensor:
    """``sum_j plan[i, j] * sign(x_i - y_j)`` over the listed entries of the plan alone."""
    *batch, row, column = edges
    if batch:  # clouds of a batch are laid end to end
        row, column = batch[0] * x.shape[-2] + row, batch[0] * y.shape[-2] + column
    xs, ys = x.reshape(-1, x.shape[-1]), y.reshape(-1, y.shape[-1])
    out = torch.zeros_like(xs)
    chunk = max(1, _SLOPES // max(1, x.shape[-1]))
    for at in range(0, len(row), chunk):
        i, j, w = row[at : at + chunk], column[at : at + chunk], weights[at : at + chunk]
        out.index_add_(0, i, (xs[i] - ys[j]).sign_().mul_(w.to(xs.dtype).unsqueeze(-1)))
    return out.reshape(x.shape)


def _slopes_over_pairs(x: Tensor, y: Tensor, plan: Tensor, *, distances: Tensor, p: float) -> Tensor:
    """``sum_j plan[i, j] * grad_x |x_i - y_j|_p`` over all pairs, 0 for equal points: cdist's backward pass.

    ``distances``, ``(..., n, m)``, are those of the pairs; p = 1 does not read them.
    """
    # On a GPU that pass holds rows x m x d elements at a time, so the rows go through in blocks.
    rows = x.shape[-2]
    if x.device.type != "cpu":
        rows = max(1, _SLOPES // max(1, y.numel()))
    parts = [
        torch.ops.aten._cdist_backward(
            plan[..., at : at + rows, :].contiguous(),
            x[..., at : at + rows, :].contiguous(),
            y.contiguous(),
            p,
            distances[..., at : at + rows, :].contiguous(),
        )
        for at in range(0, x.shape[-2], rows)
    ]
    return torch.cat(parts, dim=-2)


def _autograd(cost: Cost, x: Tensor, y: Tensor, plan: Tensor, wrt: int) -> Tensor:
    with torch.enable_grad():
        leaves = [x.detach(), y.detach()]
        leaves[wrt].requires_grad_()
        costs = check_costs(cost, cost.pairwise(*leaves), *leaves)
        total = (plan.detach() * costs).sum()
        (gradient,) = torch.autograd.grad(total, leaves[wrt])
    return gradient
