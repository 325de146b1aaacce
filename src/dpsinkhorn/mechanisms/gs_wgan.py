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

from dpsinkhorn.mechanisms.shared.clipping import clip_rows
from dpsinkhorn.mechanisms.shared.taught import PartCritics, TaughtMechanism
from dpsinkhorn.mechanisms.shared.terms import Terms
from dpsinkhorn.privacy import published_epsilon
from dpsinkhorn.privacy.charges import CriticMechanism
from dpsinkhorn.privacy.noise import NoiseSource


class SecretCritic(TaughtMechanism):
    """The noised gradient, in the generated images, of a critic that is drawn in secret."""

    name = "gs_wgan"
    summary = (
        "critics learn from disjoint parts of the records; one's gradient in each image is clipped and noised"
    )
    recipe = "gs-wgan"
    clips_rows = True
    learns_every = 10  # its rate is ten times the generator's

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
    def audit_settings(cls, records: int) -> dict[str, dict[str, Any]]:
        settings = super().audit_settings(records)
        settings["loss"]["iterations"] = 50  # so that a critic follows its records
        return settings

    def draw(self, points: Tensor, random: torch.Generator, noise: NoiseSource) -> int:  # noqa: ARG002
        """Draw the critic that is asked, in secret."""
        return _one_of(self.parts, noise)

    def clipped(self, critics: PartCritics, points: Tensor, labels: Tensor | None, drawn: int) -> Tensor:
        """Return the clipped gradients of one critic in all images, (n, d), in float64."""
        return clip_rows(critics.slopes(points, labels, slice(drawn, drawn + 1))[0], self.mechanism.clip)

    def followed(self, released: Tensor, drawn: int) -> Tensor:  # noqa: ARG002
        """Return the gradient of the mean score, noised."""
        return released / self.terms.generated


def _one_of(count: int, noise: NoiseSource) -> int:
    """Draw a number from 0 to `count` - 1, each exactly as likely."""
    mask = (1 << (count - 1).bit_length()) - 1
    while True:
        drawn = int(noise.words(1)[0]) & mask
        if drawn < count:
            return drawn
