"""The plan of a training: every number that its privacy depends on, settled before any record is read.

A plan follows from a recipe, a budget and public facts of the data alone. What it says is what will be
charged; `build_sanitizer` turns it into the mechanism that runs.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from dpsinkhorn.generators import GeneratorConfig, MixtureConfig, config_from_json
from dpsinkhorn.ot import L1L2, Cityblock, Cost, SquaredEuclidean
from dpsinkhorn.privacy import (
    ACCOUNTANTS,
    Accountant,
    BatchMechanism,
    CalibrationError,
    Charge,
    GaussianMechanism,
    ImageMechanism,
    Mechanism,
    MomentsMechanism,
    NonPrivate,
    ParameterMechanism,
    RecordMechanism,
    calibrate,
    compose,
    epsilon,
    published_epsilon,
)
from dpsinkhorn.training.errors import TrainingError
from dpsinkhorn.training.reading import read_value
from dpsinkhorn.training.recipe import MOST_STEPS, Recipe

__all__ = ["Facts", "Plan", "make_plan"]

# Noise on class counts that are released: about this many records a class. It costs little, and the
# probabilities that follow are good to a few hundredths of a percent of sixty thousand records.
_COUNT_NOISE = 25.0
_SEARCH_STEPS = 14
_MOST_GENERATED = 10**6  # images in a step
_ROUNDING = 1 + 1e-9  # of the same ε, composed in another order


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
        _check_generator(plan)
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


def _check_generator(plan: Plan) -> None:
    """Refuse a generator that cannot make these images, or be trained in this way."""
    config, privacy, facts = plan.generator_config, plan.recipe.privacy, plan.facts
    moments = privacy.mechanism == "moments"
    if moments != isinstance(config, MixtureConfig):
        raise TrainingError(
            f"the mechanism {privacy.mechanism} cannot train a {config.kind}: moments and a generator of "
            "kind mixture belong together"
        )
    if not moments:
        return
    assert isinstance(config, MixtureConfig)
    least = 3 if config.components == 1 else 4
    problems = {
        "protects records, and these data name persons; use the mechanism record": facts.grouped,
        "takes all records in every step; set the sampling rate to 1": plan.sampling_rate != 1,
        f"needs at least {least} steps: means, covariance, centres, covariances": plan.steps < least,
        "has no weights to average; leave optimizer.ema out": plan.recipe.optimizer.ema is not None,
    }
    for problem, there in problems.items():
        if there:
            raise TrainingError(f"the mechanism moments {problem}")


def make_plan(
    recipe: Recipe,
    facts: Facts,
    *,
    budget_epsilon: float | None = None,
    delta: float | None = None,
    accountant: Accountant = "pld",
    labels: tuple[float, ...] | str = "uniform",
    seed: int | None = None,
) -> Plan:
    """Settle all numbers of a training.

    With `budget_epsilon` the noise is the least that keeps `recipe.privacy.steps` steps within it. Without,
    the recipe's own noise multiplier is taken, and the plan says what that costs.

    >>> from dpsinkhorn.training import load_recipe
    >>> recipe = load_recipe("digits").replace(privacy={"steps": 100})
    >>> plan = make_plan(recipe, Facts((1, 8, 8), 10, 1347, 1347), budget_epsilon=10.0)
    >>> plan.steps, 9.9 < plan.epsilon <= 10
    (100, True)
    """
    privacy = recipe.privacy
    delta = recipe.delta if delta is None else delta
    if not 0 < delta < 1:
        raise TrainingError(f"delta must be between 0 and 1, not {delta}")
    if budget_epsilon is not None and not 0 < budget_epsilon < math.inf:
        raise TrainingError(f"epsilon must be a positive number, not {budget_epsilon}")
    if seed is not None and not 0 <= seed < 2**63:
        raise TrainingError(f"a seed is a whole number from 0 to 2^63 - 1, not {seed}")
    if facts.records < 1 or facts.units < 1:
        raise TrainingError("the data set is empty")
    generated = recipe.loss.generated
    if facts.classes and recipe.loss.generated_per_class:
        generated = facts.classes * recipe.loss.generated_per_class
    if privacy.mechanism == "record" and generated < facts.classes:
        raise TrainingError(
            f"{generated} generated images cannot show all {facts.classes} classes; raise loss.generated, or "
            "give loss.generated_per_class"
        )
    plan = Plan(
        recipe=recipe,
        facts=facts,
        budget_epsilon=math.inf,
        delta=delta,
        accountant=accountant,
        noise_multiplier=privacy.noise_multiplier or math.nan,
        sampling_rate=_rate(recipe, facts),
        steps=privacy.steps,
        generated=generated,
        labels=_label_probabilities(labels, facts.classes),
        seed=seed,
    )
    _check_generator(plan)
    if privacy.mechanism == "none":
        if budget_epsilon is not None:
            raise TrainingError(
                "training without privacy has no epsilon; leave it out, or choose a mechanism"
            )
        if plan.labels == "released":
            raise TrainingError("training without privacy: give the class frequencies, or leave them uniform")
        return dataclasses.replace(plan, noise_multiplier=0.0)
    if budget_epsilon is None:
        if privacy.noise_multiplier is None:
            raise TrainingError(f"the recipe {recipe.name!r} needs a budget: give epsilon")
        return dataclasses.replace(plan, budget_epsilon=plan.epsilon * _ROUNDING)
    plan = dataclasses.replace(plan, budget_epsilon=budget_epsilon)
    sigma = _calibrated(plan)
    return dataclasses.replace(plan, noise_multiplier=sigma)


def _rate(recipe: Recipe, facts: Facts) -> float:
    privacy = recipe.privacy
    rate = privacy.sampling_rate
    if rate is None:
        assert privacy.batch is not None
        rate = privacy.batch / facts.records
    if rate > 1 or rate * facts.records < 1:
        need = privacy.batch or math.ceil(1 / rate)
        raise TrainingError(
            f"{facts.records} records are fewer than one expected batch of this recipe ({need} needed); "
            "lower the batch or raise the sampling rate"
        )
    return rate


def _label_probabilities(labels: tuple[float, ...] | str, classes: int) -> tuple[float, ...] | str:
    if isinstance(labels, str):
        if labels == "released" and classes:
            return labels
        if labels != "uniform":
            raise TrainingError(
                f"labels must be uniform, released, or a probability for each class, not {labels!r}"
                if classes
                else "the data have no labels whose frequencies could be released"
            )
        return (1.0 / classes,) * classes if classes else ()
    if len(labels) != classes:
        raise TrainingError(f"{len(labels)} label probabilities for {classes} classes")
    labels = tuple(float(share) for share in labels)
    total = math.fsum(labels)
    if not (all(share >= 0 for share in labels) and 0 < total < math.inf):
        raise TrainingError("label probabilities must be zero or positive numbers, not all zero")
    return tuple(share / total for share in labels)


def _calibrated(plan: Plan) -> float:
    """The least noise multiplier that keeps the plan within its budget."""
    rows = plan.generated if plan.recipe.privacy.mechanism == "image" else 1

    def noise_for(budget: float) -> float:
        found = calibrate(
            budget,
            plan.delta,
            sampling_rate=plan.sampling_rate,
            steps=plan.steps,
            rows=rows,
            accountant=plan.accountant,
        )
        return found.noise_multiplier

    try:
        sigma = noise_for(plan.budget_epsilon)
        if plan.count_mechanism is None:
            return sigma
        # the counts take their part of the budget first: search for the noise that leaves room for it
        low = high = sigma
        while dataclasses.replace(plan, noise_multiplier=high).epsilon > plan.budget_epsilon:
            low, high = high, 2 * high
            if high > 1e6:
                raise CalibrationError("the class frequencies alone take all of it")
        for _ in range(_SEARCH_STEPS):
            middle = math.sqrt(low * high)
            within = dataclasses.replace(plan, noise_multiplier=middle).epsilon <= plan.budget_epsilon
            low, high = (low, middle) if within else (middle, high)
        return high
    except CalibrationError as error:
        raise TrainingError(
            f"epsilon {plan.budget_epsilon:g} at delta {plan.delta:g} cannot be met with {plan.steps} steps "
            f"at sampling rate {plan.sampling_rate:.4g}: {error}; ask for fewer steps or a larger epsilon"
        ) from error
