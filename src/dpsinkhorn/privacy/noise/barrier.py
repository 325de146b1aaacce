"""The privacy barrier as an audit sees it: a source of noise that is told what noise is asked for.

Private values meet randomness in three places: `add_gaussian`, `add_laplace` and `poisson_sample`. Each of
them tells an `ObservedNoise` what it was given and what it is about to hand back, and hands back what that
answers. Every other source is asked for random bits and nothing else. By `announce` a mechanism says what
else goes into a release: public state, which must be the same whatever the records are.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

__all__ = ["ObservedNoise", "Query", "announce"]


@dataclass(frozen=True)
class Query:
    """What noise was asked for: all of it must be public.

    Attributes:
        noise: `gaussian`, where the sensitivity is in Euclidean norm, or `laplace`, where it is in L1.
        shape: of the values.
        sensitivity: what one unit moves the values by, at most.
        multiplier: noise over sensitivity.
        together: how many numbers, these among them, are released under one bound and one charge.
    """

    noise: Literal["gaussian", "laplace"]
    shape: tuple[int, ...]
    sensitivity: float
    multiplier: float
    together: int


class ObservedNoise(ABC):
    """A source of noise that stands at the barrier. It sees private values: for audits, never for release."""

    secure = False
    description = "Noise that is recorded at the barrier, for an audit: not for release."

    @abstractmethod
    def words(self, count: int, *, device: torch.device | str = "cpu") -> Tensor:
        """Return `count` uniform 64-bit words as signed int64."""

    @abstractmethod
    def public(self, arguments: dict[str, Tensor | float | None]) -> None:
        """Take note of what the next release is computed from besides private records."""

    @abstractmethod
    def release(self, query: Query, values: Tensor, noised: Tensor) -> Tensor:
        """Return what is released for these private values; `noised` is what would be."""

    @abstractmethod
    def sample(self, units: int, rate: float, taken: Tensor) -> Tensor:
        """Return the indices of the Poisson sample of so many units; `taken` is what would be."""


def announce(noise: object, **public: Tensor | float | None) -> None:
    """Tell an audit, where one looks on, what the next release is computed from besides private records."""
    if isinstance(noise, ObservedNoise):
        noise.public(public)
