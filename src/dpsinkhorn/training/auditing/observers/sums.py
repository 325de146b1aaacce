"""Who watches a training by `record`, `moments` or `flow`, which release sums: a canary's effect is exact."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from dpsinkhorn.generators import Flow as FlowGenerator
from dpsinkhorn.mechanisms.flow import Flow
from dpsinkhorn.mechanisms.moments import (
    COUNT_SENSITIVITY,
    DEVIATION_SENSITIVITY,
    SQUARE_COUNT_WEIGHT,
    Moments,
    Squares,
    Summed,
    Sums,
)
from dpsinkhorn.mechanisms.record import Record
from dpsinkhorn.mechanisms.shared.base import Sample
from dpsinkhorn.mechanisms.shared.clipping import on_grid
from dpsinkhorn.mechanisms.shared.record_gradients import StepDraws
from dpsinkhorn.privacy.noise import NoiseSource
from dpsinkhorn.training.auditing.observers.evidence import (
    Evidence,
    GradientObserver,
    Observer,
    SampledRows,
    Units,
    rows_of,
    sampling_variances,
    shares_of,
    weighed,
)

_MODELLED = 256  # other units of a class whose sampling is allowed for; more are stood for by as many


@dataclass(frozen=True)
class _Class:
    """Canaries of one class, and other units after them."""

    canaries: Tensor  # their numbers
    units: Units
    variances: Tensor  # of each one's presence in a sample, where it is known whether it is in the data


class RecordObserver(GradientObserver):
    """Stands in the place of a `record` barrier, which does all the work, and looks on.

    Every step it takes the released sum, less what is expected of it. Noise disturbs that, and so do other
    records, which come and go with the sampling: it is weighed by the inverse of their covariance.
    """

    watches = Record

    def __init__(self, watched: Record, canaries: Sample, others: Sample) -> None:
        assert canaries.groups is not None
        super().__init__(watched)
        self._rate, self._others = watched.terms.sampling_rate, others
        self._evidence = Evidence(int(canaries.groups.max()) + 1)
        self._classes = [self._class(kind, canaries) for kind in range(max(1, watched.classes))]

    def gradient(self, points: Tensor, labels: Tensor | None, sample: Sample, noise: NoiseSource) -> Tensor:
        released: Tensor = self._watched.gradient(points, labels, sample, noise)
        with torch.no_grad():
            self._look(points.detach(), labels, released)
        return released

    def _look(self, points: Tensor, labels: Tensor | None, gradient: Tensor) -> None:
        n = len(points) - self._watched.resampled(len(points) // 2)
        known, own = self._watched.clipped_sums(points, labels, self._others)
        total = gradient[:n].double()
        if own is not None:  # public
            total = total + own * (self._watched.self_weight / n)
        total = total * self._watched.terms.expected_batch - self._rate * known
        for kind, members in enumerate(self._classes):
            rows = rows_of(None if labels is None else labels[:n], kind, n)
            if len(members.canaries):
                found = self._read(members, on_grid(points[:n])[rows], total[rows].flatten())
                self._evidence.add(members.canaries, *found)

    def _read(self, members: _Class, x: Tensor, total: Tensor) -> tuple[Tensor, Tensor]:
        """What `weighed` makes of a class's sum."""
        shares, count = self._shares(members.units, x), len(members.canaries)  # (units, n d)
        return weighed(shares, count, total, self._rate, self.mechanism.noise_std, members.variances)

    def _shares(self, units: Units, x: Tensor) -> Tensor:
        """Each unit's clipped share v(y), ``(units, n d)``."""
        shares = shares_of(units, x, self._watched.cost, self._watched.terms.loss.regularization)
        factors: Tensor = (self.mechanism.clip / shares.norm(dim=1, keepdim=True)).clamp(max=1.0)
        return shares * factors

    def _class(self, kind: int, canaries: Sample) -> _Class:
        mine, numbers = Units.of(canaries, rows_of(canaries.labels, kind, len(canaries.points)))
        theirs, _ = Units.of(self._others, rows_of(self._others.labels, kind, len(self._others.points)))
        modelled = theirs.every_nth(max(1, -(-theirs.count // _MODELLED)))
        weight = theirs.count / max(1, modelled.count)
        variances = sampling_variances(mine.count, modelled.count, self._rate, weight)
        return _Class(numbers, mine.followed_by(modelled), variances)


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


class FlowObserver(Observer, Flow):
    """Releases the noised sums of another `Flow`, and looks on.

    Of a released sum all is known but the noise, the sampling, and which canaries are in the data. What the
    sketch shows of canaries is left aside.
    """

    watches = Flow

    def __init__(self, watched: Flow, canaries: Sample, others: Sample) -> None:
        super().__init__(watched.terms)
        self._evidence = SampledRows(canaries, others, persons=watched.terms.facts.grouped)

    def released(
        self, network: FlowGenerator, sample: Sample, draws: StepDraws, noise: NoiseSource
    ) -> Tensor:
        released = super().released(network, sample, draws, noise)
        self._evidence.look(
            released,
            self.terms.sampling_rate,
            self.mechanism.noise_std,
            lambda records: self.clipped(network, records, draws),
            lambda records: self.clipped_rows(network, records, draws),
        )
        return released
