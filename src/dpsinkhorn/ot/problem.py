"""A transport problem: two weighted clouds of points and a cost, or a given cost matrix."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dpsinkhorn.ot import native
from dpsinkhorn.ot.costs import BUILT_IN, Cost, CostLike, as_cost, check_costs

_DTYPES, _HALF = (torch.float32, torch.float64), (torch.float16, torch.bfloat16)
_Kind = TypeVar("_Kind")
Array: TypeAlias = "Tensor | npt.NDArray[np.floating[Any]]"


class _Weighted:
    """What the weights of a problem tell."""

    a: Tensor
    b: Tensor

    @property
    def shape(self) -> tuple[int, int, int]:
        """Number of problems, of points ``x`` or rows, and of points ``y`` or columns."""
        batch = self.a.shape[0] if self.batched else 1
        return batch, self.a.shape[-1], self.b.shape[-1]

    @property
    def batched(self) -> bool:
        """Whether results carry a leading batch dimension."""
        return self.a.ndim == 2


@dataclass(frozen=True, eq=False, init=False)
class Problem(_Weighted):
    """Move the weights ``a`` at points ``x`` to the weights ``b`` at points ``y`` at least cost.

    Args:
        x: points ``(n, d)``, or ``(batch, n, d)`` for several problems of one size.
        y: points ``(m, d)`` or ``(batch, m, d)``.
        cost: ``SquaredEuclidean()``, the default, ``Euclidean()``, ``Cityblock()``, ``L1L2()``, one of their
            names (``"sqeuclidean"``, ``"euclidean"``, ``"cityblock"``, ``"l1l2"``), a :class:`Cost` of your
            own, or a function of x and y that returns all costs, ``(..., n, m)``.
        a: weights of ``x``, ``(n,)`` or ``(batch, n)``; scaled to sum to one; uniform by default.
        b: weights of ``y``, likewise.

    ``masses`` are the sums of the weights as given, ``(..., 1)``; only relaxed marginals look at them.

    Points and weights are tensors or NumPy arrays, float32 or float64, which they stay; float16 and bfloat16
    become float32. Bad input
    raises ``ValueError`` here, so that a ``Problem`` that exists is well posed.

    >>> Problem(torch.rand(5, 2), torch.rand(7, 2)).shape
    (1, 5, 7)
    """

    x: Tensor
    y: Tensor
    cost: Cost
    a: Tensor
    b: Tensor
    masses: tuple[Tensor | float, Tensor | float]

    def __init__(
        self,
        x: Array,
        y: Array,
        cost: CostLike = None,
        a: Array | None = None,
        b: Array | None = None,
    ) -> None:
        x, y = _tensor("x", x), _tensor("y", y)
        for name, points in (("x", x), ("y", y)):
            _check_array(name, points, dims=(2, 3), what="points: (n, d) or (batch, n, d)")
        _check_alike("x", x, "y", y)
        if x.ndim != y.ndim or x.shape[:-2] != y.shape[:-2]:
            raise ValueError(f"x and y: batch shapes {tuple(x.shape[:-2])} and {tuple(y.shape[:-2])} differ")
        if x.shape[-1] != y.shape[-1]:
            raise ValueError(f"x and y: dimensions {x.shape[-1]} and {y.shape[-1]} differ")
        object.__setattr__(self, "x", x.detach())
        object.__setattr__(self, "y", y.detach())
        object.__setattr__(self, "cost", as_cost(cost))
        _set_weights(self, a, x, b, y)

    @property
    def points(self) -> Tensor:
        """A tensor of the problem's dtype and device."""
        return self.x

    def block(self, rows: slice) -> Tensor:
        """Costs of some rows against all columns, ``(rows, m)``."""
        if rows == slice(None):
            return self.costs
        x = self.x[..., rows, :]
        return check_costs(self.cost, self._against_y(x), x, self.y).detach()

    @cached_property
    def costs(self) -> Tensor:
        """All costs, ``(..., n, m)``, kept."""
        costs = check_costs(self.cost, self.cost.pairwise(self.x, self.y), self.x, self.y)
        return costs.detach()  # a cost may have parameters of its own

    @cached_property
    def _against_y(self) -> Callable[[Tensor], Tensor]:
        return self.cost.against(self.y)

    def gradients(self, plan: Tensor, *, wrt_x: bool, wrt_y: bool) -> tuple[Tensor | None, Tensor | None]:
        """Gradients of ``<C, P>`` in the points for a plan of their type; None for what is not wanted."""
        cost, x, y = self.cost, self.x, self.y
        in_x = check_gradient(cost, cost.gradient(x, y, plan), x) if wrt_x else None
        return in_x, check_gradient(cost, cost.gradient_y(x, y, plan), y) if wrt_y else None

    def flipped(self) -> Problem:
        """The same problem with the roles of ``x`` and ``y`` exchanged."""
        cost = self.cost if self.cost.symmetric else Flipped(self.cost)
        masses = self.masses[1], self.masses[0]
        return _without_checks(Problem, x=self.y, y=self.x, cost=cost, a=self.b, b=self.a, masses=masses)


