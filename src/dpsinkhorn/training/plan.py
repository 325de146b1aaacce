"""The plan of a training: every number that its privacy depends on, settled before any record is read.

What it says is what will be charged; `build` returns the mechanism that runs.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from dpsinkhorn.errors import TrainingError, refused
from dpsinkhorn.generators import GeneratorConfig, config_from_json
from dpsinkhorn.mechanisms import find_mechanism
from dpsinkhorn.mechanisms.shared.base import TrainingMechanism
from dpsinkhorn.mechanisms.shared.terms import Facts, Terms
from dpsinkhorn.privacy import ACCOUNTANTS, Accountant, Charge, GaussianMechanism, Mechanism, compose, epsilon
from dpsinkhorn.training.recipe import MOST_STEPS, Recipe, read_value

__all__ = ["Facts", "Plan"]

# Noise on class counts that are released: about this many records a class. It costs little, and the
# probabilities that follow are good to a few hundredths of a percent of sixty thousand records.
_COUNT_NOISE = 25.0
_MOST_GENERATED = 10**6  # images in a step


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
