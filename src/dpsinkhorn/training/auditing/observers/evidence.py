"""What observers have in common: the evidence of all steps, and each unit's own share of a gradient."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from dpsinkhorn.mechanisms.shared.base import Barrier, GradientBarrier, Sample
from dpsinkhorn.mechanisms.shared.clipping import on_grid
from dpsinkhorn.mechanisms.shared.shares import measure, softmax
from dpsinkhorn.ot.costs import PixelCost

_LEAST_VARIANCE = 1e-9
_PRIOR = 4.0  # one over the variance of a fair coin
_MODELLED = 256  # other units whose sampling is allowed for; more are stood for by as many


class Evidence:
    """Adds up over steps, and gives the best linear estimate of which canaries are in.

    Step t releases V_tᵀ b and noise of covariance Σ_t, with b the coins and V_t the canaries' effects, one
    row each. With P = Σ_t V_t Σ_t⁻¹ V_tᵀ and z = Σ_t V_t Σ_t⁻¹ (release - what is expected of it), where
    every coin counts a half, the estimate of b - 1/2 of least variance is (P + 4)⁻¹ z.

    >>> evidence = Evidence(2)
    >>> evidence.add(torch.tensor([1]), torch.tensor([[4.0]]), torch.tensor([2.0]))
    >>> evidence.scores()
    tensor([0.0000, 0.2500], dtype=torch.float64)
    """

    def __init__(self, canaries: int) -> None:
        self._precision = torch.zeros(canaries, canaries, dtype=torch.float64)
        self._along = torch.zeros(canaries, dtype=torch.float64)

    def add(self, which: Tensor, precision: Tensor, along: Tensor) -> None:
        """Take in a part of a step that says something of these canaries only."""
        self._precision[which.unsqueeze(1), which] += precision
        self._along[which] += along

    def scores(self) -> Tensor:
        """Return the estimate, ``(canaries,)``: the higher, the more likely a canary is in."""
        prior = _PRIOR * torch.eye(len(self._along), dtype=torch.float64)
        scores: Tensor = torch.linalg.solve(self._precision + prior, self._along)
        return scores


class Observer(Barrier):
    """Stands in the place of a mechanism, which does all the work, and looks on.

    Of a release all is known but the noise, the sampling, and which canaries are in the data. It is made of
    what it watches, of the canaries' records, or those of made-up persons, in which `groups` has the number
    of each, and of all other records of the data.
    """

    watches: ClassVar[type[Barrier] | tuple[type[Barrier], ...]]
    _evidence: Any

    def scores(self) -> Tensor:
        """Return a score for each canary from all steps so far."""
        scores: Tensor = self._evidence.scores()
        return scores


class GradientObserver(Observer, GradientBarrier):
    """Stands in the place of a mechanism of gradient descent."""

    def __init__(self, watched: Any) -> None:
        self.mechanism, self.resampled_learn = watched.mechanism, watched.resampled_learn
        self._watched = watched

    def resampled(self, generated: int) -> int:
        return int(self._watched.resampled(generated))


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


def sampling_variances(canaries: int, others: int, rate: float, weight: float) -> Tensor:
    """Return the variances of each one's presence in a sample, where it is known whether it is in the data.

    Each of the others, which come after the canaries, stands for `weight` of them.
    """
    variances = torch.full((canaries + others,), rate * (1 - rate) / 2, dtype=torch.float64)
    variances[canaries:] *= 2 * weight
    return variances.clamp_(min=_LEAST_VARIANCE)


def weighed(
    shares: Tensor, canaries: int, total: Tensor, rate: float, noise_std: float, variances: Tensor
) -> tuple[Tensor, Tensor]:
    """Return ``V Σ^-1 Vᵀ`` and ``V Σ^-1 (r - E r)`` of a step that released the sum r of sampled shares.

    V has the canaries' expected shares, Σ is that of noise and sampling, of canaries and of others.
    """
    residual = total - (rate / 2) * shares[:canaries].sum(0)
    noise, gram = noise_std**2, shares @ shares.T
    both = torch.cat([gram[:, :canaries], (shares @ residual).unsqueeze(1)], dim=1)
    inner = gram + torch.diag(noise / variances)
    found = (both - gram @ torch.linalg.solve(inner, both))[:canaries] / noise
    return found[:, :canaries] * rate**2, found[:, canaries] * rate


class SampledRows:
    """Looks at sums of what the units of Poisson samples add, each of which is known.

    Args:
        canaries: their records; `groups` has the number of each.
        others: all other records of the data.
        persons: whether canaries are persons.
    """

    def __init__(self, canaries: Sample, others: Sample, *, persons: bool = False) -> None:
        assert canaries.groups is not None
        self._evidence = Evidence(int(canaries.groups.max()) + 1)
        self._canaries = Sample(canaries.points, canaries.labels, canaries.groups if persons else None)
        self._others = others
        units = torch.arange(len(others.points)) if others.groups is None else others.groups
        apart = -(-len(torch.unique(units)) // _MODELLED)
        self._modelled = _picked(others, units % apart == 0)
        self._weight = float(apart)

    def scores(self) -> Tensor:
        """Return a score for each canary from all steps so far."""
        return self._evidence.scores()

    def look(
        self,
        released: Tensor,
        rate: float,
        noise_std: float,
        summed: Callable[[Sample], Tensor],
        rows: Callable[[Sample], Tensor],
    ) -> None:
        """Take in a released sum, given what records add together, (d,), and what each unit does, (b, d)."""
        canaries, others = rows(self._canaries), rows(self._modelled)
        count = len(canaries)
        variances = sampling_variances(count, len(others), rate, self._weight)
        both, surprise = torch.cat([canaries, others]), released - rate * summed(self._others)
        self._evidence.add(torch.arange(count), *weighed(both, count, surprise, rate, noise_std, variances))


def _picked(sample: Sample, rows: Tensor) -> Sample:
    labels, groups = (None if part is None else part[rows] for part in (sample.labels, sample.groups))
    return Sample(sample.points[rows], labels, groups)


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
