"""Small problems from points to gradients in one compiled call, as far as the kernel domain goes.

At 50 x 50 points what the arithmetic takes is less than what Python and PyTorch take to ask for it. The call
does what ``solve`` and ``gradients`` do, in the same order; where that needs more, it declines.
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

# Pairs, and terms of their distances, up to which a problem is small; pairs up to which it is solved in
# float64; and the range of the costs over λ from which on the kernel domain will not do.
_PAIRS, _TERMS, WIDE, _SPREAD = 2**16, 2**21, 2**12, 500.0


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
    """Solve a balanced problem of a built-in cost; None where it is to be solved in another way."""
    library, cost, (batch, n, m) = native.library, PixelCost.of(problem.cost), problem.shape
    d = problem.x.shape[-1]
    if library is None or cost is None or n * m > _PAIRS or n * m * d > _TERMS or not regularization > 0:
        return None
    if not (native.readable(problem.x) and native.readable(problem.y)):
        return None
    x, y, a, b = problem.x, problem.y, problem.a.contiguous(), problem.b.contiguous()
    f, g, values = torch.empty_like(a), torch.empty_like(b), (ctypes.c_double * 2)()
    in_x = torch.empty_like(x) if wrt_x else None
    in_y = torch.empty_like(y) if wrt_y else None
    settings = (ctypes.c_double * 12)(
        cost.absolute, regularization, tolerance, *ascent.STAGES, max_iterations, PATIENCE,
        _SPREAD, 0.01 * tolerance * 2.0**52, 1 / ascent.FLAT,
    )  # fmt: skip
    points, weights = [x, y, in_x, in_y], [a, b, f, g]
    size, strides = x.element_size(), (n, m, n, m)
    at = [0 if each is None else each.data_ptr() for each in points]
    weights_at = [each.data_ptr() for each in weights]
    found = []
    single = x.dtype == torch.float32
    for k in range(batch):
        px, py, qx, qy = (
            start and start + k * rows * d * size for start, rows in zip(at, strides, strict=True)
        )
        pa, pb, pf, pg = (start + 8 * k * rows for start, rows in zip(weights_at, strides, strict=True))
        if n < m:  # the variable lives on the smaller side
            px, py, qx, qy, pa, pb, pf, pg = py, px, qy, qx, pb, pa, pg, pf
        failed = library.transport(
            single, single and n * m <= WIDE, px, py, pa, pb, max(n, m), min(n, m), d, cost.squared,
            ctypes.addressof(settings), pf, pg, qx, qy, ctypes.addressof(values),
        )  # fmt: skip
        if failed:
            return None
        found.append(values[0])
    value = torch.tensor(found if problem.batched else found[0], dtype=torch.float64)
    return Small(value, f, g, in_x, in_y)
