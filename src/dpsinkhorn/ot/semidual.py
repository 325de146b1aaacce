"""The entropic semi-dual and its derivatives: the one primitive that the solver's loop calls.

With f the (c, λ)-transform of g,

    f_i(g) = -λ log sum_j b_j exp((g_j - C_ij) / λ),

the function ``F(g) = <a, f(g)> + <b, g>`` is concave, its maximum is the entropic transport cost, its
gradient is ``b - P^T 1`` with the plan ``P_ij = a_i b_j exp((f_i + g_j - C_ij) / λ)``, whose rows sum to
``a`` by construction, and ``-λ`` times its Hessian is ``diag(P^T 1) - P^T diag(1/a) P``.

With relaxed marginals, penalties ρ₁ KL(P 1 | a) and ρ₂ KL(P^T 1 | b) in place of constraints, f is τ₁ times
the transform, τ₁ = ρ₁ / (λ + ρ₁), row i carries the mass p_i = a_i exp(-f_i / ρ₁), the gradient is
``b exp(-g / ρ₂) - P^T 1``, and ``-λ`` times the Hessian is
``diag(P^T 1 + b exp(-g / ρ₂) λ / ρ₂) - τ₁ P^T diag(1/p) P``. ρ = ∞ gives the above.

Everything is computed by blocks of rows. A block comes from a stored cost matrix or is computed from the
points when it is needed; nothing else differs between the two. Exponents are differences of large
numbers (a cost of hundreds over a λ of hundredths), so they are formed in float64 and only then rounded
to the working type; powers are of two, which vectorises better than ``exp``. On a GPU kernels form them in
registers (:mod:`dpsinkhorn.kernels.pairs`), and nothing but costs is ever written to its memory.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from dpsinkhorn.kernels import launch, pairs
from dpsinkhorn.kernels.pairs import Pairs, Powers
from dpsinkhorn.ot import native
from dpsinkhorn.ot.costs import PixelCost
from dpsinkhorn.ot.problem import MatrixProblem, Problem, check_range

LN2 = math.log(2.0)
# Elements in a block: about what stays in a core's cache; on a GPU, enough to fill it.
_BLOCK_CPU, _BLOCK_CPU_STREAMED, _BLOCK_GPU = 2**18, 2**21, 2**26
# Up to this many pairs the compiled loops, on one core, are faster than PyTorch.
_NATIVE_LIMIT = 2**16
# Pairs from which on a problem whose costs are not stored starts from a sample of its points.
_COSTLY = 2**36


@dataclass(frozen=True)
class SemiDualPoint:
    """The semi-dual and its gradient at one ``g``, with what second derivatives need."""

    g: Tensor  # (..., m), float64
    f: Tensor  # (..., n), float64
    value: Tensor  # (...), float64
    marginal: Tensor  # (..., m), P^T 1
    target: Tensor  # (..., m), what it is to be: b, or less or more of it where it is relaxed
    residual: Tensor  # (..., m), target minus marginal: the gradient of F
    error: Tensor  # (...), L1 norm of the residual
    curvature: Curvature


class SemiDual:
    """``F`` of one problem (or batch of problems of one size), for any g and λ.

    Args:
        problem: what to solve; its ``y`` side carries the variable g.
        stored: keep the cost matrix in memory, or compute each block of it when needed.
        work: type of the kernel's entries, float32 or float64.
        kernel_limit: largest number of kernel entries kept between a point and its second derivatives.
        marginals: ρ of the rows and of the columns, how strongly P must have these marginals; None: exactly.
        rounding: by what part a power may be off; where that allows, a GPU forms exponents in float32.
    """

    def __init__(
        self,
        problem: Problem | MatrixProblem,
        *,
        stored: bool,
        work: torch.dtype,
        kernel_limit: int,
        marginals: tuple[float, float] | None = None,
        rounding: float = 0.0,
    ) -> None:
        self.batch, self.rows, self.columns = problem.shape
        self.problem = problem
        self.work, self.rounding = work, rounding
        self.a, self.b = problem.a, problem.b
        self.relaxed = marginals is not None
        self.row_penalty, self.column_penalty = marginals or (math.inf, math.inf)
        if self.relaxed:  # masses matter
            self.a, self.b = self.a * problem.masses[0], self.b * problem.masses[1]
        self.device = self.a.device
        self.left_out: Tensor | None = None  # (..., m), columns that take no part
        self.fused = self.a.ndim == 1 and launch.available(self.device)
        self._slices = self._row_slices(stored)
        self._stored = self._store() if stored else None
        self._keep_kernel = not self.fused and self.batch * self.rows * self.columns <= kernel_limit
        self.lowest, self.highest = self._range()

    @property
    def stored(self) -> bool:
        """Whether the cost matrix is in memory."""
        return self._stored is not None

    @property
    def largest(self) -> float:
        """The size of the greatest cost."""
        return max(abs(self.lowest), abs(self.highest))

    @property
    def cheap_products(self) -> bool:
        """Whether kernels form the powers of a product from costs that are stored, or soon had."""
        return self.fused and (self.stored or self._points is not None)

    @property
    def costly(self) -> bool:
        """Whether one evaluation takes so long that a start is worth a smaller problem's solution."""
        return self._stored is None and self._points is not None and self.rows * self.columns >= _COSTLY

    def transform(self, sample: Problem, f: Tensor, regularization: float) -> Tensor:
        """g at the columns of this problem from f at the rows of a sample of it."""
        assert self._points is not None
        scale = 1.0 / (regularization * LN2)
        across = replace(self._points, x=self._points.y, y=sample.x.mT.contiguous())
        powers, total = pairs.powers(across, f * scale + sample.a.log2(), scale, self.work)
        return (total.log2() + powers.top).div_(-scale)

    @property
    def stored_costs(self) -> Tensor | None:
        """The costs of a single problem as one array on the CPU, ``(n, m)``; None where there is none."""
        single = self._stored is not None and self.a.ndim == 1 and self.device.type == "cpu"
        return self._stored if single else None

    def all_costs(self) -> Tensor:
        """The whole cost matrix, ``(..., n, m)``."""
        return self._store() if self._stored is None else self._stored

    def problems(self) -> list[SemiDual]:
        """Each problem of a batch by itself, where the compiled loops take them one by one; else this one."""
        if native.library is None or self._stored is None or self.a.ndim == 1 or self.device.type != "cpu":
            return [self]
        singles = []
        for costs, a, b in zip(self._stored, self.a, self.b, strict=True):
            single = copy.copy(self)
            single.batch, single.a, single.b, single._stored = 1, a, b, costs
            single.__dict__.pop("least_weight", None)
            single._slices = single._row_slices(stored=True)
            single._keep_kernel = True
            singles.append(single)
        return singles

    @property
    def small_costs(self) -> Tensor | None:
        """The costs of a single small problem, as one float64 array on the CPU; None for any other."""
        stored = self.stored_costs
        return stored.double() if stored is not None and stored.numel() <= _NATIVE_LIMIT else None

    # What the compiled iterate, or exact transport, does without is made when it is first needed.

    @cached_property
    def least_weight(self) -> float:
        return float(self.b.min())

    @cached_property
    def kernel(self) -> Tensor | None:
        """Room for the kernel of the point last evaluated, where it is kept."""
        return self._new_matrix(self.work) if self._keep_kernel else None

    @cached_property
    def sqrt_a(self) -> Tensor:
        return self.a.sqrt()

    @cached_property
    def log2_b(self) -> Tensor:
        return self.b.log2()

    def leave_out(self, weight: float) -> None:
        """Leave columns of at most this weight out of :meth:`evaluate`; their g has no effect."""
        self.left_out = self.b <= weight if self.least_weight <= weight else None
        self.log2_b = self.b.log2()
        if self.left_out is not None:
            self.log2_b.masked_fill_(self.left_out, -math.inf)

    def extend(self, f: Tensor, g: Tensor, regularization: float) -> Tensor:
        """``g`` with its columns that were left out set to the transform of ``f``, as the others are."""
        if self.left_out is None:
            return g
        scale = 1.0 / (regularization * LN2)
        offset = (f * scale + self.a.log2()).unsqueeze(-1)  # (..., n, 1)
        total = torch.full_like(g, -math.inf)
        for rows, costs in self._blocks():
            exponents = torch.add(offset[..., rows, :], costs, alpha=-scale).mul_(LN2)
            total = torch.logaddexp(total, exponents.logsumexp(-2))
        return torch.where(self.left_out, total * (-regularization * self.column_part(regularization)), g)

    def column_part(self, regularization: float) -> float:
        """τ₂: what part of Sinkhorn's step a relaxed column takes."""
        return _part_of(self.column_penalty, regularization)

    def evaluate(self, g: Tensor, regularization: float) -> SemiDualPoint:
        """``F`` and its gradient at ``g``, ``(..., m)``. Overwrites the kernel of the point before."""
        scale = 1.0 / (regularization * LN2)
        row_part = _part_of(self.row_penalty, regularization)
        shifted = (g * scale).add_(self.log2_b)  # (..., m)
        tops, sums, masses, marginal = [], [], [], None
        for rows, kernel, top, total in self._powers(shifted, scale):
            mass = self._part(self.a, rows)
            if row_part < 1.0:
                logs = total.double().log2().add_(top)
                mass = mass * torch.exp2(logs * (1.0 - row_part))
                masses.append(mass)
            part = _columns(self._cast(mass / total), kernel)  # (..., m)
            marginal = part.double() if marginal is None else marginal.add_(part)
            tops.append(top)
            sums.append(total)
        assert marginal is not None
        top, total = _join(tops), _join(sums)
        f = total.double().log2().add_(top).div_(-scale)
        if not self.relaxed:
            value = torch.linalg.vecdot(self.a, f) + torch.linalg.vecdot(self.b, g)
            target, diagonal, row_mass = self.b, marginal, self.a
        else:
            f.mul_(row_part)
            row_mass = _join(masses) if masses else self.a
            moved, product = row_mass.sum(-1), self.a.sum(-1) * self.b.sum(-1)
            value = _penalised(self.a, f, self.row_penalty) + _penalised(self.b, g, self.column_penalty)
            value += regularization * (product - moved)
            target, bend = marginal, 0.0
            if self.column_penalty > 0:  # else g is 0, and nothing is asked of the columns
                target, bend = (
                    self.b * torch.exp(-g / self.column_penalty),
                    regularization / self.column_penalty,
                )
            diagonal, row_mass = marginal + bend * target, row_part * row_mass
        residual = target - marginal
        error = torch.linalg.vector_norm(residual, 1, -1)
        if self.relaxed:  # a plan may have far more mass than the weights, and rounding grows with it
            error /= marginal.sum(-1).clamp(min=1.0)
        curvature = Curvature(self, shifted, scale, top, total, diagonal, row_mass)
        return SemiDualPoint(g, f, value, marginal, target, residual, error, curvature)

    def flat(self, regularization: float) -> tuple[Tensor, Tensor, Tensor]:
        """f, g and the value for a λ far above the costs, where the plan is all but ``a b^T``.

        To second order in C / λ: f + g is the sum of a row's and a column's number nearest to C under the
        weights, and the value is that of ``<C, a b^T>`` less what is left of C, squared, over 2 λ.
        """
        f, g = torch.empty_like(self.a), torch.zeros_like(self.b)
        for rows, costs in self._blocks():
            costs = costs.double()
            f[..., rows] = (costs @ self.b.unsqueeze(-1)).squeeze(-1)
            g += _row_times(self.a[..., rows], costs)
        mean = torch.linalg.vecdot(self.a, f).unsqueeze(-1)
        f, g = f - mean / 2, g - mean / 2
        rest = torch.zeros_like(mean[..., 0])
        for rows, costs in self._blocks():
            left = (costs.double() - f[..., rows].unsqueeze(-1) - g.unsqueeze(-2)).square_()
            rest += torch.linalg.vecdot(self.a[..., rows], (left @ self.b.unsqueeze(-1)).squeeze(-1))
        return f, g, mean[..., 0] - rest / (2 * regularization)

    def plan_blocks(
        self, f: Tensor, g: Tensor, regularization: float
    ) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """Rows, their costs and their part of the plan, block by block, for given potentials."""
        if self._stored is not None and self._stored.dtype == self.work and not self.relaxed:
            plan = native.plan(self._stored, f, g, self.a, self.b, regularization)
            if plan is not None:
                yield slice(0, self.rows), self._stored, plan
                return
        scale = 1.0 / (regularization * LN2)
        shifted = (g * scale + self.b.log2()).unsqueeze(-2)
        offset = (f * scale + self.a.log2()).unsqueeze(-1)
        for rows, costs in self._blocks():
            exponents = torch.add(shifted, costs, alpha=-scale).add_(offset[..., rows, :])
            yield rows, costs, exponents.to(self.work).exp2_()

    def kernel_blocks(self, shifted: Tensor, scale: float, top: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """The kernel of the last evaluated point: kept, or computed again."""
        if self.kernel is not None:
            yield slice(0, self.rows), self.kernel
            return
        for rows, costs in self._blocks():
            exponents = torch.add(shifted.unsqueeze(-2), costs, alpha=-scale)
            yield rows, self._round(exponents, top[..., rows].unsqueeze(-1), rows).exp2_()

    def kernel_factors(
        self, shifted: Tensor, scale: float, top: Tensor
    ) -> Iterator[tuple[slice, Tensor | Powers]]:
        """The same for products alone: on a GPU it is formed within them."""
        if not self.fused:
            yield from self.kernel_blocks(shifted, scale, top)
            return
        for rows, costs in self._pairs():
            base = pairs.split(shifted, self._narrow(scale))
            yield rows, Powers(costs, base, shifted.new_full((1,), scale), top[rows], self.work)

    def _powers(
        self, shifted: Tensor, scale: float
    ) -> Iterator[tuple[slice, Tensor | Powers, Tensor, Tensor]]:
        """Rows of the kernel at a point, with their greatest exponents and the sums of their powers."""
        if self.fused:
            for rows, costs in self._pairs():
                powers, total = pairs.powers(costs, shifted, scale, self.work, narrow=self._narrow(scale))
                yield rows, powers, powers.top, total
            return
        for rows, block in self._blocks():
            exponents = torch.add(shifted.unsqueeze(-2), block, alpha=-scale)  # (..., r, m), float64
            top = exponents.amax(-1, keepdim=True)
            kernel = self._round(exponents, top, rows).exp2_()  # in [0, 1], each row has a 1
            yield rows, kernel, top.squeeze(-1), kernel.sum(-1)

    def _narrow(self, scale: float) -> bool:
        """Whether rounding of exponents to float32 changes powers by no more than they may be off."""
        return self.work == torch.float32 and scale * self.largest * 2**-23 <= self.rounding

    def _pairs(self) -> Iterator[tuple[slice, Pairs]]:
        """The costs as kernels take them: a matrix, a block of one at a time, or points of few dimensions."""
        whole = Pairs.stored(self._stored) if self._stored is not None else self._points
        if whole is not None:
            yield slice(0, self.rows), whole
            return
        for rows, costs in self._blocks():
            yield rows, Pairs.stored(costs.contiguous())

    @cached_property
    def _points(self) -> Pairs | None:
        """The points, where kernels form the costs from them."""
        if not self.fused or isinstance(self.problem, MatrixProblem):
            return None
        x, y, pixels = self.problem.x, self.problem.y, PixelCost.of(self.problem.cost)
        if pixels is None or x.shape[-1] > pairs.MOST_DIMENSIONS:
            return None
        return Pairs.of_points(x, y, squared=pixels.squared, absolute=pixels.absolute)

    def _cast(self, tensor: Tensor) -> Tensor:
        return tensor if tensor.dtype == self.work else tensor.to(self.work)

    def _part(self, per_row: Tensor, rows: slice) -> Tensor:
        return per_row if len(self._slices) == 1 else per_row[..., rows]

    def _round(self, exponents: Tensor, top: Tensor, rows: slice) -> Tensor:
        if self.kernel is None:
            return self._cast(exponents.sub_(top))
        if len(self._slices) == 1:
            return torch.sub(exponents, top, out=self.kernel)
        return self.kernel[..., rows, :].copy_(exponents.sub_(top))

    def _blocks(self) -> Iterator[tuple[slice, Tensor]]:
        if self._stored is not None and len(self._slices) == 1:
            yield self._slices[0], self._stored
            return
        for rows in self._slices:
            yield rows, self.problem.block(rows) if self._stored is None else self._stored[..., rows, :]

    def _store(self) -> Tensor:
        if isinstance(self.problem, MatrixProblem):
            stored = self.problem.block(slice(None))
            stored = stored.contiguous() if self.fused else stored
        elif len(self._slices) == 1:
            stored = self.problem.block(slice(None)).contiguous()
        else:
            stored = self._new_matrix(self.problem.points.dtype)
            for rows in self._slices:
                stored[..., rows, :] = self.problem.block(rows)
        return stored.double().contiguous() if self.work == torch.float64 else stored

    def _new_matrix(self, dtype: torch.dtype) -> Tensor:
        shape = (*self.a.shape, self.columns)
        return torch.empty(shape, dtype=dtype, device=self.device)

    def _row_slices(self, stored: bool) -> list[slice]:
        size = _BLOCK_GPU if self.device.type != "cpu" else _BLOCK_CPU if stored else _BLOCK_CPU_STREAMED
        step = max(1, size // (self.batch * self.columns))
        return [slice(at, min(at + step, self.rows)) for at in range(0, self.rows, step)]

    def _range(self) -> tuple[float, float]:
        """Least and greatest cost. Raises where a cost is not finite."""
        ends = None if self._stored is None else native.value_range(self._stored)
        if ends is None and self._stored is None and self._points is not None:
            ends = _range_of_points(self._points)
        if ends is None:
            parts = [torch.stack(torch.aminmax(costs)) for _, costs in self._blocks()]
            lowest, highest = torch.stack(parts).double().unbind(-1)
            ends = float(lowest.min()), float(highest.max())
        return check_range(ends, self.problem.points.dtype)


@dataclass(frozen=True)
class Curvature:
    """``H = diag(P^T 1) - P^T diag(1/a) P``, -λ times the Hessian of ``F``; positive semi-definite.

    Of relaxed marginals, the same with another diagonal, and τ₁ p in place of a.

    Valid until the next call of :meth:`SemiDual.evaluate`.
    """

    dual: SemiDual
    shifted: Tensor
    scale: float
    top: Tensor  # (..., n)
    total: Tensor  # (..., n)
    column_marginal: Tensor  # (..., m), and what relaxed columns add to the diagonal
    row_mass: Tensor  # (..., n)

    whole: ClassVar[bool] = True
    """Whether all rows of the problem are here."""

    # P = (a / total) * kernel, so P^T diag(1/a) P = kernel^T diag(a / total^2) kernel.

    def kernel_blocks(self) -> Iterator[tuple[slice, Tensor]]:
        """Rows of the kernel and their entries, in [0, 1], each row with a 1."""
        return self.dual.kernel_blocks(self.shifted, self.scale, self.top)

    def matrix(self, ridge: Tensor | float = 0.0) -> Tensor:
        """``H + ridge * diag(P^T 1)`` as a dense ``(..., m, m)`` tensor of the working type."""
        roots = self.dual.sqrt_a if self.row_mass is self.dual.a else self.row_mass.sqrt()
        weights = self.dual._cast(roots / self.total).unsqueeze(-1)
        gram: Tensor | None = None
        for rows, kernel in self.kernel_blocks():
            scaled = kernel * (weights if kernel.shape[-2] == weights.shape[-2] else weights[..., rows, :])
            part = scaled.mT @ scaled
            gram = part if gram is None else gram.add_(part)
        assert gram is not None
        gram.neg_().diagonal(dim1=-2, dim2=-1).add_(self.column_marginal * (1.0 + ridge))
        return gram

    def diagonal(self) -> Tensor:
        """The diagonal of ``H``, ``(..., m)``, float64."""
        weights = self.dual._cast(self.row_weights())
        out = self.column_marginal.clone()
        for rows, kernel in self._factors():
            out.sub_(_columns(weights[..., rows], kernel, square=True))
        return out

    def row_weights(self) -> Tensor:
        """Weights of the kernel's rows in ``P^T diag(1/a) P``, ``(..., n)``, float64."""
        return self.row_mass / self.total.double().square()

    def times(self, v: Tensor) -> Tensor:
        """``H v`` for ``v`` of shape ``(..., m)``, float64."""
        weights = self.row_weights()
        out = self.column_marginal * v
        for rows, kernel in self._factors():
            image = _rows(kernel, self.dual._cast(v)) * weights[..., rows]
            out.sub_(_columns(self.dual._cast(image), kernel))
        return out

    def _factors(self) -> Iterator[tuple[slice, Tensor | Powers]]:
        return self.dual.kernel_factors(self.shifted, self.scale, self.top)


def _part_of(penalty: float, regularization: float) -> float:
    """``ρ / (ρ + λ)``, 1 for a marginal that is kept exactly."""
    return 1.0 if penalty == math.inf else penalty / (penalty + regularization)


def _penalised(weights: Tensor, potential: Tensor, penalty: float) -> Tensor:
    """``<w, ρ (1 - exp(-f / ρ))>``: what a marginal adds to the dual value, ``<w, f>`` where it is kept."""
    if penalty == 0:
        return torch.zeros_like(potential[..., 0])
    if penalty < math.inf:
        potential = torch.expm1(potential / -penalty) * -penalty
    total: Tensor = torch.linalg.vecdot(weights, potential)
    return total


def _columns(weights: Tensor, kernel: Tensor | Powers, *, square: bool = False) -> Tensor:
    """Sums over the rows of a kernel, or of its entries squared, with a weight for each row, ``(..., m)``."""
    if isinstance(kernel, Powers):
        return kernel.columns(weights, square=square)
    return _row_times(weights, kernel.square() if square else kernel)


def _rows(kernel: Tensor | Powers, v: Tensor) -> Tensor:
    """The kernel times ``v`` ``(..., m)``."""
    return kernel.rows(v) if isinstance(kernel, Powers) else (kernel @ v.unsqueeze(-1)).squeeze(-1)


def _range_of_points(points: Pairs) -> tuple[float, float]:
    """Bounds of the costs, by the box around each cloud."""
    (low, high), (least, most) = (
        torch.stack(torch.aminmax(cloud, dim=-1)).double() for cloud in (points.x, points.y)
    )
    farthest = torch.maximum(high - least, most - low)
    return 0.0, float(farthest.square().sum() * points.squared + farthest.sum() * points.absolute)


def _row_times(row: Tensor, matrix: Tensor) -> Tensor:
    """``row @ matrix`` for a row per matrix of the batch."""
    return row @ matrix if row.ndim == 1 else (row.unsqueeze(-2) @ matrix).squeeze(-2)


def _join(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)
