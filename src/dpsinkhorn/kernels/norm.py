"""BatchNorm and (leaky) ReLU of channels-last images: two launches forward, two backward."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from dpsinkhorn.kernels import _triton_norm
from dpsinkhorn.kernels.launch import ceil_div, channels_last, check_power, on, power_of_2

MOST_CHANNELS = 512
MOST_ROWS = 2**30
_LEAST_ROWS = 4  # of a tile
_MOST_PROGRAMS = 2048


@dataclass(frozen=True)
class Cut:
    """How the work of a kernel is cut.

    Args:
        elements: numbers in a tile, a power of 2; small problems get smaller tiles, as long as each program
            has only one.
        warps: of a program, a power of 2.
        programs: at most. As many as are at work at once: an H100 or H200 has 132 processors.

    >>> Cut(4096, 8, 264).warps
    8
    """

    elements: int
    warps: int
    programs: int

    def __post_init__(self) -> None:
        check_power("elements", self.elements)
        check_power("warps", self.warps)
        if not 1 <= self.programs <= _MOST_PROGRAMS:
            raise ValueError(f"programs: expected 1 to {_MOST_PROGRAMS}, got {self.programs}")


@dataclass(frozen=True)
class Tiling:
    """How the work is cut; speed, and the order of sums, so the last bits.

    Args:
        sums: of the kernels that sum. Their programs are few and large, because every program of the next
            kernel adds up what they leave.
        apply: of the forward kernel that writes.
        gradient: of the backward kernel that writes.
        channels: of a program, a power of 2. 32 numbers in bfloat16 are 64 bytes in a row, what memory
            likes to hand out.
        overlap: start the second kernel of a pass while the first one runs, where the device can (Hopper
            and later).

    >>> Tiling().channels
    32
    """

    sums: Cut = Cut(8192, 8, 132)
    apply: Cut = Cut(8192, 8, 264)
    gradient: Cut = Cut(4096, 8, 264)
    channels: int = 32
    overlap: bool = True

    def __post_init__(self) -> None:
        check_power("channels", self.channels)


@dataclass(frozen=True)
class _Grid:
    """One layer's tiles, and the programs that share them."""

    count: int  # rows: pixels of all images
    channels: int
    columns: int  # of a tile
    cut: Cut

    @property
    def _slices(self) -> int:
        return ceil_div(self.channels, self.columns)

    @functools.cached_property
    def rows(self) -> int:
        """Of a tile."""
        rows = max(1, self.cut.elements // self.columns)
        while rows > _LEAST_ROWS and ceil_div(self.count, rows // 2) * self._slices <= self.cut.programs:
            rows //= 2
        return rows

    @functools.cached_property
    def sharing(self) -> int:
        """Programs that share the tiles of a channel. All of them take as many, or one less."""
        tiles = ceil_div(self.count, self.rows)
        return ceil_div(tiles, ceil_div(tiles, max(1, self.cut.programs // self._slices)))

    @property
    def programs(self) -> tuple[int, int]:
        return self._slices, self.sharing

    @property
    def options(self) -> dict[str, int]:
        sizes = {"C": self.channels, "COLUMNS": self.columns, "ROWS": self.rows}
        return {**sizes, "num_warps": self.cut.warps}


@dataclass(frozen=True)
class _Launches:
    """One layer's size and the four launches."""

    count: int
    channels: int
    device: torch.device
    tiling: Tiling

    def _grid(self, cut: Cut) -> _Grid:
        return _Grid(self.count, self.channels, min(self.tiling.channels, power_of_2(self.channels)), cut)

    @functools.cached_property
    def _sums(self) -> _Grid:
        return self._grid(self.tiling.sums)

    @property
    def _overlap(self) -> bool:
        return self.tiling.overlap and _can_overlap(self.device)

    @property
    def _after(self) -> dict[str, Any]:
        """Options of the second kernel of a pass."""
        options = {"PARTS": power_of_2(self._sums.sharing), "OVERLAP": self._overlap}
        return options | ({"launch_pdl": True} if self._overlap else {})

    def _floats(self, *shape: int) -> Tensor:
        return torch.empty(shape, dtype=torch.float32, device=self.device)

    def moments(self, x: Tensor) -> Tensor:
        """Means and sums of squares about them, of parts of the rows."""
        grid = self._sums
        parts = self._floats(2, grid.sharing, self.channels)
        with on(self.device):
            _triton_norm.moments_kernel[grid.programs](
                x, parts, self.count, OVERLAP=self._overlap, **grid.options
            )
        return parts

    def apply(
        self, x: Tensor, parts: Tensor, weight: Tensor, bias: Tensor, norm: nn.BatchNorm2d, slope: float
    ) -> tuple[Tensor, Tensor]:
        """Output, and mean and 1 / standard deviation, ``(2, C)``; the running statistics move on."""
        out, statistics = torch.empty_like(x), self._floats(2, self.channels)
        tracked = [norm.running_mean, norm.running_var, norm.num_batches_tracked]
        running = [buffer for buffer in tracked if buffer is not None]
        grid = self._grid(self.tiling.apply)
        with on(self.device):
            _triton_norm.apply_kernel[grid.programs](
                x,
                out,
                parts,
                statistics,
                weight,
                bias,
                *(running or [statistics, statistics, statistics]),
                self.count,
                self._sums.sharing,
                slope,
                float(norm.eps),
                float(cast(float, norm.momentum)),
                TRACK=bool(running),
                SUMMED=self._sums.rows,
                **grid.options,
                **self._after,
            )
        for buffer in running:  # PyTorch then notices where an older value is still needed
            torch.autograd.graph.increment_version(buffer)
        return out, statistics

    def sums(
        self, x: Tensor, dy: Tensor, statistics: Tensor, weight: Tensor, bias: Tensor, slope: float
    ) -> Tensor:
        """Sums that the gradients need, of parts of the rows."""
        grid = self._sums
        parts = self._floats(2, grid.sharing, self.channels)
        with on(self.device):
            _triton_norm.sums_kernel[grid.programs](
                x,
                dy,
                parts,
                statistics,
                weight,
                bias,
                self.count,
                slope,
                OVERLAP=self._overlap,
                **grid.options,
            )
        return parts

    def gradients(
        self,
        x: Tensor,
        dy: Tensor,
        parts: Tensor,
        statistics: Tensor,
        weight: Tensor,
        bias: Tensor,
        slope: float,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Of x, weight and bias."""
        of_x, of_weight, of_bias = torch.empty_like(x), torch.empty_like(weight), torch.empty_like(bias)
        grid = self._grid(self.tiling.gradient)
        with on(self.device):
            _triton_norm.norm_gradient_kernel[grid.programs](
                x,
                dy,
                of_x,
                parts,
                statistics,
                weight,
                bias,
                of_weight,
                of_bias,
                self.count,
                self._sums.sharing,
                slope,
                **grid.options,
                **self._after,
            )
        return of_x, of_weight, of_bias


class _FusedNorm(torch.autograd.Function):
    """Keeps the input and (2, C) statistics for the backward pass, nothing of the output's size."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        norm: nn.BatchNorm2d,
        slope: float,
        tiling: Tiling,
    ) -> Tensor:
        rows = channels_last(x)
        launches = _Launches(rows.numel() // rows.shape[-1], rows.shape[-1], rows.device, tiling)
        out, statistics = launches.apply(rows, launches.moments(rows), weight, bias, norm, slope)
        ctx.save_for_backward(rows, statistics, weight, bias)
        ctx.launches, ctx.slope = launches, slope
        return out.permute(0, 3, 1, 2)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, statistics, weight, bias = ctx.saved_tensors
        launches: _Launches = ctx.launches
        rows = channels_last(dy)
        parts = launches.sums(x, rows, statistics, weight, bias, ctx.slope)
        of_x, of_weight, of_bias = launches.gradients(x, rows, parts, statistics, weight, bias, ctx.slope)
        return of_x.permute(0, 3, 1, 2), of_weight, of_bias, None, None, None


def fused_norm(x: Tensor, norm: nn.BatchNorm2d, slope: float, tiling: Tiling | None = None) -> Tensor:
    """``leaky_relu(norm(x), slope)`` in training mode, for ``x`` of shape (n, C, height, width).

    The output is channels-last and of x's type; an input that is not channels-last is copied. Everything in
    between is float32, whatever autocast says. The running statistics of ``norm`` move on as PyTorch's do;
    its hooks do not run. Gradients of first order, for x, weight and bias. Sums are taken in a fixed order:
    same input, same bits. Nothing waits for the device, and shapes alone decide what is allocated, so that
    it can be captured in a CUDA graph.

    >>> norm, images = nn.BatchNorm2d(64), torch.rand(5, 64, 7, 7)
    >>> fused_norm(images, norm, 0.2).shape  # doctest: +SKIP
    torch.Size([5, 64, 7, 7])
    """
    if not supported(x, norm):
        raise ValueError(
            f"the kernels do not have this BatchNorm of a {x.dtype} {tuple(x.shape)}: use the module itself"
        )
    arguments = (x, norm.weight, norm.bias, norm, float(slope), tiling or Tiling())
    out: Tensor = _FusedNorm.apply(*arguments)  # type: ignore[no-untyped-call]
    return out


def supported(x: Tensor, norm: nn.BatchNorm2d) -> bool:
    """Whether `fused_norm` computes what ``norm`` would: in training mode, with weights, within its sizes.

    The device is not looked at; see `available`.

    >>> supported(torch.rand(5, 64, 7, 7), nn.BatchNorm2d(64))
    True
    >>> supported(torch.rand(5, 64, 7, 7), nn.BatchNorm2d(64).eval())
    False
    >>> supported(torch.rand(5, 64, 7, 7), nn.BatchNorm2d(64, momentum=None))  # a plain average over batches
    False
    """
    if x.ndim != 4 or x.dtype not in (torch.float32, torch.bfloat16):
        return False
    channels = x.shape[1]
    own = [norm.weight, norm.bias, norm.running_mean, norm.running_var]
    return (
        norm.training
        and type(norm) is nn.BatchNorm2d  # a subclass may have another rule
        and norm.momentum is not None
        and norm.affine
        and channels == norm.num_features
        and channels % 8 == 0
        and 8 <= channels <= MOST_CHANNELS
        and 2 <= x.numel() // channels < MOST_ROWS
        and all(of is None or (of.dtype == torch.float32 and of.device == x.device) for of in own)
    )


@functools.cache
def _can_overlap(device: torch.device) -> bool:
    if device.type != "cuda" or torch.version.hip is not None:
        return False
    return torch.cuda.get_device_capability(device) >= (9, 0)
