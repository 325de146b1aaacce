"""Mechanism `g_pate`: teachers on disjoint parts of the records vote on where an image's gradient lies.

From Y. Long, B. Wang, Z. Yang, B. Kailkhura, A. Zhang, C. Gunter, B. Li, "G-PATE: Scalable Differentially
Private Data Generator via Private Aggregation of Teacher Discriminators", 2021. Each generated image's
gradient is projected on a few random directions. Along each of them a teacher votes for one of ten bins; the
bin of the most votes is taken, by noised counts, if the most votes, noised too, are half of all. The other
directions teach nothing: docs/proofs/g-pate.md.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from dpsinkhorn.mechanisms.shared.steps import Sample
from dpsinkhorn.mechanisms.shared.taught import PartCritics, TaughtMechanism, part_of
from dpsinkhorn.mechanisms.shared.terms import Terms
from dpsinkhorn.privacy.charges import VoteMechanism
from dpsinkhorn.privacy.noise import NoiseSource

_DIRECTIONS = 10  # k, of an image, as published
_BINS = 10  # of a direction, as published
_AGREED = 0.5  # of the teachers, for a direction to teach anything, as published
_CHECK = 6  # noise on the most votes is as much times that on counts: 600 and 100 are published for ε = 10


class Ballots(TaughtMechanism):
    """Noised counts of teachers' votes on the bins that projected gradients lie in, and the most votes.

    Args:
        terms: public numbers; bins divide the range from -`clip` to `clip`, and the outer ones go on.
    """

    name = "g_pate"
    summary = "teachers on disjoint parts of the records vote on bins of projected gradients, with noise"
    recipe = "g-pate"
    count_scale = _CHECK
    """What a vote counts in a count, where it counts 1 in the most votes."""

    @classmethod
    def releases(cls, terms: Terms) -> VoteMechanism:
        # a vote that goes from a bin to another moves both counts, and the most votes, by 1
        square = _DIRECTIONS * (2 * _CHECK**2 + 1)
        return VoteMechanism(square, terms.noise_multiplier, rows=terms.generated)

    @classmethod
    def worst_records(cls) -> tuple[Tensor, int]:
        """Return two white records, nearly, of different teachers: the most votes are 1 of 2, or 2."""
        shades = torch.linspace(0.9, 1.0, 50)[:, None]
        parts = part_of(Sample(shades), 2)
        return torch.cat([shades[parts == part][-1:] for part in (0, 1)]), 2

    @classmethod
    def audit_settings(cls, records: int) -> dict[str, dict[str, Any]]:
        settings = super().audit_settings(records)
        settings["privacy"]["clip"] = 0.01
        return settings

    def draw(self, points: Tensor, random: torch.Generator, noise: NoiseSource) -> Tensor:  # noqa: ARG002
        """Draw directions, (n, d, k), that keep an image's squared length on average."""
        shape = (*points.shape, _DIRECTIONS)
        return torch.randn(shape, generator=random, device=points.device) / math.sqrt(_DIRECTIONS)

    def clipped(self, critics: PartCritics, points: Tensor, labels: Tensor | None, drawn: Tensor) -> Tensor:
        """Return counts in parts of a vote, and the most votes, (n, k, bins + 1): whole numbers."""
        counts = self.votes(critics, points, labels, drawn).sum(0, dtype=torch.float64)
        return torch.cat([_CHECK * counts, counts.amax(2, keepdim=True)], dim=2)

    def votes(self, critics: PartCritics, points: Tensor, labels: Tensor | None, drawn: Tensor) -> Tensor:
        """Return each teacher's votes, (teachers, n, k, bins): 1 for one bin, 0 for the others."""
        slopes = critics.slopes(points, labels).transpose(0, 1)  # (n, teachers, d)
        along = torch.bmm(slopes, drawn).transpose(0, 1)
        parts = torch.nan_to_num(along / self.terms.clip, nan=-1.0).clamp_(-1, 1)  # no number: the first
        bins = ((parts + 1) * (_BINS / 2)).long().clamp_(max=_BINS - 1)
        votes = torch.zeros(*bins.shape, _BINS, device=bins.device)
        return votes.scatter_(3, bins[..., None], 1.0)

    def followed(self, released: Tensor, drawn: Tensor) -> Tensor:
        """Return the middles of the bins of most votes, where enough teachers agree, as an image each."""
        counts, most = released[..., :-1], released[..., -1]
        middles = (counts.argmax(2) + 0.5) * (2 / _BINS) - 1
        along = torch.where(most > _AGREED * self.parts, middles, 0.0) * self.terms.clip
        return torch.bmm(drawn, along.to(drawn)[..., None]).squeeze(2)
