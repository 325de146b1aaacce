"""BatchNorm and (leaky) ReLU of channels-last images: two launches forward, two backward."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from dpsinkhorn.kernels import _triton_norm
from dpsinkhorn.kernels.launch import ceil_div, channels_last, on, power_of_2

MOST_CHANNELS = 512
MOST_ROWS = 2**30
_LEAST_ROWS = 4  # of a tile


class Cut(NamedTuple):
    """How the work of a kernel is cut."""

    elements: int
    """Numbers in a tile, a power of 2; small problems get smaller ones, as long as a program has only one."""
    warps: int
    programs: int
    """At most. As many as are at work at once: an H100 or H200 has 132 processors."""


class Tiling(NamedTuple):
    """How the work is cut; speed, and the order of sums, so the last bits."""

    sums: Cut = Cut(8192, 8, 132)
    """Of the kernels that sum: few and large, for every program of the next one adds up what they leave."""
    apply: Cut = Cut(8192, 8, 264)
    """Of the forward kernel that writes."""
    gradient: Cut = Cut(4096, 8, 264)
    """Of the backward kernel that writes."""
    channels: int = 32
    """Of a program, a power of 2: in bfloat16 64 bytes in a row, what memory likes to hand out."""
    overlap: bool = True
    """Start the second kernel of a pass while the first one runs, where the device can (Hopper and later)."""


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
class _Layer:
    """One layer's size, and how its launches are cut."""

    rows: Tensor  # (n, height, width, C)
    tiling: Tiling

    def grid(self, cut: Cut) -> _Grid:
        channels = self.rows.shape[-1]
        columns = min(self.tiling.channels, power_of_2(channels))
        return _Grid(self.rows.numel() // channels, channels, columns, cut)

    @functools.cached_property
    def overlap(self) -> bool:
        return self.tiling.overlap and _can_overlap(self.rows.device)

    def floats(self, *shape: int) -> Tensor:
        """Room for so many numbers a channel."""
        return torch.empty(*shape, self.rows.shape[-1], dtype=torch.float32, device=self.rows.device)

    def after(self, sums: _Grid) -> dict[str, Any]:
        """Options of the second kernel of a pass, which adds up what the first one leaves."""
        options = {"PARTS": power_of_2(sums.sharing), "OVERLAP": self.overlap}
        return options | ({"launch_pdl": True} if self.overlap else {})


class _FusedNorm(torch.autograd.Function):
    """Keeps the input and (2, C) statistics for the backward pass, nothing of the output's size."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, norm: nn.BatchNorm2d, slope: float, tiling: Tiling
    ) -> Tensor:
        rows = channels_last(x)
        layer = _Layer(rows, tiling)
        sums, grid = layer.grid(tiling.sums), layer.grid(tiling.apply)
        parts = layer.floats(2, sums.sharing)  # means and sums of squares about them, of parts of the rows
        out, statistics = torch.empty_like(rows), layer.floats(2)  # mean and 1 / standard deviation
        tracked = [norm.running_mean, norm.running_var, norm.num_batches_tracked]
        running = [buffer for buffer in tracked if buffer is not None]
        with on(rows.device):
            _triton_norm.moments_kernel[sums.programs](
                rows, parts, sums.count, OVERLAP=layer.overlap, **sums.options
            )
            _triton_norm.apply_kernel[grid.programs](
                rows, out, parts, statistics, weight, bias,
                *(running or [statistics, statistics, statistics]), grid.count, sums.sharing, slope,
                float(norm.eps), float(cast(float, norm.momentum)), TRACK=bool(running), SUMMED=sums.rows,
                **grid.options, **layer.after(sums),
            )  # fmt: skip
        for buffer in running:  # PyTorch then notices where an older value is still needed
            torch.autograd.graph.increment_version(buffer)
        ctx.save_for_backward(rows, statistics, weight, bias)
        ctx.tiling, ctx.slope = tiling, slope
        return out.permute(0, 3, 1, 2)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, statistics, weight, bias = ctx.saved_tensors
        layer, rows = _Layer(x, ctx.tiling), channels_last(dy)
        sums, grid = layer.grid(ctx.tiling.sums), layer.grid(ctx.tiling.gradient)
        parts = layer.floats(2, sums.sharing)  # sums that the gradients need, of parts of the rows
        of_x, of_weight, of_bias = torch.empty_like(x), torch.empty_like(weight), torch.empty_like(bias)
        known = parts, statistics, weight, bias
        with on(x.device):
            _triton_norm.sums_kernel[sums.programs](
                x, rows, *known, sums.count, ctx.slope, OVERLAP=layer.overlap, **sums.options
            )
            _triton_norm.norm_gradient_kernel[grid.programs](
                x, rows, of_x, *known, of_weight, of_bias, grid.count, sums.sharing, ctx.slope,
                **grid.options, **layer.after(sums),
            )  # fmt: skip
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