@dataclass(frozen=True, eq=False, init=False)
class MatrixProblem(_Weighted):
    """A transport problem given by its cost matrix, ``(n, m)`` or ``(batch, n, m)``: tensor or NumPy array.

    Pairs of infinite cost are forbidden: no plan has mass there.

    >>> MatrixProblem(torch.tensor([[0.0, 1.0], [1.0, 0.0]])).shape
    (1, 2, 2)
    """

    matrix: Tensor
    a: Tensor
    b: Tensor
    masses: tuple[Tensor | float, Tensor | float]

    def __init__(self, matrix: Array, a: Array | None = None, b: Array | None = None) -> None:
        matrix = _tensor("matrix", matrix)
        finite = matrix if native.finite(matrix) else matrix.masked_fill(matrix == math.inf, 0.0)
        _check_array("matrix", finite, dims=(2, 3), what="costs: (n, m) or (batch, n, m)")
        object.__setattr__(self, "matrix", matrix.detach())
        _set_weights(self, a, matrix, b, matrix.mT)

    @property
    def points(self) -> Tensor:
        """A tensor of the problem's dtype and device."""
        return self.matrix

    @cached_property
    def forbidden(self) -> Tensor | None:
        """Which pairs are forbidden, ``(..., n, m)``; None where all are allowed."""
        return None if native.finite(self.matrix) else self.matrix == math.inf

    def fenced(self, regularization: float) -> MatrixProblem:
        """The same problem with costs so high in place of infinite ones that nothing goes there."""
        matrix = self.matrix.masked_fill(self.matrix == math.inf, 0.0)
        # A pair that is avoided may cost a detour along all others.
        detour = 2 * min(self.shape[1:]) * (matrix.amax() - matrix.amin())
        matrix = torch.where(self.matrix == math.inf, detour + 2000 * regularization + matrix.amax(), matrix)
        return _without_checks(MatrixProblem, matrix=matrix, a=self.a, b=self.b, masses=self.masses)

    def block(self, rows: slice) -> Tensor:
        """Some rows of the matrix, ``(rows, m)``."""
        return self.matrix[..., rows, :]

    def flipped(self) -> MatrixProblem:
        """The same problem with rows and columns exchanged."""
        matrix = self.matrix.mT.contiguous()
        masses = self.masses[1], self.masses[0]
        return _without_checks(MatrixProblem, matrix=matrix, a=self.b, b=self.a, masses=masses)


@dataclass(frozen=True)
class Flipped(Cost):
    """A cost that is not symmetric, seen from the other side: c'(y, x) = c(x, y)."""

    base: Cost
    symmetric = False

    def pairwise(self, x: Tensor, y: Tensor) -> Tensor:
        return check_costs(self.base, self.base.pairwise(y, x), y, x).mT

    def gradient(self, x: Tensor, y: Tensor, plan: Tensor) -> Tensor:
        return self.base.gradient_y(y, x, plan.mT)

    def gradient_y(self, x: Tensor, y: Tensor, plan: Tensor) -> Tensor:
        return self.base.gradient(y, x, plan.mT)


def check_gradient(cost: Cost, gradient: Tensor, points: Tensor) -> Tensor:
    """A gradient that is added up over blocks: of the points' shape, and of a user's cost finite too."""
    if gradient.shape == points.shape and (type(cost) in BUILT_IN or native.finite(gradient)):
        return gradient
    name = type(cost.base if isinstance(cost, Flipped) else cost).__name__
    if gradient.shape != points.shape:
        raise ValueError(
            f"cost: a gradient of {name} must be of the points' shape {tuple(points.shape)}, "
            f"got {tuple(gradient.shape)}"
        )
    raise ValueError(
        f"cost: the gradient of {name} is not finite; autograd has NaN for sqrt at 0, as in norms at equal "
        "points: write `gradient`, or add a small number under the root"
    )


