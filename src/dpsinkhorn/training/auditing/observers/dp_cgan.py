"""Who watches a training by `dp_cgan`: a canary's effect is its own clipped gradient, exactly."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from dpsinkhorn.mechanisms.dp_cgan import Discriminator
from dpsinkhorn.mechanisms.shared.base import Sample
from dpsinkhorn.mechanisms.shared.critics import Critic
from dpsinkhorn.privacy.noise import NoiseSource
from dpsinkhorn.training.auditing.observers.evidence import SampledRows

__all__ = ["DiscriminatorObserver"]


class DiscriminatorObserver(Discriminator):
    """Releases the noised sums of another `Discriminator`, and looks on.

    Of a released sum all is known but the noise, the sampling, and which canaries are in the data.

    Args:
        watched: whose sums are released.
        canaries: their records; `groups` has the number of each.
        others: all other records of the data.
    """

    def __init__(self, watched: Discriminator, canaries: Sample, others: Sample) -> None:
        super().__init__(watched.terms)
        self._seen = SampledRows(canaries, others)

    def scores(self) -> Tensor:
        """Return a score for each canary from all steps so far."""
        return self._seen.scores()

    def released(self, critic: Critic, records: Iterable[Sample], noise: NoiseSource) -> Tensor:
        released = super().released(critic, records, noise)
        self._seen.look(
            released,
            self.terms.sampling_rate,
            self.mechanism.noise_std,
            lambda records: self.clipped(critic, [records]),
            lambda records: self.gradients.rows(critic, records.points, records.labels),
        )
        return released
