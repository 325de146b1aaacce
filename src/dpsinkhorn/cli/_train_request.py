"""What `dpsinkhorn train` was asked for, and the plan that comes of it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dpsinkhorn.cli._output import BadInputError
from dpsinkhorn.cli.privacy import AccountantName, parse_rate

if TYPE_CHECKING:
    import torch

    from dpsinkhorn.data import Dataset
    from dpsinkhorn.training import Plan

__all__ = ["Request", "parse_changes"]


@dataclass(frozen=True)
class Request:
    """Options that settle a plan; None where one was not given."""

    epsilon: float | None
    delta: float | None
    mechanism: str | None
    recipe: str | None
    steps: int | None
    sampling_rate: str | None
    clip: float | None
    noise_multiplier: float | None
    generator: str | None
    labels: str | None
    records: int | None
    accountant: AccountantName | None
    seed: int | None
    set: list[str] | None
    """Changes to the recipe, as `SECTION.NAME=VALUE`."""

    def given(self) -> dict[str, Any]:
        """What was, by the name of its option."""
        return {name: value for name, value in dataclasses.asdict(self).items() if value is not None}

    def plan(self, dataset: Dataset, place: torch.device) -> Plan:
        """The plan for these data."""
        from dpsinkhorn.training import choose_recipe, facts_of, make_plan

        facts = facts_of(dataset, records=self.records)

        if self.epsilon is not None and self.noise_multiplier is not None:
            raise BadInputError("give --epsilon or --noise-multiplier, not both: one follows from the other")
        chosen = choose_recipe(
            dataset.image_shape,
            recipe=self.recipe,
            mechanism=self.mechanism,
            settings=self._settings(),
            epsilon=self.epsilon if self.generator is None else None,
            records=facts.records,
            persons=facts.grouped,
            quick=place.type == "cpu",
        )
        if self.generator is not None and self.generator != chosen.generator.get("kind"):
            latent = {} if self.generator == "mixture" else {"latent": chosen.generator.get("latent", 12)}
            chosen = chosen.with_generator({"kind": self.generator, **latent})
        return make_plan(
            chosen,
            facts,
            budget_epsilon=self.epsilon,
            delta=self.delta,
            accountant=(self.accountant or AccountantName.pld).value,
            labels=_shares(self.labels or "uniform"),
            seed=self.seed,
        )

    def _settings(self) -> dict[str, dict[str, Any]]:
        settings = parse_changes(self.set or ())
        options = {
            "steps": self.steps,
            "clip": self.clip,
            "noise_multiplier": self.noise_multiplier,
            "sampling_rate": parse_rate(self.sampling_rate, None, None),
        }
        for name, value in options.items():
            if value is not None and settings.setdefault("privacy", {}).setdefault(name, value) != value:
                raise BadInputError(
                    f"--{name.replace('_', '-')} and --set privacy.{name} are the same: give one"
                )
        return settings


def parse_changes(changes: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Settings by section from `SECTION.NAME=VALUE`, the value as in JSON, or a bare word.

    >>> parse_changes(["optimizer.learning_rate=1e-4", "loss.cost=l1l2", "generator.batch_norm=false"])
    {'optimizer': {'learning_rate': 0.0001}, 'loss': {'cost': 'l1l2'}, 'generator': {'batch_norm': False}}
    """
    settings: dict[str, dict[str, Any]] = {}
    for change in changes:
        key, equals, text = change.partition("=")
        section, dot, name = key.strip().partition(".")
        if not (section and dot and name and equals):
            raise BadInputError(
                f"--set takes SECTION.NAME=VALUE, such as loss.regularization=2, not {change!r}"
            )
        try:
            value = json.loads(text)
        except json.JSONDecodeError:
            value = text.strip()
        if name in settings.setdefault(section, {}):
            raise BadInputError(f"--set {section}.{name} was given twice")
        settings[section][name] = value
    return settings


def _shares(labels: str) -> str | tuple[float, ...]:
    if labels in ("uniform", "released"):
        return labels
    try:
        return tuple(float(share) for share in labels.split(","))
    except ValueError:
        raise BadInputError(
            f"--labels must be uniform, released, or shares such as 0.9,0.1, not {labels}"
        ) from None
