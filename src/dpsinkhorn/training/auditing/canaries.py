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
    """`count` images of random black and white pixels, each among the records of `data` with probability 1/2.

    Such images are far from all others and from each other, so that each has a gradient of the full clipped
    norm, in a direction of its own. They take the classes in turn. Whether one is in is decided by an exact
    fair coin of `noise`.
    """
    if data.groups is not None:
        raise AuditError("canaries are single records; audit data without groups")
    if count < 2:
        raise AuditError(f"expected at least 2 canaries, not {count}")
    shape = (count, *data.images.shape[1:])
    bits = np.zeros(int(np.prod(shape)), dtype=bool)
    bits[poisson_sample(len(bits), 0.5, noise).numpy()] = True
    low, high = data.value_range
    images = np.where(bits.reshape(shape), high, low).astype(data.images.dtype)
    included = np.zeros(count, dtype=bool)
    included[poisson_sample(count, 0.5, noise).numpy()] = True
    labels = None if data.labels is None else np.arange(count) % data.classes
    together = from_arrays(
        np.concatenate([data.images, images[included]]),
        None if labels is None or data.labels is None else np.concatenate([data.labels, labels[included]]),
        classes=data.classes or None,
        value_range=data.value_range,
        name=data.name,
    )
    every = from_arrays(images, value_range=data.value_range)
    return Canaries(every.points(), None if labels is None else torch.from_numpy(labels), included, together)
