"""Audits at length: lower bounds on epsilon beside what is claimed, of single steps and of whole trainings.

    python benchmarks/audit.py [--repetitions 20000] [--canaries 1000] [--parts runs published steps moves]

Secure noise throughout. Minutes on one core; the figures of docs/audit.md are from here.
"""

from __future__ import annotations

import dataclasses
import json
import math
import time
from argparse import ArgumentParser
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dpsinkhorn.data import load_dataset
from dpsinkhorn.generators import draw_latents
from dpsinkhorn.mechanisms.parameter import Parameter
from dpsinkhorn.mechanisms.shared.base import Sample
from dpsinkhorn.privacy import SecureNoise
from dpsinkhorn.privacy.audit import one_run_bound, sampled_gaussian_bound, threshold_bound
from dpsinkhorn.training import choose_recipe, facts_of, make_plan
from dpsinkhorn.training.auditing import RunBounds, StepSetting, audit_run, audit_step, plant_canaries
from dpsinkhorn.training.records import Records
from dpsinkhorn.training.state import TrainingState

ROWS = 4
STEPS = (  # mechanism, noise multiplier of a step, sampling rate, steps, share of the repetitions
    *((kind, 1.0, 1.0, 1, 1.0) for kind in ("record", "batch", "image", "parameter")),
    ("record", 1.0, 0.2, 10, 0.1),
)
PUBLISHED = (("image", 1.5, 0.05, 50),)  # noise multiplier of a row, rate, rows: the paper's but for the rate
DELTAS = (1e-5, 1e-2)
MECHANISMS = ("record", "moments", "batch", "image", "parameter")
RUN_STEPS = dict.fromkeys(("batch", "image", "parameter"), 300)  # a minute; their recipes have far more
PARTS = ("runs", "published", "steps", "moves")


def step(setting: StepSetting, repetitions: int) -> list[dict[str, Any]]:
    """One game; the bounds at two δ are of the same scores."""
    started = time.monotonic()
    found = audit_step(setting, delta=DELTAS[0], repetitions=repetitions)
    rate, steps = setting.sampling_rate, setting.steps
    rows = []
    for delta in DELTAS:
        by_threshold = threshold_bound(found.present, found.absent, delta=delta)
        given = sampled_gaussian_bound(
            found.present, found.absent, sampling_rate=rate, steps=steps, delta=delta
        )
        rows.append(
            {
                **dataclasses.asdict(setting),
                "delta": delta,
                "repetitions": repetitions,
                "claimed": setting.claimed(delta),
                "published": setting.published(delta),
                "by_threshold": by_threshold.epsilon,
                "by_gaussian": given.epsilon,
                "seconds": round(time.monotonic() - started, 1),
            }
        )
    return rows


def run(kind: str, budget: float, canaries: int) -> dict[str, Any]:
    """One whole training by a mechanism, all bounds of the same guesses side by side."""
    started = time.monotonic()
    data = load_dataset("digits")
    steps = RUN_STEPS.get(kind)
    settings = {} if steps is None else {"privacy": {"steps": steps}}
    recipe = choose_recipe(facts_of(data), mechanism=kind, settings=settings)
    found = audit_run(data, recipe, epsilon=budget, canaries=canaries)
    return {
        "mechanism": kind,
        "claimed": found.claimed,
        "noise_multiplier": found.plan.mechanism.noise_multiplier,
        "sampling_rate": found.plan.sampling_rate,
        "steps": found.plan.steps,
        "canaries": canaries,
        "from_every_step": shown(found.every_step),
        "from_the_generator": shown(found.final),
        "seconds": round(time.monotonic() - started, 1),
    }


def shown(bounds: RunBounds) -> dict[str, Any]:
    """Epsilon, right guesses and guesses of each bound."""
    return {
        name: [bound["epsilon"], bound["correct"], bound["guesses"]]
        for name, bound in dataclasses.asdict(bounds).items()
    }


