"""Mechanism `gs_wgan`: critics on disjoint parts of the records; each step asks one of them, drawn in secret.

From D. Chen, T. Orekondy, M. Fritz, "GS-WGAN: A Gradient-Sanitized Approach for Learning Differentially
Private Generators", 2020. The gradient of one critic in the generated images is clipped image by image, and
noised. What differs from the paper so that the secret draw can be counted on, and why the published ε is no
guarantee: docs/proofs/gs-wgan.md.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dpsinkhorn.generators import MixtureConfig, MLPConfig
from dpsinkhorn.mechanisms.shared.base import Sample, TrainingMechanism, WorstCase
from dpsinkhorn.mechanisms.shared.clipping import clip_rows
from dpsinkhorn.mechanisms.shared.part_critics import CriticSteps, PartCritics
from dpsinkhorn.mechanisms.shared.steps import AllRecords, Learner, NetworkLearner, Steps
from dpsinkhorn.mechanisms.shared.terms import Facts, Terms
from dpsinkhorn.ot import SquaredEuclidean
from dpsinkhorn.privacy import poisson_sample, published_epsilon
from dpsinkhorn.privacy.mechanisms import CriticMechanism, parts_of
from dpsinkhorn.privacy.noise import NoiseSource, add_gaussian, announce

_WORST_CLIP = 1e-3


class SecretCritic(TrainingMechanism):
    """The noised gradient, in the generated images, of a critic that is drawn in secret.

    Args:
        terms: public numbers.
    """

    name = "gs_wgan"
    summary = (
        "critics learn from disjoint parts of the records; one's gradient in each image is clipped and noised"
    )
    recipe = "gs-wgan"
    takes_persons = False
    clips_rows = True
    splits_records = True
    learns_in_private = True
    unused_settings = frozenset(
        {
            "flow",
            "loss.cost",
            "loss.l1_weight",
            "loss.regularization",
            "loss.self_weight",
            "loss.debias",
            "loss.label_weight",
            "loss.marginals",
        }
    )

    mechanism: CriticMechanism

    def __init__(self, terms: Terms) -> None:
        self.mechanism, self.terms = self.releases(terms), terms

    @classmethod
    def releases(cls, terms: Terms) -> CriticMechanism:
        return CriticMechanism(terms.clip, terms.noise_multiplier, rows=terms.generated)

    @classmethod
    def release_of_size(cls, noise_multiplier: float, rows: int = 1) -> CriticMechanism:
        return CriticMechanism(1.0, noise_multiplier, rows)

    @classmethod
    def build(cls, terms: Terms) -> SecretCritic:
        return cls(terms)

    @classmethod
    def check(cls, terms: Terms) -> None:
        super().check(terms)
        if isinstance(terms.generator, MixtureConfig):
            raise ValueError("the mechanism gs_wgan trains networks; choose another generator")

    @classmethod
    def published_epsilon(cls, terms: Terms, delta: float) -> float:
        return published_epsilon(cls.releases(terms), terms.sampling_rate, terms.steps, delta)

    @classmethod
    def worst_case(cls, noise_multiplier: float, rows: int = 4) -> WorstCase:
        """A critic of a white record, and one of the black image that takes the place of none.

        Grey images are between the two, so that all their gradients turn round.
        """
        terms = Terms(
            Facts((1, 1, 1), 0, 1, 1),
            _WORST_CLIP,
            noise_multiplier,
            sampling_rate=1.0,
            steps=1,
            generated=rows,
            cost=SquaredEuclidean(),
            generator=MLPConfig(image_shape=(1, 1, 1), classes=0),
        )
        built, grey = cls(terms), torch.zeros(rows, 1)

        def taught(present: bool) -> PartCritics:
            random = torch.Generator().manual_seed(0)
            critics = PartCritics(Sample(torch.ones(int(present), 1)), 1, 0, rows, random)
            for _ in range(20):
                critics.learn(grey, None)
            return critics

        critics = {present: taught(present) for present in (False, True)}

        def clipped(present: bool) -> Tensor:
            return built.clipped(critics[present], 0, grey, None).flatten()

        def release(present: bool, rate: float, noise: NoiseSource) -> Tensor:
            asked = bool(len(poisson_sample(int(present), rate, noise)))
            return built.released(critics[asked], 0, grey, None, noise).flatten()

        return WorstCase(built.mechanism, clipped, release)

    @classmethod
    def audit_settings(cls, records: int) -> dict[str, dict[str, Any]]:
        settings = super().audit_settings(records)
        settings["privacy"]["sampling_rate"] = 1 / 6
        settings["loss"]["iterations"] = 50  # so that a critic follows its records
        return settings

    def own_steps(self, learner: NetworkLearner, records: AllRecords, *, horizon: int) -> Steps:
        parts = parts_of(self.terms.sampling_rate)
        return CriticSteps(learner, records, self, parts, horizon=horizon)

    def gradient(
        self, critics: PartCritics, points: Tensor, labels: Tensor | None, learner: Learner
    ) -> Tensor:
        """Return the noised gradient of the mean score that one of the critics, drawn in secret, gives."""
        asked = _one_of(parts_of(self.terms.sampling_rate), learner.noise)
        return self.released(critics, asked, points, labels, learner.noise) / self.terms.generated

    def released(
        self, critics: PartCritics, part: int, points: Tensor, labels: Tensor | None, noise: NoiseSource
    ) -> Tensor:
        """Return the noised gradients of one critic in all images, (n, d), in float64."""
        announce(noise, points=points, labels=labels)
        return add_gaussian(
            self.clipped(critics, part, points, labels),
            sensitivity=self.mechanism.sensitivity,
            noise_multiplier=self.mechanism.noise_multiplier,
            noise=noise,
        )

    def clipped(self, critics: PartCritics, part: int, points: Tensor, labels: Tensor | None) -> Tensor:
        """Return what is noised, in float64. Private: for audits."""
        return clip_rows(critics.slopes(points, labels, slice(part, part + 1))[0], self.mechanism.clip)


def _one_of(count: int, noise: NoiseSource) -> int:
    """Draw a number from 0 to `count` - 1, each exactly as likely."""
    mask = (1 << (count - 1).bit_length()) - 1
    while True:
        drawn = int(noise.words(1)[0]) & mask
        if drawn < count:
            return drawn
