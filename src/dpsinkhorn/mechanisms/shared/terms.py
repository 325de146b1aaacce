"""The public numbers that a mechanism depends on. All of them are settled before any record is read."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from dpsinkhorn.generators import GeneratorConfig
from dpsinkhorn.ot import Cost

__all__ = ["Facts", "FlowSettings", "Held", "Terms"]

Held: TypeAlias = "Literal['balanced', 'classes'] | float"


@dataclass(frozen=True)
class Facts:
    """What is public about a data set. Its sizes count as public, and the privacy statement says so, unless
    others were declared in their place."""

    image_shape: tuple[int, int, int]
    classes: int
    records: int
    units: int
    """Persons, where records name one; else records."""
    grouped: bool = False
    size_is_public: bool = True
    """Whether the sizes are the data's own; else they were declared, and nothing was derived from those."""
    classes_stated: bool = False
    """Whether the classes were stated; else they are those of the labels, and each has a record."""

    @property
    def unit(self) -> str:
        """Whose data are protected: `record` or `person`."""
        return "person" if self.grouped else "record"

    @property
    def pixels(self) -> int:
        """Numbers of an image."""
        return math.prod(self.image_shape)


@dataclass(frozen=True)
class FlowSettings:
    """How `flow` shares its budget between a sketch and gradients, and what it learns from either."""

    share: float = 0.02
    """Part of the budget that the sketch takes: of the variance of the privacy loss, which adds up."""
    components: int = 16
    frequencies: int = 20
    sketch_steps: int = 6
    sketch_clip: float = 7.0
    updates: int = 2000
    """Updates by samples of the sketch, before the first step; they cost no privacy."""
    update_rate: float = 1e-3
    """Learning rate of these updates at first; it falls to 0."""
    draws: int = 4
    """K, the times and noises that a record's loss is the mean of."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not (value > 0 and math.isfinite(value)):
                raise ValueError(f"flow.{name} must be a positive number, not {value}")
        if self.share >= 1:
            raise ValueError(f"flow.share must be below 1, not {self.share}: gradients need a part too")


@dataclass(frozen=True)
class Terms:
    """What a mechanism is built from; settings that it has no use for play no part."""

    facts: Facts
    clip: float
    noise_multiplier: float
    sampling_rate: float
    steps: int
    generated: int
    """Images generated in a step."""
    cost: Cost
    generator: GeneratorConfig
    regularization: float = 1.0
    self_weight: float = 0.0
    debias: float = 0.0
    label_weight: float = 15.0
    marginals: Held = "balanced"
    """How strongly a plan keeps the records' weights: exactly, class by class, or a penalty ρ."""
    iterations: int | None = None
    """Annealed iterations at which a plan is stopped; none: it converges."""
    averaged: bool = False
    """Whether the weights are averaged over the steps."""
    flow: FlowSettings = field(default_factory=FlowSettings)
    least_largest_sample: int = 2**20

    @property
    def expected_batch(self) -> float:
        """Public normaliser of a sum over a batch."""
        return self.sampling_rate * self.facts.records

    @property
    def largest_sample(self) -> int:
        """The most records that a step may meet: a public number, for which rounding is bounded.

        It leaves ample room, for neighbouring data sets have other sizes, and a number that was declared may
        be too low; that the data fit into it is checked before anything is spent, not when a sample turns out
        large.
        """
        return max(4 * self.facts.records, self.least_largest_sample)
