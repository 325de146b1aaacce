"""A generator's last layer, the crop and tanh: one launch forward, two backward."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from dpsinkhorn.kernels.launch import ceil_div, channels_last, jit, on, power_of_2, tl

MOST_OUTPUTS = 4  # channels of images
MOST_NUMBERS = 2**31
_BLOCK = 128  # bytes of a pixel's channels that are read at once
_ENTRIES = 8  # of a program that combines parts: 32 bytes, the least that memory hands out
_KINDS = (torch.float32, torch.bfloat16)


@jit
def _tanh(z):
    """Within 1e-6 of it, relatively: a series where 1 - e would cancel."""
    near = tl.minimum(tl.maximum(z, -0.25), 0.25)
    square = near * near
    series = 62.0 / 2835.0
    series = series * square - 17.0 / 315.0
    series = series * square + 2.0 / 15.0
    series = series * square - 1.0 / 3.0
    series = near + near * square * series
    e = tl.exp(-2.0 * tl.abs(z))
    far = (1.0 - e) / (1.0 + e)
    return tl.where(tl.abs(z) < 0.25, series, tl.where(z < 0.0, -far, far))


@jit
def _factor(values, REDUCED: tl.constexpr):
    return values if REDUCED else values.to(tl.float32)


@jit
def _weight_at(
    c, j, OUT: tl.constexpr, S_C: tl.constexpr, S_OUT: tl.constexpr, S_Y: tl.constexpr, S_X: tl.constexpr
):
    """Where the weight of a channel and a column is, by the strides of (C, OUT, 3, 3)."""
    tap = j // OUT
    return c * S_C + (j % OUT) * S_OUT + (tap // 3) * S_Y + (tap % 3) * S_X


@jit
def last_kernel(
    images,  # (n, HEIGHT, WIDTH, C)
    weight, bias,
    out,  # (n, OUT, OUT_HEIGHT, OUT_WIDTH)
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, OUT_HEIGHT: tl.constexpr, OUT_WIDTH: tl.constexpr,
    TOP: tl.constexpr, LEFT: tl.constexpr, C: tl.constexpr, OUT: tl.constexpr, S_C: tl.constexpr,
    S_OUT: tl.constexpr, S_Y: tl.constexpr, S_X: tl.constexpr, COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr,  # channels of a product
    SIDE: tl.constexpr, REDUCED: tl.constexpr,
):  # fmt: skip
    """out = tanh(bias + the sum of shifted columns), a square of pixels per program.

    SIDE x SIDE pixels are read; those within, whose neighbours are all there, are written.
    """
    WITHIN: tl.constexpr = SIDE - 2
    ACROSS: tl.constexpr = (OUT_WIDTH + WITHIN - 1) // WITHIN
    SQUARES: tl.constexpr = (OUT_HEIGHT + WITHIN - 1) // WITHIN * ACROSS
    image = tl.program_id(0) // SQUARES
    square = tl.program_id(0) % SQUARES
    r = tl.arange(0, SIDE * SIDE)
    out_y = square // ACROSS * WITHIN + r // SIDE - 1
    out_x = square % ACROSS * WITHIN + r % SIDE - 1
    y = out_y + TOP
    x = out_x + LEFT
    there = (y >= 0) & (y < HEIGHT) & (x >= 0) & (x < WIDTH)
    at = images + ((image * HEIGHT + y) * WIDTH + x) * C
    j = tl.arange(0, COLUMNS)
    columns = tl.zeros([SIDE * SIDE, COLUMNS], dtype=tl.float32)
    for start in range(0, C, BLOCK):
        c = start + tl.arange(0, BLOCK)
        values = tl.load(
            at[:, None] + c[None, :], mask=there[:, None] & (c < C)[None, :], other=0.0
        )  # nothing comes from beyond the border
        taps = tl.load(
            weight + _weight_at(c[:, None], j[None, :], OUT, S_C, S_OUT, S_Y, S_X),
            mask=(c < C)[:, None] & (j < 9 * OUT)[None, :],
            other=0.0,
        )
        taps = _factor(taps.to(images.dtype.element_ty), REDUCED)
        columns = tl.dot(_factor(values, REDUCED), taps, columns, input_precision="ieee")
    # Column (dy, dx) of the pixel that lies (1 - dy, 1 - dx) further; in the rim of the square there may
    # be none, and what is read in its place is not written.
    tap = j // OUT
    source = r[:, None] + ((1 - tap // 3) * SIDE + 1 - tap % 3)[None, :]
    source = tl.minimum(tl.maximum(source, 0), SIDE * SIDE - 1)
    shifted = tl.gather(columns, source, axis=0)
    inner = (r // SIDE > 0) & (r // SIDE <= WITHIN) & (r % SIDE > 0) & (r % SIDE <= WITHIN)
    inner = inner & (out_y < OUT_HEIGHT) & (out_x < OUT_WIDTH)
    for channel in tl.static_range(OUT):
        z = tl.sum(tl.where(((j % OUT == channel) & (j < 9 * OUT))[None, :], shifted, 0.0), axis=1)
        z = _tanh(z + tl.load(bias + channel))
        to = out + ((image * OUT + channel) * OUT_HEIGHT + out_y) * OUT_WIDTH + out_x
        tl.store(to, z, mask=inner)


@jit
def last_gradient_kernel(
    images, weight, out,
    gradient,  # in out
    of_images, parts,
    count,  # pixels of all images
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, OUT_HEIGHT: tl.constexpr, OUT_WIDTH: tl.constexpr,
    TOP: tl.constexpr, LEFT: tl.constexpr, C: tl.constexpr, OUT: tl.constexpr, S_C: tl.constexpr,
    S_OUT: tl.constexpr, S_Y: tl.constexpr, S_X: tl.constexpr, COLUMNS: tl.constexpr, BLOCK: tl.constexpr,
    PIXELS: tl.constexpr, ROUNDS: tl.constexpr, REDUCED: tl.constexpr,
):  # fmt: skip
    """The gradient in images, BLOCK channels of a program's pixels, and its parts of the others.

    Parts are ``(programs, 9 OUT C + OUT)``: of weights, channels innermost, and of the bias.
    """
    part = tl.program_id(0)
    number = tl.num_programs(0)
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    j = tl.arange(0, COLUMNS)
    j_there = j < 9 * OUT
    tap = j // OUT
    c_there = c < C
    taps = tl.load(
        weight + _weight_at(c[None, :], j[:, None], OUT, S_C, S_OUT, S_Y, S_X),
        mask=c_there[None, :] & j_there[:, None],
        other=0.0,
    )
    taps = _factor(taps.to(images.dtype.element_ty), REDUCED)
    of_weight = tl.zeros([COLUMNS, BLOCK], dtype=tl.float32)
    of_bias = tl.zeros([PIXELS, COLUMNS], dtype=tl.float32)
    for turn in range(ROUNDS):  # of a number known beforehand, so that loads run ahead of their use
        p = (part + turn * number) * PIXELS + tl.arange(0, PIXELS)
        image = p // (HEIGHT * WIDTH)
        out_y = (p // WIDTH % HEIGHT)[:, None] + (tap // 3 - 1 - TOP)[None, :]
        out_x = (p % WIDTH)[:, None] + (tap % 3 - 1 - LEFT)[None, :]
        there = (out_y >= 0) & (out_y < OUT_HEIGHT) & (out_x >= 0) & (out_x < OUT_WIDTH)
        there = there & (p < count)[:, None] & j_there[None, :]
        at = ((image[:, None] * OUT + (j % OUT)[None, :]) * OUT_HEIGHT + out_y) * OUT_WIDTH + out_x
        activated = tl.load(out + at, mask=there, other=0.0)
        dz = tl.load(gradient + at, mask=there, other=0.0) * (1.0 - activated * activated)
        of_bias += dz
        columns = _factor(dz.to(images.dtype.element_ty), REDUCED)
        inside = p[:, None] * C + c[None, :]
        p_there = (p < count)[:, None] & c_there[None, :]
        values = _factor(tl.load(images + inside, mask=p_there, other=0.0), REDUCED)
        of_weight = tl.dot(tl.trans(columns), values, of_weight, input_precision="ieee")
        dx = tl.dot(columns, taps, input_precision="ieee")
        tl.store(of_images + inside, dx.to(of_images.dtype.element_ty), mask=p_there)
    to = parts + part * (9 * OUT * C + OUT)
    there = c_there[None, :] & j_there[:, None]
    tl.store(to + j[:, None] * C + c[None, :], of_weight, mask=there)
    if tl.program_id(1) == 0:  # every output is the middle one of the nine of one pixel
        tl.store(to + 9 * OUT * C + j % OUT, tl.sum(of_bias, axis=0), mask=tap == 4)


@jit
def last_totals_kernel(
    parts,
    of_weight,  # laid out as the weight
    of_bias,
    number,  # of parts
    C: tl.constexpr, OUT: tl.constexpr, S_C: tl.constexpr, S_OUT: tl.constexpr, S_Y: tl.constexpr,
    S_X: tl.constexpr, PARTS: tl.constexpr,
    ENTRIES: tl.constexpr,  # of a program
):  # fmt: skip
    WEIGHTS: tl.constexpr = 9 * OUT * C
    p = tl.arange(0, PARTS)
    e = tl.program_id(0) * ENTRIES + tl.arange(0, ENTRIES)
    there = (p < number)[:, None] & (e < WEIGHTS + OUT)[None, :]
    values = tl.load(parts + p[:, None] * (WEIGHTS + OUT) + e[None, :], mask=there, other=0.0)
    total = tl.sum(values, axis=0)
    to = of_weight + _weight_at(e % C, e // C, OUT, S_C, S_OUT, S_Y, S_X)
    tl.store(to, total.to(of_weight.dtype.element_ty), mask=e < WEIGHTS)
    tl.store(of_bias + (e - WEIGHTS), total, mask=(e >= WEIGHTS) & (e < WEIGHTS + OUT))


class LastTiling(NamedTuple):
    """How the work is cut; speed, and the order of sums, so the last bits. Powers of 2, but for `parts`."""

    side: int = 8
    """Of the squares of pixels that are read together in the forward pass, 4 or more; the rim is read for its
    neighbours only: with 8, a 28 x 28 image is 25 squares, with 16 it is 4."""
    warps: int = 4
    pixels: int = 128
    """Read together in the backward pass, 16 or more."""
    gradient_warps: int = 4
    parts: int = 528
    """Programs that the sums of the backward pass are shared between, at most."""


@dataclass(frozen=True)
class _Layer:
    """The sizes of one layer."""

    images: Tensor  # (n, height, width, C)
    out: torch.Size  # (n, channels, height, width)

    @property
    def entries(self) -> int:
        """Numbers in weight and bias."""
        return self.out[1] * (9 * self.images.shape[3] + 1)

    def weights(self, laid_out: Tensor) -> dict[str, int]:
        strides = dict(zip(("S_C", "S_OUT", "S_Y", "S_X"), laid_out.stride(), strict=True))
        return {"C": self.images.shape[3], "OUT": self.out[1], **strides}

    def options(self, weight: Tensor) -> dict[str, Any]:
        _, height, width, channels = self.images.shape
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
            "BLOCK": max(16, min(_BLOCK // self.images.itemsize, power_of_2(channels))),
            # Triton's interpreter, which is all that runs on a CPU, has no products of bfloat16.
            "REDUCED": self.images.is_cuda and self.images.dtype == torch.bfloat16,
            **self.weights(weight),
        }


class _FusedLast(torch.autograd.Function):
    """Keeps images, weight and output for the backward pass."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, size: tuple[int, int], tiling: LastTiling
    ) -> Tensor:
        images = channels_last(x)
        out = torch.empty(len(x), weight.shape[1], *size, dtype=torch.float32, device=x.device)
        within = tiling.side - 2
        squares = ceil_div(size[0], within) * ceil_div(size[1], within)
        with on(images.device):
            last_kernel[(len(out) * squares,)](
                images, weight, bias, out, SIDE=tiling.side, num_warps=tiling.warps,
                **_Layer(images, out.shape).options(weight),
            )  # fmt: skip
        ctx.save_for_backward(images, weight, out)
        ctx.tiling = tiling
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients in images, weight and bias, each laid out as what it is of."""
        images, weight, out = ctx.saved_tensors
        tiling: LastTiling = ctx.tiling
        layer = _Layer(images, out.shape)
        options, pixels = layer.options(weight), images.shape[:3].numel()
        number = min(ceil_div(pixels, tiling.pixels), tiling.parts)
        of_images, of_weight = torch.empty_like(images), torch.empty_like(weight)
        of_bias = torch.empty(out.shape[1], dtype=torch.float32, device=images.device)
        parts = torch.empty(number, layer.entries, dtype=torch.float32, device=images.device)
        with on(images.device):
            last_gradient_kernel[(number, ceil_div(images.shape[3], options["BLOCK"]))](
                images, weight, out, gradient.contiguous(), of_images, parts, pixels, PIXELS=tiling.pixels,
                ROUNDS=ceil_div(ceil_div(pixels, tiling.pixels), number), num_warps=tiling.gradient_warps,
                num_stages=2, **options,
            )  # fmt: skip
            last_totals_kernel[(ceil_div(layer.entries, _ENTRIES),)](
                parts, of_weight, of_bias, number, PARTS=power_of_2(number), ENTRIES=_ENTRIES, num_warps=8,
                **layer.weights(of_weight),
            )  # fmt: skip
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
