"""Each unit's own share of a gradient: what it would add to a sample, before clipping."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dpsinkhorn.mechanisms.shared.base import Sample
from dpsinkhorn.mechanisms.shared.pairs import measure, on_grid
from dpsinkhorn.mechanisms.shared.shares import softmax
from dpsinkhorn.ot.costs import PixelCost

__all__ = ["Units", "rows_of", "shares_of"]


@dataclass(frozen=True, eq=False)
class Units:
    """Records of one class, and the unit of privacy behind each: a record by itself, or a person."""

    points: Tensor  # (records, d), on the grid
    owners: Tensor  # (records,), 0 .. count - 1
    count: int

    @classmethod
    def of(cls, sample: Sample, rows: Tensor) -> tuple[Units, Tensor]:
        """Return the units that some rows of a sample belong to, and the group number of each unit."""
        groups = rows if sample.groups is None else sample.groups[rows]
        numbers, owners = torch.unique(groups, return_inverse=True)
        return cls(on_grid(sample.points[rows]), owners, len(numbers)), numbers

    def every_nth(self, step: int) -> Units:
        """Return every `step`-th unit."""
        kept = self.owners % step == 0
        owners = self.owners[kept].div(step, rounding_mode="floor")
        return Units(self.points[kept], owners, -(-self.count // step))

    def followed_by(self, others: Units) -> Units:
        """Return these units with others after them."""
        owners = torch.cat([self.owners, others.owners + self.count])
        return Units(torch.cat([self.points, others.points]), owners, self.count + others.count)


def rows_of(labels: Tensor | None, kind: int, count: int) -> Tensor:
    """Return the rows of one class; all of `count` where there are no classes."""
    return torch.arange(count) if labels is None else (labels == kind).nonzero().flatten()


def shares_of(units: Units, x: Tensor, cost: PixelCost, regularization: float) -> Tensor:
    """Return each unit's share of the gradient in the images x of its class, ``(units, n d)``."""
    costs, _ = measure(cost, x[None], units.points[None])
    weights = softmax(costs, torch.ones_like(costs, dtype=torch.bool), regularization)
    difference = x[None] - units.points[:, None]  # (records, n, d)
    slopes = 2.0 * cost.squared * difference + cost.absolute * difference.sign()
    shares = (weights[0].T[..., None] * slopes).flatten(1)
    return torch.zeros(units.count, shares.shape[1], dtype=torch.float64).index_add_(0, units.owners, shares)
