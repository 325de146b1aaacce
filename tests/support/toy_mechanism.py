"""A mechanism of somebody's own, all of it. The contract suite takes it like ours."""

from __future__ import annotations

import torch

from dpsinkhorn.mechanisms import register
from dpsinkhorn.mechanisms.shared.base import GradientMechanism
from dpsinkhorn.mechanisms.shared.clipping import clip_whole, on_grid
from dpsinkhorn.privacy import RecordMechanism


@register
class Pull(GradientMechanism):
    """Every record pulls the generated images of its class towards itself."""

    name = "pull"
    summary = "each record's pull on the images of its class is clipped, and noise is added to the sum"
    recipe = "digits"
    takes_persons = False

    @classmethod
    def releases(cls, terms):
        return RecordMechanism(terms.clip, terms.noise_multiplier)

    def resampled(self, generated):  # noqa: ARG002
        return 0

    def clipped(self, points, labels, sample):
        x, records = on_grid(points), on_grid(sample.points)
        total = torch.zeros_like(x)
        for row, record in enumerate(records):
            mine = torch.ones(len(x), 1) if labels is None else (labels == sample.labels[row]).unsqueeze(1)
            pull = clip_whole((x - record) * mine, self.mechanism.clip)
            total += (pull * 2.0**32).trunc() * 2.0**-32  # so coarse that the sum of many is exact
        return total

    def gradient(self, points, labels, sample, noise):
        return self.noised(self.clipped(points, labels, sample), noise) / self.terms.expected_batch
