"""Audits at length: lower bounds on epsilon beside what is claimed, for every sanitizer and two trainings.

    python benchmarks/audit.py [--repetitions 20000] [--canaries 1000] [--parts runs published steps]

Secure noise throughout. Minutes on one core; the figures of docs/audit.md are from here.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import time
from pathlib import Path
from typing import Any

from dpsinkhorn.data import load_dataset
from dpsinkhorn.privacy.audit import sampled_gaussian_bound, threshold_bound
from dpsinkhorn.training import load_recipe
from dpsinkhorn.training.auditing import StepSetting, audit_run, audit_step

ROWS = 4
STEPS = (  # mechanism, noise multiplier of a step, sampling rate, steps, share of the repetitions
    *((kind, 1.0, 1.0, 1, 1.0) for kind in ("record", "batch", "image", "parameter")),
    ("record", 1.0, 0.2, 10, 0.1),
)
PUBLISHED = (("image", 1.5, 0.05, 50),)  # noise multiplier of a row, rate, rows: the paper's but for the rate
DELTAS = (1e-5, 1e-2)
PARTS = ("runs", "published", "steps")


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


def run(budget: float, canaries: int) -> dict[str, Any]:
    started = time.monotonic()
    found = audit_run(load_dataset("digits"), load_recipe("digits"), epsilon=budget, canaries=canaries)
    return {
        "claimed": found.claimed,
        "noise_multiplier": found.plan.noise_multiplier,
        "steps": found.plan.steps,
        "canaries": canaries,
        "from_every_step": found.every_step.epsilon,
        "right_of_guesses": [found.every_step.correct, found.every_step.guesses],
        "from_the_generator": found.final.epsilon,
        "seconds": round(time.monotonic() - started, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
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
        for budget in (10.0, 1.0):
            keep("runs", run(budget, options.canaries))
    if "published" in options.parts:
        for kind, noise, rate, rows in PUBLISHED:
            keep("published", *step(StepSetting(kind, noise, rate, rows=rows), options.repetitions))
    if "steps" in options.parts:
        for kind, noise, rate, steps, share in STEPS:
            multiplier = noise * math.sqrt(ROWS) if kind == "image" else noise
            setting = StepSetting(kind, multiplier, rate, steps, ROWS)
            keep("steps", *step(setting, round(share * options.repetitions)))


if __name__ == "__main__":
    main()
