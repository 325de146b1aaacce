"""The grid behind the defaults: what a mixture makes of several data sets, numbers of records and ε.

    python benchmarks/defaults.py digits mnist=PATH fashion-mnist=PATH faces=PATH --out grid.jsonl
    python benchmarks/defaults.py digits --sides 8 --epsilons 10 --set rule K=8,m=15,T=6 --out grid.jsonl
    python benchmarks/defaults.py mnist=PATH fashion-mnist=PATH --set grey mixture flow --epsilons 10,1 \\
        --records 50000,10000,2000 --device cuda --judges 4 --minutes 9 --out grid.jsonl
    python benchmarks/defaults_table.py grid.jsonl

Everything is judged on a held-out part of the training split, every sixth pair of records; the test split is
never read. Where more records are asked for than there are, `--shifted` draws them from all, each moved by up
to two pixels. A setting is the default plan (`rule`), a recipe, as it is or with changes (`grey`,
`flow:privacy.steps=300,flow.share=0.1`), a mixture of K components, m frequencies and T steps, or the private
records themselves in the place of samples (`real`).
Classifiers are trained on 4,000 plain samples; Frechet distance, precision
and recall are those of the features of a CNN that was trained on real images.

Settings go in the order given; of each all ε, of each all numbers of records, of each all data. A row is
appended when it is found, and those that are there are not made again. `--judges` other processes measure
while the next generator is trained. Runs are seeded: they are not releases.
"""

from __future__ import annotations

import functools
import itertools
import json
import math
import multiprocessing
import time
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from torch import Tensor, nn

from classifiers import tensor, trained
from defaults_table import Row, key, read
from dpsinkhorn import DPSinkhorn
from dpsinkhorn.cli.train import parse_changes
from dpsinkhorn.data import Dataset, from_arrays, load_dataset
from dpsinkhorn.evaluation import images_of
from dpsinkhorn.evaluation.likeness import feature_statistics, frechet_distance, precision_recall
from dpsinkhorn.generators.configs import Variation
from quality import part

COUNT, TESTED, FEATURES = 4000, 2000, 1000
Which = tuple[str, int, bool]  # path, side, whether it is the test split that is judged by
STEPS, BATCH = 300, 64  # of the CNN


