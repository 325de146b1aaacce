"""How far rounding can move the clipped sums of two neighbouring samples apart.

Proof and assumptions: docs/proofs/record-rounding.md, whose symbols are used here.
"""

from __future__ import annotations

import math
from functools import lru_cache

from torch import Tensor

from dpsinkhorn.mechanisms.shared.clipping import UNIT

#: The margin may cost this part of the clipping bound, and no more.
LARGEST_MARGIN = 1e-3
#: Tiles, or persons, whose sums are added up by one matrix product.
AT_ONCE = 128
# More additions than any term passes through in a `PairwiseSum` of up to 2^40 tensors.
_LEVELS = 96


class PairwiseSum:
    """Adds tensors up in pairs, pairs of pairs and so on: no term passes through more than a few additions.

    >>> import torch
    >>> total = PairwiseSum()
    >>> for value in (1.0, 2.0, 3.0):
    ...     total.add(torch.tensor(value))
    >>> total.value()
    tensor(6.)
    """

    def __init__(self) -> None:
        self._partial: list[Tensor | None] = []  # at place k: a sum of 2^k tensors, or none

    def add(self, value: Tensor) -> None:
        for place, other in enumerate(self._partial):
            if other is None:
                self._partial[place] = value
                return
            value = other + value
            self._partial[place] = None
        self._partial.append(value)

    def value(self) -> Tensor | None:
        """The sum; ``None`` if nothing was added."""
        total: Tensor | None = None
        for part in self._partial:
            if part is not None:
                total = part if total is None else total + part
        return total


@lru_cache(maxsize=64)
def margin(
    *, records: int, generated: int, dimension: int, clip: float, slope: float, tile: int, persons: bool
) -> float:
    """τ: shares clipped to C (1 - τ) give computed sums that differ by at most C between neighbours.

    Args:
        records: N, the most records that a sample may hold.
        generated: n, generated images.
        dimension: d, pixels of one image.
        clip: C.
        slope: L, a bound on every partial derivative of the cost.
        tile: records that one matrix product adds up.
        persons: whether shares are summed per person before they are clipped.

    >>> tau = margin(
    ...     records=2**20, generated=500, dimension=784, clip=6.0, slope=4.0, tile=256, persons=False)
    >>> 1e-6 < tau < 1e-5
    True
    """
    if math.isinf(clip):
        return 0.0
    depth = tile + AT_ONCE + _LEVELS
    pixel = slope * math.sqrt(dimension) / clip
    if persons:
        relative = 2.0 * (generated + dimension) + depth + 64
        absolute = pixel * (generated + depth + 64)
    else:
        relative = 3.0 * generated + 128
        absolute = pixel * (depth + 16)
    tau = 2.02 * records * UNIT * (relative + absolute)
    if not tau <= LARGEST_MARGIN:
        raise ValueError(
            f"clip: float64 cannot keep a sum of up to {records} records within {clip}; "
            "raise clip or lower max_sample"
        )
    return tau
