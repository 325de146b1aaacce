"""The plan of a training: every number that its privacy depends on, settled before any record is read.

`plan_for` makes it, of what is asked for and public facts of the data. What it says is what will be charged;
`build` returns the mechanism that runs.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from dpsinkhorn.data import Dataset
from dpsinkhorn.errors import TrainingError
from dpsinkhorn.generators import GeneratorConfig, config_from_json
from dpsinkhorn.mechanisms import find_mechanism
from dpsinkhorn.mechanisms.shared.base import TrainingMechanism
from dpsinkhorn.mechanisms.shared.terms import Facts, Terms
from dpsinkhorn.privacy import (
    ACCOUNTANTS,
    Accountant,
    CalibrationError,
    Charge,
    GaussianMechanism,
    Mechanism,
    calibrate,
    compose,
    epsilon,
)
from dpsinkhorn.training.advice import expectation
from dpsinkhorn.training.recipe import DELTA, MOST_STEPS, Recipe, choose_recipe, read_value
from dpsinkhorn.training.records import facts_of

__all__ = ["Facts", "Plan", "Request", "make_plan", "plan_for"]

# Noise on class counts that are released: about this many records a class. It costs little, and the
# probabilities that follow are good to a few hundredths of a percent of sixty thousand records.
_COUNT_NOISE = 25.0
_MOST_GENERATED = 10**6  # images in a step
_SEARCH_STEPS = 14
_ROUNDING = 1 + 1e-9  # of the same ε, composed in another order


@contextmanager
def refused(what: str = "") -> Iterator[None]:
    """Within it a value that is refused becomes a `TrainingError`, with `what` before it."""
    try:
        yield
    except ValueError as error:
        raise TrainingError(f"{what}{error}") from error


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
    labels: str | tuple[float, ...]
    """Probabilities of the generated labels; `released` where the data's own are released privately."""
    seed: int | None = None
    """Of a run that replays; such a run is not for release."""

    @property
    def kind(self) -> type[TrainingMechanism]:
        """Return the mechanism that trains."""
        return find_mechanism(self.recipe.privacy.mechanism)

    @cached_property
    def terms(self) -> Terms:
        """Return what the mechanism depends on."""
        return Terms(
            facts=self.facts,
            clip=self.recipe.privacy.clip,
            noise_multiplier=self.noise_multiplier,
            sampling_rate=self.sampling_rate,
            steps=self.steps,
            generated=self.generated,
            generator=self.generator_config,
            loss=self.recipe.loss,
            flow=self.recipe.flow,
            averaged=self.recipe.optimizer.ema is not None,
        )

    def check(self) -> None:
        """Refuse a generator that cannot make these images, or be trained in this way."""
        with refused():
            self.kind.check(self.terms)

    def build(self) -> TrainingMechanism:
        """Return the mechanism, which charges `mechanism`: so what is charged is what is done."""
        with refused():
            return self.kind(self.terms)

    def check_step(self) -> None:
        """Refuse settings under which no step can be taken. Nothing is spent."""
        with refused():
            self.build().check_step(self.terms)

    @cached_property
    def mechanism(self) -> Mechanism:
        """Return what a step releases."""
        return self.kind.releases(self.terms)

    @property
    def private(self) -> bool:
        """Whether anything is guaranteed at all."""
        return self.kind.private

    @property
    def step_charge(self) -> Charge:
        """The cost of one step."""
        return self.mechanism.sampled(self.sampling_rate, 1)

    @property
    def count_mechanism(self) -> GaussianMechanism | None:
        """How class frequencies are released, where they are."""
        return GaussianMechanism(1.0, _COUNT_NOISE) if self.labels == "released" else None

    @property
    def label_source(self) -> str | None:
        """How the distribution of generated labels is set: a key of `release.LABEL_SOURCES`."""
        if not self.facts.classes or isinstance(self.labels, str):
            return "released" if self.facts.classes else None
        return "uniform" if max(self.labels) - min(self.labels) < 1e-9 else "stated"

    @cached_property
    def epsilon(self) -> float:
        """ε of the whole run as planned."""
        return epsilon(compose(*self.charges), self.delta, self.accountant)

    @property
    def charges(self) -> tuple[Charge, ...]:
        """All that the run costs as planned."""
        return (self.mechanism.sampled(self.sampling_rate, self.steps), *self.preparations)

    @property
    def preparations(self) -> tuple[Charge, ...]:
        """What is charged once, before the first step: class frequencies, and what the mechanism prepares."""
        counts = None if self.count_mechanism is None else self.count_mechanism.charge()
        return tuple(charge for charge in (counts, self.kind.preparation(self.terms)) if charge is not None)

    @cached_property
    def preparation_epsilon(self) -> float | None:
        """ε of what is released before the first step, by itself; none where nothing is."""
        if not self.preparations:
            return None
        return epsilon(compose(*self.preparations), self.delta, self.accountant)

    @property
    def published_epsilon(self) -> float | None:
        """What a paper reports for the same settings, by an accounting that is not a guarantee."""
        return self.kind.published_epsilon(self.terms, self.delta)

    @property
    def expected_batch(self) -> float:
        """Public normaliser of a sum over a batch."""
        return self.terms.expected_batch

    @property
    def generator_config(self) -> GeneratorConfig:
        """The generator that is trained."""
        settings = {
            "image_shape": list(self.facts.image_shape),
            "classes": self.facts.classes,
            **self.recipe.generator,
        }
        with refused("generator: "):
            return config_from_json(settings)

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
        if not isinstance(data, Mapping) or set(data) != {field.name for field in dataclasses.fields(cls)}:
            raise TrainingError("a plan has other entries than it should")
        budget = math.inf if data["budget_epsilon"] == "infinite" else data["budget_epsilon"]
        plan: Plan = read_value(cls, {**data, "budget_epsilon": budget}, "plan")
        _check_numbers(plan)
        plan.check()
        return plan


