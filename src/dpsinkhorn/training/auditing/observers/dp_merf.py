"""Who watches a training by `dp_merf`: a canary's effect on the one release is its own features, exactly."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from dpsinkhorn.mechanisms.dp_merf import (
    COUNT_SENSITIVITY,
    EMBEDDING_SENSITIVITY,
    Embeddings,
    MeanEmbeddings,
)
from dpsinkhorn.mechanisms.shared.base import Sample
from dpsinkhorn.privacy.noise import NoiseSource
from dpsinkhorn.training.auditing.observers.evidence import Evidence, Observer, rows_of


class EmbeddingsObserver(Observer, MeanEmbeddings):
    """Releases the noised sums of another `MeanEmbeddings`, and looks on."""

    watches = MeanEmbeddings

    def __init__(self, watched: MeanEmbeddings, canaries: Sample, others: Sample) -> None:
        super().__init__(watched.terms, features=watched.features)
        self._canaries, self._others = canaries, others
        self._evidence = Evidence(len(canaries.points))

    def embeddings(self, records: Iterable[Sample], noise: NoiseSource) -> Embeddings:
        released = super().embeddings(records, noise)
        sums, counts = self.clipped([self._others])
        residual = self._measured(released.sums * self.length - sums, released.counts - counts)
        for kind in range(self.kinds):
            labels = self._canaries.labels if self.classes else None
            rows = rows_of(labels, kind, len(self._canaries.points))
            vectors = self.vectors(self._canaries.points[rows])
            effects = self._measured(vectors, torch.ones(len(rows), dtype=torch.float64))
            gram = effects @ effects.T
            self._evidence.add(rows, gram, effects @ residual[kind] - gram.sum(1) / 2)
        return released

    def _measured(self, sums: Tensor, counts: Tensor) -> Tensor:
        """Return vectors and counts side by side, in standard deviations of their noise."""
        parts = [sums / (EMBEDDING_SENSITIVITY * self.length), counts[:, None] / COUNT_SENSITIVITY]
        return torch.cat(parts, dim=1) / self.mechanism.noise_std
