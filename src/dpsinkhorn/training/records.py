"""The private records on the device, and Poisson samples of them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dpsinkhorn.data import Dataset, ShardedDataset, check_every_class
from dpsinkhorn.errors import TrainingError
from dpsinkhorn.mechanisms.shared.base import Sample
from dpsinkhorn.mechanisms.shared.class_counts import Labels
from dpsinkhorn.mechanisms.shared.clipping import grid_bits, on_grid, tidy
from dpsinkhorn.mechanisms.shared.steps import AllRecords, Drawn
from dpsinkhorn.mechanisms.shared.terms import Facts
from dpsinkhorn.privacy import poisson_sample
from dpsinkhorn.privacy.noise import NoiseSource

_AT_ONCE = 2**14  # records that are converted together
_LABELS = 2**20  # that are counted together
_NUMBERS = 2**22  # pixels that go through together when all records do
_FLOAT32_BITS = 23  # a grid as coarse as this is exact in float32


def facts_of(dataset: Dataset, *, records: int | None = None) -> Facts:
    """The public facts of a data set.

    With a declared number of `records` no size is read off the data: it stands for that of persons too, on
    which a warning about δ depends, and the size of groups in the self term, which then is one.

    Raises:
        DataError: A class that was not stated has no record.
    """
    check_every_class(dataset)
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
        classes_stated=dataset.classes_stated,
    )


@dataclass(frozen=True, eq=False)
class StoredRecords:
    """The private records sorted by class, on the device, one number per pixel.

    Attributes:
        points: ``(records, d)``.
        kinds: ``(records,)`` their classes; 0 where there are none.
        dtype: of what is read.
    """

    points: Tensor
    kinds: Tensor
    dtype: torch.dtype

    @property
    def count(self) -> int:
        return len(self.points)

    @property
    def dimension(self) -> int:
        """Pixels of each."""
        return self.points.shape[1]

    @property
    def device(self) -> torch.device:
        return self.points.device

    def read(self, rows: Tensor) -> Tensor:
        return self.points[rows].to(self.dtype)

    def drawn(self, indices: Tensor, steps: int) -> Drawn:
        """A Poisson sample of `steps` times all records, as so many samples one after the other."""
        rows = indices % self.count
        return Drawn(steps, indices.div(self.count, rounding_mode="floor"), rows, self.kinds[rows])


class Drawable(AllRecords, Protocol):
    """Records that steps can draw from."""

    def stored(self, classes: int, *, on_the_grid: bool) -> StoredRecords | None:
        """All of them, ready for steps in fixed shapes, where that can be."""
        ...


def has_room(records: int, pixels: int, size: int, device: torch.device) -> bool:
    """Whether all records, each number of `size` bytes, take no more than half of what is free on a GPU."""
    if device.type != "cuda":
        return True
    free, _ = torch.cuda.mem_get_info(device)
    return records * pixels * size <= free // 2


def at_a_time(image_shape: tuple[int, int, int]) -> int:
    """How many records go through together when all of them do."""
    return max(1, min(_AT_ONCE, _NUMBERS // math.prod(image_shape)))


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
        self._resident = self._hold() if device.type == "cuda" else None

    def draw(self, rate: float, noise: NoiseSource) -> Sample:
        """A Poisson sample of the units, each with probability `rate`: all records of those taken."""
        return self.sample_of(poisson_sample(self._units, rate, noise, device=self._device))

    def sample_of(self, units: Tensor) -> Sample:
        """All records of these units."""
        return self._sample(units if self._groups is None else self._rows_of(units))

    def stored(self, classes: int, *, on_the_grid: bool) -> StoredRecords | None:
        """All records ready for steps in fixed shapes; none where persons are sampled, or memory is short.

        Nor are there any where a label is none of the `classes`: the layout has no place for such a record.
        `on_the_grid` rounds them to the grid that `record` computes on.
        """
        if self._groups is not None or not self._units:
            return None
        kinds = torch.zeros(self._units, dtype=torch.int64, device=self._device)
        if classes:
            if self._labels is None or not bool(((self._labels >= 0) & (self._labels < classes)).all()):
                return None
            kinds = self._labels
        pixels = math.prod(self._dataset.image_shape)
        dtype = torch.float64 if on_the_grid and grid_bits(pixels) > _FLOAT32_BITS else torch.float32
        if not has_room(self._units, pixels, dtype.itemsize, self._device):
            return None
        order = torch.argsort(kinds, stable=True)
        points = torch.empty(self._units, pixels, dtype=dtype, device=self._device)
        for at in range(0, self._units, _AT_ONCE):
            some = self._points(order[at : at + _AT_ONCE])
            points[at : at + _AT_ONCE] = on_grid(some) if on_the_grid else tidy(some)
        return StoredRecords(points, kinds[order], torch.float64 if on_the_grid else dtype)

    def every(self) -> Iterator[Sample]:
        """All records, as many at a time as take little memory: in their order, or person by person."""
        many = at_a_time(self._dataset.image_shape)
        if self._groups is None:
            parts = torch.split(torch.arange(self._dataset.records, device=self._device), many)
        else:
            parts = torch.split(self._order, _whole_persons(self._counts, many))
        yield from map(self._sample, parts)

    def labels(self) -> Labels:
        """All labels and persons, for a release of class frequencies."""
        assert self._labels is not None
        return [(self._labels, self._groups)]

    def _sample(self, rows: Tensor) -> Sample:
        return Sample(
            points=self._points(rows),
            labels=None if self._labels is None else self._labels[rows],
            groups=None if self._groups is None else self._groups[rows],
        )

    def _rows_of(self, units: Tensor) -> Tensor:
        counts = self._counts[units]
        within = torch.arange(int(counts.sum()), device=self._device)
        within -= torch.repeat_interleave(counts.cumsum(0) - counts, counts)
        return self._order[torch.repeat_interleave(self._starts[units], counts) + within]

    def _points(self, rows: Tensor) -> Tensor:
        if self._resident is None:
            return self._dataset.points(rows.cpu().numpy()).to(self._device)
        return self._dataset.scale_(self._resident[rows].double()).float()

    def _hold(self) -> Tensor:
        images = self._dataset.images
        if images.dtype == np.uint16:  # few of torch's operations know it
            images = images.astype(np.int32)
        held = torch.tensor(np.ascontiguousarray(images), device=self._device)
        return held.permute(0, 3, 1, 2).reshape(len(held), -1).contiguous()


def _whole_persons(counts: Tensor, many: int) -> list[int]:
    """Lengths of parts of about `many` rows, or of one person; each person's rows are in one of them."""
    lengths = [0]
    for count in counts.tolist():
        if lengths[-1] and lengths[-1] + count > many:
            lengths.append(0)
        lengths[-1] += count
    return lengths


