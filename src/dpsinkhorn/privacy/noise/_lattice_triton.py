"""The sum with noise on the lattice as one GPU kernel: the same whole numbers as `lattice.py` in one pass."""

from __future__ import annotations

import struct

import torch

from dpsinkhorn._kernels import AVAILABLE, ceil_div, on

__all__ = ["AVAILABLE", "bits_of", "on_lattice"]

_BLOCK = 1024

if AVAILABLE:
    from dpsinkhorn._kernels import tl, triton

    __all__ += ["noised"]

    @triton.jit  # type: ignore[untyped-decorator, unused-ignore]
    def _whole(x, FAST: tl.constexpr):  # type: ignore[no-untyped-def]
        """The nearest whole number; the GPU's own instruction where FAST, which the interpreter has not."""
        if FAST:
            whole = tl.inline_asm_elementwise(
                "cvt.rni.s64.f64 $0, $1;", "=l,d", [x], dtype=tl.int64, is_pure=True, pack=1
            )
        else:
            whole = tl.floor(x + 0.5).to(tl.int64)
        return whole

    @triton.jit  # type: ignore[untyped-decorator, unused-ignore]
    def noised(value, cells, step, largest, FAST: tl.constexpr):  # type: ignore[no-untyped-def]
        """(round(value / step) + cells + 1/2) * step, for float64 values; what is not finite counts as 0."""
        value = tl.where(tl.abs(value) < float("inf"), value, 0.0)  # NaN is not below infinity
        whole = _whole(tl.minimum(tl.maximum(value / step, -largest), largest), FAST)
        return ((whole + cells).to(tl.float64) + 0.5) * step

    @triton.jit  # type: ignore[untyped-decorator, unused-ignore]
    def _kernel(  # type: ignore[no-untyped-def]
        values, cells, out, step_bits, largest_bits, count, BLOCK: tl.constexpr, FAST: tl.constexpr
    ):
        at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        there = at < count
        value = tl.load(values + at, mask=there, other=0.0)
        cell = tl.load(cells + at, mask=there, other=0)
        step = step_bits.to(tl.float64, bitcast=True)
        largest = largest_bits.to(tl.float64, bitcast=True)
        tl.store(out + at, noised(value, cell, step, largest, FAST), mask=there)


def on_lattice(values: torch.Tensor, cells: torch.Tensor, step: float, largest: float) -> torch.Tensor:
    """`values`, in float64, rounded to the lattice of `step`, with noise of whole `cells` added."""
    out = torch.empty_like(values, memory_format=torch.contiguous_format)
    if count := values.numel():
        grid = (ceil_div(count, _BLOCK),)
        with on(values.device):
            _kernel[grid](
                values.contiguous(),
                cells.contiguous(),
                out,
                bits_of(step),
                bits_of(largest),
                count,
                BLOCK=_BLOCK,
                FAST=values.is_cuda,
            )
    return out


def bits_of(number: float) -> int:
    """A float64 as a whole number: as a number it would reach a kernel rounded to float32.

    >>> bits_of(1.0) == 0x3FF << 52
    True
    """
    return int(struct.unpack("<q", struct.pack("<d", number))[0])
