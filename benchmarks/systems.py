"""The systems of other papers, by their recipes: trained at one epsilon, measured by the quick classifiers.

    python benchmarks/systems.py mnist fashion-mnist --methods dp_merf,gs_wgan,dp_cgan --out systems.jsonl
    python benchmarks/systems.py mnist=FOLDER --methods gs_wgan:privacy.steps=4000,dp_cgan --seeds 0,1 --out F

A line of JSON is appended for each training as soon as it is measured, and lines that are there already are
not made again. With `--minutes` nothing is begun after that time. Samples are as they are, not varied. Runs
are seeded, so that they replay; they are not releases.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from pathlib import Path
from typing import Any

import torch

from classifiers import accuracies
from dpsinkhorn import DPSinkhorn
from dpsinkhorn.cli.train import parse_changes
from dpsinkhorn.data import Dataset, load_dataset
from dpsinkhorn.evaluation import images_of

CLASSIFIERS = ["logistic", "mlp", "cnn"]


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", nargs="+", help="names, or NAME=PATH")
    parser.add_argument("--methods", default="dp_merf,gs_wgan,dp_cgan", help="METHOD[:SECTION.NAME=VALUE...]")
    parser.add_argument("--epsilon", type=float, default=10.0)
    parser.add_argument("--delta", type=float, default=1e-5)
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--count", type=int, default=60_000)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    started = time.monotonic()
    lines = arguments.out.read_text().splitlines() if arguments.out.exists() else []
    known = [json.loads(line)["asked"] for line in lines]
    splits: dict[str, tuple[Dataset, Dataset]] = {}
    for seed in map(int, arguments.seeds.split(",")):
        for method in arguments.methods.split(","):
            for source in arguments.data:
                name, _, path = source.rpartition("=")
                asked = [name or path, method, arguments.epsilon, seed, arguments.count]
                if asked in known or time.monotonic() - started > 60 * arguments.minutes:
                    print("left out:", *asked, flush=True)
                    continue
                if path not in splits:
                    splits[path] = load_dataset(path, split="train"), load_dataset(path, split="test")
                found = {"asked": asked, **measured(method, *splits[path], seed, arguments)}
                with arguments.out.open("a") as file:
                    file.write(json.dumps(found) + "\n")
                print(json.dumps({**found, "plan": None}), flush=True)


def measured(
    method: str, training: Dataset, test: Dataset, seed: int, arguments: argparse.Namespace
) -> dict[str, Any]:
    """Train, sample and measure once."""
    mechanism, _, changes = method.partition(":")
    began, busy = time.monotonic(), time.process_time()
    model = DPSinkhorn(
        arguments.epsilon,
        arguments.delta,
        mechanism=mechanism,
        settings=parse_changes(changes.split(":") if changes else []),
        value_range=training.value_range,
        random_state=seed,
    ).fit(training.images, training.labels)
    trained, busy = time.monotonic(), time.process_time() - busy
    images, labels = model.sample(arguments.count, random_state=seed)
    scores = accuracies(images, labels, images_of(test), test.labels, CLASSIFIERS, seed)
    plan = model.plan_
    return {
        **scores,
        "epsilon": model.privacy_.epsilon,
        "published_epsilon": plan.published_epsilon,
        "delta": arguments.delta,
        "noise_multiplier": plan.noise_multiplier,
        "records": training.records,
        "steps": plan.steps,
        "train_seconds": round(trained - began, 1),
        "processor_seconds": round(busy, 1),
        "measure_seconds": round(time.monotonic() - trained, 1),
        "protocol": "quick, test split",
        "hardware": hardware(),
        "plan": plan.to_json(),
    }


def hardware() -> str:
    """Return the GPU's name, or the kind of processor and how many of its cores are used."""
    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    return f"{torch.get_num_threads()} CPU cores ({platform.machine()})"


if __name__ == "__main__":
    main()
