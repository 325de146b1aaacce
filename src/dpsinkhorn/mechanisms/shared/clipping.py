"""Clipping and summing in float64, so that rounding cannot pass a bound.

`margin` is how far rounding can move the clipped sums of two neighbouring samples apart. Proof and
assumptions: docs/proofs/record-rounding.md, whose symbols it uses.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor

# Half the distance from 1 to the next float64: what one operation rounds by, relatively.
UNIT = 2.0**-53
# Below this bound squares leave float64's range.
_LEAST = 2.0**-400
_LARGEST_DIMENSION = 2**21


def clip_whole(values: Tensor, bound: float) -> Tensor:
    """``values`` in float64, scaled to a norm of at most ``bound`` over all entries.

    Entries that are not finite become 0 first. The norm of the result, as a real number, is at most
    ``bound``: proof in docs/proofs/batch-sensitivity.md.

    >>> clip_whole(torch.tensor([3.0, 4.0]), 1.0)
    tensor([0.6000, 0.8000], dtype=torch.float64)
    """
    finite = _finite(values)
    return finite / _excess(torch.linalg.vector_norm(finite), within(bound, finite.numel()))


def clip_rows(values: Tensor, bound: float) -> Tensor:
    """``values`` in float64, every row (over the last dimension) scaled to a norm of at most ``bound``.

    >>> clip_rows(torch.tensor([[3.0, 4.0], [0.3, 0.4]]), 1.0)
    tensor([[0.6000, 0.8000],
            [0.3000, 0.4000]], dtype=torch.float64)
    """
    finite = _finite(values)
    norms = torch.linalg.vector_norm(finite, dim=-1, keepdim=True)
    return finite / _excess(norms, within(bound, values.shape[-1]))


def _excess(norms: Tensor, bound: float) -> Tensor:
    """What to divide by. A norm is infinite if a square overflows: then 0 remains."""
    return (norms / bound).clamp_(min=1.0)


def within(bound: float, additions: int) -> float:
    """A bound so much smaller that clipping to it in float64 ends within ``bound``.

    ``additions`` is how many any one square passes through in the sum of squares.
    """
    if not bound >= _LEAST:
        raise ValueError(f"clip: {bound} is too small for float64; scale the data or the cost")
    return bound * (1 - (additions + 16) * UNIT)


def _finite(values: Tensor) -> Tensor:
    return torch.nan_to_num(values.detach().double(), nan=0.0, posinf=0.0, neginf=0.0)


DIGITS = 53  # binary digits of float64


def exact_weights(weights: Tensor, bits: int) -> tuple[Tensor, int]:
    """Return weights (rows, d), in float64, whose products with multiples of 2^-bits in [-1, 1] are exact.

    Also returns e: no such product with a row is above 2^e. What is not finite becomes 0.

    >>> found, e = exact_weights(torch.tensor([[0.1, 0.2]]), bits=20)
    >>> e, bool((found * 2.0 ** (53 - 20 - e)).frac().any())
    (0, False)
    """
    found = torch.nan_to_num(weights.detach().double(), nan=0.0, posinf=0.0, neginf=0.0)
    # rows' absolute values add up to less than 2^(e - 1), and to less than 2^e once they are rounded
    e = math.frexp(float(found.abs().max()) * found.shape[1])[1] + 1
    step = 2.0 ** (e + bits - DIGITS)
    return (found / step).round_().mul_(step), e


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


# ---- pixels on a grid, on which costs and keys are exact


def tidy(points: Tensor) -> Tensor:
    """Points with NaN set to 0 and everything else brought into [-1, 1], detached, in float64.

    Data are in that range already; this is for those that are not, so that no record can do more than any
    other.

    >>> tidy(torch.tensor([0.5, float("nan"), 1e9]))
    tensor([0.5000, 0.0000, 1.0000], dtype=torch.float64)
    """
    return torch.nan_to_num(points.detach(), nan=0.0).clamp_(-1, 1).double()


def grid_bits(dimension: int) -> int:
    """Binary digits after the point that pixels keep: 4 d 4^bits <= 2^53.

    >>> grid_bits(784), grid_bits(64)
    (20, 22)
    """
    if not 1 <= dimension <= _LARGEST_DIMENSION:
        raise ValueError(f"points: expected a dimension from 1 to {_LARGEST_DIMENSION}, got {dimension}")
    return (51 - (dimension - 1).bit_length()) // 2


def on_grid(points: Tensor) -> Tensor:
    """Points in [-1, 1], in float64, rounded to multiples of ``2 ** -grid_bits(d)``.

    >>> on_grid(torch.tensor([[1.0, float("nan"), 2.0**-30]]))
    tensor([[1., 0., 0.]], dtype=torch.float64)
    """
    scale = 2.0 ** grid_bits(points.shape[-1])
    return tidy(points).mul_(scale).round_().mul_(1 / scale)
