"""How much each record weighs in a sum where the unit of privacy is a person with all their records.

All records of a person weigh the same: 1, or as much less as brings their summed contribution to the norm
that it may have. Weights depend on the person's own records and on public numbers only, to the last bit:
docs/proofs/moments.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

MOST_RECORDS = 2**10
"""Records of a person that count: the first ones, in the order of the data."""

_AT_ONCE = 512  # records whose products with each other are held, or those of one person
_PRODUCT_BITS = 16  # binary digits after the point of a product before it is squared
_SLACK = 2.0**-40  # more than the roundings in a quotient


def first_records(groups: Tensor) -> tuple[Tensor, Tensor]:
    """Rows in the order of persons, at most 1024 of each, and the number of the person of each row.

    >>> first_records(torch.tensor([7, 3, 7, 3, 3]))
    (tensor([1, 3, 4, 0, 2]), tensor([0, 0, 0, 1, 1]))
    """
    order = torch.argsort(groups, stable=True)
    _, persons, counts = torch.unique_consecutive(groups[order], return_inverse=True, return_counts=True)
    starts = counts.cumsum(0) - counts
    kept = torch.arange(len(order), device=groups.device) - starts[persons] < MOST_RECORDS
    return order[kept], persons[kept]


class Weighing:
    """Weighs records of persons so that a person's part of a sum has a norm of at most √(1 + τ²).

    The part is Σ w over their records, or Σ w wᵀ with `squared`, for each cell, and τ times their number.

    Args:
        count_weight: τ.
        bits: binary digits after the point that weights keep, and so does what they are multiplied with.
        squared: whether it is products w wᵀ that are summed.
    """

    def __init__(self, count_weight: float, bits: int, *, squared: bool) -> None:
        self._count_weight, self._bits, self._squared = count_weight, bits, squared

    def __call__(self, units: Tensor, persons: Tensor, cells: Tensor) -> tuple[Tensor, Tensor]:
        """Weights (n,) of units w (n, k), and the weighted units; rows of a person follow each other."""
        _, persons, many = torch.unique_consecutive(persons, return_inverse=True, return_counts=True)
        lengths, pairs = (units.new_zeros(len(many)) for _ in range(2))
        for rows in _pieces(many):
            own, key = units[rows], torch.stack([persons[rows], cells[rows]])
            same = (key.unsqueeze(1) == key.unsqueeze(2)).all(0)
            products = own @ own.T
            if self._squared:  # <u uᵀ, w wᵀ> = <u, w>², from above
                products = (products.abs() * 2.0**_PRODUCT_BITS).ceil_().mul_(2.0**-_PRODUCT_BITS).square_()
            lengths.index_add_(0, persons[rows], (products * same).sum(1))
            pairs.index_add_(0, persons[rows], same.sum(1).to(units))
        norms = (lengths + self._count_weight**2 * pairs).sqrt()
        grid = 2.0**self._bits
        rounding = many.to(units) * (math.sqrt(units.shape[1]) / (2 * grid))
        bound = math.sqrt(1 + self._count_weight**2) * (1 - _SLACK)
        weights = ((bound - rounding).clamp_(min=0) / norms).clamp_(max=1)
        weights = (weights * grid).floor_().mul_(1 / grid)[persons]
        return weights, (units * weights.unsqueeze(1) * grid).round_().mul_(1 / grid)


def _pieces(many: Tensor) -> Iterator[slice]:
    """Rows, some at a time, each person's together; `many` has the number of each person's rows."""
    start = end = 0
    for count in many.tolist():
        if end > start and end + count - start > _AT_ONCE:
            yield slice(start, end)
            start = end
        end += count
    if end > start:
        yield slice(start, end)
