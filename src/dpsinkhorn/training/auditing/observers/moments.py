"""Who watches a training by `moments`: every record is in every sum, and a canary's effect is exact."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from dpsinkhorn.mechanisms.moments import (
    COUNT_SENSITIVITY,
    DEVIATION_SENSITIVITY,
    SQUARE_COUNT_WEIGHT,
    Moments,
    Squares,
    Summed,
    Sums,
)
from dpsinkhorn.mechanisms.shared.base import Sample
from dpsinkhorn.privacy.noise import NoiseSource
from dpsinkhorn.training.auditing.observers.evidence import Evidence, Observer


class MomentsObserver(Observer, Moments):
    """Releases the noised sums of another `Moments`, and looks on.

    Of a released sum all is known but the noise and which canaries are in it: the sums over other records are
    taken off, and half of every canary's part.
    """

    watches = Moments

    def __init__(self, watched: Moments, canaries: Sample, others: Sample) -> None:
        super().__init__(watched.terms)
        assert canaries.groups is not None
        self._others, self._owners = [others], canaries.groups
        groups = canaries.groups if watched.persons else None
        self._canaries = [Sample(canaries.points, canaries.labels, groups)]
        self._evidence = Evidence(int(canaries.groups.max()) + 1)

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
        for part in self.clipped_units(self._canaries, self.place(centres), radius, coordinates):
            for kind, centre in torch.unique(torch.stack([part.kinds, part.nearest], dim=1), dim=0):
                here = (part.kinds == kind) & (part.nearest == centre)
                # in units of the noise multiplier: a vector of norm at most 1, with its count
                vectors = _joined(part.weighted[here], part.weights[here, None])
                numbers, vectors = self._by_canary(part.rows[here], vectors)
                residual = _joined(sums[kind, centre], counts[kind, centre, None])
                self._add(numbers, vectors @ vectors.T, vectors @ residual)
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
    ) -> Squares:
        released = super().squares(records, centres, radius, noise, pooled=pooled, coordinates=coordinates)
        known, counts = self.clipped_squares(self._others, centres, radius, coordinates, pooled=pooled)
        summed: Summed = "squares over all classes" if pooled else "squares"
        placed, size = self.place(centres), self.square_sensitivity**2
        for part in self.clipped_units(self._canaries, placed, radius, coordinates, summed):
            for place, residual in enumerate(released.matrices - known):
                own = slice(None) if pooled else part.kinds == place
                units, weights, rows = part.units[own], part.weights[own], part.rows[own]
                # <u uᵀ, w wᵀ> = <u, w>²; in that product the noise is the same in every direction
                gram = (units @ units.T).square()
                along = ((units @ residual) * units).sum(1)
                if released.counts is not None and counts is not None:
                    gram += SQUARE_COUNT_WEIGHT**2
                    along += SQUARE_COUNT_WEIGHT**2 * (released.counts - counts)[place]
                numbers, along = self._by_canary(rows, along * weights)
                _, gram = self._by_canary(rows, gram * weights * weights.unsqueeze(1))
                _, gram = self._by_canary(rows, gram.T)
                self._add(numbers, gram / size, along / size)
        return released

    def _by_canary(self, rows: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Canaries that some records belong to, and sums of values over each one's records."""
        numbers, places = torch.unique(self._owners[rows], return_inverse=True)
        return numbers, values.new_zeros(len(numbers), *values.shape[1:]).index_add_(0, places, values)

    def _add(self, numbers: Tensor, gram: Tensor, along: Tensor) -> None:
        """Take in canaries whose effects have this Gram matrix and these products with what was released."""
        variance = self.mechanism.noise_std**2
        self._evidence.add(numbers, gram / variance, (along - gram.sum(1) / 2) / variance)


def _joined(deviations: Tensor, counts: Tensor) -> Tensor:
    """Deviations and counts in units of the noise multiplier, side by side."""
    return torch.cat([deviations / DEVIATION_SENSITIVITY, counts / COUNT_SENSITIVITY], dim=-1)
