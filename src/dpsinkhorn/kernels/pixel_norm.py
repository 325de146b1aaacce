"""Channels of every pixel normalized, scaled and shifted for each image, and SiLU, in one pass."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from dpsinkhorn.kernels.launch import available, ceil_div, jit, on, power_of_2, tl

_EPSILON = 1e-5  # beside a variance, as in PyTorch
_NUMBERS = 4096  # that a program holds at a time


@jit
def _normed(x, there, channels, epsilon):
    """Rows with a mean of 0 and a variance of 1, and the inverse of their standard deviations."""
    middle = tl.where(there, x - (tl.sum(x, axis=1) / channels)[:, None], 0.0)
    inverse = tl.rsqrt(tl.sum(middle * middle, axis=1) / channels + epsilon)[:, None]
    return middle * inverse, inverse


@jit
def _forward_kernel(
    x, changes, y, pixels, channels, epsilon, MODULATED: tl.constexpr, ROWS: tl.constexpr,
    CHANNELS: tl.constexpr,
):  # fmt: skip
    image, p = tl.program_id(1).to(tl.int64), tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    c = tl.arange(0, CHANNELS)
    there = (p < pixels)[:, None] & (c < channels)[None, :]
    at = (image * pixels + p[:, None]) * channels + c[None, :]
    z, _ = _normed(tl.load(x + at, mask=there, other=0.0).to(tl.float32), there, channels, epsilon)
    if MODULATED:
        place = changes + image * 2 * channels + c
        scale = tl.load(place, mask=c < channels, other=0.0).to(tl.float32)
        shift = tl.load(place + channels, mask=c < channels, other=0.0).to(tl.float32)
        z = z * (1 + scale)[None, :] + shift[None, :]
    tl.store(y + at, (z * tl.sigmoid(z)).to(y.dtype.element_ty), mask=there)


@jit
def _backward_kernel(
    x, changes, slopes, of_x, of_changes, pixels, channels, epsilon, MODULATED: tl.constexpr,
    ROWS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """An image: gradients in its pixels, and in what its channels are scaled and shifted by."""
    image, c = tl.program_id(0).to(tl.int64), tl.arange(0, CHANNELS)
    inside = c < channels
    place = image * 2 * channels + c
    scale = tl.full([CHANNELS], 0.0, dtype=tl.float32)
    shift = tl.full([CHANNELS], 0.0, dtype=tl.float32)
    if MODULATED:
        scale = tl.load(changes + place, mask=inside, other=0.0).to(tl.float32)
        shift = tl.load(changes + place + channels, mask=inside, other=0.0).to(tl.float32)
    of_scale = tl.full([CHANNELS], 0.0, dtype=tl.float32)
    of_shift = tl.full([CHANNELS], 0.0, dtype=tl.float32)
    for begin in range(0, pixels, ROWS):
        p = begin + tl.arange(0, ROWS)
        there = (p < pixels)[:, None] & inside[None, :]
        at = (image * pixels + p[:, None]) * channels + c[None, :]
        n, inverse = _normed(tl.load(x + at, mask=there, other=0.0).to(tl.float32), there, channels, epsilon)
        z = n * (1 + scale)[None, :] + shift[None, :]
        gate = tl.sigmoid(z)
        of_z = tl.load(slopes + at, mask=there, other=0.0).to(tl.float32) * gate * (1 + z * (1 - gate))
        of_scale += tl.sum(of_z * n, axis=0)
        of_shift += tl.sum(of_z, axis=0)
        of_n = of_z * (1 + scale)[None, :]
        mean, along = tl.sum(of_n, axis=1) / channels, tl.sum(of_n * n, axis=1) / channels
        found = (of_n - mean[:, None] - n * along[:, None]) * inverse
        tl.store(of_x + at, found.to(of_x.dtype.element_ty), mask=there)
    if MODULATED:
        tl.store(of_changes + place, of_scale.to(of_changes.dtype.element_ty), mask=inside)
        tl.store(of_changes + place + channels, of_shift.to(of_changes.dtype.element_ty), mask=inside)


def normed_silu(hidden: Tensor, changes: Tensor | None = None) -> Tensor:
    """Normalize the channels of every pixel, scale and shift them for each image, and apply SiLU.

    No number of one image depends on another.

    Args:
        hidden: (n, channels, height, width).
        changes: (n, 2 channels): what is added to a scale of 1, then the shift; none leaves them out.

    >>> normed_silu(torch.tensor([[1.0, -1.0]]).view(1, 2, 1, 1)).flatten()
    tensor([ 0.7311, -0.2689])
    """
    if available(hidden.device):
        fused: Tensor = _NormedSilu.apply(hidden, changes)  # type: ignore[no-untyped-call]
        return fused
    last = hidden.permute(0, 2, 3, 1)
    normed = functional.layer_norm(last, last.shape[-1:], eps=_EPSILON).permute(0, 3, 1, 2)
    if changes is not None:
        scale, shift = changes[:, :, None, None].chunk(2, 1)
        normed = normed * (1 + scale) + shift
    return functional.silu(normed)


class _NormedSilu(torch.autograd.Function):
    """Both passes by kernels, on images with channels last."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, changes: Tensor | None) -> Tensor:
        x = hidden.permute(0, 2, 3, 1).contiguous()
        given = None if changes is None else changes.contiguous()
        ctx.save_for_backward(x, given)
        y = torch.empty_like(x)
        sizes = _sizes(x)
        grid = (ceil_div(sizes["pixels"], sizes["ROWS"]), len(x))
        with on(x.device):
            _forward_kernel[grid](x, x if given is None else given, y, MODULATED=given is not None, **sizes)
        return y.permute(0, 3, 1, 2)

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor, Tensor | None]:
        x, given = ctx.saved_tensors
        of_x = torch.empty_like(x)
        of_changes = None if given is None else torch.empty_like(given)
        with on(x.device):
            _backward_kernel[(len(x),)](
                x, x if given is None else given, slopes[0].permute(0, 2, 3, 1).contiguous(), of_x,
                x if of_changes is None else of_changes, MODULATED=given is not None, **_sizes(x),
            )  # fmt: skip
        return of_x.permute(0, 3, 1, 2), of_changes


def _sizes(x: Tensor) -> dict[str, Any]:
    channels = x.shape[-1]
    wide = power_of_2(channels)
    pixels = x.shape[1] * x.shape[2]
    rows = min(power_of_2(pixels), max(1, _NUMBERS // wide))
    return {"pixels": pixels, "channels": channels, "epsilon": _EPSILON, "ROWS": rows, "CHANNELS": wide}