def main() -> None:
    """Run the command."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="+", help="names, or NAME=PATH")
    parser.add_argument("--sides", default="28", help="sizes to bring images to: 8,16,28,64")
    parser.add_argument("--records", default="500,2000,10000,50000", help="how many of them are trained on")
    parser.add_argument("--epsilons", default="1,10")
    parser.add_argument("--set", nargs="+", default=["rule"], help="rule, a recipe, or K=8,m=16,T=6")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cpu", help="the default plan on a GPU is another")
    parser.add_argument("--judges", type=int, default=0, help="processes that measure beside the training")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin nothing that may take longer")
    parser.add_argument("--test", action="store_true", help="the test split: for figures, never for choices")
    parser.add_argument("--persons", type=int, default=0, metavar="K", help="K records of each, of one class")
    parser.add_argument("--shifted", action="store_true", help="add shifted copies where there are too few")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = read(arguments.out)
    end = time.monotonic() + 60 * arguments.minutes
    with Judges(arguments.judges, arguments.out, rows) as judges:
        for wanted, which in cells(arguments):
            judge = judge_of(*which)
            if not arguments.shifted:
                wanted["records"] = min(wanted["records"], judge.training.records)
            if key(wanted) in [key(row) for row in rows + judges.awaited]:
                continue
            alike = [row["seconds"] for row in rows if row["setting"] == wanted["setting"] != "real"]
            if time.monotonic() + max(alike, default=0.0) > end:
                print(f"no time was left for {wanted}", flush=True)
            else:
                judges.ask(judge, *judge.made(wanted, arguments.device, arguments.persons))


def cells(arguments: Namespace) -> Iterator[tuple[Row, Which]]:
    """What is asked for, and of which judge, one run after another."""
    notes = ", test split" * arguments.test + ", shifted copies" * arguments.shifted
    if arguments.persons:
        notes += f", {arguments.persons} a person"
    for setting, epsilon, records, source, side, seed in itertools.product(
        arguments.set,
        numbers(arguments.epsilons),
        numbers(arguments.records),
        arguments.data,
        numbers(arguments.sides),
        range(arguments.seeds),
    ):
        name, _, path = source.rpartition("=")
        wanted = {
            "data": f"{name or path}{notes}",
            "side": int(side),
            "records": int(records),
            "epsilon": epsilon,
            "setting": setting,
            "seed": seed,
        }
        yield wanted, (path, int(side), arguments.test)


def numbers(text: str) -> list[float]:
    """Return numbers between commas."""
    return [float(number) for number in text.split(",")]


def changes(setting: str) -> Row:
    """Return what `DPSinkhorn` is given for a setting."""
    if setting == "rule":
        return {}
    recipe, _, some = setting.partition(":")
    if some or "=" not in setting:
        return {"recipe": recipe, "settings": parse_changes(some.split(",") if some else [])}
    values = {name: int(value) for name, _, value in (item.partition("=") for item in setting.split(","))}
    generator = {"components": values["K"], "frequencies": values["m"]}
    return {"recipe": "mixture", "settings": {"privacy": {"steps": values["T"]}, "generator": generator}}


class Judges:
    """Those who measure samples: other processes, or this one if none are wanted. They write the rows."""

    def __init__(self, count: int, out: Path, rows: list[Row]) -> None:
        spawned = multiprocessing.get_context("spawn")
        self._pool = ProcessPoolExecutor(count, spawned) if count else None
        self._waiting: list[tuple[Row, Future[Row]]] = []
        self._out, self._rows = out, rows

    def __enter__(self) -> Judges:
        return self

    def __exit__(self, *_: object) -> None:
        while self._waiting:
            wait([found for _, found in self._waiting], return_when=FIRST_COMPLETED)
            self._write()

    @property
    def awaited(self) -> list[Row]:
        """Rows whose figures are still to come."""
        return [row for row, _ in self._waiting]

    def ask(self, judge: Judge, row: Row, *samples: Any) -> None:
        """Have samples measured; write what is found by now."""
        found: Future[Row] = Future()
        if self._pool is None:
            found.set_result(judge.scores(*samples, row["seed"]))
        else:
            found = self._pool.submit(scores, judge.which, *samples, row["seed"])
        self._waiting.append((row, found))
        self._write()

    def _write(self) -> None:
        for row, found in [pair for pair in self._waiting if pair[1].done()]:
            self._waiting.remove((row, found))
            self._rows.append({**row, **found.result()})
            with self._out.open("a") as file:
                print(json.dumps(self._rows[-1]), file=file)


@functools.lru_cache(maxsize=8)
def judge_of(path: str, side: int, tested: bool) -> Judge:
    """Return this process's judge of a data set at one size."""
    return Judge(path, side, tested)


def scores(which: Which, *samples: Any) -> Row:
    """Return what this process's judge finds of samples."""
    torch.set_num_threads(1)
    return judge_of(*which).scores(*samples)


