"""Who watches a training by `flow`: a canary's effect is its own clipped gradient, exactly."""

from __future__ import annotations

from torch import Tensor

from dpsinkhorn.generators import Flow as FlowGenerator
from dpsinkhorn.mechanisms.flow import Flow
from dpsinkhorn.mechanisms.shared.base import Sample
from dpsinkhorn.mechanisms.shared.draws import StepDraws
from dpsinkhorn.privacy.noise import NoiseSource
from dpsinkhorn.training.auditing.observers.evidence import SampledRows

__all__ = ["FlowObserver"]


class FlowObserver(Flow):
    """Releases the noised sums of another `Flow`, and looks on.

    Of a released sum all is known but the noise, the sampling, and which canaries are in the data. What the
    sketch shows of canaries is left aside.

    Args:
        watched: whose sums are released.
        canaries: their records, or those of made-up persons; `groups` has the number of each.
        others: all other records of the data.
    """

    def __init__(self, watched: Flow, canaries: Sample, others: Sample) -> None:
        super().__init__(watched.terms)
        self._seen = SampledRows(canaries, others, persons=watched.terms.facts.grouped)

    def scores(self) -> Tensor:
        """Return a score for each canary from all steps so far."""
        return self._seen.scores()

    def released(
        self,
        network: FlowGenerator,
        sample: Sample,
        draws: StepDraws,
        noise: NoiseSource,
        *,
        reduced: bool = False,
    ) -> Tensor:
        released = super().released(network, sample, draws, noise, reduced=reduced)
        self._seen.look(
            released,
            self.terms.sampling_rate,
            self.mechanism.noise_std,
            lambda records: self.clipped(network, records, draws, reduced=reduced),
            lambda records: self.clipped_rows(network, records, draws, reduced=reduced),
        )
        return released
