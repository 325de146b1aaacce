"""Step of `dp_merf`: a release of mean embeddings, and a generator that is trained towards what was released.

Nothing after the release sees a record, so the optimizer may take as many steps as it likes.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

from dpsinkhorn.generators import Generator, draw_latents
from dpsinkhorn.mechanisms.dp_merf import COUNT_SENSITIVITY, Embeddings, MeanEmbeddings
from dpsinkhorn.mechanisms.shared.base import pulled_back
from dpsinkhorn.mechanisms.shared.steps import AllRecords, NetworkLearner, Steps

_LEAST_COUNT = 4.0  # of a class, in standard deviations of its noise


class EmbeddingSteps(Steps):
    """Takes the one step of a plan by `dp_merf`.

    Args:
        state: whose generator is trained.
        records: all of which are read.
        embedder: the noised sums.
    """

    def __init__(self, state: NetworkLearner, records: AllRecords, embedder: MeanEmbeddings) -> None:
        self._state, self._records, self._embedder = state, records, embedder
        scale = 2 * math.pi / 2**embedder.turn_bits
        self._radians = (embedder.frequencies * scale).float().to(state.device)

    def take(self, count: int) -> None:
        """Take `count` steps."""
        for _ in range(count):
            released = self._embedder.embeddings(self._records.every(), self._state.noise)
            self._fit(self._means(released))
            self._state.step += 1

    def _means(self, released: Embeddings) -> tuple[Tensor, Tensor]:
        """Return each class's mean cosines and sines, (classes, D/2), of a length that means can have."""
        least = max(1.0, _LEAST_COUNT * COUNT_SENSITIVITY * self._embedder.mechanism.noise_multiplier)
        means = (released.sums / released.counts.clamp(min=least).unsqueeze(1)).float()
        return means[:, ::2].contiguous(), means[:, 1::2].contiguous()

    def _fit(self, means: tuple[Tensor, Tensor]) -> None:
        """Descend on the squared distance of generated mean embeddings from the released ones."""
        state, embedder = self._state, self._embedder
        assert isinstance(state.generator, Generator)
        kinds = torch.arange(embedder.generated, device=state.device) % embedder.kinds
        labels = kinds if embedder.classes else None
        members = functional.one_hot(kinds, embedder.kinds).float()
        for iteration in range(embedder.iterations):
            latents = draw_latents(
                embedder.generated, state.generator.config.latent, state.random, state.device
            )
            points = state.generator(latents, labels).flatten(1)
            gradients = pulled_back(points, self._slope(points.detach(), members, *means), state.parameters)
            state.update(state.rate_at(iteration, embedder.iterations), gradients)

    def _slope(self, points: Tensor, members: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
        """Return the gradient, in images (n, d), of the mean over classes of the squared distance.

        Features are as the barrier has them, but for its rounding. `members` (n, classes) says whose.
        """
        weights = members / members.sum(0) / self._embedder.length
        phases = points @ self._radians.T
        own_cosines, own_sines = phases.cos(), phases.sin_()
        apart = weights.T @ own_cosines - cosines, weights.T @ own_sines - sines
        slope = own_cosines.mul_(weights @ apart[1]).sub_(own_sines.mul_(weights @ apart[0]))
        gradient: Tensor = slope @ self._radians * (2 / len(cosines))
        return gradient