def _check_numbers(plan: Plan) -> None:
    facts, labels = plan.facts, plan.labels
    shares = () if isinstance(labels, str) else labels
    right = {
        "delta": 0 < plan.delta < 1,
        "accountant": plan.accountant in ACCOUNTANTS,
        "noise_multiplier": 0 <= plan.noise_multiplier < math.inf,
        "sampling_rate": 0 < plan.sampling_rate <= 1,
        "steps": 1 <= plan.steps <= MOST_STEPS,
        "generated": 1 <= plan.generated <= _MOST_GENERATED,
        "budget_epsilon": plan.budget_epsilon > 0,
        "labels": labels == "released"
        or (len(shares) == facts.classes and all(0 <= each <= 1 for each in shares)),
        "facts": min(facts.records, facts.units) >= 1 and facts.classes >= 0 and min(facts.image_shape) >= 1,
    }
    for name, fine in right.items():
        if not fine:
            raise TrainingError(f"plan.{name} is out of range")


# ---- from what is asked for to a plan


@dataclass(frozen=True)
class Request:
    """What someone asks of a training; all else follows from public facts of the data."""

    epsilon: float | None = None
    """ε of the whole training, from which the noise follows; none where the recipe has its own noise."""
    delta: float | None = None
    recipe: str | Path | Recipe | None = None
    """By default one that suits what is public of the data."""
    mechanism: str | None = None
    settings: Mapping[str, Mapping[str, Any]] | None = None
    """Changes to the recipe, by section."""
    generator: str | None = None
    """Kind of the generator, in place of the recipe's."""
    labels: tuple[float, ...] | str = "uniform"
    records: int | None = None
    """A public number of records to count with, where theirs is not public."""
    accountant: Accountant = "pld"
    seed: int | None = None
    quick: bool = False
    """Whether it should be done in seconds, as on a CPU."""
    anyway: bool = False
    """Whether to plan it even where nothing useful can come of it."""


def plan_for(dataset: Dataset, request: Request) -> Plan:
    """Settle all numbers of the training that is asked for.

    >>> from dpsinkhorn.data import load_dataset
    >>> plan_for(load_dataset("digits"), Request(epsilon=3.0, settings={"privacy": {"steps": 5}})).steps
    5
    """
    facts = facts_of(dataset, records=request.records)
    kind, mechanism = request.generator, request.mechanism
    labels = _label_probabilities(request.labels, facts.classes)
    if request.recipe is None and mechanism is None and kind not in (None, "mixture"):
        mechanism = "record"  # what trains a network
    recipe = choose_recipe(
        facts,
        recipe=request.recipe,
        mechanism=mechanism,
        settings=request.settings,
        epsilon=request.epsilon,
        quick=request.quick,
        labels=labels,
    )
    if kind not in (None, recipe.generator.get("kind")):
        latent = {} if kind == "mixture" else {"latent": recipe.generator.get("latent", 12)}
        recipe = recipe.with_generator({"kind": kind, **latent})
    plan = make_plan(
        recipe,
        facts,
        budget_epsilon=request.epsilon,
        delta=request.delta,
        accountant=request.accountant,
        labels=labels,
        seed=request.seed,
    )
    expected = expectation(plan)
    if expected is not None and expected.level == "hopeless" and not request.anyway:
        raise TrainingError(f"{expected}; to train all the same, say so (--anyway, anyway=True)")
    return plan


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
    delta = (recipe.delta or DELTA) if delta is None else delta
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
    plan.check()
    if not plan.private:
        if budget_epsilon is not None:
            raise TrainingError(
                "training without privacy has no epsilon; leave it out, or choose a mechanism"
            )
        if plan.labels == "released":
            raise TrainingError("training without privacy: give the class frequencies, or leave them uniform")
        return dataclasses.replace(plan, noise_multiplier=0.0)
    if budget_epsilon is None:
        if privacy.noise_multiplier is None:
            raise TrainingError(f"the recipe {recipe.name!r} needs a budget: give epsilon (--epsilon)")
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
    if not classes:
        return ()
    labels = tuple(float(share) for share in labels)
    total = math.fsum(labels)
    if not (all(share >= 0 for share in labels) and 0 < total < math.inf):
        raise TrainingError("label probabilities must be zero or positive numbers, not all zero")
    return tuple(share / total for share in labels)


def _calibrated(plan: Plan) -> float:
    """The least noise multiplier that keeps the plan within its budget."""

    def charged(noise: float, rate: float, steps: int) -> Charge:
        return dataclasses.replace(plan, noise_multiplier=noise).mechanism.sampled(rate, steps)

    def noise_for(budget: float) -> float:
        found = calibrate(
            budget,
            plan.delta,
            sampling_rate=plan.sampling_rate,
            steps=plan.steps,
            accountant=plan.accountant,
            charged=charged,
        )
        return found.noise_multiplier

    try:
        sigma = noise_for(plan.budget_epsilon)
        if not dataclasses.replace(plan, noise_multiplier=sigma).preparations:
            return sigma
        # what comes before the steps takes its part of the budget: search for noise that leaves room for it
        low = high = sigma
        while dataclasses.replace(plan, noise_multiplier=high).epsilon > plan.budget_epsilon:
            low, high = high, 2 * high
            if high > 1e6:
                raise CalibrationError("what comes before the first step takes all of it")
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
