"""How much signal the first step of `record` has beside its noise, with few and with many records.

    python benchmarks/record_signal.py MNIST          # a folder with MNIST's files

One step on generated images that are nearly black, as they are at first: the length of the clipped sum over a
sample of the records, and of the noise that is added to it, at ε = 10. Prints a table. Later steps have less
signal. Nothing is released.
"""

from __future__ import annotations

import math
import sys

import numpy as np
import torch
from numpy.typing import NDArray

from dpsinkhorn.data import from_arrays, load_dataset
from dpsinkhorn.mechanisms.record import Record
from dpsinkhorn.mechanisms.shared.base import Sample
from dpsinkhorn.training import facts_of, load_recipe, make_plan
from persons import deal

CASES = (("grey", 1000), ("digits", 1000), ("grey", 10_000), ("grey", 60_000))  # 1,000: persons of 3


def main() -> None:
    """Run the command."""
    data = load_dataset(sys.argv[1])
    assert data.labels is not None
    print("| recipe | records | steps | generated | σ | noise over signal |\n|---|---|---|---|---|---|")
    for recipe, units in CASES:
        rows, persons = np.random.default_rng(0).permutation(data.records)[:units], None
        if units == 1000:
            rows, persons = deal(data.labels, 3, "mixed", 0)
        title = f"{units:,}" if persons is None else f"{units:,} persons of 3"
        print(f"| `{recipe}` | {title} | {one_step(recipe, data.images[rows], data.labels[rows], persons)} |")


def one_step(
    recipe: str, images: NDArray[np.uint8], labels: NDArray[np.int64], persons: NDArray[np.int64] | None
) -> str:
    """Steps, generated images, σ, and the length of the noise over that of the signal."""
    data = from_arrays(images, labels, groups=persons)
    plan = make_plan(load_recipe(recipe), facts_of(data), budget_epsilon=10.0)
    units = np.arange(len(labels)) if persons is None else persons
    drawn = np.flatnonzero((np.random.default_rng(1).random(len(labels)) < plan.sampling_rate)[units])
    groups = None if persons is None else torch.tensor(persons[drawn])
    sample = Sample(data.points(drawn).float(), torch.tensor(labels[drawn]), groups)
    points = -0.9 + 0.1 * torch.rand(2 * plan.generated, plan.facts.pixels, generator=torch.manual_seed(0))
    record = plan.build()
    assert isinstance(record, Record)
    total, _ = record.clipped_sums(points, torch.arange(len(points)) % data.classes, sample)
    noise = record.mechanism.noise_std * math.sqrt(total.numel())
    times = noise / float(total.norm())
    return f"{plan.steps:,} | {plan.generated} | {plan.noise_multiplier:.2f} | {times:.1f}"


if __name__ == "__main__":
    main()
