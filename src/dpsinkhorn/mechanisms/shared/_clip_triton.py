"""Clipping and noising of rows as two GPU kernels, in float64 throughout."""

from __future__ import annotations

import torch
from torch import Tensor

from dpsinkhorn._kernels import AVAILABLE, on, power_of_2
from dpsinkhorn.privacy.noise._lattice_triton import bits_of

__all__ = ["available", "clip_and_noise"]

_MOST_PIXELS = 2**14  # of a row, which a program holds in its registers

if AVAILABLE:
    from dpsinkhorn._kernels import tl, triton
    from dpsinkhorn.privacy.noise._lattice_triton import noised

    @triton.jit  # type: ignore[untyped-decorator, unused-ignore]
    def _load(values, row, D: tl.constexpr, PIXELS: tl.constexpr):  # type: ignore[no-untyped-def]
        k = tl.arange(0, PIXELS)
        value = tl.load(values + row * D + k, mask=k < D, other=0.0).to(tl.float64)
        return tl.where(tl.abs(value) < float("inf"), value, 0.0)  # NaN is not below infinity

    @triton.jit  # type: ignore[untyped-decorator, unused-ignore]
    def _squares_kernel(values, squares, D: tl.constexpr, PIXELS: tl.constexpr):  # type: ignore[no-untyped-def]
        """A program per row: the sum of its squares."""
        row = tl.program_id(0)
        value = _load(values, row, D, PIXELS)
        tl.store(squares + row, tl.sum(value * value, axis=0))

    @triton.jit  # type: ignore[untyped-decorator, unused-ignore]
    def _release_kernel(  # type: ignore[no-untyped-def]
        values,
        squares,
        cells,
        out,
        first_bound_bits,
        second_bound_bits,
        step_bits,
        largest_bits,
        WHOLE: tl.constexpr,
        N: tl.constexpr,
        EVERY: tl.constexpr,
        ROWS: tl.constexpr,
        D: tl.constexpr,
        PIXELS: tl.constexpr,
        FAST: tl.constexpr,
    ):
        """A program per row: scaled to its bound; the first N rows are noised."""
        row = tl.program_id(0)
        first = first_bound_bits.to(tl.float64, bitcast=True)
        second = second_bound_bits.to(tl.float64, bitcast=True)
        if WHOLE:  # the first N rows together, and the others together
            i = tl.arange(0, ROWS)
            mine = (i < EVERY) & ((i < N) == (row < N))
            square = tl.sum(tl.load(squares + i, mask=mine, other=0.0), axis=0)
        else:
            square = tl.load(squares + row)
        bound = tl.where(row < N, first, second)
        factor = bound / tl.maximum(tl.sqrt(square), bound)
        value = _load(values, row, D, PIXELS) * factor
        k = tl.arange(0, PIXELS)
        at = row * D + k
        if row < N:
            cell = tl.load(cells + at, mask=k < D, other=0)
            step = step_bits.to(tl.float64, bitcast=True)
            value = noised(value, cell, step, largest_bits.to(tl.float64, bitcast=True), FAST)
        tl.store(out + at, value, mask=k < D)


def available(values: Tensor) -> bool:
    """Whether the kernels can take these rows."""
    return AVAILABLE and values.is_cuda and values.shape[1] <= _MOST_PIXELS


def clip_and_noise(
    values: Tensor,
    cells: Tensor,
    *,
    noised_rows: int,
    bounds: tuple[float, float],
    whole: bool,
    step: float,
    largest: float,
) -> Tensor:
    """All rows of ``values`` scaled to a bound, the first of them noised: in float64.

    Args:
        values: ``(rows, d)``.
        cells: ``(noised_rows, d)`` noise, in whole steps of the lattice.
        noised_rows: how many of the rows are noised.
        bounds: on the norm of the noised rows and of the others, as ``clipping.within`` has it.
        whole: rows that are noised are clipped together, the others too; else each by itself.
        step, largest: of the lattice.
    """
    rows, d = values.shape
    out = torch.empty(rows, d, dtype=torch.float64, device=values.device)
    squares = torch.empty(rows, dtype=torch.float64, device=values.device)
    values = values.contiguous()
    pixels = power_of_2(d)
    warps = min(16, max(1, pixels // 256))
    with on(values.device):
        _squares_kernel[(rows,)](values, squares, D=d, PIXELS=pixels, num_warps=warps)
        _release_kernel[(rows,)](
            values,
            squares,
            cells.contiguous(),
            out,
            *(bits_of(number) for number in (*bounds, step, largest)),
            WHOLE=whole,
            N=noised_rows,
            EVERY=rows,
            ROWS=power_of_2(rows),
            D=d,
            PIXELS=pixels,
            FAST=values.is_cuda,
            num_warps=warps,
        )
    return out
