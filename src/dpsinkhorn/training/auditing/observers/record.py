"""Who watches a training by `record`: a canary's effect is its own clipped share, exactly."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dpsinkhorn.mechanisms.record import Record
from dpsinkhorn.mechanisms.shared.base import GradientBarrier, Sample
from dpsinkhorn.mechanisms.shared.pairs import on_grid
from dpsinkhorn.privacy.mechanisms import RecordMechanism
from dpsinkhorn.privacy.noise import NoiseSource
from dpsinkhorn.training.auditing.observers.evidence import (
    Evidence,
    Observer,
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


class RecordObserver(Observer, GradientBarrier):
    """Stands in the place of a `record` barrier, which does all the work, and looks on.

    Every step it takes the released sum, less what is expected of it. Noise disturbs that, and so do other
    records, which come and go with the sampling: it is weighed by the inverse of their covariance.
    """

    watches = Record

    resampled_learn = Record.resampled_learn

    def __init__(self, watched: Record, canaries: Sample, others: Sample) -> None:
        assert canaries.groups is not None
        self.mechanism: RecordMechanism = watched.mechanism
        self._watched, self._rate, self._others = watched, watched.terms.sampling_rate, others
        self._evidence = Evidence(int(canaries.groups.max()) + 1)
        self._classes = [self._class(kind, canaries) for kind in range(max(1, watched.classes))]

    def resampled(self, generated: int) -> int:
        return self._watched.resampled(generated)

    def gradient(self, points: Tensor, labels: Tensor | None, sample: Sample, noise: NoiseSource) -> Tensor:
        released = self._watched.gradient(points, labels, sample, noise)
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
                precision, along = self._read(members, on_grid(points[:n])[rows], total[rows].flatten())
                self._evidence.add(members.canaries, precision, along)

    def _read(self, members: _Class, x: Tensor, total: Tensor) -> tuple[Tensor, Tensor]:
        """``V Σ^-1 Vᵀ`` and ``V Σ^-1 (r - E r)``: V has the canaries' expected shares, Σ is that of noise
        and sampling."""
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
