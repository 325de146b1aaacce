"""A user's whole cycle on one machine, timed: train privately, draw 60,000 images, evaluate on real ones.

python benchmarks/cycle.py --data mnist --epsilon 10
python benchmarks/cycle.py --data mnist --steps 3000 --generated-per-class 50 --no-evaluation
"""

from __future__ import annotations

import json
import tempfile
import time
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from pathlib import Path
from typing import Any

import torch

from dpsinkhorn import load
from dpsinkhorn.data import load_dataset
from dpsinkhorn.evaluation import evaluate_images
from dpsinkhorn.training import Progress, Run, Saving, choose_recipe, facts_of, make_plan
from steps import device_name, wait


def main() -> None:
    """Run the command."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="mnist")
    parser.add_argument("--epsilon", type=float, default=10.0)
    parser.add_argument("--delta", type=float, default=1e-5)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--generated-per-class", type=int)
    parser.add_argument("--count", type=int, default=60_000)
    parser.add_argument("--no-evaluation", action="store_true")
    arguments = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    times: dict[str, Any] = {"device": device_name(device)}
    started = time.monotonic()

    def lap(name: str) -> None:
        nonlocal started
        wait(device)
        now = time.monotonic()
        times[name] = round(now - started, 2)
        started = now

    data = load_dataset(arguments.data)
    lap("load_seconds")
    settings: dict[str, dict[str, Any]] = {}
    if arguments.steps:
        settings["privacy"] = {"steps": arguments.steps}
    if per_class := arguments.generated_per_class:
        settings["loss"] = {"generated_per_class": per_class, "generated": per_class * data.classes}
    recipe = choose_recipe(facts_of(data), mechanism="record", settings=settings)
    plan = make_plan(recipe, facts_of(data), budget_epsilon=arguments.epsilon, delta=arguments.delta)
    lap("plan_seconds")
    stepping = 0.0

    def watch(progress: Progress) -> bool:
        nonlocal stepping
        stepping += progress.block.seconds
        return False

    with tempfile.TemporaryDirectory() as folder:
        run = Run.create(Path(folder) / "run", plan)
        run.train(data, device=device, saving=Saving(picture_steps=0), watch=watch)
        lap("train_seconds")
        times["of_which_steps_seconds"] = round(stepping, 2)
        times["steps"] = plan.steps
        if device.type == "cuda":
            times["peak_mb"] = round(torch.cuda.max_memory_allocated() / 2**20)
        release = load(run.release_folder)
        images, labels = release.sample(arguments.count, vary=True)
        lap("sample_seconds")
        times["epsilon"] = release.privacy.epsilon
        if not arguments.no_evaluation:
            test = load_dataset(arguments.data, split="test")
            found = evaluate_images(images, labels, test, training=data, protocol="paper", device=device)
            times["evaluation"] = found.to_json()
            lap("evaluate_seconds")
    laps = (value for key, value in times.items() if key.endswith("_seconds") and "of_which" not in key)
    times["all_seconds"] = round(sum(laps), 1)
    print(json.dumps(times))


if __name__ == "__main__":
    main()