class Judge:
    """A data set at one size, divided, and the network whose features are compared."""

    def __init__(self, path: str, side: int, tested: bool) -> None:
        self.which = (path, side, tested)
        whole = load_dataset(path, size=side)
        held = np.arange(whole.records) // 2 % 6 == 5
        self.training, test = part(whole, ~held), part(whole, held)
        if tested:
            self.training, test = whole, load_dataset(path, split="test", size=side)
        order = np.random.default_rng(0).permutation(test.records)[:TESTED]
        self.images, self.labels = images_of(test)[order], labels_of(test)[order]
        self.order = np.random.default_rng(1).permutation(self.training.records)
        self.features: nn.Module | None = None

    def made(self, wanted: Row, device: str, each: int) -> tuple[Row, NDArray[np.uint8], NDArray[np.int64]]:
        """Train and draw: return what is known of it, images and labels. `each`: a person's records, or 0."""
        count = wanted["records"]
        rows = np.isin(np.arange(self.training.records), self.order[:count])
        data = part(self.training, rows) if count <= len(rows) else shifted(self.training, count)
        if wanted["setting"] == "real":
            return wanted, images_of(data), labels_of(data)
        persons = np.empty(count, np.int64)
        persons[np.argsort(labels_of(data), kind="stable")] = np.arange(count) // max(each, 1)
        started = time.monotonic()
        model = DPSinkhorn(
            wanted["epsilon"],
            1e-5,
            value_range=data.value_range,
            classes=data.classes,
            random_state=wanted["seed"],
            device=device,
            anyway=True,
            **changes(wanted["setting"]),
        ).fit(np.asarray(data.images), data.labels, groups=persons if each else None)
        seconds = time.monotonic() - started
        images, labels = model.release_.sample(
            COUNT, random_state=wanted["seed"], variation=Variation(), device=device
        )
        assert labels is not None
        plan = model.plan_
        row = {
            **wanted,
            "recipe": plan.recipe.name,
            "generator": dict(plan.recipe.generator),
            "steps": plan.steps,
            "noise": round(plan.noise_multiplier, 3),
            "seconds": round(seconds, 1),
        }
        if each:
            row["persons"] = plan.facts.units
        if torch.device(device).type == "cuda":
            row["gpu"] = torch.cuda.get_device_name()
        return row, images, labels

    @torch.no_grad()
    def scores(self, images: NDArray[np.uint8], labels: NDArray[np.int64], seed: int) -> Row:
        """Return accuracies in per cent, distance, precision and recall."""
        flat, tested = (
            images.reshape(len(images), -1) / 255.0,
            self.images.reshape(len(self.images), -1) / 255.0,
        )
        logistic = LogisticRegression(max_iter=40).fit(flat, labels)
        forest = RandomForestClassifier(60, random_state=seed).fit(flat, labels)
        with torch.enable_grad():
            cnn = network(images, labels, self.training.classes, seed)
        guesses = cnn(tensor(self.images)).argmax(1).numpy()
        found = {
            "logistic": 100 * float(logistic.score(tested, self.labels)),
            "forest": 100 * float(forest.score(tested, self.labels)),
            "cnn": 100 * float((guesses == self.labels).mean()),
        }
        real, made = self.seen(self.images[:FEATURES]), self.seen(images[:FEATURES])
        both = precision_recall(real, made)
        distance = frechet_distance(feature_statistics(real), feature_statistics(made))
        found |= {"frechet": distance, "precision": both.precision, "recall": both.recall}
        return {name: round(value, 3) for name, value in found.items()}

    @torch.no_grad()
    def seen(self, images: NDArray[np.uint8]) -> Tensor:
        """Features of images, (n, 64)."""
        if self.features is None:
            rows = self.order[:10_000]
            with torch.enable_grad():
                whole = network(
                    images_of(self.training)[rows], labels_of(self.training)[rows], self.training.classes, 0
                )
            self.features = nn.Sequential(*list(whole)[:-1])
        return self.features(tensor(images))


def shifted(data: Dataset, count: int) -> Dataset:
    """So many records drawn from a data set, each moved by up to two pixels; what leaves comes back in."""
    chance = np.random.default_rng(2)
    rows, moves = chance.integers(data.records, size=count), chance.integers(-2, 3, size=(count, 2))
    images = np.asarray(data.images)[rows]
    for down, right in itertools.product(range(-2, 3), repeat=2):
        there = (moves == (down, right)).all(1)
        images[there] = np.roll(images[there], (down, right), axis=(1, 2))
    return from_arrays(images, labels_of(data)[rows], classes=data.classes, value_range=data.value_range)


def labels_of(data: Dataset) -> NDArray[np.int64]:
    """Return the labels, which there must be."""
    assert data.labels is not None
    return data.labels


def network(images: NDArray[np.uint8], labels: NDArray[np.int64], classes: int, seed: int) -> nn.Sequential:
    """Return a small CNN that was trained on images, of 64 features and a linear layer."""
    torch.manual_seed(seed)
    x, y = tensor(images), torch.tensor(labels)
    layers: list[nn.Module] = [nn.AdaptiveAvgPool2d(32)] if x.shape[-1] > 32 else []
    first = 1 if x.shape[-1] < 14 else 2
    for before, after, stride in ((x.shape[1], 16, first), (16, 32, 2)):
        layers += [nn.Conv2d(before, after, 5, stride, padding=2), nn.ReLU()]
    layers.append(nn.Flatten())
    size = nn.Sequential(*layers)(x[:1]).shape[1]
    model = nn.Sequential(*layers, nn.Dropout(0.3), nn.Linear(size, 64), nn.ReLU(), nn.Linear(64, classes))
    return trained(model, x, y, STEPS, BATCH, learning_rate=2e-3)


if __name__ == "__main__":
    main()
