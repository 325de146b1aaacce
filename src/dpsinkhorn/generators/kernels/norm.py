"""BatchNorm and (leaky) ReLU of channels-last images: three launches forward, three backward."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from dpsinkhorn.generators.configs import GeneratorError
from dpsinkhorn.generators.kernels import _triton
from dpsinkhorn.generators.kernels._triton import AVAILABLE

MOST_CHANNELS = 512
MOST_ROWS = 2**30
_CHANNELS = 8  # of a program that combines parts: 32 bytes, the least that memory hands out
_LEAST_ROWS = 4  # of a tile


@dataclass(frozen=True)
class Tiling:
    """How the work is cut; speed, and the order of sums, so the last bits.

    Args:
        elements: numbers in a tile, a power of 2.
        warps: of a program, a power of 2.
        parts: programs that a sum is shared between, at most. An H100 or H200 runs two of the larger
            kernels' programs on a processor, so that 264 are all at work at once.
        programs: small problems get smaller tiles until there are as many, one for each processor.

    >>> Tiling().elements
    4096
    """

    elements: int = 4096
    warps: int = 8
    parts: int = 264
    programs: int = 132

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value < 1:
                raise GeneratorError(f"{name}: expected 1 or more, got {value}")
        for name, value in (("elements", self.elements), ("warps", self.warps)):
            if value != _power(value):
                raise GeneratorError(f"{name}: expected a power of 2, got {value}")


@dataclass(frozen=True)
class _Launches:
    """One layer's size, cut into tiles, and the six launches."""

    count: int  # rows: pixels of all images
    channels: int
    device: torch.device
    tiling: Tiling

    @property
    def _columns(self) -> int:
        return _power(self.channels)

    @property
    def _rows(self) -> int:
        rows = max(1, self.tiling.elements // self._columns)
        while rows > _LEAST_ROWS and _blocks(self.count, rows) < self.tiling.programs:
            rows //= 2
        return rows

    @property
    def _tiles(self) -> int:
        return _blocks(self.count, self._rows)

    @property
    def _parts(self) -> int:
        return min(self._tiles, self.tiling.parts)

    @property
    def _shape(self) -> dict[str, int]:
        shape = {"C": self.channels, "COLUMNS": self._columns, "ROWS": self._rows}
        return {**shape, "num_warps": self.tiling.warps}

    @property
    def _combining(self) -> dict[str, int]:
        return {"C": self.channels, "PARTS": _power(self._parts), "CHANNELS": _CHANNELS, "num_warps": 8}

    def _floats(self, *shape: int) -> Tensor:
        return torch.empty(shape, dtype=torch.float32, device=self.device)

    def statistics(self, x: Tensor, norm: nn.BatchNorm2d) -> Tensor:
        """Mean and 1 / standard deviation, ``(2, C)``; the running statistics move on."""
        parts, out = self._floats(2, self._parts, self.channels), self._floats(2, self.channels)
        tracked = [norm.running_mean, norm.running_var, norm.num_batches_tracked]
        running = [buffer for buffer in tracked if buffer is not None]
        with _on(self.device):
            _triton.moments_kernel[(self._parts,)](x, parts, self.count, **self._shape)
            _triton.statistics_kernel[(_blocks(self.channels, _CHANNELS),)](
                parts,
                out,
                *(running or [out, out, out]),
                self.count,
                self._parts,
                float(norm.eps),
                float(cast(float, norm.momentum)),
                TRACK=bool(running),
                ROWS=self._rows,
                **self._combining,
            )
        for buffer in running:  # PyTorch then notices where an older value is still needed
            torch.autograd.graph.increment_version(buffer)
        return out

    def apply(self, x: Tensor, statistics: Tensor, weight: Tensor, bias: Tensor, slope: float) -> Tensor:
        out = torch.empty_like(x)
        with _on(self.device):
            _triton.apply_kernel[(self._tiles,)](
                x, out, statistics, weight, bias, self.count, slope, **self._shape
            )
        return out

    def parameter_gradients(
        self, x: Tensor, dy: Tensor, statistics: Tensor, weight: Tensor, bias: Tensor, slope: float
    ) -> tuple[Tensor, Tensor]:
        parts = self._floats(2, self._parts, self.channels)
        of_weight, of_bias = self._floats(self.channels), self._floats(self.channels)
        with _on(self.device):
            _triton.sums_kernel[(self._parts,)](
                x, dy, parts, statistics, weight, bias, self.count, slope, **self._shape
            )
            _triton.totals_kernel[(_blocks(self.channels, _CHANNELS),)](
                parts, statistics, of_weight, of_bias, self._parts, **self._combining
            )
        return of_weight, of_bias

    def gradient(
        self,
        x: Tensor,
        dy: Tensor,
        statistics: Tensor,
        weight: Tensor,
        bias: Tensor,
        of_parameters: tuple[Tensor, Tensor],
        slope: float,
    ) -> Tensor:
        out = torch.empty_like(x)
        with _on(self.device):
            _triton.norm_gradient_kernel[(self._tiles,)](
                x, dy, out, statistics, weight, bias, *of_parameters, self.count, slope, **self._shape
            )
        return out


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
        rows = _channels_last(x)
        launches = _Launches(rows.numel() // rows.shape[-1], rows.shape[-1], rows.device, tiling)
        statistics = launches.statistics(rows, norm)
        ctx.save_for_backward(rows, statistics, weight, bias)
        ctx.launches, ctx.slope = launches, slope
        return launches.apply(rows, statistics, weight, bias, slope).permute(0, 3, 1, 2)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, statistics, weight, bias = ctx.saved_tensors
        launches: _Launches = ctx.launches
        given = (x, _channels_last(dy), statistics, weight, bias)
        of_parameters = launches.parameter_gradients(*given, ctx.slope)
        of_x = None
        if ctx.needs_input_grad[0]:
            of_x = launches.gradient(*given, of_parameters, ctx.slope).permute(0, 3, 1, 2)
        return of_x, *of_parameters, None, None, None


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
        raise GeneratorError(
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


def available(device: torch.device | str) -> bool:
    """Whether the kernels can run there: Triton is installed, and the device is a CUDA one.

    >>> available("cpu")
    False
    """
    return AVAILABLE and torch.device(device).type == "cuda"


def _channels_last(images: Tensor) -> Tensor:
    """Images as (n, height, width, C), contiguous."""
    return images.permute(0, 2, 3, 1).contiguous()


def _blocks(size: int, block: int) -> int:
    return -(-size // block)


def _power(size: int) -> int:
    return 1 << (size - 1).bit_length()


def _on(device: torch.device) -> contextlib.AbstractContextManager[object]:
    return torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()
