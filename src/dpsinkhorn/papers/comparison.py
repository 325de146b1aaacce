"""`compare`: several methods trained on the same data at the same (ε, δ), and measured in the same way."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from dpsinkhorn.data import Dataset
from dpsinkhorn.errors import ReproductionError, TrainingError
from dpsinkhorn.evaluation import Evaluation, Utility, draw_images, evaluate_images, find_protocol, images_of
from dpsinkhorn.mechanisms import private_names
from dpsinkhorn.privacy import epsilon as epsilon_of
from dpsinkhorn.privacy import format_epsilon, read_ledger
from dpsinkhorn.release import grid_image, load
from dpsinkhorn.training import Plan, Request, Run, Saving, plan_for
from dpsinkhorn.training.fitting import run_in
from dpsinkhorn.training.trial import try_plan
from dpsinkhorn.training.used_data import note_use
from dpsinkhorn.training.watching import Watch

LONGEST = 120.0
"""Seconds that a method may be expected to train for, unless it was asked for by name."""

_CLASSIFIERS = ("logistic", "mlp", "cnn")
_COLUMNS = 6  # images of a class in a grid
_MOST_CLASSES = 20  # in a grid


@dataclass(frozen=True, eq=False)
class Compared:
    """What came of one method."""

    method: str
    summary: str
    recipe: str
    epsilon: float
    """What is proved."""
    delta: float
    published_epsilon: float | None
    """**Not a guarantee**: what the method's paper counts for this training, where that does not hold."""
    steps: int
    seconds: float | None
    """Of training; none where it was trained before."""
    accuracy: dict[str, float]
    """By classifier, in per cent; none where there are no labels."""
    distance: float
    grid: Image.Image
    """Generated images, a row for each class."""

    def to_json(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "grid"}


@dataclass(frozen=True)
class LeftOut:
    """A method that was not trained."""

    method: str
    reason: str
    expected_seconds: float | None = None


@dataclass(frozen=True, eq=False)
class Comparison:
    """All methods, what they cost together, and what is said of the figures."""

    data: str
    epsilon: float
    """Of each method."""
    protocol: str
    count: int
    """Generated images of each method that were measured."""
    distance_name: str
    distance_floor: float | None
    """Of real images."""
    real: dict[str, float]
    """Accuracy of the classifiers trained on real images."""
    methods: tuple[Compared, ...]
    left_out: tuple[LeftOut, ...]
    warning: str
    public: bool
    used_before: str | None = None
    """What is to be said of earlier uses of the same data."""
    earlier: tuple[tuple[str, float, float], ...] = ()
    """Name, ε and δ of runs that are in the folder from other comparisons."""
    real_grid: Image.Image | None = None
    """Real test images, a row for each class, where they are public."""

    @property
    def grids(self) -> dict[str, Image.Image]:
        """Pictures by what they are of, real images first."""
        real = {} if self.real_grid is None else {"real images": self.real_grid}
        return real | {each.method: each.grid for each in self.methods}

    @property
    def together(self) -> tuple[float, float]:
        """ε and δ of all trainings in the folder together, by adding up."""
        spent = [*((each.epsilon, each.delta) for each in self.methods), *(each[1:] for each in self.earlier)]
        return math.fsum(epsilon for epsilon, _ in spent), math.fsum(delta for _, delta in spent)

    @property
    def sentence(self) -> str:
        """Say what comparing costs."""
        epsilon, delta = self.together
        before = ", with those that were trained in this folder before" if self.earlier else ""
        return (
            f"Comparing on private data costs the sum of all epsilons: here ε = {format_epsilon(epsilon)} at "
            f"δ = {delta:.3g} together{before}, whichever generator is kept."
        )

    def to_json(self) -> dict[str, Any]:
        others = "methods", "left_out", "real_grid"
        plain = {name: value for name, value in vars(self).items() if name not in others}
        epsilon, delta = self.together
        return {
            **plain,
            "methods": [each.to_json() for each in self.methods],
            "left_out": [vars(each) for each in self.left_out],
            "together": {"epsilon": epsilon, "delta": delta, "sentence": self.sentence},
        }


