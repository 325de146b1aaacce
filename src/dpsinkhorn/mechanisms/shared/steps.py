"""How mechanisms and those who train speak of steps, records and what is trained."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from dpsinkhorn.privacy.noise import NoiseSource
from dpsinkhorn.ranks import Others


@dataclass(frozen=True, eq=False)
class Sample:
    """A Poisson sample of the private records."""

    points: Tensor  # (b, d), images flattened, in [-1, 1]; b may be 0
    labels: Tensor | None = None  # (b,), whole numbers; None where there are no classes
    # (b,), whole numbers: rows of one person share a number, and the sample holds all of a person's rows or
    # none. None: every row is a unit of privacy by itself
    groups: Tensor | None = None
    # where these are the records of one of several ranks, those who have the rest of the sample
    others: Others | None = None


class Steps(ABC):
    """Takes steps that were paid for."""

    multiple: int = 1
    """Steps come in multiples of this, up to the horizon: randomness is drawn for as many at a time."""
    updates: int = 0
    """Updates before the first step, by what was released already: they cost nothing."""
    how_taken: str = "one by one"
    """How steps are taken, in words. A seeded run replays where they are taken in the same way."""

    def update(self, count: int) -> None:
        """Make so many of the updates before the first step, and advance the training state by as many."""
        raise NotImplementedError

    @abstractmethod
    def take(self, count: int) -> None:
        """Take `count` steps, and advance the training state by as many.

        Args:
            count: a multiple of `multiple`, or what is left to the horizon.
        """


class AllRecords(Protocol):
    """Records that can be read through, and sampled."""

    def draw(self, rate: float, noise: NoiseSource) -> Sample:
        """Draw a Poisson sample."""

    def every(self) -> Iterable[Sample]:
        """Hand out all of them, some at a time."""


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

    @property
    def parameters(self) -> Sequence[nn.Parameter]:
        """What is trained of it."""


class NetworkLearner(Learner, Protocol):
    """A generator in training by gradients."""

    updates: int
    """How many updates were made before the first step."""
    companion: nn.Module | None
    """What the mechanism keeps beside the generator, where it has such a thing: all of it is released."""

    @property
    def reduced(self) -> bool:
        """Whether it computes in bfloat16."""

    def rate_at(self, step: int, horizon: int) -> float:
        """Return the learning rate of a step."""

    def update(self, rate: float, gradients: Sequence[Tensor]) -> None:
        """Move the parameters by these gradients."""

    def restart_optimizer(self) -> None:
        """Let the optimizer forget all gradients."""


# ---- steps in shapes that never change, with nothing left to do on the host
#
# Such a step can be captured in a graph and replayed. The private samples of many steps are drawn and laid
# out beforehand; there is room for a public number of records. A sample that needs more room is never cut to
# fit: that step is taken in the ordinary way.


class ReadRecords(Protocol):
    """The private records, on the device."""

    @property
    def device(self) -> torch.device:
        """Where they are."""

    def read(self, rows: Tensor) -> Tensor:
        """From rows, of any shape, to the points of these records, with a dimension more."""


@dataclass(frozen=True, eq=False)
class Setting:
    """What a step in fixed shapes is laid out for. All of it is public but the records themselves."""

    generated: int  # n
    labels: Tensor | None  # (n + n',) of the generated images where they are the same at every step
    expected_batch: float  # the size of a sample, on average
    records: ReadRecords  # where records are read

    @property
    def capacity(self) -> int:
        """For as many records there is room: for those of all samples but one in very many."""
        return math.ceil(self.expected_batch + 8 * math.sqrt(self.expected_batch) + 8)


@dataclass(frozen=True, eq=False)
class Drawn:
    """The Poisson samples of several steps, in their order; within a step records are sorted by class."""

    steps: int  # how many
    step: Tensor  # (b,), to which of the steps a record belongs
    rows: Tensor  # (b,), which record it is
    kind: Tensor  # (b,), its class; 0 where there are no classes


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
