"""Mechanism `batch`: the gradient matrix of a step is clipped as a whole. DP-Sinkhorn, first version.

Claim: docs/proofs/batch-sensitivity.md.
"""

from __future__ import annotations

from torch import Tensor

from dpsinkhorn.mechanisms.shared.clipping import clip_whole
from dpsinkhorn.mechanisms.shared.sinkhorn import NoisedRows
from dpsinkhorn.mechanisms.shared.terms import Terms
from dpsinkhorn.privacy.charges import BatchMechanism


class Batch(NoisedRows):
    """The n x d gradient of the cross rows is clipped as a whole to Δ; noise 2Δσ (Algorithm 1).

    >>> import torch
    >>> from torch import nn
    >>> from dpsinkhorn.mechanisms.shared.base import Sample
    >>> from dpsinkhorn.mechanisms.shared.terms import LossSettings, one_pixel
    >>> from dpsinkhorn.privacy import SeededNoise
    >>> mechanism = Batch(one_pixel(1.1, loss=LossSettings(debias=0.5)))
    >>> images = nn.Parameter(torch.rand(6, 1))  # n = 4, n' = 2
    >>> mechanism.backward(images * 1, None, Sample(torch.rand(5, 1)), [images], SeededNoise(0))
    >>> images.grad.shape
    torch.Size([6, 1])
    """

    name = "batch"
    summary = "the gradient of a step is clipped as a whole, and noise is added to it"
    recipe = "paper-first-mnist"

    @classmethod
    def releases(cls, terms: Terms) -> BatchMechanism:
        return BatchMechanism(terms.clip, terms.noise_multiplier)

    def _clip(self, rows: Tensor) -> Tensor:
        return clip_whole(rows, self.mechanism.clip)