def compare(
    training: Dataset,
    test: Dataset,
    folder: Path,
    *,
    epsilon: float,
    delta: float | None = None,
    methods: Sequence[str] | None = None,
    longest: float = LONGEST,
    protocol: str = "quick",
    count: int | None = None,
    seed: int | None = None,
    device: torch.device | None = None,
    public: bool = False,
    progress: Callable[[str, int, int], object] | None = None,
    watch: Watch | None = None,
) -> Comparison:
    """Train each method by its own recipe at (ε, δ), and measure all of them by one protocol.

    Args:
        test: Real images that nothing is trained on.
        folder: Each method has a run in it, with a ledger and a release of its own. What is trained there
            already, with the same settings, is not trained again.
        epsilon: Of each method.
        methods: Mechanisms by name; by default all that are private and not expected to take too long.
        longest: How many seconds that is. It is found by a few steps on made-up data.
        count: Generated images of each method that are measured; by default as many as the protocol has.
        seed: Makes trainings replay, and not for release.
        public: Whether the data are public, so that the figures may be shown.
        progress: Called with what is done, how many methods are done, and of how many.
        watch: Called while a method is trained; an answer of True stops there, to be gone on with.
    """
    where, tell = device or torch.device("cpu"), progress or (lambda *_: None)
    named = private_names() if methods is None else tuple(dict.fromkeys(methods))
    for name in named:
        if name not in private_names():
            raise ReproductionError(f"methods are {', '.join(private_names())}; there is no {name}")
    plans: dict[str, Plan] = {}
    left_out = []
    for turn, name in enumerate(named):
        tell(f"{name}: how long will it take?", turn, len(named))
        request = Request(epsilon, delta, mechanism=name, seed=seed, quick=where.type == "cpu")
        found = _plan(training, request, where, longest if methods is None else math.inf)
        if isinstance(found, LeftOut):
            left_out.append(found)
        else:
            plans[name] = found
    if not plans:
        raise ReproductionError(f"no method is left: {left_out[0].method}: {left_out[0].reason}")
    before = _earlier(folder, plans)
    compared: list[Compared] = []
    evaluations: list[Evaluation] = []
    used_before = None
    number = find_protocol(protocol).count if count is None else count
    for turn, (name, plan) in enumerate(plans.items()):
        tell(name, turn, len(plans))
        run = run_in(folder / name, plan, None, None)
        earlier = None if public else note_use(training, plan, run.name, run.ledger_path)
        used_before = used_before if compared else earlier  # later ones have those before them on this page
        seconds = _trained(run, training, where, watch)
        tell(f"{name}: measuring", turn, len(plans))
        release = load(run.release_folder)
        images, labels = draw_images(release, number, protocol, device=where)
        measured = ["frechet", *(() if labels is None else _CLASSIFIERS)]
        real = ["real"] if labels is not None and not compared else []  # the same for all
        evaluation = evaluate_images(
            images, labels, test, training=training, protocol=protocol, parts=(*measured, *real), device=where
        )
        evaluations.append(evaluation)
        assert evaluation.likeness is not None
        assert evaluation.likeness.frechet is not None
        kinds = np.repeat(np.arange(min(release.classes, _MOST_CLASSES)), _COLUMNS)
        shown, shown_labels = release.sample(
            len(kinds) or _COLUMNS**2, kinds if release.classes else None, random_state=0, device=where
        )
        compared.append(
            Compared(
                name,
                plan.kind.summary,
                plan.recipe.name,
                epsilon=release.privacy.epsilon,
                delta=plan.delta,
                published_epsilon=plan.published_epsilon,
                steps=plan.steps,
                seconds=seconds,
                accuracy=_accuracy(evaluation.utility),
                distance=evaluation.likeness.frechet,
                grid=grid_image(shown, shown_labels, columns=_COLUMNS, class_names=release.class_names),
            )
        )
    first = evaluations[0]
    assert first.likeness is not None
    return Comparison(
        data=training.name,
        epsilon=epsilon,
        protocol=f"{first.protocol.name}: {first.protocol.summary}",
        count=number,
        distance_name=first.likeness.name,
        distance_floor=first.likeness.floor,
        real=_accuracy(first.real),
        methods=tuple(compared),
        left_out=tuple(left_out),
        warning=replace(first, public=public).warning,
        public=public,
        used_before=used_before,
        earlier=before,
        real_grid=_grid_of(test) if public else None,
    )


def _grid_of(test: Dataset) -> Image.Image:
    """Return a picture of real images, a row for each class."""
    if test.labels is None:
        rows, labels = np.arange(min(test.records, _COLUMNS**2)), None
    else:
        kinds = range(min(test.classes, _MOST_CLASSES))
        rows = np.concatenate([np.flatnonzero(test.labels == kind)[:_COLUMNS] for kind in kinds])
        labels = test.labels[rows]
    return grid_image(images_of(test)[rows], labels, columns=_COLUMNS, class_names=test.class_names)


def _earlier(folder: Path, plans: Mapping[str, Plan]) -> tuple[tuple[str, float, float], ...]:
    """Return name, ε and δ of the runs in a folder that are not of these methods, by their ledgers."""
    found, unit = [], next(iter(plans.values())).facts.unit
    for settings in sorted(folder.glob("*/run.json")):
        run = Run.resume(settings.parent)
        if settings.parent.name in plans:
            continue
        if run.plan.facts.unit != unit:
            raise ReproductionError(
                f"{run.folder} protects each {run.plan.facts.unit}, and this comparison each {unit}: what "
                "they cost together cannot be said; choose another folder"
            )
        if run.ledger_path.exists():
            spent = epsilon_of(read_ledger(run.ledger_path).total(), run.plan.delta)
            found.append((settings.parent.name, spent, run.plan.delta))
        elif run.begun:
            raise ReproductionError(
                f"the ledger {run.ledger_path} is gone, so that what {run.folder} cost is not known; put it "
                "back, or choose another folder"
            )
    return tuple(each for each in found if each[1])


def _plan(training: Dataset, request: Request, device: torch.device, longest: float) -> Plan | LeftOut:
    """Return the plan of a method, unless there is none, or it would take too long."""
    assert request.mechanism is not None
    try:
        plan = plan_for(training, request)
        if math.isinf(longest):
            return plan
        expected = try_plan(plan, device).seconds
    except TrainingError as error:
        return LeftOut(request.mechanism, str(error))
    if expected <= longest:
        return plan
    reason = (
        f"the recipe {plan.recipe.name} would take about {_duration(expected)}; "
        f"name it (--methods) to train it all the same"
    )
    return LeftOut(request.mechanism, reason, expected)


def _trained(run: Run, training: Dataset, device: torch.device, watch: Watch | None) -> float | None:
    """Train a run to its end; return the seconds, or none where it was trained before."""
    if run.done:
        return None
    started = time.monotonic()
    if not run.train(training, device=device, saving=Saving(picture_steps=0), watch=watch):
        raise KeyboardInterrupt
    return time.monotonic() - started


def _accuracy(utility: Utility | None) -> dict[str, float]:
    return {} if utility is None else {score.name: score.mean for score in utility.scores}


def _duration(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.0f} h"
