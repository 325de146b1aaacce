"""Who watches a training by `moments`: every record is in every sum, and a canary's effect is exact."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from dpsinkhorn.mechanisms.moments import COUNT_SENSITIVITY, DEVIATION_SENSITIVITY, Moments, Sums
from dpsinkhorn.mechanisms.shared.base import Sample
from dpsinkhorn.privacy.noise import NoiseSource
from dpsinkhorn.training.auditing.observers.evidence import Evidence, rows_of

__all__ = ["MomentsObserver"]


@dataclass(frozen=True)
class _Members:
    """Canaries of one class in a step."""

    numbers: Tensor
    kind: int
    units: Tensor  # their clipped deviations over the radius
    nearest: Tensor  # the places of their centres


class MomentsObserver(Moments):
    """Releases the noised sums of another `Moments`, and looks on.

    Of a released sum all is known but the noise and which canaries are in it: the sums over other records are
    taken off, and half of every canary's part.

    Args:
        watched: whose sums are released.
        canaries: their records; `groups` has the number of each.
        others: all other records of the data.
    """

    def __init__(self, watched: Moments, canaries: Sample, others: Sample) -> None:
        super().__init__(watched.mechanism, watched.config, watched.max_records)
        assert canaries.groups is not None
        self._others = [others]
        self._evidence = Evidence(len(canaries.groups))
        self._canaries = []
        for kind in range(max(1, watched.config.classes)):
            rows = rows_of(canaries.labels, kind, len(canaries.points))
            labels = None if canaries.labels is None else canaries.labels[rows]
            self._canaries.append((canaries.groups[rows], Sample(canaries.points[rows], labels)))

    def scores(self) -> Tensor:
        """Return a score for each canary from all steps so far."""
        return self._evidence.scores()

    def deviations(
        self,
        records: Iterable[Sample],
        centres: Tensor,
        radius: float,
        noise: NoiseSource,
        *,
        coordinates: Tensor | None = None,
    ) -> Sums:
        released = super().deviations(records, centres, radius, noise, coordinates=coordinates)
        sums, counts = self.clipped_deviations(self._others, centres, radius, coordinates)
        sums, counts = released.deviations - sums, released.counts - counts
        for members in self._members(centres, radius, coordinates):
            for centre in torch.unique(members.nearest):
                here = members.nearest == centre
                # in units of the noise multiplier: a vector of norm at most 1, with its count
                vectors = members.units[here] / DEVIATION_SENSITIVITY
                vectors = torch.cat([vectors, torch.full_like(vectors[:, :1], 1 / COUNT_SENSITIVITY)], dim=1)
                residual = torch.cat(
                    [
                        sums[members.kind, centre] / DEVIATION_SENSITIVITY,
                        counts[members.kind, centre, None] / COUNT_SENSITIVITY,
                    ]
                )
                self._add(members.numbers[here], vectors @ vectors.T, vectors @ residual)
        return released

    def squares(
        self,
        records: Iterable[Sample],
        centres: Tensor,
        radius: float,
        noise: NoiseSource,
        *,
        pooled: bool,
        coordinates: Tensor | None = None,
    ) -> Tensor:
        released = super().squares(records, centres, radius, noise, pooled=pooled, coordinates=coordinates)
        known = self.clipped_squares(self._others, centres, radius, coordinates, pooled=pooled)
        found = list(self._members(centres, radius, coordinates))
        if pooled:  # one sum over all classes
            numbers = torch.cat([members.numbers for members in found])
            found = [_Members(numbers, 0, torch.cat([members.units for members in found]), numbers)]
        for members in found:
            # <u uᵀ, w wᵀ> = <u, w>²; in that product the noise is σ in every direction
            units, residual = members.units, released[members.kind] - known[members.kind]
            self._add(members.numbers, (units @ units.T).square(), ((units @ residual) * units).sum(1))
        return released

    def _add(self, numbers: Tensor, gram: Tensor, along: Tensor) -> None:
        """Take in canaries whose effects have this Gram matrix and these products with what was released."""
        variance = self.mechanism.noise_std**2
        self._evidence.add(numbers, gram / variance, (along - gram.sum(1) / 2) / variance)

    def _members(self, centres: Tensor, radius: float, coordinates: Tensor | None) -> Iterator[_Members]:
        placed = self.place(centres)
        for numbers, sample in self._canaries:
            for kind, units, nearest in self.clipped_units([sample], placed, radius, coordinates):
                yield _Members(numbers, kind, units, nearest)