def moves(kind: str, canaries: int) -> dict[str, Any]:
    """How far a canary moves what is noised in ordinary steps, over the claimed sensitivity.

    And what follows for a whole training: an observer who knew everything but whether this canary is in, and
    whom no other canary or record disturbed, would tell the two apart like unit Gaussians at a distance of
    μ = √T q move / σ. The bound is that of so many canaries with such scores, the median of ten trials.
    """
    data = load_dataset("digits")
    recipe = choose_recipe(facts_of(data), mechanism=kind)
    plan = make_plan(recipe, facts_of(data), budget_epsilon=10.0)
    planted = plant_canaries(data, 200, SecureNoise())
    state, barrier = TrainingState(plan, torch.device("cpu")), plan.build()
    records = Records(data, state.device)
    state.generator.train()
    found = []
    for at in range(50):
        extra = barrier.resampled(plan.generated)
        latents = draw_latents(plan.generated + extra, state.generator.config.latent, state.random)
        labels = torch.arange(plan.generated) % data.classes
        labels = torch.cat([labels, labels[:extra]])
        sample = records.draw(plan.sampling_rate, state.noise)

        def images(latents: Tensor = latents, labels: Tensor = labels) -> Tensor:
            return state.generator(latents, labels).flatten(1)

        def clipped(sample: Sample, images: Callable[[], Tensor] = images, labels: Tensor = labels) -> Tensor:
            more = (state.parameters,) if isinstance(barrier, Parameter) else ()
            return barrier.clipped(images(), labels, sample, *more)  # type: ignore[attr-defined]

        canary = Sample(planted.points[at : at + 1], planted.labels[at : at + 1])
        with_it = Sample(torch.cat([sample.points, canary.points]), torch.cat([sample.labels, canary.labels]))
        move = float((clipped(with_it) - clipped(sample)).norm()) / barrier.mechanism.sensitivity
        found.append(move)
        state.optimizer.zero_grad()
        barrier.backward(images(), labels, sample, state.parameters, state.noise)
        state.optimizer.step()
    move = float(np.median(found))
    mu = math.sqrt(plan.steps) * plan.sampling_rate * move / barrier.mechanism.noise_multiplier
    bounds = []
    for seed in range(10):
        random = np.random.default_rng(seed)
        included = random.random(canaries) < 0.5
        scores = mu * included + random.normal(size=canaries)
        bounds.append(one_run_bound(scores, included, delta=plan.delta).epsilon)
    return {
        "mechanism": kind,
        "claimed": plan.epsilon,
        "steps": plan.steps,
        "sampling_rate": plan.sampling_rate,
        "noise_multiplier": barrier.mechanism.noise_multiplier,
        "move": move,
        "largest_move": max(found),
        "mu": mu,
        "best_one_run_bound": float(np.median(bounds)),
    }


def main() -> None:
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=20_000)
    parser.add_argument("--canaries", type=int, default=1000)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="the others are kept")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results" / "audit.json")
    options = parser.parse_args()
    results: dict[str, list[dict[str, Any]]] = {}
    if options.output.exists():
        results = json.loads(options.output.read_text(encoding="utf-8"))

    def keep(part: str, *rows: dict[str, Any]) -> None:
        results[part] += rows
        for row in rows:
            print(json.dumps(row), flush=True)
        options.output.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")

    results.update({part: [] for part in options.parts})
    if "runs" in options.parts:
        for kind in MECHANISMS:
            for budget in (10.0, 1.0):
                keep("runs", run(kind, budget, options.canaries))
    if "published" in options.parts:
        for kind, noise, rate, rows in PUBLISHED:
            keep("published", *step(StepSetting(kind, noise, rate, rows=rows), options.repetitions))
    if "steps" in options.parts:
        for kind, noise, rate, steps, share in STEPS:
            multiplier = noise * math.sqrt(ROWS) if kind == "image" else noise
            setting = StepSetting(kind, multiplier, rate, steps, ROWS)
            keep("steps", *step(setting, round(share * options.repetitions)))
    if "moves" in options.parts:
        for kind in ("record", "batch", "image", "parameter"):
            keep("moves", moves(kind, options.canaries))


if __name__ == "__main__":
    main()
