"""Who watches a training by `record` step by step, and scores canaries by what each step releases.

The observer knows all that a worst-case adversary may know: the other records, the canaries, the generator at
every step, the rate, the noise level and the released sums; not which canaries are in the data, nor what was
sampled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dpsinkhorn.privacy.audit import AuditError
from dpsinkhorn.privacy.mechanisms import RecordMechanism
from dpsinkhorn.privacy.noise import NoiseSource
from dpsinkhorn.training.sanitizers import RecordSanitizer, Sample, Sanitizer
from dpsinkhorn.training.sanitizers.base import backpropagate
from dpsinkhorn.training.sanitizers.pairs import PixelCost, on_grid, pixel_cost
from dpsinkhorn.training.sanitizers.shares import softmax

__all__ = ["Observer"]

_MODELLED = 256  # other records of a class whose sampling is allowed for; more are stood for by as many


@dataclass(frozen=True)
class _Class:
    """Canaries and other records of one class."""

    canaries: Tensor  # rows among the canaries
    points: Tensor  # (canaries + modelled others, d), on the grid
    variances: Tensor  # of each one's presence in a sample


class Observer(Sanitizer):
    """Stands in the place of a `record` sanitizer, which does all the work, and looks on.

    Every step the released sum, less what is expected of it, is projected on each canary's own clipped share.
    Other canaries and records, which come and go with the sampling, disturb that, so the projection is
    weighted by the inverse of their covariance and that of the noise: the best linear score. `scores` adds up
    over steps.
    """

    resampled_learn = RecordSanitizer.resampled_learn

    def __init__(self, watched: RecordSanitizer, rate: float, canaries: Sample, others: Sample) -> None:
        cost = pixel_cost(watched.cost)
        if cost is None or not isinstance(watched.mechanism, RecordMechanism):
            raise AuditError("only a private training by record with a built-in cost can be watched")
        self.mechanism: RecordMechanism = watched.mechanism
        self._watched = watched
        self._rate = rate
        self._cost: PixelCost = cost
        self._others = others
        self._canaries = canaries
        self.scores = torch.zeros(len(canaries.points), dtype=torch.float64)
        self._classes = [self._class(kind) for kind in range(max(1, watched.classes))]

    def resampled(self, generated: int) -> int:
        return self._watched.resampled(generated)

    def backward(
        self,
        points: Tensor,
        labels: Tensor | None,
        sample: Sample,
        parameters: Sequence[nn.Parameter],
        noise: NoiseSource,
    ) -> None:
        # The images as parameters of themselves, so that what is released can be read before it goes on.
        images = nn.Parameter(points.detach().clone())
        self._watched.backward(images * 1, labels, sample, [images], noise)
        assert images.grad is not None
        self._look(points.detach(), labels, images.grad)
        backpropagate(points, images.grad, parameters)

    def _look(self, points: Tensor, labels: Tensor | None, gradient: Tensor) -> None:
        n = len(points) - self._watched.resampled(len(points) // 2)
        kinds = None if labels is None else labels[:n]
        with torch.no_grad():
            known, own = self._watched.clipped_sums(points, labels, self._others)
            total = gradient[:n].double()
            if own is not None:  # public
                total = total + own * (self._watched.self_weight / n)
            total = total * self._watched.expected_batch - self._rate * known
            for kind, members in enumerate(self._classes):
                rows = slice(None) if kinds is None else (kinds == kind).nonzero().flatten()
                if len(members.canaries):
                    self.scores[members.canaries] += self._score(
                        members, on_grid(points[:n])[rows], total[rows]
                    )

    def _score(self, members: _Class, x: Tensor, total: Tensor) -> Tensor:
        """``V Σ^-1 (r - E r)`` for the canaries: V holds their shares, Σ the covariance of the release r."""
        shares = self._shares(members.points, x)  # (k, n d)
        count = len(members.canaries)
        residual = total.flatten() - (self._rate / 2) * shares[:count].sum(0)
        noise = self.mechanism.noise_std**2
        gram = shares @ shares.T
        along = shares @ residual
        inner = gram + torch.diag(noise / members.variances)
        scores: Tensor = (along - gram @ torch.linalg.solve(inner, along))[:count] / noise
        return scores

    def _shares(self, records: Tensor, x: Tensor) -> Tensor:
        """Each record's clipped share v(y), ``(k, n d)``."""
        potentials = torch.zeros(len(x), 1, dtype=torch.float64)
        costs, _ = self._cost.measure(x[None], records[None])
        weights = softmax(
            costs, potentials, torch.ones_like(costs, dtype=torch.bool), self._watched.regularization
        )
        difference = x[None] - records[:, None]  # (k, n, d)
        slopes = 2.0 * self._cost.squared * difference + self._cost.absolute * difference.sign()
        shares = (weights[0].T[..., None] * slopes).flatten(1)
        factors: Tensor = (self.mechanism.clip / shares.norm(dim=1, keepdim=True)).clamp(max=1.0)
        return shares * factors

    def _class(self, kind: int) -> _Class:
        mine, theirs = (
            torch.arange(len(part.points))
            if part.labels is None
            else (part.labels == kind).nonzero().flatten()
            for part in (self._canaries, self._others)
        )
        kept = theirs[:: max(1, -(-len(theirs) // _MODELLED))]
        weight = len(theirs) / max(1, len(kept))
        points = torch.cat([self._canaries.points[mine], self._others.points[kept]])
        half, rate = self._rate / 2, self._rate
        variances = torch.cat(
            [
                torch.full((len(mine),), half * (1 - half)),
                torch.full((len(kept),), max(rate * (1 - rate) * weight, 1e-9)),
            ]
        )
        return _Class(mine, on_grid(points), variances.double())
