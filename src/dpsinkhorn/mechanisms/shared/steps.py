"""How mechanisms and those who train speak of steps, records and what is trained."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from dpsinkhorn.privacy.noise import NoiseSource

__all__ = ["AllRecords", "Learner", "Sample", "Steps"]


@dataclass(frozen=True, eq=False)
class Sample:
    """A Poisson sample of the private records.

    Attributes:
        points: ``(b, d)``, images flattened, in [-1, 1]; ``b`` may be 0.
        labels: ``(b,)``, whole numbers; ``None`` where there are no classes.
        groups: ``(b,)``, whole numbers: rows of one person share a number, and the sample holds all of a
            person's rows or none. ``None``: every row is a unit of privacy by itself.
    """

    points: Tensor
    labels: Tensor | None = None
    groups: Tensor | None = None


class Steps(Protocol):
    """Takes steps that were paid for."""

    multiple: int
    """Steps come in multiples of this, up to the horizon: randomness is drawn for as many at a time."""

    @property
    def way(self) -> str:
        """Say in words how steps are taken. A seeded run replays where they are taken in the same way."""
        ...

    def take(self, count: int) -> None:
        """Take `count` steps, and advance the training state by as many.

        Args:
            count: a multiple of `multiple`, or what is left to the horizon.
        """
        ...


class AllRecords(Protocol):
    """Records that can be read through."""

    def every(self) -> Iterator[Sample]:
        """Hand out all of them, some at a time."""
        ...


class Learner(Protocol):
    """A generator in training."""

    step: int
    gradients: list[Tensor]
    device: torch.device
    random: torch.Generator
    noise: NoiseSource

    @property
    def generator(self) -> nn.Module:
        """What learns."""
        ...

    @property
    def parameters(self) -> Sequence[nn.Parameter]:
        """What is trained of it."""
        ...

    def rate_at(self, step: int, horizon: int) -> float:
        """Return the learning rate of a step of so many."""
        ...

    def update(self, rate: float | Tensor, gradients: Sequence[Tensor] | None = None) -> None:
        """Take a step of the optimizer, by the parameters' own gradients or by those given."""
        ...
