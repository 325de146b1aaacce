"""Mechanism `datalens`: teachers on disjoint parts of the records vote on the signs of an image's gradient.

From B. Wang, F. Wu, Y. Long, L. Rimanic, C. Zhang, B. Li, "DataLens: Scalable Privacy Preserving Training
via Gradient Compression and Aggregation", 2021. Of each generated image's gradient a teacher sends the signs
of the k largest entries, drawn at random so as to be right on average. Their sum is noised, and entries on
which most teachers agree teach the generator: docs/proofs/datalens.md.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dpsinkhorn.mechanisms.shared.base import TRANSPORT, TrainingMechanism, WorstCase
from dpsinkhorn.mechanisms.shared.part_critics import CriticSteps, PartCritics, worst_case
from dpsinkhorn.mechanisms.shared.steps import AllRecords, Learner, NetworkLearner, Steps
from dpsinkhorn.mechanisms.shared.terms import Terms, one_pixel
from dpsinkhorn.privacy.mechanisms import VoteMechanism, parts_of
from dpsinkhorn.privacy.noise import NoiseSource, announce

_AGREED = 0.7  # of the teachers, for an entry to be moved, as published


class Votes(TrainingMechanism):
    """Noised sums of teachers' votes on the signs of the gradients in generated images.

    Args:
        terms: public numbers; `clip` is k, how many entries of an image a teacher votes on.
    """

    name = "datalens"
    summary = "teachers on disjoint parts of the records vote on signs of each image's gradient, with noise"
    recipe = "datalens"
    takes_persons = False
    splits_records = True
    unused_settings = TRANSPORT | {"flow"}

    mechanism: VoteMechanism

    @classmethod
    def releases(cls, terms: Terms) -> VoteMechanism:
        return VoteMechanism(terms.clip, terms.noise_multiplier, rows=terms.generated)

    @classmethod
    def release_of_size(cls, noise_multiplier: float, rows: int = 1) -> VoteMechanism:
        return VoteMechanism(1.0, noise_multiplier, rows)

    @classmethod
    def check(cls, terms: Terms) -> None:
        super().check(terms)
        if not (terms.clip == int(terms.clip) and 1 <= terms.clip <= terms.facts.pixels):
            raise ValueError(
                f"privacy.clip is how many entries of an image teachers vote on: a whole number from 1 to "
                f"{terms.facts.pixels}, not {terms.clip:g}"
            )

    @classmethod
    def worst_case(cls, noise_multiplier: float, rows: int = 4) -> WorstCase:
        """A teacher that votes on grey images."""
        built, draws = cls(one_pixel(noise_multiplier, rows, clip=1.0)), torch.full((1, rows, 1), 0.5)

        def clipped(critics: PartCritics, grey: Tensor) -> Tensor:
            return built.clipped(critics, grey, None, draws)

        def release(critics: PartCritics, grey: Tensor, noise: NoiseSource) -> Tensor:
            return built.released(critics, grey, None, draws, noise)

        return worst_case(built, rows, clipped, release)

    @classmethod
    def audit_settings(cls, records: int) -> dict[str, dict[str, Any]]:
        settings = super().audit_settings(records)
        settings["privacy"] |= {"sampling_rate": 1 / 6, "clip": 4.0}
        settings["loss"]["iterations"] = 20
        return settings

    def own_steps(self, learner: NetworkLearner, records: AllRecords, *, horizon: int) -> Steps:
        teachers = parts_of(self.terms.sampling_rate)
        return CriticSteps(learner, records, self, teachers, horizon=horizon)

    def gradient(
        self, critics: PartCritics, points: Tensor, labels: Tensor | None, learner: Learner
    ) -> Tensor:
        """Return the signs on which enough teachers agree, with noise, and 0 elsewhere."""
        teachers = parts_of(self.terms.sampling_rate)
        shape = (teachers, *points.shape)
        draws = torch.rand(shape, generator=learner.random, device=learner.device)
        votes = self.released(critics, points, labels, draws, learner.noise)
        return votes.sign() * (votes.abs() > _AGREED * teachers)

    def released(
        self, critics: PartCritics, points: Tensor, labels: Tensor | None, draws: Tensor, noise: NoiseSource
    ) -> Tensor:
        """Return the noised sum of all votes, (n, d), in float64."""
        announce(noise, points=points, labels=labels)
        return self.noised(self.clipped(critics, points, labels, draws), noise)

    def clipped(self, critics: PartCritics, points: Tensor, labels: Tensor | None, draws: Tensor) -> Tensor:
        """Return the sum of votes, whole numbers in float64. Private: for audits.

        Args:
            draws: (teachers, n, d), uniform on [0, 1): an entry g is voted up where a draw is below
                (1 + g/b)/2, b being the largest of its image's.
        """
        slopes = critics.slopes(points, labels)  # (teachers, n, d)
        sizes = torch.nan_to_num(slopes.abs(), nan=0.0)
        _, places = sizes.topk(int(self.terms.clip), dim=2)
        shares = slopes.gather(2, places) / sizes.amax(2, keepdim=True)
        signs = torch.where(draws.gather(2, places) < (1 + shares) / 2, 1.0, -1.0)  # no number: down
        return torch.zeros_like(slopes).scatter_(2, places, signs).double().sum(0)
