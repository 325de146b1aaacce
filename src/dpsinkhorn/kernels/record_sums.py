"""Gradients of each record in a layer's weights, and their sum on a grid, on which float64 sums are exact."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from dpsinkhorn.kernels.launch import available, ceil_div, jit, on, power_of_2, tl

_AT_ONCE = 2**22  # numbers in float64, where there is no kernel
_TILE, _PIXELS = 64, 64  # of a record's products: outputs or inputs, and pixels at a time
_COLUMNS, _ROWS, _TOGETHER = 512, 128, 8  # that a program adds up, and rows that it reads at a time
_STAGES = 4  # of which some are read while others are added up
_WHOLE = 1.5 * 2.0**52


@jit
def _stored(at, total, there):
    """The squared norm of a tile, once it is stored, of exactly what is."""
    kept = total.to(at.dtype.element_ty)
    tl.store(at, kept, mask=there)
    wide = kept.to(tl.float64)
    return tl.sum(wide * wide)


@jit
def _products_kernel(
    inputs, slopes, out, squares, pixels, channels, outputs,
    HEIGHT: tl.constexpr,  # constants, since to divide by another number takes longer than a product
    WIDTH: tl.constexpr, SIDE: tl.constexpr, OUTPUTS: tl.constexpr, CHANNELS: tl.constexpr,
    PIXELS: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """A tile of a record's products: some outputs, some inputs, a row of places of the kernel.

    The three places of a row share the slopes, which are read once.
    """
    record, tile = tl.program_id(1).to(tl.int64), tl.program_id(0)
    middle: tl.constexpr = SIDE // 2
    down, blocks = tile % SIDE, tl.cdiv(channels, CHANNELS)
    o = tile // SIDE // blocks * OUTPUTS + tl.arange(0, OUTPUTS)
    c = tile // SIDE % blocks * CHANNELS + tl.arange(0, CHANNELS)
    left = tl.zeros([OUTPUTS, CHANNELS], dtype=tl.float32)
    centre, right = left, left
    precision: tl.constexpr = "ieee" if EXACT else "tf32"
    slopes += record * pixels * outputs
    inputs += (record * pixels + (down - middle) * WIDTH - middle) * channels
    for begin in range(0, pixels, PIXELS):
        p = begin + tl.arange(0, PIXELS)
        y, x = p // WIDTH % HEIGHT + down - middle, p % WIDTH
        seen = (p < pixels) & (y >= 0) & (y < HEIGHT)
        slope = tl.trans(
            tl.load(
                slopes + p[:, None] * outputs + o[None, :],
                mask=(p < pixels)[:, None] & (o < outputs)[None, :],
                other=0.0,
            )
        )
        at = inputs + p[:, None] * channels + c[None, :]
        known = (c < channels)[None, :]
        entry = tl.load(at, mask=(seen & (x >= middle))[:, None] & known, other=0.0)
        left = tl.dot(slope, entry, left, input_precision=precision)
        if SIDE == 3:
            entry = tl.load(at + channels, mask=seen[:, None] & known, other=0.0)
            centre = tl.dot(slope, entry, centre, input_precision=precision)
            entry = tl.load(at + 2 * channels, mask=(seen & (x < WIDTH - 1))[:, None] & known, other=0.0)
            right = tl.dot(slope, entry, right, input_precision=precision)
    at = out + ((record * outputs + o[:, None]) * SIDE + down) * SIDE * channels + c[None, :]
    there = (o < outputs)[:, None] & (c < channels)[None, :]
    square = _stored(at, left, there)
    if SIDE == 3:
        square += _stored(at + channels, centre, there)
        square += _stored(at + 2 * channels, right, there)
    tl.store(squares + record * tl.num_programs(0) + tile, square)


@jit
def _sum_kernel(
    total, values, factors, step, rows, columns, ROWS: tl.constexpr, TOGETHER: tl.constexpr,
    COLUMNS: tl.constexpr, STAGES: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    inside = at < columns
    entries = tl.zeros([COLUMNS], dtype=tl.float64)
    for begin in tl.range(0, ROWS, TOGETHER, num_stages=STAGES):
        row = tl.program_id(1) * ROWS + begin + tl.arange(0, TOGETHER)
        factor = tl.load(factors + row, mask=row < rows, other=0.0)[:, None]
        entry = tl.load(
            values + row.to(tl.int64)[:, None] * columns + at[None, :],
            mask=(row < rows)[:, None] & inside[None, :],
            other=0.0,
        )
        # beside so large a number float64 has no fractions, and products stay below 2^51
        whole = tl.fma(entry.to(tl.float64), tl.broadcast_to(factor, entry.shape), WHOLE) - WHOLE
        entries += tl.sum(tl.where(factor > 0, whole, 0.0), axis=0)
    # exact, so it does not matter who comes first
    tl.atomic_add(total + at, entries * step, mask=inside)


def products(inputs: Tensor, slopes: Tensor, records: int, side: int) -> tuple[Tensor, Tensor]:
    """Return each record's gradient in a layer's weights, and its squared norm, in float64.

    Args:
        inputs: (n, height, width, channels), what the layer saw: a convolution of stride 1 that keeps the
            size, or with height and width 1 a linear layer. A record has n / records images.
        slopes: (n, height, width, outputs), gradients at the layer's outputs.
        side: of the convolution's kernel, 1 or 3.

    Returns:
        (records, outputs * side * side * channels), in the type of the slopes, and (records,).

    >>> pixels = torch.ones(4, 1, 1, 2)
    >>> products(pixels, pixels, records=2, side=1)
    (tensor([[2., 2., 2., 2.],
            [2., 2., 2., 2.]]), tensor([16., 16.], dtype=torch.float64))
    """
    (_, height, width, channels), outputs = inputs.shape, slopes.shape[-1]
    if not available(inputs.device):
        windows = functional.pad(inputs, (0, 0, *(side // 2,) * 4)).unfold(1, side, 1).unfold(2, side, 1)
        seen = windows.permute(0, 1, 2, 4, 5, 3).reshape(records, -1, side * side * channels)
        found = torch.bmm(slopes.reshape(records, -1, outputs).mT, seen).flatten(1)
        return found, torch.linalg.vector_norm(found, dim=1, dtype=torch.float64).square()
    found = slopes.new_empty(records, outputs * side * side * channels)
    pixels = len(inputs) // records * height * width
    of_outputs, of_channels = (min(_TILE, max(16, power_of_2(size))) for size in (outputs, channels))
    tiles = side * ceil_div(outputs, of_outputs) * ceil_div(channels, of_channels)
    squares = torch.empty(records, tiles, dtype=torch.float64, device=inputs.device)
    with on(inputs.device):
        _products_kernel[(tiles, records)](
            inputs.contiguous(), slopes.contiguous(), found, squares, pixels, channels, outputs,
            HEIGHT=height, WIDTH=width, SIDE=side, OUTPUTS=of_outputs, CHANNELS=of_channels,
            PIXELS=min(_PIXELS, max(16, power_of_2(pixels))), EXACT=slopes.dtype == torch.float32,
        )  # fmt: skip
    return found, squares.sum(1)


def add_on_grid(total: Tensor, values: Tensor, factors: Tensor, step: float) -> None:
    """Add to `total`, (p,), float64, the rows of `values`, (b, p), times `factors`, (b,), float64.

    Each product is rounded to a multiple of `step`; a row whose factor is 0 is left out, whatever it holds.
    Where sums are below 2^53 steps they are exact, and the same in any order.

    >>> total = torch.zeros(2, dtype=torch.float64)
    >>> rows = torch.tensor([[1.0, 2.0], [0.3, float("nan")]])
    >>> add_on_grid(total, rows, torch.tensor([0.5, 0.0], dtype=torch.float64), 0.25)
    >>> total
    tensor([0.5000, 1.0000], dtype=torch.float64)
    """
    scaled = factors / step
    rows, columns = values.shape
    if available(values.device):
        grid = (ceil_div(columns, _COLUMNS), ceil_div(rows, _ROWS))
        with on(values.device):
            _sum_kernel[grid](
                total, values.contiguous(), scaled, step, rows, columns, ROWS=_ROWS, TOGETHER=_TOGETHER,
                COLUMNS=_COLUMNS, STAGES=_STAGES, WHOLE=_WHOLE,
            )  # fmt: skip
        return
    kept = scaled > 0
    parts = (torch.split(part, max(1, _AT_ONCE // columns)) for part in (values[kept], scaled[kept]))
    for some, by in zip(*parts, strict=True):
        total += (some.double() * by.unsqueeze(1) + 0.5).floor_().sum(0) * step
