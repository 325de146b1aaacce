"""Mechanism `gs_wgan`: critics on disjoint parts of the records; each step asks one of them, drawn in secret.

From D. Chen, T. Orekondy, M. Fritz, "GS-WGAN: A Gradient-Sanitized Approach for Learning Differentially
Private Generators", 2020. The gradient of one critic in the generated images is clipped image by image, and
noised. What differs from the paper so that the secret draw can be counted on, and why the published ε is no
guarantee: docs/proofs/gs-wgan.md.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from dpsinkhorn.mechanisms.shared.base import TRANSPORT, TrainingMechanism, WorstCase
from dpsinkhorn.mechanisms.shared.clipping import clip_rows
from dpsinkhorn.mechanisms.shared.part_critics import CriticSteps, PartCritics, worst_case
from dpsinkhorn.mechanisms.shared.steps import AllRecords, Learner, NetworkLearner, Steps
from dpsinkhorn.mechanisms.shared.terms import Terms, one_pixel
from dpsinkhorn.privacy import published_epsilon
from dpsinkhorn.privacy.mechanisms import CriticMechanism, parts_of
from dpsinkhorn.privacy.noise import NoiseSource, announce


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
    unused_settings = TRANSPORT | {"flow"}

    mechanism: CriticMechanism

    @classmethod
    def releases(cls, terms: Terms) -> CriticMechanism:
        return CriticMechanism(terms.clip, terms.noise_multiplier, rows=terms.generated)

    @classmethod
    def release_of_size(cls, noise_multiplier: float, rows: int = 1) -> CriticMechanism:
        return CriticMechanism(1.0, noise_multiplier, rows)

    @classmethod
    def published_epsilon(cls, terms: Terms, delta: float) -> float:
        return published_epsilon(cls.releases(terms), terms.sampling_rate, terms.steps, delta)

    @classmethod
    def worst_case(cls, noise_multiplier: float, rows: int = 4) -> WorstCase:
        """A critic that is asked for its gradients in grey images."""
        built = cls(one_pixel(noise_multiplier, rows))

        def clipped(critics: PartCritics, grey: Tensor) -> Tensor:
            return built.clipped(critics, 0, grey, None)

        def release(critics: PartCritics, grey: Tensor, noise: NoiseSource) -> Tensor:
            return built.released(critics, 0, grey, None, noise)

        return worst_case(built, rows, clipped, release)

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
        return self.noised(self.clipped(critics, part, points, labels), noise)

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
