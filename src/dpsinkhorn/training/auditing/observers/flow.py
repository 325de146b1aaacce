"""Who watches a training by `flow`: a canary's effect is its own clipped gradient, exactly."""

from __future__ import annotations

import torch
from torch import Tensor

from dpsinkhorn.generators import Flow as FlowGenerator
from dpsinkhorn.mechanisms.flow import Flow
from dpsinkhorn.mechanisms.shared.base import Sample
from dpsinkhorn.mechanisms.shared.draws import StepDraws
from dpsinkhorn.privacy.noise import NoiseSource
from dpsinkhorn.training.auditing.observers.evidence import Evidence, sampling_variances, weighed

__all__ = ["FlowObserver"]

_MODELLED = 256  # other units whose sampling is allowed for; more are stood for by as many


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
        assert canaries.groups is not None
        persons = watched.terms.facts.grouped
        self._evidence = Evidence(int(canaries.groups.max()) + 1)
        self._canaries = Sample(canaries.points, canaries.labels, canaries.groups if persons else None)
        self._others = others
        units = torch.arange(len(others.points)) if others.groups is None else others.groups
        apart = -(-len(torch.unique(units)) // _MODELLED)
        self._modelled = _of(others, units % apart == 0)
        self._weight = float(apart)

    def scores(self) -> Tensor:
        """Return a score for each canary from all steps so far."""
        return self._evidence.scores()

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
        rate = self.terms.sampling_rate
        known = self.clipped(network, self._others, draws, reduced=reduced)
        canaries, others = (
            self.clipped_rows(network, each, draws, reduced=reduced)
            for each in (self._canaries, self._modelled)
        )
        count = len(canaries)
        variances = sampling_variances(count, len(others), rate, self._weight)
        both = torch.cat([canaries, others])
        std = self.mechanism.noise_std
        precision, along = weighed(both, count, released - rate * known, rate, std, variances)
        self._evidence.add(torch.arange(count), precision, along)
        return released


def _of(sample: Sample, rows: Tensor) -> Sample:
    labels, groups = (None if part is None else part[rows] for part in (sample.labels, sample.groups))
    return Sample(sample.points[rows], labels, groups)