class StreamedRecords(Records):
    """Records in shards, read as steps ask for them: memory does not grow with their number."""

    def __init__(self, dataset: ShardedDataset, device: torch.device) -> None:
        self._dataset: ShardedDataset = dataset
        self._device, self._units = device, dataset.units

    def sample_of(self, units: Tensor) -> Sample:
        return self._read(self._dataset.rows_of(units.cpu().numpy()))

    def stored(self, classes: int, *, on_the_grid: bool) -> StoredRecords | None:  # noqa: ARG002
        return None

    def every(self) -> Iterator[Sample]:
        for rows in self._dataset.stretches(at_a_time(self._dataset.image_shape)):
            yield self._read(rows)

    def labels(self) -> Labels:
        for rows in self._dataset.stretches(_LABELS):
            labels = self._some(self._dataset.labels, rows)
            assert labels is not None
            yield labels, self._some(self._dataset.groups, rows)

    def _read(self, rows: slice | npt.NDArray[np.int64]) -> Sample:
        return Sample(
            self._dataset.points(rows).to(self._device),
            self._some(self._dataset.labels, rows),
            self._some(self._dataset.groups, rows),
        )

    def _some(
        self, values: npt.NDArray[np.int64] | None, rows: slice | npt.NDArray[np.int64]
    ) -> Tensor | None:
        return None if values is None else torch.from_numpy(values[rows]).to(self._device)


def records_of(dataset: Dataset, device: torch.device) -> Records:
    """The records of a data set, ready to be drawn from."""
    if isinstance(dataset, ShardedDataset):
        return StreamedRecords(dataset, device)
    return Records(dataset, device)
