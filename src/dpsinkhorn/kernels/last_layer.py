"""A generator's last layer, the crop and tanh: one launch forward, two backward."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from dpsinkhorn.kernels import _triton_last_layer
from dpsinkhorn.kernels.launch import ceil_div, channels_last, check_power, on, power_of_2

MOST_OUTPUTS = 4  # channels of images
MOST_NUMBERS = 2**31
_BLOCK = 128  # bytes of a pixel's channels that are read at once
_ENTRIES = 8  # of a program that combines parts: 32 bytes, the least that memory hands out
_KINDS = (torch.float32, torch.bfloat16)


@dataclass(frozen=True)
class LastTiling:
    """How the work is cut; speed, and the order of sums, so the last bits.

    Args:
        side: of the squares of pixels that are read together in the forward pass, a power of 2, 4 or more.
            The rim is read for its neighbours only: with 8, a 28 x 28 image is 25 squares, with 16 it is 4.
        warps: of a program of the forward pass, a power of 2.
        pixels: read together in the backward pass, a power of 2, 16 or more.
        gradient_warps: of a program of the backward pass, a power of 2.
        parts: programs that the sums of the backward pass are shared between, at most.

    >>> LastTiling().side
    8
    """

    side: int = 8
    warps: int = 4
    pixels: int = 128
    gradient_warps: int = 4
    parts: int = 528

    def __post_init__(self) -> None:
        least = {"side": 4, "pixels": 16}
        for name, value in vars(self).items():
            if value < least.get(name, 1):
                raise ValueError(f"{name}: expected {least.get(name, 1)} or more, got {value}")
            if name != "parts":
                check_power(name, value)


@dataclass(frozen=True)
class _Launches:
    """The sizes of one layer, and its three launches."""

    images: torch.Size  # (n, height, width, C)
    out: torch.Size  # (n, channels, height, width)
    tiling: LastTiling

    @property
    def _pixels(self) -> int:
        return self.images[:3].numel()

    @property
    def _parts(self) -> int:
        return min(ceil_div(self._pixels, self.tiling.pixels), self.tiling.parts)

    @property
    def _entries(self) -> int:
        """Numbers in weight and bias."""
        return self.out[1] * (9 * self.images[3] + 1)

    def _weights(self, laid_out: Tensor) -> dict[str, int]:
        strides = dict(zip(("S_C", "S_OUT", "S_Y", "S_X"), laid_out.stride(), strict=True))
        return {"C": self.images[3], "OUT": self.out[1], **strides}

    def _layer(self, images: Tensor, weight: Tensor) -> dict[str, Any]:
        _, height, width, channels = self.images
        _, _, out_height, out_width = self.out
        return {
            "HEIGHT": height,
            "WIDTH": width,
            "OUT_HEIGHT": out_height,
            "OUT_WIDTH": out_width,
            "TOP": (height - out_height) // 2,
            "LEFT": (width - out_width) // 2,
            "COLUMNS": power_of_2(9 * self.out[1]),
            # 16 is the least that a product takes
            "BLOCK": max(16, min(_BLOCK // images.itemsize, power_of_2(channels))),
            # Triton's interpreter, which is all that runs on a CPU, has no products of bfloat16.
            "REDUCED": images.is_cuda and images.dtype == torch.bfloat16,
            **self._weights(weight),
        }

    def forward(self, images: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        out = torch.empty(self.out, dtype=torch.float32, device=images.device)
        within = self.tiling.side - 2
        squares = ceil_div(self.out[2], within) * ceil_div(self.out[3], within)
        with on(images.device):
            _triton_last_layer.last_kernel[(len(out) * squares,)](
                images,
                weight,
                bias,
                out,
                SIDE=self.tiling.side,
                num_warps=self.tiling.warps,
                **self._layer(images, weight),
            )
        return out

    def backward(
        self, images: Tensor, weight: Tensor, out: Tensor, gradient: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The gradients in images, weight and bias, each laid out as what it is of."""
        of_images, of_weight = torch.empty_like(images), torch.empty_like(weight)
        of_bias = torch.empty(self.out[1], dtype=torch.float32, device=images.device)
        parts = torch.empty(self._parts, self._entries, dtype=torch.float32, device=images.device)
        layer = self._layer(images, weight)
        with on(images.device):
            _triton_last_layer.last_gradient_kernel[(self._parts, ceil_div(self.images[3], layer["BLOCK"]))](
                images,
                weight,
                out,
                gradient,
                of_images,
                parts,
                self._pixels,
                PIXELS=self.tiling.pixels,
                ROUNDS=ceil_div(ceil_div(self._pixels, self.tiling.pixels), self._parts),
                num_warps=self.tiling.gradient_warps,
                num_stages=2,
                **layer,
            )
            _triton_last_layer.last_totals_kernel[(ceil_div(self._entries, _ENTRIES),)](
                parts,
                of_weight,
                of_bias,
                self._parts,
                PARTS=power_of_2(self._parts),
                ENTRIES=_ENTRIES,
                num_warps=8,
                **self._weights(of_weight),
            )
        return of_images, of_weight, of_bias


