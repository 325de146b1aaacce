"""Quality of private generators: train, draw 60,000 images, train classifiers on them, test on real images.

    python benchmarks/quality.py mnist fashion-mnist --out FOLDER
    python benchmarks/quality.py mnist=PATH --recipes flow,grey --epsilons 10,1 --measures cnn,likeness
    python benchmarks/quality.py mnist --recipes paper-final:loss.iterations=null --protocols authors
    python benchmarks/quality.py mnist --recipes dp-merf,gs-wgan --protocols evaluate --count 10000 --sets 1
    python benchmarks/quality.py digits --holdout                  # choices: a part of the training split
    python benchmarks/quality.py faces=train.parquet,test.parquet --protocols paper --delta 1e-6

Every figure, of one data set, seed, ε, recipe, protocol and measure, is a line of JSON, on the screen and in
FOLDER/figures.jsonl, as soon as it is there. What is there is not made again, and a training goes on where it
was, so the same command may be given until nothing is left: `--minutes` ends it at the next block of steps,
and begins no measure after that. With `--unfinished` what was reached by then is released and measured. A
recipe may be followed by changes; where there is none of a name, that of the data set is tried
(`paper-final-mnist`). Recipes with noise of their own, such as the papers', take no ε.

Protocols: `quick` are the classifiers of `benchmarks/classifiers.py`, `evaluate` is `quick` of `dpsinkhorn
evaluate --protocol`; the others are called as there. All but `quick` have `--sets` sets of images drawn
afresh. The measure `likeness` is Frechet distance, precision and recall, by features of a CNN that real
images taught. Images are plain unless `--vary`. With `--holdout` every sixth pair of records of the training
split takes the place of the test split and is not trained on: that is for choosing settings. (Pairs, since
MNIST's records come from two groups of writers in turn.) `--recipes real` trains classifiers on the real
training images, `--run` measures a finished run. Trainings are seeded, so that they replay; they are not
releases.
"""

from __future__ import annotations

import hashlib
import json
import math
import platform
import statistics
import sys
import time
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from classifiers import accuracies
from dpsinkhorn import load
from dpsinkhorn.cli.train import parse_changes
from dpsinkhorn.data import Dataset, from_arrays, load_dataset
from dpsinkhorn.evaluation import draw_images, evaluate_images, images_of
from dpsinkhorn.release import grid_picture, save_release
from dpsinkhorn.training import Request, Run, Saving, load_recipe, plan_for, recipe_names
from dpsinkhorn.training.trainer import Trainer

