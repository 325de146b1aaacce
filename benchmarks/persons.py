"""A thousand persons with several records each: what a generator is worth, at one ε for the whole person.

    python benchmarks/persons.py --data MNIST                      # a folder with MNIST's files
    python benchmarks/persons.py --data MNIST --cases 3 --epsilons 10 --ways record --seeds 1

Persons have 3 or 20 records, of one class each or of a mix of their own. Three ways: the mixture with persons
(`--groups`), one record of each person and the mixture without, and `record` with persons, which takes long
on a CPU. Classifiers (logistic regression, a forest, a CNN for 600 steps) are trained on 5,000 synthetic images
and tested on 5,000 images of the training split that nobody holds; the test split is not touched. Runs are
seeded: they replay, and are no releases. Prints a table, and adds its rows to `--out`.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.ensemble import RandomForestClassifier
from torch.nn import functional

import classifiers
from dpsinkhorn import DPSinkhorn
from dpsinkhorn.data import load_dataset
from dpsinkhorn.evaluation.classifiers import cnn

_PERSONS, _DRAWN, _HELD_OUT = 1000, 5000, 5000
_STEPS, _BATCH = 600, 128  # of the CNN
_RECIPES = {"mixture": "mixture-small-epsilon", "one each": "mixture-small-epsilon", "record": "grey"}


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", required=True)
    parser.add_argument("--cases", type=int, nargs="+", default=[3, 20], help="records of each person")
    parser.add_argument("--mixes", nargs="+", default=["one class", "mixed"])
    parser.add_argument("--epsilons", type=float, nargs="+", default=[10.0, 3.0])
    parser.add_argument("--ways", nargs="+", default=["mixture", "one each"])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "persons.json")
    asked = parser.parse_args()
    data = load_dataset(asked.data)
    images, labels = np.asarray(data.images)[..., 0], np.asarray(data.labels)
    held = np.arange(len(labels)) // 2 % 6 == 0  # pairs: MNIST's records come from two groups of writers
    test = images[held][:_HELD_OUT], labels[held][:_HELD_OUT]
    images, labels = images[~held], labels[~held]
    rows = json.loads(asked.out.read_text()) if asked.out.exists() else []
    for records in asked.cases:
        for mix in asked.mixes:
            for epsilon in asked.epsilons:
                for way in asked.ways:
                    case = {"records": records, "mix": mix, "epsilon": epsilon, "way": way}
                    rows = [row for row in rows if {name: row[name] for name in case} != case]
                    found = [one_run(images, labels, test, case, seed) for seed in range(asked.seeds)]
                    rows.append({**case, "seeds": asked.seeds, **_means(found)})
                    print(json.dumps(rows[-1]), flush=True)
                    asked.out.write_text(json.dumps(rows, indent=1) + "\n")
    print(table(rows))


def one_run(
    images: NDArray[np.uint8],
    labels: NDArray[np.int64],
    test: tuple[NDArray[np.uint8], NDArray[np.int64]],
    case: dict[str, Any],
    seed: int,
) -> dict[str, float]:
    """Train once; accuracies in per cent, and seconds of the training."""
    rows, persons = deal(labels, case["records"], case["mix"], seed)
    groups: NDArray[np.int64] | None = persons
    if case["way"] == "one each":
        rows, groups = rows[np.unique(persons, return_index=True)[1]], None
    model = DPSinkhorn(case["epsilon"], 1e-5, recipe=_RECIPES[case["way"]], classes=10, random_state=seed)
    began = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a seeded run is no release
        model.fit(images[rows], labels[rows], groups=groups)
    seconds = time.perf_counter() - began
    drawn, kinds = model.sample(_DRAWN, seed=seed)
    assert kinds is not None
    forest = RandomForestClassifier(100, random_state=seed).fit(drawn.reshape(_DRAWN, -1), kinds)
    forest_accuracy = 100 * float(forest.score(test[0].reshape(len(test[0]), -1), test[1]))
    quick = classifiers.accuracies(drawn, kinds, *test, ["logistic"], seed)
    return {**quick, "forest": forest_accuracy, "cnn": by_cnn(drawn, kinds, *test, seed), "seconds": seconds}


def by_cnn(
    drawn: NDArray[np.uint8],
    kinds: NDArray[np.int64],
    images: NDArray[np.uint8],
    labels: NDArray[np.int64],
    seed: int,
) -> float:
    """Per cent that the CNN of `dpsinkhorn evaluate` gets right after a few steps."""
    torch.manual_seed(seed)
    x, tested = (torch.tensor(each).unsqueeze(1).float() / 255 for each in (drawn, images))
    y, network = torch.tensor(kinds), cnn((1, *drawn.shape[1:]), 10)
    optimizer = torch.optim.Adam(network.parameters())
    for _ in range(_STEPS):
        rows = torch.randint(len(x), (_BATCH,))
        optimizer.zero_grad()
        functional.cross_entropy(network(x[rows]), y[rows]).backward()
        optimizer.step()
    with torch.no_grad():
        guesses = network.eval()(tested).argmax(1)
    return 100 * float((guesses == torch.tensor(labels)).double().mean())


def deal(
    labels: NDArray[np.int64], records: int, mix: str, seed: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows of records, none of them twice, and the person who holds each."""
    random = np.random.default_rng(seed)
    left = [list(random.permutation(np.flatnonzero(labels == kind))) for kind in range(10)]
    rows, persons = [], []
    for person in range(_PERSONS):
        shares = random.dirichlet(np.full(10, 0.5)) if mix == "mixed" else np.eye(10)[random.integers(10)]
        for kind in random.choice(10, records, p=shares):
            rows.append(left[kind].pop())
            persons.append(person)
    return np.array(rows), np.array(persons)


def table(rows: list[dict[str, Any]]) -> str:
    """All rows in Markdown."""
    lines = [
        "| records each | classes of a person | ε | way | logistic | forest | CNN | seconds |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in sorted(rows, key=lambda row: (row["records"], row["mix"] == "mixed", -row["epsilon"])):
        scores = " | ".join(f"{row[name]:.1f}" for name in ("logistic", "forest", "cnn"))
        lines.append(
            f"| {row['records']} | {row['mix']} | {row['epsilon']:g} | {row['way']} | {scores} "
            f"| {row['seconds']:.0f} |"
        )
    return "\n".join(lines)


def _means(found: list[dict[str, float]]) -> dict[str, float]:
    return {name: round(float(np.mean([row[name] for row in found])), 2) for name in found[0]}


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
