"""The gradient of Eq. 6 by kernels, without a word to the host: in three launches, if problems are small."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from dpsinkhorn.kernels import _triton_costs, _triton_plans
from dpsinkhorn.kernels.launch import ceil_div, on, power_of_2

# Largest matrix that a program holds in its registers.
MOST_ROWS, MOST_COLUMNS = 128, 256
_NARROW = 64  # columns of the matrix where the number of records allows
_TILE, _TILE_PIXELS = 8, 128
_POINTS, _PIXELS = 64, 64


@dataclass(frozen=True)
class Schedule:
    """How the on-chip Sinkhorn iteration runs; speed against accuracy.

    The regularization falls geometrically from a twentieth of the largest (reduced) cost to λ, once in a
    round of a few iterations, and each fall starts from potentials carried on along the line of the last two.
    Each update of a potential is over-relaxed, the less the larger it is: that keeps a potential that is far
    off from overshooting, and with it the iteration stable.

    Args:
        stages: iterations until λ is reached; rounded up to whole rounds, of which at least one is left at
            λ. More is more accurate.
        iterations: iterations in all, at most; rounded up to whole rounds.
        relaxation: factor on a small update, from 1 (Sinkhorn's) to 1.95.
        per_round: iterations of a round. Longer ones take fewer exponentials, but more iterations.
        ahead: how far potentials are carried on, from 0 (not) to 1 (along the whole line). Above 0.9, or
            where the relaxation is above 1.8, the iteration can swing.
        tolerance: L1 error of the plan's marginals at which to stop early, once at λ. With 0, the default,
            the number of iterations, and so the time, does not depend on the records.

    >>> Schedule().iterations
    78
    """

    stages: int = 66
    iterations: int = 78
    relaxation: float = 1.77
    per_round: int = 6
    ahead: float = 0.85
    tolerance: float = 0.0

    def __post_init__(self) -> None:
        if not 1 <= self.stages <= self.iterations:
            raise ValueError(f"stages: expected from 1 to iterations ({self.iterations}), got {self.stages}")
        if not 1 <= self.relaxation <= 1.95:
            raise ValueError(f"relaxation: expected from 1 to 1.95, got {self.relaxation}")
        if self.per_round < 1:
            raise ValueError(f"per_round: expected a positive number of iterations, got {self.per_round}")
        if not 0 <= self.ahead <= 1:
            raise ValueError(f"ahead: expected from 0 to 1, got {self.ahead}")
        if not self.tolerance >= 0:
            raise ValueError(f"tolerance: expected zero or a positive number, got {self.tolerance}")

    @property
    def rounds(self) -> int:
        """Rounds in all, at most."""
        return ceil_div(self.iterations, self.per_round)

    @property
    def falls(self) -> int:
        """Rounds until λ is reached."""
        return min(ceil_div(self.stages, self.per_round), self.rounds - 1)


@dataclass(frozen=True, eq=False)
class Step:
    """The clouds of one step on the device, their cost, and the three launches.

    Args:
        x: generated images, ``(n + n', d)``, float32, n' of them ``resampled``.
        labels: their labels ``(n + n',)``, int64, or None.
        y: room for records, ``(capacity, d)``, float32.
        y_labels: their labels, or None.
        count: how many rows of ``y`` are records, one integer on the device. What the other rows hold
            does not matter.
        resampled: n'.
        squared, absolute: the cost of pixels, ``squared * |x - y|^2 + absolute * |x - y|_1``.
        classes: how many there are; 0 leaves labels out.
        label_cost: cost of an entry in which two one-hot labels differ.
    """

    x: Tensor
    labels: Tensor | None
    y: Tensor
    y_labels: Tensor | None
    count: Tensor
    resampled: int
    squared: bool = True
    absolute: float = 0.0
    classes: int = 0
    label_cost: float = 0.0

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

    def costs(self, out: Tensor, *, warps: int = 8) -> None:
        """Launch 1: costs of the cross problem and of the self problem, without an n x m x d tensor."""
        labelled = self.classes > 0 and self.labels is not None and self.y_labels is not None
        grid = (ceil_div(self.rows, _TILE), ceil_div(self.width, _TILE), 2)
        with on(self.x.device):
            _triton_costs.costs_kernel[grid](
                self.x.contiguous(),
                self.y.contiguous(),
                self.labels.contiguous() if labelled and self.labels is not None else self.x,
                self.y_labels.contiguous() if labelled and self.y_labels is not None else self.y,
                self.count,
                out,
                float(self.absolute),
                float(self.label_cost),
                CLASSES=self.classes if labelled else 0,
                SQUARED=self.squared,
                RESAMPLED=self.resampled,
                D=self.x.shape[1],
                ROWS=_TILE,
                COLUMNS=_TILE,
                PIXELS=_TILE_PIXELS,
                num_warps=warps,
                **self._sizes,
            )

    def plans(
        self,
        costs: Tensor,
        regularization: float,
        schedule: Schedule,
        out: Tensor,
        errors: Tensor,
        *,
        warps: int | None = None,
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
        warps = warps or (4 if rows * wide <= 64 * 128 else 16)
        with on(self.x.device):
            _triton_plans.plans_kernel[(2,)](
                costs,
                out,
                errors,
                self.count,
                math.log2(math.e) / regularization,
                schedule.falls,
                schedule.rounds,
                schedule.relaxation - 1,
                float(schedule.ahead),
                float(schedule.tolerance),
                ROWS=rows,
                NARROW=_NARROW,
                WIDE=wide,
                LENGTH=schedule.per_round,
                LANES=2 if warps <= 4 else 4,  # so that a thread per row and lane uses all warps
                HOLD=rows <= 64,
                STOPS=schedule.tolerance > 0,
                FAST=self.x.is_cuda,
                num_warps=warps,
                **self._sizes,
            )

    def gradient(self, plans: Tensor, out: Tensor, second: Tensor | None = None, *, warps: int = 4) -> None:
        """Launch 3: rows of Eq. 6 from both plans.

        ``second``, ``(n, width)``, is the self problem's plan for the gradient in its second points, where
        that is another one.
        """
        grid = (len(self.x), ceil_div(self.x.shape[1], _PIXELS))
        with on(self.x.device):
            _triton_costs.gradient_kernel[grid](
                self.x.contiguous(),
                self.y.contiguous(),
                plans,
                plans[1] if second is None else second,
                self.count,
                out,
                float(self.absolute),
                SQUARED=self.squared,
                RESAMPLED=self.resampled,
                D=self.x.shape[1],
                POINTS=_POINTS,
                PIXELS=_PIXELS,
                num_warps=warps,
                **self._sizes,
            )


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
