"""Clipping to a norm, in float64, so that rounding cannot pass the bound."""

from __future__ import annotations

import math

import torch
from torch import Tensor

# Half the distance from 1 to the next float64: what one operation rounds by, relatively.
UNIT = 2.0**-53
# Below this bound squares leave float64's range.
_LEAST = 2.0**-400


def clip_whole(values: Tensor, bound: float) -> Tensor:
    """``values`` in float64, scaled to a norm of at most ``bound`` over all entries.

    Entries that are not finite become 0 first. The norm of the result, as a real number, is at most
    ``bound``: proof in docs/proofs/batch-sensitivity.md.

    >>> clip_whole(torch.tensor([3.0, 4.0]), 1.0)
    tensor([0.6000, 0.8000], dtype=torch.float64)
    """
    finite = _finite(values)
    norm = (finite * finite).sum(-1).sum().sqrt()
    return finite * (within(bound, depth(finite)) / norm).clamp(max=1.0)


def clip_rows(values: Tensor, bound: float) -> Tensor:
    """``values`` in float64, every row (over the last dimension) scaled to a norm of at most ``bound``.

    >>> clip_rows(torch.tensor([[3.0, 4.0], [0.3, 0.4]]), 1.0)
    tensor([[0.6000, 0.8000],
            [0.3000, 0.4000]], dtype=torch.float64)
    """
    finite = _finite(values)
    norms = (finite * finite).sum(-1, keepdim=True).sqrt()  # infinite if a square overflows: then 0 remains
    return finite * (within(bound, values.shape[-1]) / norms).clamp(max=1.0)


def depth(values: Tensor) -> int:
    """Additions that a square passes through, at most, when rows are added up first, then their sums."""
    rows = math.prod(values.shape[:-1])
    return values.shape[-1] + rows


def within(bound: float, additions: int) -> float:
    """A bound so much smaller that clipping to it in float64 ends within ``bound``.

    ``additions`` is how many any one square passes through in the sum of squares.
    """
    if not bound >= _LEAST:
        raise ValueError(f"clip: {bound} is too small for float64; scale the data or the cost")
    return bound * (1 - (additions + 16) * UNIT)


def _finite(values: Tensor) -> Tensor:
    return torch.nan_to_num(values.detach().double(), nan=0.0, posinf=0.0, neginf=0.0)
