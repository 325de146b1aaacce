"""One whole training with canaries among its records, and what it shows of ε.

The training is the real one: plan, ledger, loop, barrier, secure noise. Canaries are records: they raise
the size of the data, which is public, so that the plan is made for a declared size, that of the data and half
of the canaries, whichever of them are in. The unit is a record, added or removed, or a person, as in the
claim.
"""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dpsinkhorn.data import Dataset
from dpsinkhorn.generators import Generator, draw_latents
from dpsinkhorn.privacy import Charge, SecureNoise, SeededNoise, compose
from dpsinkhorn.privacy.audit import OneRunBound, f_dp_bound, f_dp_gaussian_bound, one_run_bound
from dpsinkhorn.privacy.noise import NoiseSource
from dpsinkhorn.training.account import Account
from dpsinkhorn.training.auditing.canaries import Canaries, plant_canaries
from dpsinkhorn.training.auditing.observers import Observer, observe
from dpsinkhorn.training.plan import Facts, Plan, make_plan
from dpsinkhorn.training.recipe import Recipe
from dpsinkhorn.training.records import facts_of
from dpsinkhorn.training.trainer import Trainer

Watch: TypeAlias = Callable[[int], None]

_CPU = torch.device("cpu")
_DRAWN = 2000  # images of the final generator, a class
_AT_ONCE = 500


@dataclass(frozen=True)
class RunBounds:
    """What the same guesses show by different reckonings."""

    steinke: OneRunBound
    """By the bound of Steinke et al."""
    f_dp: OneRunBound
    """By f-DP, with nothing assumed."""
    f_dp_gaussian: OneRunBound
    """By f-DP, given Gaussian noise of unknown size."""

    @property
    def largest(self) -> OneRunBound:
        """The one of the largest ε."""
        return max(self.steinke, self.f_dp, self.f_dp_gaussian, key=lambda bound: bound.epsilon)


@dataclass(frozen=True, eq=False)
class RunAudit:
    """What one training showed."""

    plan: Plan
    claimed: float
    """The ε on the ledger of the training."""
    every_step: RunBounds
    """From all that was released, step by step."""
    final: RunBounds
    """From the final generator alone."""
    included: npt.NDArray[np.bool_]
    step_scores: npt.NDArray[np.float64]
    final_scores: npt.NDArray[np.float64]

    @property
    def bound(self) -> float:
        """The largest of the bounds."""
        return max(self.every_step.largest.epsilon, self.final.largest.epsilon)


def audit_run(
    data: Dataset,
    recipe: Recipe,
    *,
    epsilon: float | None = None,
    delta: float | None = None,
    canaries: int = 1000,
    confidence: float = 0.95,
    seed: int | None = None,
    watch: Watch | None = None,
) -> RunAudit:
    """Train once on `data` with `canaries` among them, guess which, and bound ε from below.

    Args:
        recipe: by any mechanism; with `epsilon` its noise follows from that, else it has a noise multiplier.
        seed: replayable noise, for tests; without, the secure one.
        watch: told of every block of steps that was taken.

    >>> from dpsinkhorn.data import load_dataset
    >>> from dpsinkhorn.training import load_recipe
    >>> short = load_recipe("digits").replace(privacy={"steps": 1, "noise_multiplier": 0.5})
    >>> found = audit_run(load_dataset("digits"), short, canaries=50)
    >>> found.bound < found.claimed
    True
    """
    noise: NoiseSource = SecureNoise() if seed is None else SeededNoise(seed + 1)
    planted = plant_canaries(data, canaries, noise)
    plan = make_plan(recipe, _declared(data, planted), budget_epsilon=epsilon, delta=delta, seed=seed)
    observer = observe(plan, data, planted)
    generator, claimed = _train(plan, planted, observer, watch)
    step_scores = observer.scores().numpy()
    final_scores = _nearness(generator, planted).numpy()
    every_step, final = (
        _bounds(plan, scores, planted.included, confidence) for scores in (step_scores, final_scores)
    )
    return RunAudit(plan, claimed, every_step, final, planted.included, step_scores, final_scores)


def _declared(data: Dataset, planted: Canaries) -> Facts:
    """Sizes that do not depend on the coins: those of the data, and half of the canaries."""
    half = len(planted.included) // 2
    facts = facts_of(planted.data, records=data.records + half * planted.records_of_each)
    return dataclasses.replace(facts, units=data.units + half)


def _bounds(
    plan: Plan, scores: npt.NDArray[np.float64], included: npt.NDArray[np.bool_], confidence: float
) -> RunBounds:
    _, *others = plan.charges

    def charge_at(noise: float) -> Charge:
        steps = plan.kind.release_of_size(noise).sampled(plan.sampling_rate, plan.steps)
        return compose(steps, *others)

    return RunBounds(
        one_run_bound(scores, included, delta=plan.delta, confidence=confidence),
        f_dp_bound(scores, included, delta=plan.delta, confidence=confidence),
        f_dp_gaussian_bound(scores, included, charge_at=charge_at, delta=plan.delta, confidence=confidence),
    )


def _train(plan: Plan, planted: Canaries, observer: Observer, watch: Watch | None) -> tuple[Generator, float]:
    """Train as always, on a ledger of its own; return the generator and the ε on record in the end."""
    with (
        tempfile.TemporaryDirectory() as folder,
        Account.open(Path(folder) / "ledger.jsonl", plan, "audit", begin=True) as account,
    ):
        trainer = Trainer(plan, planted.data, _CPU, account, barrier=observer)
        for block in trainer.blocks():
            if watch is not None:
                watch(block.steps)
        return trainer.state.best, account.ledger.epsilon()


def _nearness(generator: Generator, planted: Canaries) -> Tensor:
    """Minus the squared distance of each canary to the nearest of many generated images of its class.

    That of a person is the mean over their records.
    """
    generator, random = generator.eval(), torch.Generator().manual_seed(0)
    scores = torch.empty(len(planted.points), dtype=torch.float64)
    kinds = [None] if planted.labels is None else list(range(int(planted.labels.max()) + 1))
    for kind in kinds:
        mine = slice(None) if kind is None or planted.labels is None else planted.labels == kind
        nearest = torch.full((len(planted.points[mine]),), torch.inf)
        for _ in range(_DRAWN // _AT_ONCE):
            latents = draw_latents(_AT_ONCE, generator.config.latent, random, _CPU)
            labels = None if kind is None else torch.full((_AT_ONCE,), kind)
            with torch.no_grad():
                images = generator(latents, labels).flatten(1)
            nearest = torch.minimum(nearest, torch.cdist(planted.points[mine], images).min(1).values)
        scores[mine] = -nearest.double().square()
    return scores.view(-1, planted.records_of_each).mean(1)
