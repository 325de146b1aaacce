"""Who watches a training by `dp_cgan`: a canary's effect is its own clipped gradient, exactly."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from dpsinkhorn.mechanisms.dp_cgan import Discriminator
from dpsinkhorn.mechanisms.shared.base import Sample
from dpsinkhorn.mechanisms.shared.critics import Critic
from dpsinkhorn.privacy.noise import NoiseSource
from dpsinkhorn.training.auditing.observers.evidence import Observer, SampledRows


class DiscriminatorObserver(Observer, Discriminator):
    """Releases the noised sums of another `Discriminator`, and looks on.

    Of a released sum all is known but the noise, the sampling, and which canaries are in the data.
    """

    watches = Discriminator

    def __init__(self, watched: Discriminator, canaries: Sample, others: Sample) -> None:
        super().__init__(watched.terms)
        self._evidence = SampledRows(canaries, others)

    def released(self, critic: Critic, records: Iterable[Sample], noise: NoiseSource) -> Tensor:
        released = super().released(critic, records, noise)
        self._evidence.look(
            released,
            self.terms.sampling_rate,
            self.mechanism.noise_std,
            lambda records: self.clipped(critic, [records]),
            lambda records: self.gradients.rows(critic, records.points, records.labels),
        )
        return released
