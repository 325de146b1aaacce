"""The public numbers that a mechanism depends on. All of them are settled before any record is read."""

from __future__ import annotations

import math
import typing
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from dpsinkhorn.generators import GeneratorConfig, MLPConfig
from dpsinkhorn.ot import L1L2, Cityblock, Cost, SquaredEuclidean

CostName = Literal["sqeuclidean", "cityblock", "l1l2"]
Marginals: TypeAlias = Literal["balanced", "classes"] | float

_WORST_CLIP = 1e-3  # far below the gradients of a worst case, so that everything is clipped
_RULES: dict[str, Callable[[float], bool]] = {
    "a positive number": lambda value: 1e-100 < value < 1e100,  # whose squares float64 can hold
    "0 or a positive number": lambda value: 0 <= value < 1e100,
    "between 0 and 1": lambda value: 0 <= value <= 1,
}


def require(rule: str, section: str, settings: object, *names: str) -> None:
    """Refuse settings whose numbers break a rule; words, and what is left out, are none."""
    for name in names:
        value = getattr(settings, name)
        if isinstance(value, int | float) and not _RULES[rule](value):
            raise ValueError(f"{section}.{name} must be {rule}, not {value}")


def one_of(section: str, settings: object, **allowed: tuple[str, ...]) -> None:
    """Refuse settings that are none of the words allowed."""
    for name, words in allowed.items():
        if (value := getattr(settings, name)) not in words:
            raise ValueError(f"{section}.{name} must be one of {', '.join(words)}, not {value!r}")


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
class LossSettings:
    """The transport loss of a step."""

    cost: CostName = "sqeuclidean"
    l1_weight: float = 1.0
    """m of c_m = L2² + m L1, where the cost is `l1l2`."""
    regularization: float = 1.0
    """λ, in the units of the cost."""
    generated: int = 500
    """Images generated in a step (n); where there are classes, `generated_per_class` comes first."""
    generated_per_class: int | None = None
    self_weight: float = 1.0
    """Weight s of the self term; `record` only."""
    debias: float = 0.4
    """Fraction p of images that are resampled for the self term; all but `record`."""
    label_weight: float = 15.0
    """Scale α_c of the one-hot label in the cost; all but `record`, which matches within classes."""
    marginals: Marginals = "balanced"
    """How strongly a plan keeps the records' weights; all but `record`. `balanced`: every record is reached
    as much as any other; `classes`: within its class, to which as much goes as there are generated images of
    it; a number ρ: a penalty ρ KL, in the units of the cost, so that 0 leaves them free."""
    iterations: int | None = None
    """Stop balanced plans after so many annealed iterations, as the papers' authors did (13); all but
    `record`. Left out, they converge. For `dp_merf`: steps of the optimizer on what was released. For
    `gs_wgan`, `datalens` and `g_pate`: iterations of critics before the first step."""

    def __post_init__(self) -> None:
        one_of("loss", self, cost=typing.get_args(CostName))
        require("a positive number", "loss", self, "regularization", "generated", "generated_per_class")
        require("a positive number", "loss", self, "iterations")
        require("0 or a positive number", "loss", self, "l1_weight", "label_weight", "marginals")
        require("between 0 and 1", "loss", self, "self_weight", "debias")
        if isinstance(self.marginals, str) and self.marginals not in ("balanced", "classes"):
            raise ValueError(f"loss.marginals must be balanced, classes or a number, not {self.marginals!r}")
        if self.iterations is not None and self.marginals != "balanced":
            raise ValueError("loss.iterations is for balanced marginals: leave one of the two out")

    @property
    def ground_cost(self) -> Cost:
        """Return the cost of two images."""
        if self.cost == "sqeuclidean" or (self.cost == "l1l2" and self.l1_weight == 0):
            return SquaredEuclidean()
        return Cityblock() if self.cost == "cityblock" else L1L2(self.l1_weight)

    @property
    def transport(self) -> str:
        """Return in words what plans are used.

        >>> LossSettings(iterations=13).transport
        'balanced, stopped early: 13 annealed iterations, not converged'
        """
        if self.iterations is not None:
            return f"balanced, stopped early: {self.iterations} annealed iterations, not converged"
        if isinstance(self.marginals, str):
            return {"balanced": "balanced", "classes": "within classes"}[self.marginals]
        return f"records' weights relaxed, penalty {self.marginals:g}"


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
    update_rate: float = 2e-3
    """Learning rate of these updates at first; it falls to 0."""
    draws: int = 4
    """K, the times and noises that a record's loss is the mean of."""

    def __post_init__(self) -> None:
        require("a positive number", "flow", self, *vars(self))
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
    generator: GeneratorConfig
    loss: LossSettings = field(default_factory=LossSettings)
    flow: FlowSettings = field(default_factory=FlowSettings)
    averaged: bool = False
    """Whether the weights are averaged over the steps."""
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


def one_pixel(noise_multiplier: float, generated: int = 1, **others: Any) -> Terms:
    """Return the terms of a worst case: an image is one pixel, and everything is clipped."""
    pixel, settings = (1, 1, 1), {"clip": _WORST_CLIP, "sampling_rate": 1.0, **others}
    settings.setdefault("generator", MLPConfig(image_shape=pixel, classes=0))
    settings.setdefault("loss", LossSettings(self_weight=0, debias=0))
    return Terms(
        Facts(pixel, classes=0, records=1, units=1),
        noise_multiplier=noise_multiplier,
        steps=1,
        generated=generated,
        least_largest_sample=100,
        **settings,
    )