MEASURES = ("logistic", "linear", "forest", "mlp", "cnn", "likeness")
_THEIRS = {"evaluate": "quick"}  # protocols by their other name
_QUICK = ("logistic", "linear", "mlp", "cnn")
_DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def main() -> None:
    """Run the command."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="+", help="names or paths; NAME=PATH or NAME=TRAIN,TEST names them")
    parser.add_argument(
        "--recipes", default="default", help="RECIPE[:SECTION.NAME=VALUE...],...; default, real"
    )
    parser.add_argument("--epsilons", default="10")
    parser.add_argument("--delta", type=float, default=1e-5)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--protocols", default="quick", help="quick, evaluate, paper, authors")
    parser.add_argument("--measures", default="logistic,mlp,cnn", help=", ".join(MEASURES))
    parser.add_argument("--count", type=int, default=60_000, help="images of a set")
    parser.add_argument("--sets", type=int, default=5, help="of all protocols but `quick`, which has one")
    parser.add_argument("--vary", action="store_true", help="as the release varies images, not plain")
    parser.add_argument("--holdout", action="store_true")
    parser.add_argument("--records", type=int, help="train on so many of the records, chosen at random")
    parser.add_argument("--shrink", type=int, default=1, help="images to means of blocks of so many pixels")
    parser.add_argument("--run", type=Path, help="measure this finished run's release; nothing is trained")
    parser.add_argument("--minutes", type=float, default=math.inf)
    parser.add_argument("--unfinished", action="store_true", help="measure what the time cut short, as it is")
    parser.add_argument("--out", type=Path, default=Path("quality"))
    arguments = parser.parse_args()
    unknown = set(arguments.measures.split(",")) - set(MEASURES)
    if unknown:
        parser.error(f"measures are some of {', '.join(MEASURES)}, not {', '.join(sorted(unknown))}")
    arguments.end = time.monotonic() + 60 * arguments.minutes
    arguments.out.mkdir(parents=True, exist_ok=True)
    book = arguments.out / "figures.jsonl"
    lines = [json.loads(line) for line in book.read_text().splitlines()] if book.exists() else []
    for source in arguments.data:
        name, _, path = source.rpartition("=")
        both = chosen(splits(path, arguments.holdout), arguments.records)
        training, test = (shrunk(each, arguments.shrink) for each in both)
        named = (name or path) + (f"-by-{arguments.shrink}" if arguments.shrink > 1 else "")
        for wanted in trainings(named, arguments):
            for line in figures(wanted, training, test, {each["key"] for each in lines}, arguments):
                lines.append(line)
                with book.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(line) + "\n")
                print(json.dumps(line), flush=True)
    summarise(lines)


# ---- data


def splits(path: str, holdout: bool) -> tuple[Dataset, Dataset]:
    """The images to train on, and those to test on."""
    first, _, second = path.partition(",")
    training = load_dataset(first) if second else load_dataset(first, split="train")
    if not holdout:
        return training, load_dataset(second) if second else load_dataset(first, split="test")
    held = np.arange(training.records) // 2 % 6 == 5  # some sets are sorted by class
    return part(training, ~held), part(training, held)


def shrunk(data: Dataset, factor: int) -> Dataset:
    """Grey images whose pixels are means of blocks of so many a side."""
    if factor == 1:
        return data
    images = images_of(data)
    n, height, width = images.shape
    blocks = images.reshape(n, height // factor, factor, width // factor, factor).mean((2, 4))
    return from_arrays(blocks.round().astype(np.uint8), data.labels, classes=data.classes)


def part(data: Dataset, rows: NDArray[np.bool_]) -> Dataset:
    """Some records of a data set."""
    assert data.labels is not None
    return from_arrays(
        np.asarray(data.images[rows]), data.labels[rows], classes=data.classes, value_range=data.value_range
    )


def chosen(both: tuple[Dataset, Dataset], records: int | None) -> tuple[Dataset, Dataset]:
    """The same with so many records to train on."""
    if records is None:
        return both
    rows = np.random.default_rng(0).permutation(both[0].records)[:records]
    return part(both[0], np.isin(np.arange(both[0].records), rows)), both[1]


# ---- trainings


@dataclass(frozen=True)
class Training:
    """What is trained: all that a generator depends on, beside the data set's split."""

    data: str
    recipe: str
    changes: tuple[str, ...]
    epsilon: float
    delta: float
    seed: int
    holdout: bool
    records: int | None

    @property
    def key(self) -> str:
        """A name for a folder."""
        said = json.dumps([self.changes, self.epsilon, self.delta, self.holdout, self.records])
        return f"{self.data}-{self.recipe}-{hashlib.sha256(said.encode()).hexdigest()[:8]}-seed{self.seed}"

    def request(self) -> Request:
        """What is asked of the package."""
        settings, names = parse_changes(self.changes), recipe_names()
        recipe = self.recipe
        if recipe not in names:
            recipe = f"{recipe}-{self.data.split('-')[0]}"
        changed = load_recipe(recipe).replace(**settings) if recipe in names else None
        if changed is not None and (
            changed.privacy.noise_multiplier is not None or changed.privacy.mechanism == "none"
        ):
            return Request(recipe=recipe, settings=settings, seed=self.seed, anyway=True)
        return Request(
            epsilon=self.epsilon,
            delta=self.delta,
            recipe=None if self.recipe == "default" else recipe,
            settings=settings,
            seed=self.seed,
            quick=_DEVICE.type == "cpu",
            anyway=True,
        )


def trainings(data: str, arguments: Namespace) -> Iterator[Training]:
    """All that are asked for, seed by seed."""
    about = {"delta": arguments.delta, "holdout": arguments.holdout, "records": arguments.records}
    for seed in map(int, arguments.seeds.split(",")):
        for epsilon in map(float, arguments.epsilons.split(",")):
            for text in arguments.recipes.split(","):
                recipe, *changes = text.split(":")
                yield Training(data, recipe, tuple(sorted(changes)), epsilon, seed=seed, **about)


def trained(wanted: Training, training: Dataset, arguments: Namespace) -> tuple[Run, float | None] | None:
    """A run at its end, and its seconds if it went at one go; or None where there was no time."""
    if arguments.run is not None:
        return Run.resume(arguments.run), None
    place = arguments.out / wanted.key
    begun = (place / "run.json").exists()
    run = Run.resume(place) if begun else Run.create(place, plan_for(training, wanted.request()))
    started = time.monotonic()
    if not run.done and not run.train(
        training,
        device=_DEVICE,
        saving=Saving(checkpoint_seconds=60.0, picture_steps=0),
        watch=lambda _: time.monotonic() > arguments.end,
    ):
        if arguments.unfinished:
            reached(run, training)
        else:
            return None
    return run, None if begun else round(time.monotonic() - started, 1)


def reached(run: Run, training: Dataset) -> None:
    """Release a run that the time cut short: it is done then, and its statement says what it cost."""
    with run._open_account() as account:
        trainer = Trainer(run.plan, training, _DEVICE, account)
        run._load(trainer)
        save_release(run.release_folder, trainer.release())


# ---- figures


