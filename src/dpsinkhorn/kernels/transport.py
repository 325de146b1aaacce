"""The gradient of Eq. 6 by kernels, without a word to the host: in three launches, if problems are small."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from dpsinkhorn.kernels import _triton_plans
from dpsinkhorn.kernels.launch import ceil_div, jit, on, power_of_2, tl

# Largest matrix that a program holds in its registers.
MOST_ROWS, MOST_COLUMNS = 128, 256
_NARROW = 64  # columns of the matrix where the number of records allows
_TILE, _TILE_PIXELS = 8, 128
_POINTS, _PIXELS = 64, 64


@jit
def _tidy(pixels):
    """NaN to 0, everything else into [-1, 1]."""
    pixels = tl.where(pixels == pixels, pixels, 0.0)
    return tl.minimum(tl.maximum(pixels, -1.0), 1.0)


@jit
def _label_differences(first, second, classes):
    """In how many entries the one-hot labels differ; a label that is no class has none set."""
    first_set = (first >= 0) & (first < classes)
    second_set = (second >= 0) & (second < classes)
    both = first_set & second_set & (first == second)
    return tl.where(both, 0.0, first_set.to(tl.float32) + second_set.to(tl.float32))


@jit
def costs_kernel(
    x, y, x_labels, y_labels, count, costs, l1_weight,
    label_cost,  # cost of one differing entry of the one-hot labels
    CLASSES: tl.constexpr, SQUARED: tl.constexpr, N: tl.constexpr, RESAMPLED: tl.constexpr,
    CAPACITY: tl.constexpr, WIDTH: tl.constexpr, D: tl.constexpr,
    ROWS: tl.constexpr,  # of a tile
    COLUMNS: tl.constexpr,  # of a tile
    PIXELS: tl.constexpr,  # taken at a time
):  # fmt: skip
    """A program per tile of a cost matrix; its last grid axis is the problem."""
    i = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    j = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    own = tl.program_id(2)  # 0 or 1
    cross_columns = tl.minimum(tl.load(count).to(tl.int32), CAPACITY) * (1 - own)
    own_columns = N * own
    columns = cross_columns + own_columns
    if tl.program_id(1) * COLUMNS < columns:
        row_there = i < N
        cross_there = j < cross_columns
        own_there = j < own_columns
        total = tl.zeros([ROWS, COLUMNS, PIXELS], dtype=tl.float32)
        for start in tl.static_range(0, D, PIXELS):
            k = start + tl.arange(0, PIXELS)
            k_there = (k < D)[None, None, :]
            a = tl.load(
                x + i[:, None, None] * D + k[None, None, :],
                mask=row_there[:, None, None] & k_there,
                other=0.0,
            )
            # One of the two loads is masked off as a whole: cheaper than a branch.
            b = tl.load(
                y + j[None, :, None] * D + k[None, None, :],
                mask=cross_there[None, :, None] & k_there,
                other=0.0,
            ) + tl.load(
                x + (j + RESAMPLED)[None, :, None] * D + k[None, None, :],
                mask=own_there[None, :, None] & k_there,
                other=0.0,
            )
            difference = _tidy(a) - _tidy(b)
            if SQUARED:
                total += difference * difference
            total += l1_weight * tl.abs(difference)
        cost = tl.sum(total, axis=2)
        if CLASSES > 0:
            first = tl.load(x_labels + i, mask=row_there, other=0)
            second = tl.load(y_labels + j, mask=cross_there, other=0)
            second += tl.load(x_labels + j + RESAMPLED, mask=own_there, other=0)
            cost += label_cost * _label_differences(first[:, None], second[None, :], CLASSES)
        at = costs + own * N * WIDTH + i[:, None] * WIDTH + j[None, :]
        tl.store(at, cost, mask=row_there[:, None] & (j < columns)[None, :])


@jit
def _weighted(here, points, weights, k, k_there, l1_weight, SQUARED: tl.constexpr):
    """Terms w_j * grad c(here, point_j) of a block of points. Points of no weight are not read."""
    there = (weights != 0.0)[:, None] & k_there[None, :]
    other = _tidy(tl.load(points + k[None, :], mask=there, other=0.0))
    difference = here[None, :] - other
    slope = tl.where(difference > 0, l1_weight, tl.where(difference < 0, -l1_weight, 0.0))
    if SQUARED:
        slope += 2.0 * difference
    return weights[:, None] * slope


@jit
def gradient_kernel(
    x, y, plans,
    again,  # the self problem's plan once more, or another one, for the gradient in its second points
    count, out, l1_weight, SQUARED: tl.constexpr, N: tl.constexpr, RESAMPLED: tl.constexpr,
    CAPACITY: tl.constexpr, WIDTH: tl.constexpr, D: tl.constexpr,
    POINTS: tl.constexpr,  # taken at a time
    PIXELS: tl.constexpr,  # of a program
):  # fmt: skip
    """A program per row of the gradient and block of pixels.

    Row i has 2 Σ_j P_ij ∇c(x_i, y_j), less Σ_j Q_ij ∇c(x_i, b_j), where i < n, and less
    Σ_l R_lk ∇c(b_k, a_l) with k = i - n', where that is not negative; Q and R are mostly the same.
    """
    i = tl.program_id(0)
    k = tl.program_id(1) * PIXELS + tl.arange(0, PIXELS)
    k_there = k < D
    columns = tl.minimum(tl.load(count).to(tl.int32), CAPACITY)
    here = _tidy(tl.load(x + i * D + k, mask=k_there, other=0.0))
    own = plans + N * WIDTH
    total = tl.zeros([POINTS, PIXELS], dtype=tl.float32)
    for start in range(0, WIDTH, POINTS):
        j = start + tl.arange(0, POINTS)
        cross = 2.0 * tl.load(plans + i * WIDTH + j, mask=(j < columns) & (i < N), other=0.0)
        total += _weighted(here, y + j[:, None] * D, cross, k, k_there, l1_weight, SQUARED)
        if start < N:
            first = tl.load(own + i * WIDTH + j, mask=(j < N) & (i < N), other=0.0)
            second = tl.load(again + j * WIDTH + (i - RESAMPLED), mask=(j < N) & (i >= RESAMPLED), other=0.0)
            b = x + (j + RESAMPLED)[:, None] * D
            a = x + j[:, None] * D
            total -= _weighted(here, b, first, k, k_there, l1_weight, SQUARED)
            total -= _weighted(here, a, second, k, k_there, l1_weight, SQUARED)
    gradient = tl.sum(total, axis=0)
    gradient = tl.where(tl.abs(gradient) < float("inf"), gradient, 0.0)  # NaN is not below infinity
    tl.store(out + i * D + k, gradient, mask=k_there)


@dataclass(frozen=True)
class Schedule:
    """How the on-chip Sinkhorn iteration runs; speed against accuracy.

    The regularization falls geometrically from a twentieth of the largest (reduced) cost to λ, once in a
    round of a few iterations, and each fall starts from potentials carried on along the line of the last two.
    Each update of a potential is over-relaxed, the less the larger it is: that keeps a potential that is far
    off from overshooting, and with it the iteration stable.

    >>> Schedule().iterations
    78
    """

    stages: int = 66  # iterations until λ is reached; in whole rounds, of which one at least is left at λ
    iterations: int = 78  # in all, in whole rounds
    relaxation: float = 1.77  # factor on a small update, from 1 (Sinkhorn's) to 1.95
    per_round: int = 6  # longer rounds take fewer exponentials, but more iterations
    # how far potentials are carried on, from 0 (not) to 1 (along the whole line): above 0.9, or where the
    # relaxation is above 1.8, the iteration can swing
    ahead: float = 0.85

    @property
    def rounds(self) -> int:
        """Rounds in all: not as many as the records need, for then the time would tell of them."""
        return ceil_div(self.iterations, self.per_round)

    @property
    def falls(self) -> int:
        """Rounds until λ is reached."""
        return min(ceil_div(self.stages, self.per_round), self.rounds - 1)


@dataclass(frozen=True, eq=False)
class Step:
    """The clouds of one step on the device, their cost, and the three launches."""

    x: Tensor  # generated images, (n + n', d), float32
    labels: Tensor | None  # theirs, (n + n',), int64
    y: Tensor  # room for records, (capacity, d), float32
    y_labels: Tensor | None  # theirs
    count: (
        Tensor  # how many rows of y are records, one integer on the device; what others hold does not matter
    )
    resampled: int  # n'
    squared: bool = True  # the cost of pixels is squared * |x - y|^2 + absolute * |x - y|_1
    absolute: float = 0.0
    classes: int = 0  # how many there are; 0 leaves labels out
    label_cost: float = 0.0  # of an entry in which two one-hot labels differ

    def __post_init__(self) -> None:
        x, y = self.x, self.y
        if x.ndim != 2 or y.ndim != 2 or x.shape[1] != y.shape[1] or 0 in x.shape or not len(y):
            raise ValueError(
                f"x and y: expected (n, d) and (m, d), got {tuple(x.shape)} and {tuple(y.shape)}"
            )
        if x.dtype != torch.float32 or y.dtype != torch.float32:
            raise ValueError(f"x and y: expected float32, got {x.dtype} and {y.dtype}")
        if not 0 <= 2 * self.resampled <= len(x):
            raise ValueError(f"resampled: expected from 0 to half of {len(x)}, got {self.resampled}")
        if self.count.numel() != 1 or self.count.is_floating_point():
            raise ValueError("count: expected one integer")
        for name, of, points in (("labels", self.labels, x), ("y_labels", self.y_labels, y)):
            if of is not None and (of.shape != points.shape[:1] or of.dtype != torch.int64):
                raise ValueError(f"{name}: expected {len(points)} int64, got {tuple(of.shape)} {of.dtype}")
        if len({points.device for points in self._tensors}) > 1:
            raise ValueError("x, y, labels and count: expected all of them on one device")

    @property
    def _tensors(self) -> list[Tensor]:
        all_of_them = (self.x, self.y, self.count, self.labels, self.y_labels)
        return [tensor for tensor in all_of_them if tensor is not None]

    @property
    def rows(self) -> int:
        """n."""
        return len(self.x) - self.resampled

    @property
    def width(self) -> int:
        """Columns of the buffers of costs and plans."""
        return max(self.rows, len(self.y))

    @property
    def _sizes(self) -> dict[str, int]:
        return {"N": self.rows, "CAPACITY": len(self.y), "WIDTH": self.width}

    def buffer(self) -> Tensor:
        """Room for the costs or plans of both problems, ``(2, n, width)``."""
        return self.x.new_empty(2, self.rows, self.width)

    def costs(self, out: Tensor) -> None:
        """Launch 1: costs of the cross problem and of the self problem, without an n x m x d tensor."""
        labelled = self.classes > 0 and self.labels is not None and self.y_labels is not None
        grid = (ceil_div(self.rows, _TILE), ceil_div(self.width, _TILE), 2)
        with on(self.x.device):
            costs_kernel[grid](
                self.x.contiguous(), self.y.contiguous(),
                self.labels.contiguous() if labelled and self.labels is not None else self.x,
                self.y_labels.contiguous() if labelled and self.y_labels is not None else self.y,
                self.count, out, float(self.absolute), float(self.label_cost),
                CLASSES=self.classes if labelled else 0, SQUARED=self.squared, RESAMPLED=self.resampled,
                D=self.x.shape[1], ROWS=_TILE, COLUMNS=_TILE, PIXELS=_TILE_PIXELS, num_warps=8,
                **self._sizes,
            )  # fmt: skip

    def plans(
        self, costs: Tensor, regularization: float, schedule: Schedule, out: Tensor, errors: Tensor
    ) -> None:
        """Launch 2: both plans, a program each, and the L1 error of their column marginals.

        Row marginals are exact up to rounding. A program holds a whole problem, which must be small.
        """
        if not supported(self.rows, len(self.y)):
            raise ValueError(
                f"x and y: {self.rows} x {len(self.y)} is too large for the kernel, "
                f"which holds {MOST_ROWS} x {MOST_COLUMNS}"
            )
        rows = max(16, power_of_2(self.rows))
        wide = max(_NARROW, power_of_2(self.width))
        warps = 4 if rows * wide <= 64 * 128 else 16
        with on(self.x.device):
            _triton_plans.plans_kernel[(2,)](
                costs, out, errors, self.count, math.log2(math.e) / regularization, schedule.falls,
                schedule.rounds, schedule.relaxation - 1, float(schedule.ahead), ROWS=rows, NARROW=_NARROW,
                WIDE=wide, LENGTH=schedule.per_round,
                LANES=2 if warps <= 4 else 4,  # so that a thread per row and lane uses all warps
                HOLD=rows <= 64, FAST=self.x.is_cuda, num_warps=warps, **self._sizes,
            )  # fmt: skip

    def gradient(self, plans: Tensor, out: Tensor, second: Tensor | None = None) -> None:
        """Launch 3: rows of Eq. 6 from both plans.

        ``second``, ``(n, width)``, is the self problem's plan for the gradient in its second points, where
        that is another one.
        """
        grid = (len(self.x), ceil_div(self.x.shape[1], _PIXELS))
        with on(self.x.device):
            gradient_kernel[grid](
                self.x.contiguous(), self.y.contiguous(), plans, plans[1] if second is None else second,
                self.count, out, float(self.absolute), SQUARED=self.squared, RESAMPLED=self.resampled,
                D=self.x.shape[1], POINTS=_POINTS, PIXELS=_PIXELS, num_warps=4, **self._sizes,
            )  # fmt: skip


def eq6_gradient(
    step: Step, regularization: float, schedule: Schedule | None = None, *, errors: Tensor | None = None
) -> Tensor:
    """Gradient of Eq. 6, ``2 W(X, Y) - W(A, B)``, in all n + n' images: ``(n + n', d)``, float32.

    X = A = x[0:n], B = x[n':n+n'], Y the first ``count`` rows of y, weights uniform. Pixels are taken with
    NaN as 0 and within [-1, 1]; a label that is no class has an all-zero one-hot. Without records there is
    no cross term. Entries that are not finite are 0.

    Nothing waits for the device, and shapes alone decide what is allocated, so that it can be captured in
    a CUDA graph. ``errors``, ``(2,)`` float32, receives the L1 errors of the marginals of the cross plan
    and of the self plan, for those who measure.

    >>> images, records = torch.rand(6, 4), torch.rand(8, 4)  # n = 4, n' = 2
    >>> step = Step(images, None, records, None, torch.tensor(5), resampled=2)
    >>> eq6_gradient(step, regularization=0.05).shape  # doctest: +SKIP
    torch.Size([6, 4])
    """
    if not 1e-30 < regularization < 1e30:
        raise ValueError(f"regularization: expected a positive number, got {regularization}")
    if errors is None:
        errors = step.x.new_empty(2)
    costs, plans = step.buffer(), step.buffer()
    out = torch.empty_like(step.x, memory_format=torch.contiguous_format)
    step.costs(costs)
    step.plans(costs, regularization, schedule or Schedule(), plans, errors)
    step.gradient(plans, out)
    return out


def supported(rows: int, capacity: int) -> bool:
    """Whether a step of n = ``rows`` generated images and room for ``capacity`` records fits the kernels.

    >>> supported(50, 128), supported(1000, 1000)
    (True, False)
    """
    return 1 <= rows <= MOST_ROWS and capacity <= MOST_COLUMNS
