"""Quality of private generators: train, draw 60,000 images, train classifiers on them, test on real images.

    python benchmarks/quality.py mnist fashion-mnist --seeds 3 --out results
    python benchmarks/quality.py mnist --paper-protocol            # by the classifiers of `evaluate`
    python benchmarks/quality.py digits --seeds 3 --holdout        # choices: a part of the training split
    python benchmarks/quality.py faces=train.parquet,test.parquet --paper-protocol --delta 1e-6

With `--holdout` every sixth pair of records of the training split takes the place of the test split and is
not trained on: that is for choosing settings. (Pairs, since MNIST's records come from two groups of writers
in turn.) With `--real` the classifiers are trained on the real training images. Prints a table, and writes
figures, settings and grid pictures to `--out`. Runs are seeded, so that they replay; they are not releases.
"""

from __future__ import annotations

import json
import platform
import time
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from classifiers import accuracies
from dpsinkhorn import DPSinkhorn, load
from dpsinkhorn.cli.train import parse_changes
from dpsinkhorn.data import Dataset, from_arrays, load_dataset
from dpsinkhorn.evaluation import downstream_utility, images_of
from dpsinkhorn.release import Release, grid_picture
from dpsinkhorn.training import Plan, Run


def main() -> None:
    """Run the command."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="+", help="names or paths; NAME=PATH or NAME=TRAIN,TEST names them")
    parser.add_argument("--epsilon", type=float, default=10.0)
    parser.add_argument("--delta", type=float, default=1e-5)
    parser.add_argument("--recipe")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=60_000)
    parser.add_argument("--holdout", action="store_true")
    parser.add_argument("--records", type=int, help="train on so many of the records, chosen at random")
    parser.add_argument("--classifiers", help="some of logistic, linear (quick only), mlp, cnn; default all")
    parser.add_argument(
        "--paper-protocol",
        action="store_true",
        help="the classifiers of `dpsinkhorn evaluate --protocol paper` in place of the quick ones",
    )
    parser.add_argument("--runs", type=int, default=5, help="of each network, by the paper's protocol")
    parser.add_argument("--real", action="store_true", help="real training images; nothing is trained")
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.NAME=VALUE")
    parser.add_argument("--run", type=Path, help="measure this finished run's release; nothing is trained")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    results = []
    for source in arguments.data:
        name, _, path = source.rpartition("=")
        name = name or path
        training, test = splits(path, arguments.holdout)
        if arguments.records is not None:
            chosen = np.random.default_rng(0).permutation(training.records)[: arguments.records]
            training = part(training, np.isin(np.arange(training.records), chosen))
        for seed in range(arguments.first_seed, arguments.first_seed + arguments.seeds):
            result = {"data": name, **one_run(name, training, test, seed, arguments)}
            results.append(result)
            print(json.dumps({key: value for key, value in result.items() if key != "plan"}), flush=True)
        summarise(results)
    if arguments.out:
        arguments.out.mkdir(parents=True, exist_ok=True)
        device = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.machine()
        report = {"hardware": device, "holdout": arguments.holdout, "results": results}
        (arguments.out / "quality.json").write_text(json.dumps(report, indent=1))


def splits(path: str, holdout: bool) -> tuple[Dataset, Dataset]:
    """The images to train on, and those to test on."""
    first, _, second = path.partition(",")
    training = load_dataset(first) if second else load_dataset(first, split="train")
    if not holdout:
        return training, load_dataset(second) if second else load_dataset(first, split="test")
    held = np.arange(training.records) // 2 % 6 == 5  # some sets are sorted by class
    return part(training, ~held), part(training, held)


def part(data: Dataset, rows: NDArray[np.bool_]) -> Dataset:
    """Some records of a data set."""
    assert data.labels is not None
    return from_arrays(
        np.asarray(data.images[rows]), data.labels[rows], classes=data.classes, value_range=data.value_range
    )


def one_run(name: str, training: Dataset, test: Dataset, seed: int, arguments: Namespace) -> dict[str, Any]:
    """Train, sample and evaluate once; or only some of it."""
    if arguments.real:
        assert training.labels is not None
        scores = evaluated(images_of(training), training.labels, test, seed, arguments)
        return {"seed": seed, **scores, "records": training.records}
    started = time.monotonic()
    release, plan = trained(training, seed, arguments)
    ready = time.monotonic()
    images, labels = release.sample(arguments.count, random_state=seed, vary=True)
    sampled = time.monotonic()
    assert labels is not None
    scores = evaluated(images, labels, test, seed, arguments)
    if arguments.out:
        arguments.out.mkdir(parents=True, exist_ok=True)
        shown, kinds = release.sample(100, np.repeat(np.arange(10), 10) % training.classes, random_state=seed)
        grid_picture(shown, kinds, arguments.out / f"samples-{name}-{seed}.png")
    return {
        "seed": seed,
        **scores,
        "epsilon": round(release.privacy.epsilon, 4),
        "delta": release.privacy.delta,
        "settings": arguments.set,
        "train_seconds": None if arguments.run else round(ready - started, 1),
        "sample_seconds": round(sampled - ready, 2),
        "evaluate_seconds": round(time.monotonic() - sampled, 1),
        "plan": plan.to_json(),
    }


def evaluated(
    images: NDArray[np.uint8],
    labels: NDArray[np.int64],
    test: Dataset,
    seed: int,
    arguments: Namespace,
) -> dict[str, float]:
    """Per cent of the test images that classifiers trained on the images get right."""
    assert test.labels is not None
    known = ["logistic", "mlp", "cnn"] if arguments.paper_protocol else ["logistic", "linear", "mlp", "cnn"]
    wanted = arguments.classifiers.split(",") if arguments.classifiers else known
    tests = images_of(test), test.labels
    if not arguments.paper_protocol:
        return accuracies(images, labels, *tests, wanted, seed)
    runs = arguments.runs  # each on all images
    utility = downstream_utility(
        np.concatenate([images] * runs),
        np.concatenate([labels] * runs),
        *tests,
        classes=test.classes,
        protocol="paper",
        classifiers=wanted,
        sets=runs,
        seed=seed,
    )
    return {score.name: round(score.mean, 2) for score in utility.scores}


def trained(training: Dataset, seed: int, arguments: Namespace) -> tuple[Release, Plan]:
    """A generator, and the plan that it was trained by."""
    if arguments.run is not None:
        run = Run.resume(arguments.run)
        return load(run.release_folder), run.plan
    model = DPSinkhorn(
        arguments.epsilon,
        arguments.delta,
        recipe=arguments.recipe,
        settings=parse_changes(arguments.set),
        value_range=training.value_range,
        random_state=seed,
    ).fit(training.images, training.labels)
    return model.release_, model.plan_


def summarise(results: list[dict[str, Any]]) -> None:
    """Mean and spread over the seeds of the last data set."""
    last = [result for result in results if result["data"] == results[-1]["data"]]
    for name in ("logistic", "linear", "mlp", "cnn"):
        values = [result[name] for result in last if name in result]
        if values:
            spread = f"{min(values):.1f} to {max(values):.1f}"
            print(
                f"{results[-1]['data']:>16} {name:>9} {np.mean(values):.1f} ({spread}, {len(values)} seeds)"
            )


if __name__ == "__main__":
    main()
