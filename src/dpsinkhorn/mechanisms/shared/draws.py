"""Which images, times and noises the gradient of a unit of privacy is the mean of: K of each.

They are a function of the unit's own pixels and labels and of public random numbers of the step. So a unit's
gradient is the same whichever others are in the sample, and wherever it stands among them.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from dpsinkhorn.mechanisms.shared.clipping import grid_bits, on_grid
from dpsinkhorn.mechanisms.shared.persons import first_records
from dpsinkhorn.mechanisms.shared.steps import Sample

__all__ = ["Drawn", "StepDraws"]

_NOISES = 2**12  # images of noise in a step, from which units draw
_TIME_BITS = 16  # of a uniform number that a time follows
_ODD = tuple(value - 2**64 for value in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


@dataclass(frozen=True, eq=False)
class Drawn:
    """What goes through the network for some units, K for each."""

    rows: Tensor  # (b, K), of images in the sample
    times: Tensor  # (b, K)
    noises: Tensor  # (b, K), of a step's noises


class StepDraws:
    """Public random numbers of one step.

    >>> draws = StepDraws((1, 2, 2), 2, torch.Generator().manual_seed(0))
    >>> one, two = torch.zeros(1, 4), torch.ones(1, 4)
    >>> alone, beside = draws(Sample(one)), draws(Sample(torch.cat([two, one])))
    >>> torch.equal(alone.times[0], beside.times[1]), torch.equal(alone.noises[0], beside.noises[1])
    (True, True)
    """

    def __init__(self, image_shape: tuple[int, int, int], draws: int, random: torch.Generator) -> None:
        self.state = random.get_state()
        """Of the generator, from which the same draws come again."""
        device, pixels = random.device, math.prod(image_shape)
        self._draws = draws
        self._factors = torch.randint(-(2**62), 2**62, (pixels + 1,), generator=random, device=device)
        self.noises = torch.randn(_NOISES, *image_shape, generator=random, device=device)

    def __call__(self, sample: Sample) -> Drawn:
        """Return what each unit of a sample draws, in the order of the persons where they are named."""
        keys = self._keys(sample)
        if sample.groups is None:
            rows = torch.arange(len(keys), device=keys.device)
            starts, counts = rows, torch.ones_like(rows)
        else:
            rows, persons = first_records(sample.groups)
            counts = torch.bincount(persons) if len(persons) else persons
            starts = counts.cumsum(0) - counts
            keys = torch.zeros_like(counts).index_add_(0, persons, keys[rows])
        turn = torch.arange(self._draws, device=keys.device)
        bits = _mixed(keys.unsqueeze(1) + turn * _ODD[0])  # (b, K)
        # a person's records have their turns, from one of them on
        first = (_mixed(keys) & (2**31 - 1)) % counts.clamp(min=1)
        own = starts.unsqueeze(1) + (first.unsqueeze(1) + turn) % counts.clamp(min=1).unsqueeze(1)
        times = _times(self._draws, keys.device)[turn, bits & (2**_TIME_BITS - 1)]
        return Drawn(rows[own], times, (bits >> 40) & (_NOISES - 1))

    def _keys(self, sample: Sample) -> Tensor:
        """Return a number of 64 bits for each record, (b,), exact: products and sums wrap around."""
        whole = (on_grid(sample.points) * 2.0 ** grid_bits(sample.points.shape[1])).long()
        keys: Tensor = (whole * self._factors[1:]).sum(1)
        return keys if sample.labels is None else keys + sample.labels * self._factors[0]


@functools.lru_cache(maxsize=8)
def _times(draws: int, device: torch.device) -> Tensor:
    """Return all times there are, (K, 2^16): logits are normal, cut into K parts of equal weight.

    A table, since a library may round in another way where more numbers go through a function together.
    """
    uniform = (torch.arange(draws * 2**_TIME_BITS, dtype=torch.float64) + 0.5) / (draws * 2**_TIME_BITS)
    return torch.sigmoid(torch.special.ndtri(uniform)).float().view(draws, -1).to(device)


def _mixed(keys: Tensor) -> Tensor:
    """Return the keys with their bits mixed, by the last steps of SplitMix64."""
    for shift, factor in ((30, _ODD[1]), (27, _ODD[2])):
        keys = (keys ^ ((keys >> shift) & (2 ** (64 - shift) - 1))) * factor
    return keys ^ ((keys >> 31) & (2**33 - 1))