def check_range(ends: tuple[float, float], dtype: torch.dtype) -> tuple[float, float]:
    """Least and greatest cost, for points of this type, if they are finite."""
    if not all(map(math.isfinite, ends)):
        raise ValueError(
            f"cost: has values that are not finite in {dtype}; scale the points down or use float64"
        )
    return ends


def _without_checks(kind: type[_Kind], **fields: object) -> _Kind:
    """A problem made of the parts of one that was checked."""
    problem = object.__new__(kind)
    for name, value in fields.items():
        object.__setattr__(problem, name, value)
    return problem


def _tensor(name: str, array: Array) -> Tensor:
    """The tensor itself, or a NumPy array as one of its own type."""
    if isinstance(array, Tensor):
        if array.layout != torch.strided:
            raise ValueError(f"{name}: expected a dense tensor, got {array.layout}; use to_dense()")
        if array.device.type == "meta":
            raise ValueError(f"{name}: is on the meta device, which holds no values")
        return array.float() if array.dtype in _HALF else array
    if not isinstance(array, np.ndarray):
        raise ValueError(
            f"{name}: expected a torch.Tensor or a NumPy array, got {type(array).__name__}; "
            "use torch.as_tensor"
        )
    if np.ma.is_masked(array):
        raise ValueError(f"{name}: has masked entries; leave these points out or give them a weight of 0")
    if array.dtype.kind not in "biuf":
        raise ValueError(f"{name}: expected float32 or float64, got {array.dtype}")
    native_order = np.dtype(np.float32) if array.dtype == np.float16 else array.dtype.newbyteorder("=")
    try:
        return torch.from_numpy(np.array(array, dtype=native_order, order="C"))  # strides may be negative
    except TypeError as error:
        raise ValueError(f"{name}: expected float32 or float64, got {array.dtype}") from error


def _check_array(name: str, array: Tensor, dims: tuple[int, ...], what: str) -> None:
    if array.dtype not in _DTYPES:
        raise ValueError(f"{name}: expected float32 or float64, got {array.dtype}")
    if array.ndim not in dims:
        raise ValueError(f"{name}: expected {what}, got shape {tuple(array.shape)}")
    if 0 in array.shape:
        raise ValueError(f"{name}: is empty, shape {tuple(array.shape)}")
    if not native.finite(array):
        raise ValueError(f"{name}: has NaN or infinite entries")


def _check_alike(first: str, x: Tensor, second: str, y: Tensor) -> None:
    if x.dtype != y.dtype:
        raise ValueError(f"{first} and {second}: types {x.dtype} and {y.dtype} differ")
    if x.device != y.device:
        raise ValueError(f"{first} and {second}: on different devices, {x.device} and {y.device}")


def _set_weights(
    problem: Problem | MatrixProblem, a: Array | None, rows: Tensor, b: Array | None, columns: Tensor
) -> None:
    (a, mass_a), (b, mass_b) = _weights("a", a, rows), _weights("b", b, columns)
    for name, value in (("a", a), ("b", b), ("masses", (mass_a, mass_b))):
        object.__setattr__(problem, name, value)


def _weights(name: str, weights: Array | None, points: Tensor) -> tuple[Tensor, Tensor | float]:
    """Weights in float64, summing to one along the last dimension, and their sum as they were."""
    shape = points.shape[:-1]
    if weights is None:
        return torch.full(shape, 1.0 / shape[-1], dtype=torch.float64, device=points.device), 1.0
    weights = _tensor(name, weights)
    if weights.shape not in (shape, shape[-1:]):
        raise ValueError(f"{name}: expected shape {tuple(shape)}, got {tuple(weights.shape)}")
    if weights.is_complex():
        raise ValueError(f"{name}: expected float32 or float64, got {weights.dtype}")
    weights = weights.detach().to(device=points.device, dtype=torch.float64)
    if not bool(torch.isfinite(weights).all()):
        raise ValueError(f"{name}: has NaN or infinite entries")
    if bool((weights < 0).any()):
        raise ValueError(f"{name}: has negative entries")
    largest = weights.amax(-1, keepdim=True)
    if bool((largest <= 0).any()):
        raise ValueError(f"{name}: all weights are zero")
    weights = weights / largest  # their sum as given may overflow
    total = weights.sum(-1, keepdim=True)
    return (weights / total).expand(shape), total * largest
