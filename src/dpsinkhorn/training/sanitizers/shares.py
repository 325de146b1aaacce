"""Sums of clipped shares: what `record` releases, before the noise.

`SumOfPixelCost` is for the built-in costs: matrix products over tiles of records, no share is ever formed.
`SumOfAnyCost` takes any cost, one record at a time. Both bound the sum *as computed*:
docs/proofs/record-rounding.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from dpsinkhorn.ot.costs import Cost
from dpsinkhorn.training.sanitizers.base import Sample
from dpsinkhorn.training.sanitizers.clipping import clip_whole, within
from dpsinkhorn.training.sanitizers.layout import Generated, Sorted, cut
from dpsinkhorn.training.sanitizers.pairs import PixelCost, on_grid
from dpsinkhorn.training.sanitizers.rounding import margin, margin_of_any_cost

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
        if math.isinf(self.clip):
            return self.clip
        tau = margin(
            records=self.max_sample,
            generated=n,
            dimension=d,
            clip=self.clip,
            slope=self.cost.slope,
            depth=self.tile + -(-self.max_sample // self.tile) + len(generated.by_class.counts),
            persons=persons,
        )
        return self.clip * (1 - tau)

    def _over_records(self, generated: Generated, sample: Sample, by_class: Sorted) -> Tensor:
        bound = self.bound(generated, persons=False)
        classes, width, d = generated.tiled.shape
        total = torch.zeros_like(generated.tiled)
        per_tile = 2 * width * d + self.tile * (d + 8 * width)
        for tiles in cut(by_class, self.tile, max(1, _work(total) // per_tile)):
            x, y = generated.tiled[tiles.classes], on_grid(sample.points[tiles.rows])
            costs, squared_slopes = self.cost.measure(x, y)  # (tiles, width, records)
            shares = self._shares(
                costs, generated.tiled_potentials[tiles.classes], generated.filled[tiles.classes]
            )
            norms = (shares.square() * squared_slopes).sum(1, keepdim=True).sqrt()
            factors = (bound / norms).clamp(max=1.0) * tiles.filled
            sums = self.cost.gradient(x, y, shares * factors)  # (tiles, width, d)
            # One product in place of an index_add, whose order of summation is left open on a GPU.
            member = (tiles.classes == torch.arange(classes, device=x.device).unsqueeze(1)).double()
            total += (member @ sums.flatten(1)).view(classes, width, d)
        return total.flatten(0, 1)[generated.places]

    def _over_persons(self, generated: Generated, sample: Sample) -> Tensor:
        bound = self.bound(generated, persons=True)
        n, d = generated.points.shape
        bound = within(bound, n * d) if math.isfinite(bound) else bound
        total = torch.zeros_like(generated.points)
        for people in _people(sample, self.tile, max(1, _work(total) // (4 * n * d))):
            sums = total.new_zeros(people[0].shape[0], n, d)
            for rows in people:
                sums += self._unclipped(generated, sample, rows)
            norms = sums.square().sum((1, 2)).sqrt()
            total += torch.einsum("p,pnd->nd", (bound / norms).clamp(max=1.0), sums)
        return total

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

    Each record's share is computed by itself, always in the same shape, so that it cannot depend on the
    other records, and is clipped as it is. Slow. The cost must be a deterministic function of its arguments.
    """

    cost: Cost
    regularization: float
    clip: float
    max_sample: int

    def __call__(self, generated: Generated, sample: Sample, by_class: Sorted) -> Tensor:
        n, d = generated.points.shape
        bound = self.clip
        if math.isfinite(bound):
            tau = margin_of_any_cost(records=self.max_sample, generated=n, dimension=d, clip=self.clip)
            bound *= 1 - tau
        total = torch.zeros_like(generated.points)
        points = on_grid(sample.points)
        classes = _class_of_rows(by_class)
        images = torch.split(generated.by_class.order, generated.by_class.counts)
        for unit in _units(sample):
            share = torch.zeros_like(total)
            for row in unit:
                kind = classes.get(row)
                if kind is not None and len(images[kind]):
                    share[images[kind]] += self._share(generated, images[kind], points[row : row + 1])
            total += clip_whole(share, bound) if math.isfinite(bound) else share
        return total

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


def _work(like: Tensor) -> int:
    return _WORK if like.device.type == "cpu" else _WORK_CUDA


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
