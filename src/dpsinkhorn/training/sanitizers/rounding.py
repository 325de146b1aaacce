"""How far rounding can move the clipped sums of two neighbouring samples apart.

Proof and assumptions: docs/proofs/record-rounding.md, whose symbols are used here.
"""

from __future__ import annotations

import math
from functools import lru_cache

from dpsinkhorn.training.sanitizers.clipping import UNIT

#: The margin may cost this part of the clipping bound, and no more.
LARGEST_MARGIN = 1e-3


@lru_cache(maxsize=64)
def margin(
    *,
    records: int,
    generated: int,
    dimension: int,
    clip: float,
    slope: float,
    depth: int,
    persons: bool,
) -> float:
    """τ: shares clipped to C (1 - τ) give computed sums that differ by at most C between neighbours.

    Args:
        records: N, the most records that a sample may hold.
        generated: n, generated images.
        dimension: d, pixels of one image.
        clip: C.
        slope: bound on every partial derivative of the cost.
        depth: K, the most additions that any one term of a sum passes through.
        persons: whether shares are summed per person before they are clipped.

    >>> tau = margin(records=2**20, generated=500, dimension=784, clip=6.0, slope=4.0, depth=2100,
    ...     persons=False)
    >>> 1e-6 < tau < 1e-4
    True
    """
    if math.isinf(clip):
        return 0.0
    pixel = 1.01 * slope * math.sqrt(dimension) / clip
    if persons:
        relative = generated * dimension + depth + 32.0
        absolute = pixel * (generated + depth + 64)
    else:
        relative = 3.0 * generated + 128
        absolute = pixel * (depth + 16)
    tau = 2 * records * UNIT * (1.01 * relative + absolute)
    if not tau <= LARGEST_MARGIN:
        raise ValueError(
            f"clip: float64 cannot keep a sum of up to {records} records within {clip}; "
            "raise clip or lower max_sample"
        )
    return tau


def margin_of_any_cost(*, records: int, generated: int, dimension: int, clip: float) -> float:
    """τ where every record's share is computed on its own, from a cost that is not built in."""
    if math.isinf(clip):
        return 0.0
    tau = 2.02 * records * UNIT * (generated * dimension + records + 32)
    if not tau <= LARGEST_MARGIN:
        raise ValueError(f"max_sample: float64 cannot sum up to {records} records so closely; lower it")
    return tau
