"""What the plan of a step of the papers teaches: mass across classes, and how much of the gradient is signal.

    python benchmarks/marginals.py mnist --output benchmarks/results/marginals.json

A step has n = 50 generated images of uniform labels, n' = 20 more, and a Poisson sample of 50 training images
on average; α_c = 15, λ = 0.05, c_m with m = 1. Generated images are samples of a mixture
(recipe `mixture`, ε = 10), as a generator late in training makes them, or these half and half with an
untrained generator's. For every kind of plan, as means over the same steps:

- across: share of the mass of the plan to the records that goes to a record of another class;
- signal: cosine between the step's gradient, its rows clipped to 0.5 as `image` clips them, and that of the
  papers' loss (balanced, converged, fully debiased) at 2,000 generated images, the step's among them, and
  2,000 records, 200 of each class: what the step would be were it not for its few images and records;
- drift: the same two gradients, each averaged over all rows of a class in all steps, apart by so much of the
  bound that rows are clipped to: what does not average out, and what chance leaves in so few steps;
- ms: of one CPU thread for a step's gradient, median.
"""

from __future__ import annotations

import json
import math
import time
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dpsinkhorn import DPSinkhorn
from dpsinkhorn.data import Dataset, load_dataset
from dpsinkhorn.generators import MLPConfig, build_generator, draw_latents
from dpsinkhorn.mechanisms.none import NoPrivacy
from dpsinkhorn.mechanisms.shared.base import Sample
from dpsinkhorn.mechanisms.shared.clipping import clip_rows
from dpsinkhorn.mechanisms.shared.terms import Facts, LossSettings, Terms
from dpsinkhorn.training import facts_of, load_recipe, make_plan

N, EXTRA, CLASSES, EACH, REGULARIZATION, CLIP = 50, 20, 10, 200, 0.05, 0.5
PLANS: dict[str, dict[str, Any]] = {
    "balanced": {},
    **{f"ρ = {rho:g}": {"marginals": rho} for rho in (1000.0, 100.0, 10.0, 1.0, 0.1, 0.0)},
    "13 iterations": {"iterations": 13},
    "within classes": {"marginals": "classes"},
}


def main() -> None:
    """Run the command."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("data", help="name or path; its training split is used")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    data = load_dataset(arguments.data)
    found = {stage: _measure(stage, data, arguments.steps) for stage in ("halfway", "late")}
    for stage, plans in found.items():
        print(f"\n{stage:18} {'across, %':>10} {'signal':>16} {'drift, %':>9} {'ms':>6}")
        for name, row in plans.items():
            spread = f"{row['signal']:.3f} ± {row['signal_error']:.3f}"
            print(f"{name:18} {row['across']:10.1f} {spread:>16} {row['drift']:9.1f} {row['ms']:6.1f}")
    if arguments.output:
        settings = {"data": data.name, "steps": arguments.steps, "n": N, "regularization": REGULARIZATION}
        arguments.output.write_text(
            json.dumps({**settings, "plans": found}, indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
        )


def _measure(stage: str, data: Dataset, steps: int) -> dict[str, dict[str, float]]:
    rng, random = np.random.default_rng(0), torch.Generator().manual_seed(0)
    assert data.labels is not None
    kinds = torch.arange(CLASSES).repeat_interleave(EACH)
    both = torch.cat([kinds, kinds])
    images = _generated(stage, data, both, random)
    pool = images[: len(kinds)]
    rows = np.concatenate([rng.choice(np.flatnonzero(data.labels == k), EACH, False) for k in range(CLASSES)])
    whole = _barrier(debias=1.0, tolerance=1e-3)
    target = whole._gradient(images, both, Sample(data.points(rows), kinds))
    barriers = {name: _barrier(debias=EXTRA / N, **options) for name, options in PLANS.items()}
    across, signal, seconds = ({name: [] for name in PLANS} for _ in range(3))
    apart = {name: torch.zeros(CLASSES, pool.shape[1], dtype=torch.float64) for name in PLANS}
    drawn_of = torch.zeros(CLASSES, dtype=torch.float64)
    for _ in range(steps):
        labels = torch.randint(CLASSES, (N,), generator=random)
        taken = torch.cat([labels, labels[:EXTRA]]) * EACH + torch.randint(
            EACH, (N + EXTRA,), generator=random
        )
        drawn = np.flatnonzero(rng.random(data.records) < N / data.records)
        sample = Sample(data.points(drawn), torch.from_numpy(data.labels[drawn]))
        reference = clip_rows(target[taken[:N]] * len(pool) / N, CLIP)  # a row weighs 1/n
        drawn_of += torch.bincount(labels, minlength=CLASSES)
        for name, barrier in barriers.items():
            start = time.process_time()
            gradient = barrier._gradient(pool[taken], kinds[taken], sample)[:N]
            seconds[name].append(time.process_time() - start)
            gradient = clip_rows(gradient, CLIP)
            signal[name].append(float(torch.cosine_similarity(gradient.flatten(), reference.flatten(), 0)))
            apart[name].index_add_(0, labels, gradient - reference)
            across[name].append(_across(barrier, pool[taken[:N]], labels, sample))
    return {
        name: {
            "across": 100 * float(np.mean(across[name])),
            "signal": float(np.mean(signal[name])),
            "signal_error": float(np.std(signal[name]) / math.sqrt(steps)),
            "drift": 100 * float((apart[name] / drawn_of[:, None]).norm(dim=1).mean()) / CLIP,
            "ms": 1000 * float(np.median(seconds[name])),
        }
        for name in PLANS
    }


def _barrier(**options: Any) -> NoPrivacy:
    loss = LossSettings(cost="l1l2", regularization=REGULARIZATION, debias=0.0, **options)
    config = MLPConfig(image_shape=(1, 28, 28), classes=CLASSES)
    return NoPrivacy(Terms(Facts((1, 28, 28), CLASSES, N, N), 1.0, 1.0, 1.0, 1, N, config, loss))


def _generated(stage: str, data: Dataset, kinds: Tensor, random: torch.Generator) -> Tensor:
    """Images of these classes, ``(len(kinds), d)``."""
    images, _ = _mixture(data).sample(len(kinds), labels=kinds.numpy(), random_state=0)
    points = torch.from_numpy(images).flatten(1).float() / 127.5 - 1
    if stage == "late":
        return points
    plan = make_plan(load_recipe("paper-final-mnist").replace(privacy={"steps": 1}), facts_of(data))
    latents = draw_latents(len(kinds), plan.generator_config.latent, random, torch.device("cpu"))
    with torch.no_grad():
        untrained = build_generator(plan.generator_config, 0)(latents, kinds).flatten(1)
    return (points + untrained) / 2


@cache
def _mixture(data: Dataset) -> DPSinkhorn:
    model = DPSinkhorn(epsilon=10.0, delta=1e-5, recipe="mixture", random_state=0)
    return model.fit(data.images, data.labels)


def _across(barrier: NoPrivacy, x: Tensor, labels: Tensor, sample: Sample) -> float:
    """Share of the mass that goes to records of another class.

    Where it does, the gradient in the coordinate of an image's own label is that of the cost of crossing.
    """
    augmented = barrier._augmented(x, labels)
    gradient = barrier._of_transport(augmented, barrier._augmented(sample.points, sample.labels))[0]
    weight = float(augmented[:, x.shape[1] :].max())
    own = gradient[torch.arange(len(x)), x.shape[1] + labels]
    return float(own.sum()) / (2 * weight + 1)


if __name__ == "__main__":
    main()
