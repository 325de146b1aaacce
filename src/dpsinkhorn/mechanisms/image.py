"""Mechanism `image`: each row of the gradient of a step is clipped by itself. DP-Sinkhorn, final version.

Claims: docs/proofs/image-sensitivity.md, and image-published-epsilon.md on why the published ε is none.
"""

from __future__ import annotations

from torch import Tensor

from dpsinkhorn.mechanisms.shared.base import Sample
from dpsinkhorn.mechanisms.shared.clipping import clip_rows
from dpsinkhorn.mechanisms.shared.sinkhorn import FixedRows, NoisedRows
from dpsinkhorn.mechanisms.shared.steps import Setting
from dpsinkhorn.mechanisms.shared.terms import Terms
from dpsinkhorn.ot.divergence import split_generated
from dpsinkhorn.privacy import published_epsilon
from dpsinkhorn.privacy.charges import ImageMechanism


class Image(NoisedRows):
    """Each row of the gradient is clipped to Δ on its own; noise 2Δσ. One event of multiplier σ/√n."""

    name = "image"
    summary = "the gradient of each generated image is clipped on its own, and noise is added to it"
    recipe = "paper-final-mnist"
    clips_rows = True

    @classmethod
    def releases(cls, terms: Terms) -> ImageMechanism:
        return ImageMechanism(terms.clip, terms.noise_multiplier, rows=terms.generated)

    @classmethod
    def published_epsilon(cls, terms: Terms, delta: float) -> float:
        return published_epsilon(cls.releases(terms), terms.sampling_rate, terms.steps, delta)

    def _gradient(self, points: Tensor, labels: Tensor | None, sample: Sample) -> Tensor:
        n, _ = split_generated(len(points), self.loss.debias)
        if n != self.mechanism.rows:
            raise ValueError(f"points: the mechanism is for {self.mechanism.rows} generated images, not {n}")
        return super()._gradient(points, labels, sample)

    def fixed(self, setting: Setting) -> FixedRows | None:
        return super().fixed(setting) if setting.generated == self.mechanism.rows else None

    def _clip(self, rows: Tensor) -> Tensor:
        return clip_rows(rows, self.mechanism.clip)

    def _clip_apart(self, gradient: Tensor, n: int) -> tuple[Tensor, Tensor]:
        clipped = self._clip(gradient)  # of each row by itself
        return clipped[:n], clipped[n:]
