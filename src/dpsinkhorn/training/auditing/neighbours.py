"""Neighbours of a data set: the same records, and one unit more that is the worst of its kind."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from dpsinkhorn.data import Dataset
from dpsinkhorn.training.auditing.replay import Neighbour

Images: TypeAlias = npt.NDArray[Any]

_MANY = 40  # records of one person
_MOST_CLASSES = 10  # that are tried in turn


def first_units(data: Dataset, records: int) -> Dataset:
    """The first records, about so many, of whole persons, and not the last: in float32, which holds any.

    With a record that was left out they are a neighbour too.
    """
    groups = data.groups
    if groups is None:
        return some_rows(data, np.arange(min(records, data.records - 1)))
    order = np.argsort(groups, kind="stable")
    persons = groups[order][min(records, data.records - 1)]
    return some_rows(data, np.flatnonzero(groups < persons))


def neighbours_by_class(data: Dataset) -> Iterator[Neighbour]:
    """A white record of each class in turn, and of none."""
    white = _kinds(data)["white"]
    for label in (*range(min(data.classes, _MOST_CLASSES)), -1, data.classes):
        words = f"class {label}" if 0 <= label < data.classes else f"the label {label}, which is no class"
        yield _one_more(data, f"a white record of {words}", white, [label])


def worst_neighbours(data: Dataset, original: Dataset) -> Iterator[Neighbour]:
    """Records, and persons where the data name them, that are far from all others, or like them.

    `original` are the data that the first units were taken of.
    """
    labels = [0] if data.labels is None else data.labels[:1].tolist()
    for name, images in _kinds(data).items():
        yield _one_more(data, f"a record more: {name}", images, labels)
    if data.labels is not None:
        yield from neighbours_by_class(data)
    units = np.arange(original.records) if original.groups is None else original.groups
    last = some_rows(original, np.flatnonzero(units == data.units))
    found = [] if last.labels is None else last.labels.tolist()
    yield _one_more(data, "a unit of the data that had been left out", last.images, found)
    if data.groups is None:
        return
    every = np.arange(_MANY) % max(1, data.classes)
    for name in ("white", "black", "the negative of a record", "a pixel that is no number"):
        images = np.repeat(_kinds(data)[name], _MANY, axis=0)
        yield _one_more(data, f"a person with {_MANY} records: {name}", images, every.tolist())
        alike = [labels[0]] * _MANY
        yield _one_more(data, f"a person with {_MANY} records of one class: {name}", images, alike)


def some_rows(data: Dataset, rows: npt.NDArray[np.int64]) -> Dataset:
    return replace(
        data,
        images=np.asarray(data.images[rows], dtype=np.float32),
        labels=None if data.labels is None else data.labels[rows],
        groups=None if data.groups is None else data.groups[rows],
    )


def _kinds(data: Dataset) -> dict[str, Images]:
    """Images that are far from all others, or like one of them, or that no reader should let through."""
    low, high = data.value_range
    first = data.images[:1]
    board = np.indices(first.shape[1:3]).sum(0) % 2
    random = np.random.default_rng(0).random(first.shape)
    one = np.full_like(first, low)
    one[:, 0, 0] = high
    found = {
        "white": np.full_like(first, high),
        "black": np.full_like(first, low),
        "grey": np.full_like(first, (low + high) / 2),
        "a chequerboard": low + (high - low) * np.broadcast_to(board[None, :, :, None], first.shape),
        "random pixels": low + (high - low) * random,
        "black but for one pixel": one,
        "the negative of a record": low + high - first,
        "a copy of a record": first,
        "pixels far beyond their range": np.full_like(first, 1e30),
        "infinite pixels": np.full_like(first, -np.inf),
        "a pixel that is no number": np.where(one == high, np.nan, first),
    }
    return {name: np.asarray(images, dtype=np.float32) for name, images in found.items()}


def _one_more(data: Dataset, name: str, images: Images, labels: list[int]) -> Neighbour:
    """The data and one unit more, with these records: whatever they are, nothing checks them here."""
    return Neighbour(name, partial(joined, data, images, labels))


def joined(data: Dataset, images: Images, labels: list[int]) -> Dataset:
    """Return the data and one unit more behind them."""
    person = np.full(len(images), data.units)
    return replace(
        data,
        images=np.concatenate([data.images, images]),
        labels=None if data.labels is None else np.concatenate([data.labels, np.array(labels)]),
        groups=None if data.groups is None else np.concatenate([data.groups, person]),
    )
