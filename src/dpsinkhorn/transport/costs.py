"""Costs capped at a public bound, computed pair by pair.

The proofs need two things of a cost as computed: it lies in [0, bound], and the entry of a pair depends on
that pair alone. The second is why costs are summed up from differences here: the faster way, by a matrix
product of centred points, lets one far outlier change the rounding of every entry without limit.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dpsinkhorn.ot import L1L2, Cityblock, Cost, Euclidean, SquaredEuclidean, as_cost, native
from dpsinkhorn.ot.costs import PixelCost
from dpsinkhorn.transport.errors import TransportError

__all__ = ["CappedCost", "checked_cost"]

# Coordinates beyond these count as these, so that no square of a difference overflows.
_FARTHEST = {torch.float64: 1e100, torch.float32: 1e15}


@dataclass(frozen=True)
class CappedCost(Cost):
    """``min(cost(x, y), bound)``; silently, a negative cost counts as 0, and what is no number as ``bound``.

    >>> x, y = torch.tensor([[0.0]]).double(), torch.tensor([[1.0], [5.0]]).double()
    >>> CappedCost(SquaredEuclidean(), bound=4.0).pairwise(x, y)
    tensor([[1., 4.]], dtype=torch.float64)
    """

    base: Cost
    bound: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "base", checked_cost(self.base))

    @property
    def symmetric(self) -> bool:  # type: ignore[override]
        """Whether c(x, y) = c(y, x)."""
        return self.base.symmetric

    def pairwise(self, x: Tensor, y: Tensor) -> Tensor:
        far = _FARTHEST[x.dtype]
        x, y = (points.clamp(-far, far) for points in (x, y))
        base = self.base
        rule = type(base).pairwise  # a subclass may have its own
        if rule is SquaredEuclidean.pairwise:
            costs = _by_differences(x, y, SquaredEuclidean.pixels)
        elif rule is Euclidean.pairwise:
            costs = _by_differences(x, y, SquaredEuclidean.pixels).sqrt_()
        elif rule is Cityblock.pairwise:
            costs = _by_differences(x, y, Cityblock.pixels)
        elif isinstance(base, L1L2) and rule is L1L2.pairwise:
            costs = _by_differences(x, y, base.pixels)
        else:
            costs = base.pairwise(x, y)
        return costs.nan_to_num_(nan=self.bound).clamp_(0.0, self.bound)


def checked_cost(cost: Cost | str | None, *, dimension: int | None = None) -> Cost:
    """The cost itself, or that of a name, or a `TransportError`.

    A cost of the user's own is tried on points at 0, which are public, where their dimension is known: a
    mistake in it shows before anything is charged.
    """
    try:
        found = as_cost(cost)
    except ValueError as error:
        raise TransportError(str(error)) from None
    if dimension is not None and type(found) not in (SquaredEuclidean, Euclidean, Cityblock, L1L2):
        x, y = torch.zeros(2, dimension).double(), torch.zeros(3, dimension).double()
        name = type(found).__name__
        try:
            costs = found.pairwise(x, y)
        except Exception as error:
            told = " ".join(str(error).split())[:200]
            raise TransportError(
                f"cost: {name} fails on points at 0: {type(error).__name__}: {told}"
            ) from error
        if not isinstance(costs, Tensor) or costs.shape != (2, 3) or costs.dtype != torch.float64:
            raise TransportError(
                f"cost: pairwise of {name} must return a float64 tensor of shape (n, m) for points in float64"
            )
    return found


def _by_differences(x: Tensor, y: Tensor, cost: PixelCost) -> Tensor:
    """Sums of (squared) differences, each pair on its own: nothing cancels, nothing else is looked at."""
    costs = native.pairwise(x, y, cost)
    if costs is not None:
        return costs
    costs = x.new_zeros(x.shape[-2], y.shape[-2])
    for k in range(x.shape[-1]):
        difference = (x[:, k, None] - y[None, :, k]).abs_()
        if cost.squared:
            costs.addcmul_(difference, difference)
        if cost.absolute:
            costs.add_(difference, alpha=cost.absolute)
    return costs
