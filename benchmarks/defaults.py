"""The grid behind the defaults: what a mixture makes of several data sets, numbers of records and ε.

    python benchmarks/defaults.py digits mnist=PATH fashion-mnist=PATH faces=PATH --out grid.jsonl
    python benchmarks/defaults.py digits --sides 8 --epsilons 10 --set rule K=8,m=15,T=6 --out grid.jsonl
    python benchmarks/defaults_table.py grid.jsonl

Everything is judged on a held-out part of the training split, every sixth pair of records; the test split is
never read. Where more records are asked for than there are, `--shifted` draws them from all, each moved by up
to two pixels. A setting is the default plan (`rule`), a recipe by its name, a mixture of K components, m
frequencies and T steps, or the private records themselves in the place of samples (`real`).
Classifiers are trained on 4,000 plain samples; Frechet distance, precision
and recall are those of the features of a CNN that was trained on real images. Rows are appended, and those
that are there are not made again. Runs are seeded: they are not releases.
"""

from __future__ import annotations

import itertools
import json
import time
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from torch import Tensor, nn

from classifiers import tensor, trained
from defaults_table import Row, key, read
from dpsinkhorn import DPSinkhorn
from dpsinkhorn.data import Dataset, from_arrays, load_dataset
from dpsinkhorn.evaluation import images_of
from dpsinkhorn.evaluation.diversity import precision_recall
from dpsinkhorn.evaluation.frechet import feature_statistics, frechet_distance
from dpsinkhorn.generators.variation import Variation
from quality import part

COUNT, TESTED, FEATURES = 4000, 2000, 1000
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
    parser.add_argument("--test", action="store_true", help="the test split: for figures, never for choices")
    parser.add_argument("--shifted", action="store_true", help="add shifted copies where there are too few")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    done = {key(row) for row in read(arguments.out)}
    for source in arguments.data:
        name, _, path = source.rpartition("=")
        for side in numbers(arguments.sides):
            judge = Judge(name or path, path, int(side), arguments.test, arguments.device)
            judge.name += ", shifted copies" if arguments.shifted else ""
            most = 10**9 if arguments.shifted else judge.training.records
            cells = (
                numbers(arguments.records),
                numbers(arguments.epsilons),
                arguments.set,
                range(arguments.seeds),
            )
            for records, epsilon, setting, seed in itertools.product(*cells):
                wanted = {
                    "data": judge.name,
                    "side": int(side),
                    "records": min(int(records), most),
                    "epsilon": epsilon,
                    "setting": setting,
                    "seed": seed,
                }
                if key(wanted) not in done:
                    row = {**wanted, **judge.run(wanted)}
                    with arguments.out.open("a") as file:
                        print(json.dumps(row), file=file)


def numbers(text: str) -> list[float]:
    """Return numbers between commas."""
    return [float(number) for number in text.split(",")]


def changes(setting: str) -> Row:
    """Return what `DPSinkhorn` is given for a setting."""
    if setting == "rule":
        return {}
    if "=" not in setting:
        return {"recipe": setting}
    values = {name: int(value) for name, _, value in (item.partition("=") for item in setting.split(","))}
    generator = {"components": values["K"], "frequencies": values["m"]}
    return {"recipe": "mixture", "settings": {"privacy": {"steps": values["T"]}, "generator": generator}}


class Judge:
    """A data set at one size, divided, and the network whose features are compared."""

    def __init__(self, name: str, path: str, side: int, tested: bool, device: str) -> None:
        self.device = device
        self.name = f"{name}, test split" if tested else name
        whole = load_dataset(path, size=side)
        held = np.arange(whole.records) // 2 % 6 == 5
        self.training, test = part(whole, ~held), part(whole, held)
        if tested:
            self.training, test = whole, load_dataset(path, split="test", size=side)
        order = np.random.default_rng(0).permutation(test.records)[:TESTED]
        self.images, self.labels = images_of(test)[order], labels_of(test)[order]
        self.order = np.random.default_rng(1).permutation(self.training.records)
        self.features: nn.Module | None = None

    def run(self, wanted: Row) -> Row:
        """Train, draw and measure."""
        count = wanted["records"]
        rows = np.isin(np.arange(self.training.records), self.order[:count])
        data = part(self.training, rows) if count <= len(rows) else shifted(self.training, count)
        if wanted["setting"] == "real":
            return self.scores(images_of(data), labels_of(data), wanted["seed"])
        started = time.monotonic()
        model = DPSinkhorn(
            wanted["epsilon"],
            1e-5,
            value_range=data.value_range,
            classes=data.classes,
            random_state=wanted["seed"],
            device=self.device,
            anyway=True,
            **changes(wanted["setting"]),
        ).fit(np.asarray(data.images), data.labels)
        seconds = time.monotonic() - started
        release = model.release_
        images, labels = release.sample(COUNT, random_state=wanted["seed"], variation=Variation())
        assert labels is not None
        plan = model.plan_
        return {
            "recipe": plan.recipe.name,
            "generator": dict(plan.recipe.generator),
            "steps": plan.steps,
            "noise": round(plan.noise_multiplier, 3),
            **self.scores(images, labels, wanted["seed"]),
            "seconds": round(seconds, 1),
        }

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
