"""Canaries: records made up for an audit, each put into the training data or not by a fair coin."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dpsinkhorn.data import Dataset, from_arrays
from dpsinkhorn.privacy import poisson_sample
from dpsinkhorn.privacy.audit import AuditError
from dpsinkhorn.privacy.noise import NoiseSource

__all__ = ["Canaries", "plant_canaries"]

_FLIPPED = 1 / 8  # of the pixels of a canary
_MOST = 100_000


@dataclass(frozen=True, eq=False)
class Canaries:
    """Made-up records, and which of them are in the data.

    Attributes:
        points: ``(m, d)``, as a step sees them, in [-1, 1].
        labels: ``(m,)``; ``None`` where there are no classes.
        included: ``(m,)`` truth values.
        data: the data set to train on: the records that were there, and the included canaries.
    """

    points: Tensor
    labels: Tensor | None
    included: npt.NDArray[np.bool_]
    data: Dataset


def plant_canaries(data: Dataset, count: int, noise: NoiseSource) -> Canaries:
    """`count` made-up records, each among the records of `data` with probability 1/2.

    A canary is a record of `data` with an eighth of its pixels, drawn at random, set to the other end of the
    range. So it has a gradient of the full clipped norm, and most of it in a direction of its own: an image
    that is unlike all others would have much in common with other such images, the direction from what is
    generated. Whether it is in is decided by an exact fair coin of `noise`.

    >>> from dpsinkhorn.privacy import SeededNoise
    >>> data = from_arrays(np.zeros((20, 4, 4), dtype=np.uint8))
    >>> planted = plant_canaries(data, 10, SeededNoise(0))
    >>> planted.points.shape, planted.data.records - 20 - int(planted.included.sum())
    (torch.Size([10, 16]), 0)
    """
    if data.groups is not None:
        raise AuditError("canaries are single records; audit data without groups")
    if not 2 <= count <= _MOST:
        raise AuditError(f"expected from 2 to {_MOST} canaries, not {count}")
    taken = np.arange(count) * max(1, data.records // count) % data.records
    images = np.array(data.images[taken])
    low, high = data.value_range
    flipped = np.zeros(images.size, dtype=bool)
    flipped[poisson_sample(images.size, _FLIPPED, noise).numpy()] = True
    other_end = np.where(images.astype(float) > (low + high) / 2, low, high).astype(images.dtype)
    images = np.where(flipped.reshape(images.shape), other_end, images)
    included = np.zeros(count, dtype=bool)
    included[poisson_sample(count, 0.5, noise).numpy()] = True
    labels = None if data.labels is None else data.labels[taken]
    together = from_arrays(
        np.concatenate([data.images, images[included]]),
        None if labels is None or data.labels is None else np.concatenate([data.labels, labels[included]]),
        classes=data.classes or None,
        value_range=data.value_range,
        name=data.name,
    )
    points = from_arrays(images, value_range=data.value_range).points()
    return Canaries(points, None if labels is None else torch.from_numpy(labels), included, together)
