"""A thousand persons with several records each: what a generator is worth, at one ε for the whole person.

    python benchmarks/persons.py --data MNIST                      # a folder with MNIST's files
    python benchmarks/persons.py --data MNIST --side 8 --cases 3 --ways mixture "one each" record

Persons have 3 or 20 records, of one class each or of a mix of their own. Three ways: the mixture with persons
(`--groups`), one record of each person and the mixture without, and `record` with persons, which takes long
on a CPU. Classifiers (logistic regression, a forest, a CNN for 300 steps) are trained on 2,000 synthetic
images and tested on 2,000 images of the training split that nobody holds; the test split is not touched.
`--side 8` has images of 8 x 8 pixels, small enough for `record`. Runs are seeded: they replay, and are no
releases. Prints a table, and adds its rows to `--out`.
"""

from __future__ import annotations

import itertools
import json
import time
import warnings
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.ensemble import RandomForestClassifier

import classifiers
from dpsinkhorn import DPSinkhorn
from dpsinkhorn.data import load_dataset
from dpsinkhorn.evaluation.architectures import cnn

_PERSONS, _DRAWN, _HELD_OUT = 1000, 2000, 2000
_STEPS, _BATCH = 300, 64  # of the CNN


def main() -> None:
    """Run the command."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--cases", type=int, nargs="+", default=[3, 20], help="records of each person")
    parser.add_argument("--mixes", nargs="+", default=["one class", "mixed"])
    parser.add_argument("--epsilons", type=float, nargs="+", default=[10.0, 3.0])
    parser.add_argument("--ways", nargs="+", default=["mixture", "one each"])
    parser.add_argument("--side", type=int, choices=(8, 28), default=28)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "persons.json")
    asked = parser.parse_args()
    data = load_dataset(asked.data)
    images, labels = np.asarray(data.images)[..., 0], np.asarray(data.labels)
    if asked.side == 8:
        blocks = np.pad(images, ((0, 0), (2, 2), (2, 2))).reshape(len(images), 8, 4, 8, 4)
        images = blocks.mean((2, 4)).round().astype(np.uint8)
    held = np.arange(len(labels)) // 2 % 6 == 0  # pairs: MNIST's records come from two groups of writers
    test = images[held][:_HELD_OUT], labels[held][:_HELD_OUT]
    images, labels = images[~held], labels[~held]
    rows = json.loads(asked.out.read_text()) if asked.out.exists() else []
    asked_for = (asked.seeds, asked.cases, asked.mixes, asked.epsilons, asked.ways)
    names = ("seed", "records", "mix", "epsilon", "way")
    for values in itertools.product(*asked_for):
        case = {"side": asked.side, **dict(zip(names, values, strict=True))}
        rows = [row for row in rows if any(row[name] != case[name] for name in case)]
        rows.append({**case, **one_run(images, labels, test, case, asked.device)})
        print(json.dumps(rows[-1]), flush=True)
        asked.out.write_text(json.dumps(rows, indent=1) + "\n")
    print(table(rows))


def one_run(
    images: NDArray[np.uint8],
    labels: NDArray[np.int64],
    test: tuple[NDArray[np.uint8], NDArray[np.int64]],
    case: dict[str, Any],
    device: str,
) -> dict[str, float]:
    """Train once; accuracies in per cent, and seconds of the training."""
    seed = case["seed"]
    rows, persons = deal(labels, case["records"], case["mix"], seed)
    groups: NDArray[np.int64] | None = persons
    if case["way"] == "one each":
        rows, groups = rows[np.unique(persons, return_index=True)[1]], None
    mechanism = "record" if case["way"] == "record" else "moments"
    model = DPSinkhorn(
        case["epsilon"],
        mechanism=mechanism,
        classes=10,
        random_state=seed,
        device=device,
        anyway=True,
        verbose=False,
    )
    began = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a seeded run is no release
        model.fit(images[rows], labels[rows], groups=groups)
    seconds = time.perf_counter() - began
    drawn, kinds = model.sample(_DRAWN, random_state=seed)
    assert kinds is not None
    forest = RandomForestClassifier(50, random_state=seed).fit(drawn.reshape(_DRAWN, -1), kinds)
    forest_accuracy = 100 * float(forest.score(test[0].reshape(len(test[0]), -1), test[1]))
    quick = classifiers.accuracies(drawn, kinds, *test, ["logistic"], seed)
    torch.manual_seed(seed)
    network = cnn((1, *drawn.shape[1:]), 10)  # that of `dpsinkhorn evaluate`, after a few steps
    network = classifiers.trained(network, classifiers.tensor(drawn), torch.tensor(kinds), _STEPS, _BATCH)
    by_cnn = classifiers.accuracy(network, classifiers.tensor(test[0]), torch.tensor(test[1]))
    scores = {**quick, "forest": forest_accuracy, "cnn": by_cnn, "seconds": seconds}
    return {name: round(value, 2) for name, value in scores.items()}


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
    """Means over seeds and their standard deviations, in Markdown."""
    lines = [
        "| pixels | records each | classes of each | ε | way | logistic | forest | CNN | seconds | seeds |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    cases: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        place = (-row["side"], row["records"], row["mix"] == "mixed", -row["epsilon"], row["way"])
        cases.setdefault(place, []).append(row)
    for _, found in sorted(cases.items()):
        one = found[0]
        scores = " | ".join(spread([row[name] for row in found]) for name in ("logistic", "forest", "cnn"))
        seconds = np.median([row["seconds"] for row in found])
        lines.append(
            f"| {one['side']} x {one['side']} | {one['records']} | {one['mix']} | {one['epsilon']:g} "
            f"| {one['way']} | {scores} | {seconds:.1f} | {len(found)} |"
        )
    return "\n".join(lines)


def spread(values: list[float]) -> str:
    """A mean, and the standard deviation where there are several values."""
    return f"{np.mean(values):.1f}" + (f" ± {np.std(values, ddof=1):.1f}" if len(values) > 1 else "")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
