"""The plan of a training: every number that its privacy depends on, settled before any record is read.

What it says is what will be charged; `build_sanitizer` turns it into the mechanism that runs.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from dpsinkhorn.generators import CustomConfig, GeneratorConfig, MixtureConfig, config_from_json
from dpsinkhorn.ot import L1L2, Cityblock, Cost, SquaredEuclidean
from dpsinkhorn.privacy import (
    ACCOUNTANTS,
    Accountant,
    BatchMechanism,
    Charge,
    GaussianMechanism,
    ImageMechanism,
    Mechanism,
    MomentsMechanism,
    NonPrivate,
    ParameterMechanism,
    RecordMechanism,
    compose,
    epsilon,
    published_epsilon,
)
from dpsinkhorn.training.errors import TrainingError
from dpsinkhorn.training.reading import read_value
from dpsinkhorn.training.recipe import MOST_STEPS, Recipe

__all__ = ["Facts", "Plan", "check_generator"]

# Noise on class counts that are released: about this many records a class. It costs little, and the
# probabilities that follow are good to a few hundredths of a percent of sixty thousand records.
_COUNT_NOISE = 25.0
_MOST_GENERATED = 10**6  # images in a step


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


@dataclass(frozen=True)
class Plan:
    """A training with all its numbers settled; `make_plan` makes one."""

    recipe: Recipe
    facts: Facts
    budget_epsilon: float
    """What the ledger of the run may reach; infinite without privacy."""
    delta: float
    accountant: Accountant
    noise_multiplier: float
    sampling_rate: float
    steps: int
    generated: int
    labels: tuple[float, ...] | str
    """Probabilities of the generated labels; `released` where the data's own are released privately."""
    seed: int | None = None
    """Of a run that replays; such a run is not for release."""

    @cached_property
    def mechanism(self) -> Mechanism:
        """What a step releases."""
        privacy = self.recipe.privacy
        clip, sigma = privacy.clip, self.noise_multiplier
        if privacy.mechanism == "record":
            return RecordMechanism(clip, sigma)
        if privacy.mechanism == "batch":
            return BatchMechanism(clip, sigma)
        if privacy.mechanism == "image":
            return ImageMechanism(clip, sigma, rows=self.generated)
        if privacy.mechanism == "parameter":
            return ParameterMechanism(clip, sigma)
        if privacy.mechanism == "moments":
            return MomentsMechanism(clip, sigma)
        return NonPrivate()

    @property
    def private(self) -> bool:
        """Whether anything is guaranteed at all."""
        return not isinstance(self.mechanism, NonPrivate)

    @property
    def precious(self) -> bool:
        """Whether each step costs a large part of the budget, so that none is to be lost by a crash."""
        return isinstance(self.mechanism, MomentsMechanism)

    @property
    def step_charge(self) -> Charge:
        """The cost of one step."""
        return self.mechanism.sampled(self.sampling_rate, 1)

    @property
    def count_mechanism(self) -> GaussianMechanism | None:
        """How class frequencies are released, where they are."""
        return GaussianMechanism(1.0, _COUNT_NOISE) if self.labels == "released" else None

    @cached_property
    def epsilon(self) -> float:
        """ε of the whole run as planned."""
        return epsilon(compose(*self.charges), self.delta, self.accountant)

    @property
    def charges(self) -> tuple[Charge, ...]:
        """All that the run costs as planned."""
        training = self.mechanism.sampled(self.sampling_rate, self.steps)
        return (training,) if self.count_mechanism is None else (training, self.count_mechanism.charge())

    @property
    def published_epsilon(self) -> float | None:
        """What a paper reports for the same settings, by an accounting that is not a guarantee."""
        if isinstance(self.mechanism, ImageMechanism):
            return published_epsilon(self.mechanism, self.sampling_rate, self.steps, self.delta)
        return None

    @property
    def expected_batch(self) -> float:
        """Public normaliser of a sum over a batch."""
        return self.sampling_rate * self.facts.records

    @property
    def generator_config(self) -> GeneratorConfig:
        """The generator that is trained."""
        settings = {
            "image_shape": list(self.facts.image_shape),
            "classes": self.facts.classes,
            **self.recipe.generator,
        }
        try:
            return config_from_json(settings)
        except ValueError as error:
            raise TrainingError(f"generator: {error}") from error

    @property
    def cost(self) -> Cost:
        """The ground cost."""
        loss = self.recipe.loss
        if loss.cost == "sqeuclidean" or (loss.cost == "l1l2" and loss.l1_weight == 0):
            return SquaredEuclidean()
        return Cityblock() if loss.cost == "cityblock" else L1L2(loss.l1_weight)

    def to_json(self) -> dict[str, Any]:
        """The plan as JSON values; `from_json` reads it back."""
        data = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        labels = self.labels if isinstance(self.labels, str) else list(self.labels)
        infinite = math.isinf(self.budget_epsilon)
        return {
            **data,
            "recipe": self.recipe.to_json(),
            "facts": {**dataclasses.asdict(self.facts), "image_shape": list(self.facts.image_shape)},
            "labels": labels,
            "budget_epsilon": "infinite" if infinite else self.budget_epsilon,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Plan:
        """A plan as `to_json` wrote it; anything else is refused."""
        names = {field.name for field in dataclasses.fields(cls)}
        if not isinstance(data, Mapping) or set(data) != names:
            raise TrainingError("a plan has other entries than it should")
        values = {name: read_value(kind, data[name], f"plan.{name}") for name, kind in _PLAIN.items()}
        recipe, facts = Recipe.from_json(data["recipe"]), read_value(Facts, data["facts"], "plan.facts")
        budget = math.inf if data["budget_epsilon"] == "infinite" else data["budget_epsilon"]
        plan = cls(
            recipe=recipe,
            facts=facts,
            budget_epsilon=read_value(float, budget, "plan.budget_epsilon"),
            labels=_read_labels(data["labels"], facts.classes),
            **values,
        )
        _check_numbers(plan)
        check_generator(plan)
        return plan


# Entries of a plan that are plain numbers or names.
_PLAIN: dict[str, Any] = {
    "delta": float,
    "accountant": str,
    "noise_multiplier": float,
    "sampling_rate": float,
    "steps": int,
    "generated": int,
    "seed": int | None,
}


def _read_labels(labels: Any, classes: int) -> tuple[float, ...] | str:
    if labels == "released":
        return "released"
    if not isinstance(labels, list) or len(labels) != classes:
        raise TrainingError(f"plan.labels must be released, or a probability for each of {classes} classes")
    return tuple(read_value(float, share, "plan.labels") for share in labels)


def _check_numbers(plan: Plan) -> None:
    facts = plan.facts
    shares = [] if isinstance(plan.labels, str) else plan.labels
    right = {
        "delta": 0 < plan.delta < 1,
        "accountant": plan.accountant in ACCOUNTANTS,
        "noise_multiplier": 0 <= plan.noise_multiplier < math.inf,
        "sampling_rate": 0 < plan.sampling_rate <= 1,
        "steps": 1 <= plan.steps <= MOST_STEPS,
        "generated": 1 <= plan.generated <= _MOST_GENERATED,
        "budget_epsilon": plan.budget_epsilon > 0,
        "labels": all(0 <= share <= 1 for share in shares),
        "facts": min(facts.records, facts.units) >= 1 and facts.classes >= 0 and min(facts.image_shape) >= 1,
    }
    for name, fine in right.items():
        if not fine:
            raise TrainingError(f"plan.{name} is out of range")


def check_generator(plan: Plan) -> None:
    """Refuse a generator that cannot make these images, or be trained in this way."""
    config, privacy, facts = plan.generator_config, plan.recipe.privacy, plan.facts
    moments = privacy.mechanism == "moments"
    if moments != isinstance(config, MixtureConfig):
        what = config.module if isinstance(config, CustomConfig) else f"a {config.kind}"
        raise TrainingError(
            f"the mechanism {privacy.mechanism} cannot train {what}: moments and a generator of kind mixture "
            "belong together"
        )
    if not moments:
        return
    assert isinstance(config, MixtureConfig)
    least = 3 if config.components == 1 else 4
    problems = {
        "protects records, and these data name persons (--groups): leave the recipe to be chosen, or leave "
        "groups out and protect records only": facts.grouped,
        "takes all records in every step; set the sampling rate to 1": plan.sampling_rate != 1,
        f"needs at least {least} steps: means, covariance, centres, covariances": plan.steps < least,
        "has no weights to average; leave optimizer.ema out": plan.recipe.optimizer.ema is not None,
    }
    for problem, there in problems.items():
        if there:
            raise TrainingError(f"the mechanism moments {problem}")
