"""Small problems in one compiled call, as far as the kernel domain goes.

At 50 x 50 points what the arithmetic takes is less than what Python and PyTorch take to ask for it. The call
does what ``solve`` and ``gradients`` do, in the same order; where that needs more, it declines. The smallest
go from points to gradients; of others costs and gradients are the cost's own.
"""

from __future__ import annotations

import ctypes
from typing import NamedTuple

import torch
from torch import Tensor

from dpsinkhorn.ot import ascent, native
from dpsinkhorn.ot.costs import PixelCost
from dpsinkhorn.ot.native.iterates import PATIENCE
from dpsinkhorn.ot.problem import Problem

# Pairs up to which a problem is small; terms of their distances up to which all is done in the call; pairs
# up to which it is solved in float64; and the range of the costs over λ from which on the kernel domain will
# not do. A batch of costs of its own may have so many pairs in all.
_PAIRS, _TERMS, WIDE, _SPREAD, _ALL_PAIRS = 2**16, 2**21, 2**12, 500.0, 2**22
_NARROW = 32


def narrow(n: int, m: int) -> bool:
    """Whether rows are so few beside the columns that they stay rows.

    Loops over short rows take longer, and Newton's system has no more than n different eigenvalues anyway.
    """
    return n <= _NARROW and m >= 8 * n and n * m <= _PAIRS


class Small(NamedTuple):
    """A solution: value, potentials, and the gradients that were wanted."""

    value: Tensor
    f: Tensor
    g: Tensor
    in_x: Tensor | None
    in_y: Tensor | None


def transport(
    problem: Problem,
    regularization: float,
    *,
    tolerance: float,
    max_iterations: int,
    wrt_x: bool,
    wrt_y: bool,
) -> Small | None:
    """Solve a balanced problem; None where it is to be solved in another way."""
    library, (batch, n, m) = native.library, problem.shape
    if library is None or n * m > _PAIRS or not regularization > 0:
        return None
    if not (native.readable(problem.x) and native.readable(problem.y)):
        return None
    if n < m and not narrow(n, m):  # the variable lives on the smaller side
        found = transport(
            problem.flipped(), regularization, tolerance=tolerance, max_iterations=max_iterations,
            wrt_x=wrt_y, wrt_y=wrt_x,
        )  # fmt: skip
        return found and Small(found.value, found.g, found.f, found.in_y, found.in_x)
    x, y, a, b, d = problem.x, problem.y, problem.a, problem.b, problem.x.shape[-1]
    pixels, plan = PixelCost.of(problem.cost), None
    if pixels is None or n * m * d > _TERMS:
        if batch * n * m > _ALL_PAIRS:
            return None
        x = problem.costs.contiguous()
        if x.dtype != y.dtype or not native.readable(x):
            return None
        plan, d, pixels = torch.empty_like(x), 0, PixelCost(squared=False, absolute=0.0)
    a, b, values = a.contiguous(), b.contiguous(), (ctypes.c_double * 2)()
    f, g = torch.empty_like(a), torch.empty_like(b)
    in_x = plan if plan is not None else torch.empty_like(x) if wrt_x else None
    in_y = torch.empty_like(y) if wrt_y and plan is None else None
    settings = (ctypes.c_double * 12)(
        pixels.absolute, regularization, tolerance, *ascent.STAGES, max_iterations, PATIENCE,
        _SPREAD, 0.01 * tolerance * 2.0**52, 1 / ascent.FLAT,
    )  # fmt: skip
    single, found_values = x.dtype == torch.float32, []
    arrays = (x, y, a, b, f, g, in_x, in_y)
    starts = [0 if each is None else each.data_ptr() for each in arrays]
    steps = [0] * len(arrays)
    if problem.batched:
        steps = [0 if each is None else each[0].nbytes for each in arrays]
    for k in range(batch):
        px, py, pa, pb, pf, pg, qx, qy = (at + k * step for at, step in zip(starts, steps, strict=True))
        if library.transport(
            single, single and n * m <= WIDE, px, py, pa, pb, n, m, d, pixels.squared,
            ctypes.addressof(settings), pf, pg, qx, qy, ctypes.addressof(values),
        ):  # fmt: skip
            return None
        found_values.append(values[0])
    value = torch.tensor(found_values if problem.batched else found_values[0], dtype=torch.float64)
    if plan is not None:
        in_x, in_y = problem.gradients(plan, wrt_x=wrt_x, wrt_y=wrt_y)
    return Small(value, f, g, in_x, in_y)
