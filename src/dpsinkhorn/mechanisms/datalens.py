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

from dpsinkhorn.mechanisms.shared.taught import PartCritics, TaughtMechanism
from dpsinkhorn.mechanisms.shared.terms import Terms
from dpsinkhorn.privacy.charges import VoteMechanism
from dpsinkhorn.privacy.noise import NoiseSource

_AGREED = 0.7  # of the teachers, for an entry to be moved, as published
_CERTAIN = 0.1  # by their sign go entries of so many times 1/√d, their size in an even gradient of length 1


class Votes(TaughtMechanism):
    """Noised sums of teachers' votes on the signs of the gradients in generated images.

    Args:
        terms: public numbers; `clip` is k, how many entries of an image a teacher votes on: on all of them
            where an image has fewer.
    """

    name = "datalens"
    summary = "teachers on disjoint parts of the records vote on signs of each image's gradient, with noise"
    recipe = "datalens"
    worst_clip = 1.0

    @classmethod
    def releases(cls, terms: Terms) -> VoteMechanism:
        # all signs of a row may turn round, by 2 each
        return VoteMechanism(4 * _entries(terms), terms.noise_multiplier, rows=terms.generated)

    @classmethod
    def check(cls, terms: Terms) -> None:
        super().check(terms)
        if terms.clip != int(terms.clip):
            raise ValueError(
                "privacy.clip is how many entries of an image teachers vote on: a whole number, not "
                f"{terms.clip:g}"
            )

    @classmethod
    def audit_settings(cls, records: int) -> dict[str, dict[str, Any]]:
        settings = super().audit_settings(records)
        settings["privacy"]["clip"] = 4.0
        return settings

    def draw(self, points: Tensor, random: torch.Generator, noise: NoiseSource) -> Tensor:  # noqa: ARG002
        """Draw what votes are drawn by, (teachers, n, d), uniform on [0, 1)."""
        return torch.rand((self.parts, *points.shape), generator=random, device=points.device)

    def clipped(self, critics: PartCritics, points: Tensor, labels: Tensor | None, drawn: Tensor) -> Tensor:
        """Return the sum of votes, (n, d), whole numbers in float64."""
        return self.votes(critics, points, labels, drawn).sum(0, dtype=torch.float64)

    def votes(self, critics: PartCritics, points: Tensor, labels: Tensor | None, drawn: Tensor) -> Tensor:
        """Return each teacher's votes, (teachers, n, d): -1 or 1 on k entries of each image, 0 elsewhere.

        An entry g is voted up where what was drawn is below (1 + g/b)/2. b is the largest of its image's, or
        a public number where that is less.
        """
        slopes = critics.slopes(points, labels)  # (teachers, n, d)
        sizes = torch.nan_to_num(slopes.abs(), nan=0.0)
        largest, places = sizes.topk(_entries(self.terms), dim=2, sorted=False)
        most = largest.amax(2, keepdim=True).clamp_(max=_CERTAIN / self.terms.facts.pixels**0.5)
        shares = slopes.gather(2, places) / most
        signs = torch.where(drawn.gather(2, places) < (1 + shares) / 2, 1.0, -1.0)  # no number: down
        return torch.zeros_like(slopes).scatter_(2, places, signs)

    def followed(self, released: Tensor, drawn: Tensor) -> Tensor:  # noqa: ARG002
        """Return the signs on which enough teachers agree, with noise, and 0 elsewhere."""
        return released.sign() * (released.abs() > _AGREED * self.parts)


def _entries(terms: Terms) -> int:
    """Return on how many entries of an image a teacher votes."""
    return min(int(terms.clip), terms.facts.pixels)
