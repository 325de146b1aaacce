"""Sums of clipped shares: what `record` releases, before the noise.

Matrix products over tiles of records: no share is ever formed. The sum is bounded *as computed*, which rests
on costs that are free of rounding: points are first rounded to a public grid, so coarse that every product
and every sum in a cost is a whole multiple of the grid below 2^53. So the cost of a pair is the same bits
whatever else is in the batch, and in whatever order a product adds: docs/proofs/record-rounding.md.

A record meets generated images of its own class only. Both are sorted by class, and records cut into tiles
of a fixed length and one class each. That makes products of regular shape, whatever the class counts are,
with at most one tile per class not full.

Shapes: ``x`` is ``(tiles, rows, d)``, ``y`` is ``(tiles, records, d)``, all in float64.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from dpsinkhorn.mechanisms.shared.base import Sample
from dpsinkhorn.mechanisms.shared.clipping import AT_ONCE, PairwiseSum, margin, on_grid, within
from dpsinkhorn.ot.costs import Cost, PixelCost

# float64 numbers held at a time, on a CPU and on a GPU.
_WORK, _WORK_CUDA = 2**22, 2**27


@dataclass(frozen=True)
class SumOfShares:
    """``Σ_y clip(v(y), C)`` over the units of a sample, ``(n, d)``, in float64."""

    cost: PixelCost
    regularization: float
    clip: float
    max_sample: int
    tile: int

    def __call__(self, generated: Generated, sample: Sample, by_class: Sorted) -> Tensor:
        if sample.groups is None:
            return self._over_records(generated, sample, by_class)
        return self._over_persons(generated, sample)

    def bound(self, generated: Generated, persons: bool) -> float:
        """C (1 - τ)."""
        n, d = generated.points.shape
        tau = margin(
            records=self.max_sample,
            generated=n,
            dimension=d,
            clip=self.clip,
            slope=slope_bound(self.cost),
            tile=self.tile,
            persons=persons,
        )
        return self.clip * (1 - tau)

    def _over_records(self, generated: Generated, sample: Sample, by_class: Sorted) -> Tensor:
        tiles = cut(by_class, self.tile, self.tiles_at_once(generated))
        return self.over_tiles(generated, tiles, lambda rows: on_grid(sample.points[rows]))

    def tiles_at_once(self, generated: Generated) -> int:
        """How many tiles go through together."""
        _, width, d = generated.tiled.shape
        return _at_once(generated.tiled, 2 * width * d + self.tile * (d + 8 * width))

    def over_tiles(
        self, generated: Generated, pieces: Iterable[Tiles], read: Callable[[Tensor], Tensor]
    ) -> Tensor:
        """The sum over records in tiles; ``read`` has the records of given rows, on the grid.

        Nothing here waits for the device, and shapes depend on those of the tiles alone.
        """
        bound = self.bound(generated, persons=False)
        classes, width, d = generated.tiled.shape
        every = torch.arange(classes, device=generated.points.device).unsqueeze(1)
        total = PairwiseSum()
        for tiles in pieces:
            x, y = generated.tiled[tiles.classes], read(tiles.rows)
            costs, squared_slopes = measure(self.cost, x, y)  # (tiles, width, records)
            shares = softmax(costs, generated.filled[tiles.classes], self.regularization)
            factors = (bound / _norms(shares, squared_slopes)).clamp(max=1.0) * tiles.filled
            sums = gradient(self.cost, x, y, shares * factors)  # (tiles, width, d)
            # One product in place of an index_add, whose order of summation is left open on a GPU.
            total.add((tiles.classes == every).double() @ sums.flatten(1))
        sums_by_class = total.value()
        if sums_by_class is None:
            return torch.zeros_like(generated.points)
        return sums_by_class.view(classes * width, d)[generated.places]

    def _over_persons(self, generated: Generated, sample: Sample) -> Tensor:
        n, d = generated.points.shape
        bound = within(self.bound(generated, persons=True), n + d)
        total = PairwiseSum()
        for people in _people(sample, self.tile, _at_once(generated.points, 4 * n * d)):
            whole = PairwiseSum()
            for rows in people:
                whole.add(self._unclipped(generated, sample, rows))
            shares = whole.value()  # (persons, n, d)
            assert shares is not None
            norms = (shares * shares).sum(2).sum(1).sqrt()
            total.add((bound / norms).clamp(max=1.0) @ shares.flatten(1))
        sums = total.value()
        return torch.zeros_like(generated.points) if sums is None else sums.view(n, d)

    def _unclipped(self, generated: Generated, sample: Sample, rows: Tensor) -> Tensor:
        """``(persons, n, d)``: the summed share of each person's ``rows``; -1 stands for no record."""
        there = rows.clamp(min=0)
        x = generated.points.expand(len(rows), -1, -1)
        y = on_grid(sample.points[there])
        meets = (rows >= 0).unsqueeze(1)
        if generated.labels is not None and sample.labels is not None:
            meets = meets & (sample.labels[there].unsqueeze(1) == generated.labels.unsqueeze(-1))
        costs, _ = measure(self.cost, x, y)
        return gradient(self.cost, x, y, softmax(costs, meets, self.regularization))


