"""Sums of scaled rows, each entry rounded to a grid first, so that float64 sums are exact in any order."""

from __future__ import annotations

import torch
from torch import Tensor

from dpsinkhorn.kernels.launch import AVAILABLE, available, ceil_div, on

__all__ = ["add_on_grid"]

_AT_ONCE = 2**22  # numbers in float64, where there is no kernel
_COLUMNS, _WARPS = 512, 4

if AVAILABLE:
    from dpsinkhorn.kernels.launch import tl, triton

    @triton.jit  # type: ignore[untyped-decorator, unused-ignore]
    def _kernel(total, values, factors, step, rows, columns, COLUMNS: tl.constexpr):  # type: ignore[no-untyped-def]
        at = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
        inside = at < columns
        entries = tl.zeros([COLUMNS], dtype=tl.float64)
        place = values + at
        for row in range(rows):
            factor = tl.load(factors + row)
            entry = tl.load(place, mask=inside & (factor > 0), other=0.0)
            entries += tl.floor(entry.to(tl.float64) * factor + 0.5)
            place += columns
        tl.store(total + at, tl.load(total + at, mask=inside) + entries * step, mask=inside)


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
    if available(values.device):
        rows, columns = values.shape
        with on(values.device):
            _kernel[(ceil_div(columns, _COLUMNS),)](
                total, values.contiguous(), scaled, step, rows, columns, COLUMNS=_COLUMNS, num_warps=_WARPS
            )
        return
    kept = scaled > 0
    for some, by in zip(
        *(torch.split(part, max(1, _AT_ONCE // values.shape[1])) for part in (values[kept], scaled[kept])),
        strict=True,
    ):
        total += (some.double() * by.unsqueeze(1) + 0.5).floor_().sum(0) * step
