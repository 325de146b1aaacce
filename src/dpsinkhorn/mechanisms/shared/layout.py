"""Generated images and records sorted by class, and cut into tiles of one class each.

A record meets generated images of its own class only. Tiles of a fixed length turn that into batched
products of regular shape, whatever the class counts are, with at most one tile per class not full.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Sorted:
    """Rows by class: ``order`` lists them class after class, ``counts`` says how many each class has.

    Rows whose label is no class are in none.
    """

    order: Tensor
    counts: list[int]

    @property
    def starts(self) -> list[int]:
        return [0, *itertools.accumulate(self.counts)][:-1]


def sort_by_class(
    labels: list[Tensor | None], sizes: list[int], classes: int, device: torch.device
) -> list[Sorted]:
    """Each set of labels sorted; one transfer from the device brings all the counts."""
    if not classes:
        return [Sorted(torch.arange(size, device=device), [size]) for size in sizes]
    every = torch.arange(classes, device=device).unsqueeze(1)
    orders, counts = [], []
    for label in labels:
        assert label is not None
        known = torch.where((label >= 0) & (label < classes), label, classes)
        orders.append(torch.argsort(known, stable=True))
        counts.append((known == every).sum(1))
    return [Sorted(order, count) for order, count in zip(orders, torch.stack(counts).tolist(), strict=True)]


@dataclass(frozen=True, eq=False)
class Generated:
    """Generated images, as they come and by class, the latter padded to the largest class.

    Attributes:
        points: ``(n, d)``.
        labels: ``(n,)``, or ``None``.
        tiled: ``(classes, rows, d)``.
        filled: ``(classes, rows, 1)``, whether there is an image.
        places: ``(n,)``, where each image is among ``classes * rows``.
    """

    points: Tensor
    labels: Tensor | None
    tiled: Tensor
    filled: Tensor
    places: Tensor


@dataclass(frozen=True, eq=False)
class Arrangement:
    """Where generated images of given labels go: the part of `Generated` that the images do not change.

    Attributes:
        labels: ``(n,)``, or ``None``.
        rows: ``(classes, rows)``, which image.
        filled: ``(classes, rows, 1)``, whether there is one.
        places: ``(n,)``, where each image is among ``classes * rows``.
    """

    labels: Tensor | None
    rows: Tensor
    filled: Tensor
    places: Tensor

    def place(self, points: Tensor) -> Generated:
        """Images ``(n, d)`` by class."""
        return Generated(points, self.labels, points[self.rows], self.filled, self.places)


def arrange(labels: Tensor | None, count: int, by_class: Sorted) -> Arrangement:
    """Where ``count`` generated images go."""
    counts, device = by_class.counts, by_class.order.device
    if sum(counts) != count:
        raise ValueError(f"labels: expected generated labels from 0 to {len(counts) - 1}")
    if len(counts) == 1:
        filled = torch.ones(1, count, 1, dtype=torch.bool, device=device)
        return Arrangement(labels, by_class.order[None], filled, by_class.order)
    width = max(counts)
    step = torch.arange(width, device=device)
    table = torch.tensor([by_class.starts, counts], device=device).unsqueeze(-1)
    rows = by_class.order[(table[0] + step).clamp_(max=count - 1)]  # (classes, width)
    filled = (step < table[1]).unsqueeze(-1)
    places = torch.empty_like(by_class.order)
    places[by_class.order] = torch.cat(
        [torch.arange(k * width, k * width + number) for k, number in enumerate(counts)]
    ).to(device)
    return Arrangement(labels, rows, filled, places)


@dataclass(frozen=True, eq=False)
class Tiles:
    """Some tiles of records, each of one class.

    Attributes:
        classes: ``(tiles,)``, the class of each.
        rows: ``(tiles, length)``, rows of the sample.
        filled: ``(tiles, 1, length)``, whether there is a record.
    """

    classes: Tensor
    rows: Tensor
    filled: Tensor


def cut(by_class: Sorted, length: int, at_most: int) -> Iterator[Tiles]:
    """All records in tiles of ``length``, ``at_most`` tiles at a time."""
    table = [
        (k, start + at, count - at)
        for k, (start, count) in enumerate(zip(by_class.starts, by_class.counts, strict=True))
        for at in range(0, count, length)
    ]
    device, last = by_class.order.device, len(by_class.order) - 1
    step = torch.arange(length, device=device)
    for at in range(0, len(table), at_most):
        columns = torch.tensor(table[at : at + at_most], device=device).T
        rows = by_class.order[(columns[1].unsqueeze(-1) + step).clamp_(max=last)]
        yield Tiles(columns[0], rows, (step < columns[2].unsqueeze(-1)).unsqueeze(-2))