class _FusedLast(torch.autograd.Function):
    """Keeps images, weight and output for the backward pass."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, size: tuple[int, int], tiling: LastTiling
    ) -> Tensor:
        images = channels_last(x)
        launches = _Launches(images.shape, torch.Size((len(x), weight.shape[1], *size)), tiling)
        out = launches.forward(images, weight, bias)
        ctx.save_for_backward(images, weight, out)
        ctx.launches = launches
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        launches: _Launches = ctx.launches
        images, weight, out = ctx.saved_tensors
        of_images, of_weight, of_bias = launches.backward(images, weight, out, gradient.contiguous())
        return of_images.permute(0, 3, 1, 2), of_weight, of_bias, None, None


def fused_last(
    x: Tensor, layer: nn.ConvTranspose2d, size: tuple[int, int], tiling: LastTiling | None = None
) -> Tensor:
    """``tanh(layer(x))`` of the middle ``size`` (height, width) pixels, for ``x`` of (n, C, height, width).

    The output is float32 and contiguous. Products are of numbers of x's type, whatever autocast says: a
    bfloat16 x meets weights rounded to it. Everything else is float32, but for the gradients in x and the
    weight, which have the type of these. An x that is not channels-last is copied; a weight is taken in any
    layout, and its gradient has the same. Hooks of ``layer`` do not run. Gradients of first order, for x,
    weight and bias. Sums are taken in a fixed order: same input, same bits. Nothing waits for the device, and
    shapes alone decide what is allocated, so that it can be captured in a CUDA graph.

    >>> layer, images = nn.ConvTranspose2d(64, 1, 3, padding=1), torch.rand(5, 64, 8, 8)
    >>> fused_last(images, layer, (7, 7)).shape  # doctest: +SKIP
    torch.Size([5, 1, 7, 7])
    """
    if not last_supported(x, layer):
        raise ValueError(
            f"the kernels do not have this layer of a {x.dtype} {tuple(x.shape)}: use the module itself"
        )
    if not (1 <= size[0] <= x.shape[2] and 1 <= size[1] <= x.shape[3]):
        raise ValueError(f"size: expected at most {x.shape[2]} x {x.shape[3]}, got {size[0]} x {size[1]}")
    arguments = (x, layer.weight, layer.bias, (int(size[0]), int(size[1])), tiling or LastTiling())
    out: Tensor = _FusedLast.apply(*arguments)  # type: ignore[no-untyped-call]
    return out


def last_supported(x: Tensor, layer: nn.ConvTranspose2d) -> bool:
    """Whether `fused_last` has this layer: 3 x 3, stride and padding 1, a bias, and few outputs.

    The device is not looked at; see `available`.

    >>> last_supported(torch.rand(5, 64, 8, 8), nn.ConvTranspose2d(64, 3, 3, padding=1))
    True
    >>> last_supported(torch.rand(5, 64, 8, 8), nn.ConvTranspose2d(64, 3, 4, stride=2, padding=1))
    False
    """
    if x.ndim != 4 or x.dtype not in _KINDS or not x.numel():
        return False
    return (
        type(layer) is nn.ConvTranspose2d  # a subclass may have another rule
        and layer.kernel_size == (3, 3)
        and layer.stride == layer.padding == layer.dilation == (1, 1)
        and layer.groups == 1
        and layer.in_channels == x.shape[1]
        and layer.out_channels <= MOST_OUTPUTS
        and layer.bias is not None
        and layer.bias.dtype == torch.float32
        and layer.weight.dtype in _KINDS
        and layer.weight.device == layer.bias.device == x.device
        and x.numel() // x.shape[1] * max(x.shape[1], layer.out_channels) < MOST_NUMBERS
    )
