"""The private records on the device, and Poisson samples of them."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from dpsinkhorn.data import Dataset
from dpsinkhorn.privacy import poisson_sample
from dpsinkhorn.privacy.noise import NoiseSource
from dpsinkhorn.training.errors import TrainingError
from dpsinkhorn.training.plan import Facts
from dpsinkhorn.training.sanitizers import Sample

__all__ = ["Records", "facts_of"]


def facts_of(dataset: Dataset, *, records: int | None = None) -> Facts:
    """The public facts of a data set.

    With a declared number of `records` no size is read off the data: it stands for that of persons too, on
    which a warning about δ depends, and the size of groups in the self term, which then is one.
    """
    grouped = dataset.groups is not None
    if records is not None and records < 1:
        raise TrainingError(f"a declared number of records is 1 or more, not {records}")
    return Facts(
        dataset.image_shape,
        dataset.classes,
        records=dataset.records if records is None else records,
        units=dataset.units if records is None else records,
        grouped=grouped,
        size_is_public=records is None,
    )


class Records:
    """A data set from which steps draw. On a GPU all of it is held there, in the type of its file."""

    def __init__(self, dataset: Dataset, device: torch.device) -> None:
        self._dataset = dataset
        self._device = device
        self._units = dataset.units
        self._labels = None if dataset.labels is None else torch.tensor(dataset.labels, device=device)
        self._groups: Tensor | None = None
        if dataset.groups is not None:
            # the records of a person lie together in `_order`, from `_starts` on
            self._groups = torch.tensor(dataset.groups, device=device)
            self._order = torch.argsort(self._groups, stable=True)
            counts = torch.bincount(self._groups, minlength=self._units)
            self._counts, self._starts = counts, counts.cumsum(0) - counts
        self._held = self._hold() if device.type == "cuda" else None

    def draw(self, rate: float, noise: NoiseSource) -> Sample:
        """A Poisson sample of the units, each with probability `rate`: all records of those taken."""
        units = poisson_sample(self._units, rate, noise, device=self._device)
        rows = units if self._groups is None else self._rows_of(units)
        return Sample(
            points=self._points(rows),
            labels=None if self._labels is None else self._labels[rows],
            groups=None if self._groups is None else self._groups[rows],
        )

    def labels(self) -> tuple[Tensor | None, Tensor | None]:
        """All labels and groups, for a release of class frequencies."""
        return self._labels, self._groups

    def _rows_of(self, units: Tensor) -> Tensor:
        counts = self._counts[units]
        within = torch.arange(int(counts.sum()), device=self._device)
        within -= torch.repeat_interleave(counts.cumsum(0) - counts, counts)
        return self._order[torch.repeat_interleave(self._starts[units], counts) + within]

    def _points(self, rows: Tensor) -> Tensor:
        if self._held is None:
            return self._dataset.points(rows.cpu().numpy()).to(self._device)
        low, high = self._dataset.value_range  # as `Dataset.points` does it
        scaled = self._held[rows].double().mul_(2).sub_(low + high).div_(high - low)
        return scaled.clamp_(-1, 1).float()

    def _hold(self) -> Tensor:
        images = self._dataset.images
        if images.dtype == np.uint16:  # few of torch's operations know it
            images = images.astype(np.int32)
        held = torch.tensor(np.ascontiguousarray(images), device=self._device)
        return held.permute(0, 3, 1, 2).reshape(len(held), -1).contiguous()
