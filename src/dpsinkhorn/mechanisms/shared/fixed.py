"""A barrier's step in shapes that never change, with nothing left to do on the host.

Such a step can be captured in a graph and replayed. The private samples of many steps are drawn and laid out
beforehand; there is room for a public number of records. A sample that needs more room is never cut to fit:
that step is taken in the ordinary way.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


class ReadRecords(Protocol):
    """The private records, on the device."""

    @property
    def device(self) -> torch.device:
        """Where they are."""
        ...

    def read(self, rows: Tensor) -> Tensor:
        """From rows, of any shape, to the points of these records, with a dimension more."""
        ...


@dataclass(frozen=True, eq=False)
class Setting:
    """What a step in fixed shapes is laid out for. All of it is public but the records themselves.

    Attributes:
        generated: n.
        labels: ``(n + n',)`` of the generated images where they are the same at every step.
        expected_batch: the size of a sample, on average.
        records: where records are read.
    """

    generated: int
    labels: Tensor | None
    expected_batch: float
    records: ReadRecords

    @property
    def capacity(self) -> int:
        """For as many records there is room: for those of all samples but one in very many."""
        return math.ceil(self.expected_batch + 8 * math.sqrt(self.expected_batch) + 8)


@dataclass(frozen=True, eq=False)
class Drawn:
    """The Poisson samples of several steps, one after the other; within a step records are sorted by class.

    Attributes:
        steps: how many.
        step: ``(b,)``, to which of the steps a record belongs.
        rows: ``(b,)``, which record it is.
        kind: ``(b,)``, its class; 0 where there are no classes.
    """

    steps: int
    step: Tensor
    rows: Tensor
    kind: Tensor


class FixedStep(ABC):
    """One step in fixed shapes."""

    @property
    @abstractmethod
    def noise_rows(self) -> int:
        """Rows of d numbers that a step adds noise to; 0 where it adds none."""

    @abstractmethod
    def inputs_of(self, drawn: Drawn) -> tuple[dict[str, Tensor], Tensor]:
        """What ``gradient`` needs of each step, all with ``steps`` as the first dimension; and which fit."""

    @abstractmethod
    def gradient(
        self, points: Tensor, labels: Tensor | None, inputs: dict[str, Tensor], cells: Tensor | None
    ) -> Tensor:
        """The sanitized gradient in all generated points, ``(n + n', d)``.

        ``cells`` are draws of ``normal_cells``, ``(noise_rows, d)``, used for nothing else.
        """