def softmax(costs: Tensor, meets: Tensor, regularization: float) -> Tensor:
    """``softmax_i(-c_ij / λ)`` over the images i that record j ``meets``; 0 where it meets none.

    >>> costs = torch.tensor([[[0.0], [0.0], [5.0]]])
    >>> softmax(costs, torch.tensor([[[True], [True], [False]]]), 1.0).flatten()
    tensor([0.5000, 0.5000, 0.0000])
    """
    scores = torch.where(meets, costs * (-1 / regularization), -math.inf)
    largest = scores.amax(-2, keepdim=True).clamp_(min=torch.finfo(scores.dtype).min)
    weights = scores.sub_(largest).exp_()
    # The largest weight is 1, so the sum is at least 1, unless no image is met: then all stay 0.
    return weights.div_(weights.sum(-2, keepdim=True).clamp_(min=0.5))


def _norms(shares: Tensor, squared_slopes: Tensor) -> Tensor:
    """Norms of whole shares, over all images, ``(tiles, 1, records)``."""
    return (shares * shares * squared_slopes).sum(1, keepdim=True).sqrt()


def _at_once(like: Tensor, size: int) -> int:
    """How many things of ``size`` numbers go through at a time."""
    work = _WORK if like.device.type == "cpu" else _WORK_CUDA
    return min(AT_ONCE, max(1, work // size))


def _people(sample: Sample, length: int, at_most: int) -> Iterator[list[Tensor]]:
    """Persons, some at a time: lists of ``(persons, records)`` rows of the sample, padded with -1.

    A person of more than ``length`` records comes in several pieces. ``at_most`` bounds persons, and
    records, in one piece.
    """
    device = sample.points.device
    assert sample.groups is not None
    persons: dict[int, list[int]] = {}
    for row, person in enumerate(sample.groups.tolist()):
        persons.setdefault(person, []).append(row)
    # Persons of like size together, so that little is padded.
    by_size: dict[int, list[list[int]]] = {}
    for rows in persons.values():
        by_size.setdefault(1 << (len(rows) - 1).bit_length(), []).append(rows)
    for size, people in sorted(by_size.items()):
        count = max(1, min(at_most, at_most * 64 // size))
        for at in range(0, len(people), count):
            some = people[at : at + count]
            width = max(len(rows) for rows in some)
            padded = torch.tensor([rows + [-1] * (width - len(rows)) for rows in some], device=device)
            yield list(torch.split(padded, length, dim=1))


# ---- generated images and records by class


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
class Arrangement:
    """Where generated images of given labels go, whatever they are."""

    labels: Tensor | None  # (n,), or None
    rows: Tensor  # (classes, rows), which image
    filled: Tensor  # (classes, rows, 1), whether there is one
    places: Tensor  # (n,), where each image is among classes * rows

    def place(self, points: Tensor) -> Generated:
        """Images ``(n, d)`` by class."""
        return Generated(**vars(self), points=points, tiled=points[self.rows])


@dataclass(frozen=True, eq=False)
class Generated(Arrangement):
    """Generated images, as they come and by class, the latter padded to the largest class."""

    points: Tensor  # (n, d)
    tiled: Tensor  # (classes, rows, d)


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
    """Some tiles of records, each of one class."""

    classes: Tensor  # (tiles,), the class of each
    rows: Tensor  # (tiles, length), rows of the sample
    filled: Tensor  # (tiles, 1, length), whether there is a record


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


# ---- costs of tiles

# Elements of the largest tensor of differences (tiles, rows, records, d), on a CPU and on a GPU.
_BLOCK, _BLOCK_CUDA = 2**18, 2**26


def slope_bound(cost: PixelCost) -> float:
    """A bound on every partial derivative in x, for points in [-1, 1]."""
    return 4.0 * cost.squared + cost.absolute


def measure(cost: PixelCost, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """``c(x_i, y_j)`` and ``|grad_x c(x_i, y_j)|^2``, both ``(tiles, rows, records)``.

    Sums of one kind are exact; what combines them is entry by entry, one operation at a time.
    """
    if not cost.absolute:
        costs = _squares(x, y)
        return costs, 4 * costs
    absolute, count = _absolutes(x, y)
    if not cost.squared:
        return absolute * cost.absolute, count * cost.absolute**2  # sign(0) = 0: count x != y only
    squared = _squares(x, y)
    costs = squared + absolute * cost.absolute
    return costs, 4 * squared + absolute * (4 * cost.absolute) + count * cost.absolute**2


def gradient(cost: PixelCost, x: Tensor, y: Tensor, weights: Tensor) -> Tensor:
    """``sum_j weights[i, j] grad_x c(x_i, y_j)``, of the shape of ``x``."""
    total: Tensor | None = None
    if cost.squared:
        total = torch.baddbmm(weights.sum(-1, keepdim=True) * x, weights, y, beta=2, alpha=-2)
    if cost.absolute:
        signs = _signs(x, y, weights) * cost.absolute
        total = signs if total is None else total + signs
    assert total is not None
    return total


def pixel_cost(cost: Cost) -> PixelCost:
    """The cost in this form; no other cost is free of rounding."""
    found = PixelCost.of(cost)
    if found is None:
        raise ValueError(f"cost: expected SquaredEuclidean, Cityblock or L1L2, got {cost!r}")
    if not 0 <= found.absolute < 2**20:
        raise ValueError(f"l1_weight: expected a number from 0 to 2^20, got {found.absolute}")
    return found


def _squares(x: Tensor, y: Tensor) -> Tensor:
    lengths = (x * x).sum(-1).unsqueeze(-1) + (y * y).sum(-1).unsqueeze(-2)
    return torch.baddbmm(lengths, x, y.mT, alpha=-2)


def _absolutes(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """``|x_i - y_j|_1`` and the number of coordinates in which they differ."""
    if x.device.type != "cpu":
        return torch.cdist(x, y, p=1.0), torch.cdist(x, y, p=0.0)
    shape = (*x.shape[:2], y.shape[1])
    absolute, count = x.new_empty(shape), x.new_empty(shape)
    for at in _row_blocks(x, y):
        tile = (x[:, at, None, :] - y[:, None, :, :]).abs_()
        torch.sum(tile, dim=-1, out=absolute[:, at])
        torch.sum(tile.sign_(), dim=-1, out=count[:, at])
    return absolute, count


def _signs(x: Tensor, y: Tensor, weights: Tensor) -> Tensor:
    """``sum_j weights[i, j] sign(x_i - y_j)``."""
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    for at in _row_blocks(x, y):
        tile = (x[:, at, None, :] - y[:, None, :, :]).sign_()  # (tiles, rows, records, d)
        out[:, at] = (weights[:, at, None, :] @ tile).squeeze(-2)
    return out


def _row_blocks(x: Tensor, y: Tensor) -> list[slice]:
    block = _BLOCK if x.device.type == "cpu" else _BLOCK_CUDA
    rows = max(1, block // max(1, x.shape[0] * y.shape[1] * x.shape[2]))
    return [slice(at, at + rows) for at in range(0, x.shape[1], rows)]
