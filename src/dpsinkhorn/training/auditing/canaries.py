"""Canaries: records or persons made up for an audit, each in the training data or not by a fair coin."""

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

_FLIPPED = 1 / 8  # of the pixels of a canary
_MOST = 10_000  # all are weighed against each other


@dataclass(frozen=True, eq=False)
class Canaries:
    """Made-up records, or persons, and which of them are in the data."""

    points: Tensor  # (records, d), as a step sees them, in [-1, 1]
    labels: Tensor | None  # (records,); None where there are no classes
    owners: Tensor  # (records,), the canary that each record belongs to: itself, or a person
    included: npt.NDArray[np.bool_]  # (m,) truth values, one for each canary
    data: Dataset  # the data set to train on: the records that were there, and those of the included canaries

    @property
    def records_of_each(self) -> int:
        """How many records a canary has."""
        return len(self.points) // len(self.included)


def plant_canaries(data: Dataset, count: int, noise: NoiseSource) -> Canaries:
    """`count` made-up records, each among the records of `data` with probability 1/2.

    A canary is a record of `data` with an eighth of its pixels, drawn at random, set to the other end of the
    range. So it has a gradient of the full clipped norm, and most of it in a direction of its own: an image
    that is unlike all others would have much in common with other such images, the direction from what is
    generated. Whether it is in is decided by an exact fair coin of `noise`.

    Where records name persons, a canary is a person with as many such records as persons have on average, all
    made from the same record of `data`.

    >>> from dpsinkhorn.privacy import SeededNoise
    >>> data = from_arrays(np.zeros((20, 4, 4), dtype=np.uint8))
    >>> planted = plant_canaries(data, 10, SeededNoise(0))
    >>> planted.points.shape, planted.data.records - 20 - int(planted.included.sum())
    (torch.Size([10, 16]), 0)
    """
    if not 2 <= count <= _MOST:
        raise AuditError(f"expected from 2 to {_MOST} canaries, not {count}")
    each = max(1, round(data.records / data.units))
    owners = np.repeat(np.arange(count), each)
    taken = owners * max(1, data.records // count) % data.records
    images = np.array(data.images[taken])
    low, high = data.value_range
    flipped = np.zeros(images.size, dtype=bool)
    flipped[poisson_sample(images.size, _FLIPPED, noise).numpy()] = True
    other_end = np.where(images.astype(float) > (low + high) / 2, low, high).astype(images.dtype)
    images = np.where(flipped.reshape(images.shape), other_end, images)
    included = np.zeros(count, dtype=bool)
    included[poisson_sample(count, 0.5, noise).numpy()] = True
    labels = None if data.labels is None else data.labels[taken]
    added = included[owners]
    together = from_arrays(
        np.concatenate([data.images, images[added]]),
        None if labels is None or data.labels is None else np.concatenate([data.labels, labels[added]]),
        groups=None if data.groups is None else np.concatenate([data.groups, data.units + owners[added]]),
        classes=data.classes or None,
        value_range=data.value_range,
        name=data.name,
    )
    return Canaries(
        from_arrays(images, value_range=data.value_range).points(),
        None if labels is None else torch.from_numpy(labels),
        torch.from_numpy(owners),
        included,
        together,
    )
