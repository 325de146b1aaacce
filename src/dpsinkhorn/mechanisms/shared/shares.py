"""Sums of clipped shares: what `record` releases, before the noise.

Matrix products over tiles of records: no share is ever formed. The sum is bounded *as computed*:
docs/proofs/record-rounding.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from dpsinkhorn.mechanisms.shared.base import Sample
from dpsinkhorn.mechanisms.shared.clipping import AT_ONCE, PairwiseSum, margin, within
from dpsinkhorn.mechanisms.shared.layout import Generated, Sorted, Tiles, cut
from dpsinkhorn.mechanisms.shared.pairs import gradient, measure, on_grid, slope_bound
from dpsinkhorn.ot.costs import PixelCost

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
