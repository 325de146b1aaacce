"""Sums of clipped shares: what `record` releases, before the noise.

`SumOfPixelCost` is for the built-in costs: matrix products over tiles of records, no share is ever formed.
`SumOfAnyCost` takes any cost, one record at a time. Both bound the sum *as computed*:
docs/proofs/record-rounding.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from dpsinkhorn.ot.costs import Cost
from dpsinkhorn.training.sanitizers.base import Sample
from dpsinkhorn.training.sanitizers.clipping import clip_whole, within
from dpsinkhorn.training.sanitizers.layout import Generated, Sorted, Tiles, cut
from dpsinkhorn.training.sanitizers.pairs import PixelCost, on_grid
from dpsinkhorn.training.sanitizers.rounding import AT_ONCE, PairwiseSum, margin, margin_of_any_cost

# float64 numbers held at a time, on a CPU and on a GPU.
_WORK, _WORK_CUDA = 2**22, 2**27


class ClippedSum(Protocol):
    """``Σ_y clip(v(y), C)`` over the units of a sample, ``(n, d)``, in float64."""

    def __call__(self, generated: Generated, sample: Sample, by_class: Sorted) -> Tensor: ...


@dataclass(frozen=True)
class SumOfPixelCost:
    """The clipped sum for a built-in cost."""

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
            slope=self.cost.slope,
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
            costs, squared_slopes = self.cost.measure(x, y)  # (tiles, width, records)
            shares = self._shares(
                costs, generated.tiled_potentials[tiles.classes], generated.filled[tiles.classes]
            )
            norms = (shares * shares * squared_slopes).sum(1, keepdim=True).sqrt()
            factors = (bound / norms).clamp(max=1.0) * tiles.filled
            sums = self.cost.gradient(x, y, shares * factors)  # (tiles, width, d)
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
        costs, _ = self.cost.measure(x, y)
        shares = self._shares(costs, generated.potentials.unsqueeze(-1), meets)
        return self.cost.gradient(x, y, shares)

    def _shares(self, costs: Tensor, potentials: Tensor, meets: Tensor) -> Tensor:
        return softmax(costs, potentials, meets, self.regularization)


@dataclass(frozen=True)
class SumOfAnyCost:
    """The clipped sum for a cost that is not built in.

    Each record's share is computed by itself, always in the same shape and from memory of its own, so that it
    cannot depend on the other records, and is clipped as it is. Slow. The cost must be a deterministic
    function of its arguments, and must not fail on any points in [-1, 1].
    """

    cost: Cost
    regularization: float
    clip: float
    max_sample: int

    def __call__(self, generated: Generated, sample: Sample, by_class: Sorted) -> Tensor:
        n, d = generated.points.shape
        bound = self.clip * (
            1 - margin_of_any_cost(records=self.max_sample, generated=n, dimension=d, clip=self.clip)
        )
        total = PairwiseSum()
        points = on_grid(sample.points)
        classes = _class_of_rows(by_class)
        images = torch.split(generated.by_class.order, generated.by_class.counts)
        for unit in _units(sample):
            share = torch.zeros_like(generated.points)
            for row in unit:
                kind = classes.get(row)
                if kind is not None and len(images[kind]):
                    # A copy: how products round may depend on a row's place in memory, that is, in the batch.
                    record = points[row : row + 1].clone()
                    share[images[kind]] += self._share(generated, images[kind], record)
            total.add(clip_whole(share, bound))
        sums = total.value()
        return torch.zeros_like(generated.points) if sums is None else sums

    def _share(self, generated: Generated, images: Tensor, record: Tensor) -> Tensor:
        x = generated.points[images]
        costs = torch.nan_to_num(self.cost.pairwise(x, record).detach().double(), nan=math.inf)
        potentials = generated.potentials[images].unsqueeze(-1)
        shares = softmax(costs[None], potentials, torch.isfinite(costs)[None], self.regularization)[0]
        share = self.cost.gradient(x, record, shares).detach().double()
        return torch.nan_to_num(share, nan=0.0, posinf=0.0, neginf=0.0)


def softmax(costs: Tensor, potentials: Tensor, meets: Tensor, regularization: float) -> Tensor:
    """``softmax_i((f_i - c_ij) / λ)`` over the images i that record j ``meets``; 0 where it meets none.

    >>> costs = torch.tensor([[[0.0], [0.0], [5.0]]])
    >>> softmax(costs, torch.zeros(3, 1), torch.tensor([[[True], [True], [False]]]), 1.0).flatten()
    tensor([0.5000, 0.5000, 0.0000])
    """
    scores = torch.where(meets, (potentials - costs) * (1 / regularization), -math.inf)
    largest = scores.amax(-2, keepdim=True).clamp_(min=torch.finfo(scores.dtype).min)
    weights = scores.sub_(largest).exp_()
    # The largest weight is 1, so the sum is at least 1, unless no image is met: then all stay 0.
    return weights.div_(weights.sum(-2, keepdim=True).clamp_(min=0.5))


def _at_once(like: Tensor, size: int) -> int:
    """How many things of ``size`` numbers go through at a time."""
    work = _WORK if like.device.type == "cpu" else _WORK_CUDA
    return min(AT_ONCE, max(1, work // size))


def _class_of_rows(by_class: Sorted) -> dict[int, int]:
    order = by_class.order.tolist()
    kinds = [kind for kind, count in enumerate(by_class.counts) for _ in range(count)]
    return dict(zip(order, kinds, strict=False))


def _units(sample: Sample) -> list[list[int]]:
    """Rows of each unit of privacy."""
    if sample.groups is None:
        return [[row] for row in range(len(sample.points))]
    units: dict[int, list[int]] = {}
    for row, person in enumerate(sample.groups.tolist()):
        units.setdefault(person, []).append(row)
    return list(units.values())


def _people(sample: Sample, length: int, at_most: int) -> Iterator[list[Tensor]]:
    """Persons, some at a time: lists of ``(persons, records)`` rows of the sample, padded with -1.

    A person of more than ``length`` records comes in several pieces. ``at_most`` bounds persons, and
    records, in one piece.
    """
    device = sample.points.device
    # Persons of like size together, so that little is padded.
    by_size: dict[int, list[list[int]]] = {}
    for rows in _units(sample):
        by_size.setdefault(1 << (len(rows) - 1).bit_length(), []).append(rows)
    for size, people in sorted(by_size.items()):
        count = max(1, min(at_most, at_most * 64 // size))
        for at in range(0, len(people), count):
            some = people[at : at + count]
            width = max(len(rows) for rows in some)
            padded = torch.tensor([rows + [-1] * (width - len(rows)) for rows in some], device=device)
            yield list(torch.split(padded, length, dim=1))
