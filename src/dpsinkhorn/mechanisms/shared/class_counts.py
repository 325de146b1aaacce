"""Private release of how frequent each class is, for data that are not balanced."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TypeAlias

import torch
from torch import Tensor

from dpsinkhorn.mechanisms.shared.clipping import clip_rows
from dpsinkhorn.privacy.charges import GaussianMechanism
from dpsinkhorn.privacy.noise import NoiseSource, add_gaussian
from dpsinkhorn.ranks import over_ranks

Labels: TypeAlias = "Iterable[tuple[Tensor, Tensor | None]]"
"""Labels of some records at a time, and the persons behind them, all records of each person together."""

# Clipped counts keep this many binary digits, so that float64 adds them exactly, for up to 2^30 units.
_DIGITS = 22


def release_label_frequencies(
    labels: Labels, classes: int, mechanism: GaussianMechanism, noise: NoiseSource
) -> tuple[float, ...]:
    """Label frequencies of the whole data set, adding up to 1, under differential privacy.

    A unit of privacy adds its label counts, clipped to ``mechanism.sensitivity`` in Euclidean norm: 1 is
    enough where every record is a unit, and lets a person count once. Labels that are no class
    are not counted. Clamping at 0 and scaling come after the noise.

    >>> from dpsinkhorn.privacy import SeededNoise
    >>> labels = [(torch.tensor([0] * 3000 + [1] * 1000), None)]
    >>> mechanism = GaussianMechanism(sensitivity=1.0, noise_multiplier=2.0)
    >>> released = release_label_frequencies(labels, 2, mechanism, SeededNoise(0))
    >>> [round(p, 2) for p in released]
    [0.75, 0.25]
    """
    if classes < 1:
        raise ValueError(f"classes: expected at least 1, got {classes}")
    counts = clipped_counts(labels, classes, mechanism.sensitivity)
    noised = add_gaussian(
        counts, sensitivity=mechanism.sensitivity, noise_multiplier=mechanism.noise_multiplier, noise=noise
    )
    positive = noised.cpu().clamp(min=0)  # on all devices the same bits from here on
    total = float(positive.sum())
    shares = positive / total if total > 0 else torch.full_like(positive, 1 / classes)
    return tuple(shares.tolist())


@over_ranks
def clipped_counts(labels: Labels, classes: int, bound: float) -> Tensor:
    """Sum over units of their label counts, each clipped to ``bound``: ``(classes,)``, exact in float64."""
    counts = [_clipped_counts(part, classes, bound, groups) for part, groups in labels]
    return torch.stack(counts).sum(0)


def _clipped_counts(labels: Tensor, classes: int, bound: float, groups: Tensor | None) -> Tensor:
    known = torch.where((labels >= 0) & (labels < classes), labels, classes).long()
    if groups is None:
        unit = _down(clip_rows(torch.ones(1, 1, device=labels.device), bound), bound)
        return torch.bincount(known, minlength=classes + 1)[:classes] * unit.squeeze()
    _, persons = torch.unique(groups, return_inverse=True)
    keys, counts = torch.unique(persons * (classes + 1) + known, return_counts=True)
    person, label = keys // (classes + 1), keys % (classes + 1)
    values = counts.double() * (label < classes)
    norms = torch.zeros(int(persons.max()) + 1 if len(persons) else 0, dtype=torch.float64)
    norms = norms.to(labels.device).index_add_(0, person, values.square()).sqrt_()
    clipped = _down(values * ((bound * (1 - 2.0**-40)) / norms[person]).clamp(max=1.0), bound)
    return torch.zeros(classes + 1, dtype=torch.float64, device=labels.device).index_add_(0, label, clipped)[
        :classes
    ]


def _down(values: Tensor, bound: float) -> Tensor:
    """Rounded towards 0 to multiples of a power of two: no norm grows, and sums of them are exact."""
    step = 2.0 ** (math.frexp(bound)[1] - _DIGITS)
    return (values / step).floor() * step
