"""A row of a table, carried out: train, draw, measure. What is done once is kept, and found again."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dpsinkhorn.evaluation import (
    Protocol,
    compare_images,
    downstream_utility,
    draw_images,
    find_protocol,
    images_of,
    paper_protocol,
)
from dpsinkhorn.evaluation.images import on_device
from dpsinkhorn.files import replace_file
from dpsinkhorn.mechanisms import find_mechanism
from dpsinkhorn.papers.rows import Row
from dpsinkhorn.papers.scales import Scale, Source
from dpsinkhorn.privacy import BatchMechanism, ImageMechanism, epsilon, published_epsilon
from dpsinkhorn.release import Release, load
from dpsinkhorn.training import (
    Plan,
    Recipe,
    Request,
    Run,
    Saving,
    choose_recipe,
    facts_of,
    load_recipe,
    plan_for,
)
from dpsinkhorn.training.recipe import DELTA
from dpsinkhorn.training.watching import Watch

_BUDGET = 10.0  # the papers' ε, for ours
_PATIENCE = {"first": 10, "final": 30}


@dataclass(frozen=True)
class Result:
    """What came out of a row with one seed. ε is what is proved; without privacy it is infinite."""

    accuracy: dict[str, float]
    """By classifier, in per cent, mean over the sets of synthetic images."""
    distance: float
    distance_name: str
    distance_floor: float  # of real images
    precision: float
    recall: float
    epsilon: float = math.inf
    delta: float | None = None
    steps: int | None = None
    noise_multiplier: float | None = None
    seconds: float = 0.0
    """Of training, where it went through at one time."""

    def to_json(self) -> dict[str, Any]:
        """Plain values; an infinite ε is null."""
        data = dataclasses.asdict(self)
        return {**data, "epsilon": None if math.isinf(self.epsilon) else self.epsilon}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Result:
        return cls(**{**data, "epsilon": math.inf if data["epsilon"] is None else data["epsilon"]})


@dataclass(frozen=True)
class Runner:
    """Carries out rows at one scale, in one folder."""

    folder: Path
    scale: Scale
    version: str
    device: torch.device
    steps: int | None = None  # a lower limit on steps than the scale's
    watch: Watch | None = None
    protocol_name: str = "paper"
    """How classifiers are trained: `paper`, as the text says, or `authors`, as their released code does."""

    def result(self, row: Row, source: Source, seed: int) -> Result:
        """Return the figures of a row, computed now or found from before."""
        if (found := self.kept(row, source, seed)) is not None:
            return found
        if row.kind == "real":
            found = self._measure_real(source, seed)
        else:
            plan = self.plan(row, source, seed)
            started = time.monotonic()
            release = self.release(row, source, seed)
            seconds = time.monotonic() - started
            # with the variation of the release: ours is published so, and the papers' have none
            count = self.scale.sets * self.scale.count
            images, labels = draw_images(
                release, count, self.protocol, seed=seed, vary=True, device=self.device
            )
            assert labels is not None
            found = dataclasses.replace(
                self._measure(images, labels, source, seed, self.protocol.prepare(images)),
                epsilon=release.privacy.epsilon,
                delta=plan.delta,
                steps=plan.steps,
                noise_multiplier=plan.noise_multiplier,
                seconds=seconds,
            )
        kept = self._kept_at(row, source, seed)
        kept.parent.mkdir(parents=True, exist_ok=True)
        replace_file(kept, (json.dumps(found.to_json(), indent=1) + "\n").encode())
        return found

    def kept(self, row: Row, source: Source, seed: int) -> Result | None:
        """Return the figures of a row if they are here from before."""
        kept = self._kept_at(row, source, seed)
        return Result.from_json(json.loads(kept.read_text(encoding="utf-8"))) if kept.is_file() else None

    def release(self, row: Row, source: Source, seed: int) -> Release:
        """Train the generator of a row; a training that was interrupted goes on where it was."""
        place = self.place(row, source, seed)
        begun = (place / "run.json").exists()
        run = Run.resume(place) if begun else Run.create(place, self.plan(row, source, seed))
        if not run.done:
            saving = Saving(checkpoint_seconds=120.0, picture_steps=0)
            done = run.train(source.training, device=self.device, saving=saving, watch=self.watch)
            if not done:
                raise KeyboardInterrupt
        return load(run.release_folder)

    def plan(self, row: Row, source: Source, seed: int) -> Plan:
        """Return all numbers of a row's training."""
        budget = None if row.recipe else _BUDGET * row.part
        recipe = self.recipe(row, source)
        return plan_for(source.training, Request(epsilon=budget, recipe=recipe, seed=seed, anyway=True))

    def recipe(self, row: Row, source: Source) -> Recipe:
        """Return the settings of a row's training, at this scale."""
        if not row.recipe:
            facts = facts_of(source.training)
            return self._smaller(choose_recipe(facts, mechanism="record", settings=row.settings))
        base = load_recipe(row.recipe)
        changed = base.replace(**row.settings)
        if row.generator is not None:
            changed = changed.with_generator(row.generator)
        usual, recipe = self._smaller(base), self._smaller(changed)
        if row.part < 1 or recipe.privacy.noise_multiplier != usual.privacy.noise_multiplier:
            # as many steps as bring the same ε, or a part of it, as the paper counts it
            records = source.training.records
            target = row.part * _counted(usual, records, usual.privacy.steps)
            recipe = recipe.replace(privacy={"steps": _steps_within(recipe, records, target)})
        return recipe

    def _smaller(self, recipe: Recipe) -> Recipe:
        smaller = self.scale.apply(recipe)
        if self.steps is not None and self.steps < smaller.privacy.steps:
            smaller = smaller.replace(privacy={"steps": self.steps})
        return smaller

    def _kept_at(self, row: Row, source: Source, seed: int) -> Path:
        """A file named after what decides on the measures besides the images."""
        measures = f"{self.scale.count}-{self.scale.sets}-{self._patience()}-{self.protocol_name}"
        return self.place(row, source, seed) / f"result-{measures}.json"

    def _patience(self) -> int:
        return self.scale.patience or _PATIENCE[self.version]

    @property
    def protocol(self) -> Protocol:
        """The classifiers, with the patience of this scale and version where that is the papers' to say."""
        name = self.protocol_name
        return paper_protocol(self._patience()) if name == "paper" else find_protocol(name)

    def place(self, row: Row, source: Source, seed: int) -> Path:
        """A folder named after everything that a row's generator depends on, so that tables share it."""
        what: dict[str, Any] = {"data": source.training.name, "records": source.training.records}
        if row.kind == "train":
            recipe = self.recipe(row, source).to_json()
            for name in ("name", "description", "published_epsilon"):  # words only
                del recipe[name]
            what.update(recipe=recipe, part=None if row.recipe else row.part)
        digest = hashlib.sha256(json.dumps(what, sort_keys=True, default=str).encode()).hexdigest()[:12]
        return self.folder / "runs" / f"{source.training.name}-{digest}-seed{seed}"

    def _measure_real(self, source: Source, seed: int) -> Result:
        images, labels = images_of(source.training), source.training.labels
        assert labels is not None
        draws = np.random.default_rng(seed)
        sets = [draws.permutation(len(images))[: self.scale.count] for _ in range(self.scale.sets)]
        chosen = np.concatenate(sets)
        return self._measure(images[chosen], labels[chosen], source, seed, images[chosen])

    def _measure(self, images: Any, labels: Any, source: Source, seed: int, prepared: Any) -> Result:
        """Figures of images; the classifiers see them as they were prepared."""
        test = images_of(source.test)
        assert source.test.labels is not None
        utility = downstream_utility(
            prepared,
            labels,
            test,
            source.test.labels,
            classes=source.test.classes,
            protocol=self.protocol,
            classifiers=("logistic", "mlp", "cnn"),
            sets=self.scale.sets,
            seed=seed,
            device=self.device,
        )
        likeness = compare_images(
            source.features,
            on_device(images[: len(images) // self.scale.sets], self.device),
            on_device(test, self.device),
            on_device(images_of(source.training), self.device),
        ).to_json()
        return Result(
            accuracy={score.name: score.mean for score in utility.scores},
            distance=likeness["frechet"],
            distance_name=likeness["name"],
            distance_floor=likeness["floor"],
            precision=likeness["precision"],
            recall=likeness["recall"],
        )


def _counted(recipe: Recipe, records: int, steps: int) -> float:
    """Return ε of so many steps as the papers count it: Renyi, and image by image in the final version."""
    privacy = recipe.privacy
    assert privacy.batch is not None
    assert privacy.noise_multiplier is not None
    rate, sigma = privacy.batch / records, privacy.noise_multiplier
    if find_mechanism(privacy.mechanism).clips_rows:
        mechanism = ImageMechanism(privacy.clip, sigma, rows=recipe.loss.generated)
        return published_epsilon(mechanism, rate, steps, recipe.delta or DELTA)
    return epsilon(
        BatchMechanism(privacy.clip, sigma).sampled(rate, steps), recipe.delta or DELTA, "rdp-classic"
    )


def _steps_within(recipe: Recipe, records: int, target: float) -> int:
    """Return the most steps, to a thousandth, whose ε, as counted, is at most `target`; one at least."""
    low, high = 1, 2
    while _counted(recipe, records, high) <= target:
        low, high = high, 2 * high
    while high - low > max(1, low // 1000):
        middle = (low + high) // 2
        low, high = (middle, high) if _counted(recipe, records, middle) <= target else (low, middle)
    return low
