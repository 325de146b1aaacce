"""Who watches a training by `flow`: a canary's effect is its own clipped gradient, exactly."""

from __future__ import annotations

from torch import Tensor

from dpsinkhorn.generators import Flow as FlowGenerator
from dpsinkhorn.mechanisms.flow import Flow
from dpsinkhorn.mechanisms.shared.base import Sample
from dpsinkhorn.mechanisms.shared.draws import StepDraws
from dpsinkhorn.privacy.noise import NoiseSource
from dpsinkhorn.training.auditing.observers.evidence import Observer, SampledRows


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