def figures(
    wanted: Training, training: Dataset, test: Dataset, done: set[str], arguments: Namespace
) -> Iterator[dict[str, Any]]:
    """Train what is not there yet, and measure it, until the time is over."""
    missing = []
    for protocol in arguments.protocols.split(","):
        sets = 1 if protocol == "quick" else arguments.sets
        for measure in arguments.measures.split(","):
            if (protocol == "quick" and measure == "forest") or (protocol != "quick" and measure == "linear"):
                continue
            size = f"{sets}x{arguments.count}{'-varied' * arguments.vary}"
            key = "/".join([wanted.key, protocol, measure, size])
            if key not in done:
                missing.append((key, protocol, measure, sets))
    if not missing or time.monotonic() > arguments.end:
        return
    about: dict[str, Any] = {"data": wanted.data, "recipe": wanted.recipe, "settings": wanted.changes}
    if wanted.recipe == "real":
        run = None
        about["seed"] = wanted.seed
    else:
        found = trained(wanted, training, arguments)
        if found is None:
            print(f"{wanted.key}: not trained to the end; call again", file=sys.stderr)
            return
        run, seconds = found
        about |= {**_statement(run), "seed": wanted.seed, "train_seconds": seconds}
        show(run, wanted, arguments.out)
    about |= {"records": training.records, "holdout": arguments.holdout, "count": arguments.count}
    about |= {"vary": arguments.vary, "hardware": hardware()}
    drawn: tuple[str, Any] = ("", None)
    for key, protocol, measure, sets in missing:
        if time.monotonic() > arguments.end and not arguments.unfinished:
            print("the time is over; call again", file=sys.stderr)
            return
        started = time.monotonic()
        if drawn[0] != protocol:
            drawn = protocol, synthetic(run, training, protocol, sets, wanted.seed, arguments)
        images, labels = drawn[1]
        result = measured(images, labels, training, test, protocol, measure, sets, wanted.seed)
        took = {"measure_seconds": round(time.monotonic() - started, 1)}
        yield {"key": key, **about, "protocol": protocol, "measure": measure, **result, **took}


def synthetic(
    run: Run | None, training: Dataset, protocol: str, sets: int, seed: int, arguments: Namespace
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Images to learn from, of a release, or real ones, the same in every set."""
    if run is None:
        assert training.labels is not None
        return np.concatenate([images_of(training)] * sets), np.concatenate([training.labels] * sets)
    release, protocol = load(run.release_folder), _THEIRS.get(protocol, protocol)
    images, labels = draw_images(release, sets * arguments.count, protocol, seed=seed, vary=arguments.vary)
    assert labels is not None
    return images, labels


def measured(
    images: NDArray[np.uint8],
    labels: NDArray[np.int64],
    training: Dataset,
    test: Dataset,
    protocol: str,
    measure: str,
    sets: int,
    seed: int,
) -> dict[str, Any]:
    """One measure: per cent of the test images that a classifier gets right, or how like them images are."""
    assert test.labels is not None
    if protocol == "quick" and measure in _QUICK:
        return {"value": accuracies(images, labels, images_of(test), test.labels, [measure], seed)[measure]}
    parts = ["frechet", "precision-recall"] if measure == "likeness" else [measure]
    options: dict[str, Any] = {"training": training, "sets": sets, "seed": seed, "device": _DEVICE}
    protocol = _THEIRS.get(protocol, protocol)
    found = evaluate_images(images, labels, test, protocol=protocol, parts=parts, features="cnn", **options)
    if found.utility is not None:
        (score,) = found.utility.scores
        return {"value": round(score.mean, 2), "by_set": [round(each, 2) for each in score.accuracy]}
    assert found.likeness is not None
    return {"value": found.likeness.to_json()}


def _statement(run: Run) -> dict[str, Any]:
    """What a figure must come with."""
    plan, privacy = run.plan, load(run.release_folder).privacy
    return {
        "recipe": plan.recipe.name,
        "mechanism": plan.recipe.privacy.mechanism,
        "budget_epsilon": plan.budget_epsilon,
        "epsilon": round(privacy.epsilon, 4),
        "delta": privacy.delta,
        "published_epsilon": plan.published_epsilon,
        "accountant": plan.accountant,
        "noise_multiplier": plan.noise_multiplier,
        "steps": plan.steps,
        "steps_kept": privacy.steps_kept,
    }


def show(run: Run, wanted: Training, folder: Path) -> None:
    """Draw ten plain images of each class, or a hundred."""
    release = load(run.release_folder)
    labels = np.repeat(np.arange(10), 10) % release.classes
    images, labels = release.sample(100, labels, random_state=wanted.seed)
    grid_picture(images, labels, folder / f"{wanted.key}.png")


def hardware() -> str:
    """What the figures were made on."""
    return torch.cuda.get_device_name() if _DEVICE.type == "cuda" else f"CPU ({platform.machine()})"


def summarise(lines: list[dict[str, Any]]) -> None:
    """Print mean and spread over the seeds."""
    groups: dict[tuple[str, ...], list[float]] = {}
    for line in lines:
        if isinstance(line["value"], float):
            about = [
                line["data"],
                line["recipe"],
                *line["settings"],
                line.get("epsilon", ""),
                line["protocol"],
            ]
            groups.setdefault((*map(str, about), line["measure"]), []).append(line["value"])
    for key, values in groups.items():
        spread = f"{min(values):.1f} to {max(values):.1f}, {len(values)} seeds"
        print(f"{' '.join(key):>60} {statistics.fmean(values):.1f} ({spread})")


if __name__ == "__main__":
    main()
