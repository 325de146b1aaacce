"""A rare class: a mixture sized for the average class, or for the smallest, as `--labels 0.9,0.1` has it.

    python benchmarks/imbalance.py mnist=PATH:3,8 mnist=PATH:4,9 fashion-mnist=PATH:2,4

3,494 records of the first class and 388 of the second, as many as chest X-rays may be. Judged on a held-out
part of the training split, every sixth pair of records, 700 of each class: balanced accuracy in per cent of
logistic regression and a random forest, trained on 2,000 plain samples, balanced. Prints a table of means
over seeds. Runs are seeded: they are not releases.
"""

from __future__ import annotations

import itertools
import warnings
from argparse import ArgumentParser, RawDescriptionHelpFormatter

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import balanced_accuracy_score

from dpsinkhorn import DPSinkhorn
from dpsinkhorn.data import load_dataset
from dpsinkhorn.evaluation import images_of

COUNTS, TESTED, DRAWN = (3494, 388), 700, 2000
SHARES = {"average class": None, "smallest class": [0.9, 0.1]}


def main() -> None:
    """Run the command."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="+", help="NAME=PATH:FIRST,SECOND, two of its classes")
    parser.add_argument("--epsilons", default="10,3")
    parser.add_argument("--seeds", type=int, default=2)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # seeded runs are no releases
    print("| images | ε | sized for | logistic | forest |\n|---|---|---|---|---|")
    epsilons = [float(epsilon) for epsilon in asked.epsilons.split(",")]
    for source, epsilon, (title, shares) in itertools.product(asked.data, epsilons, SHARES.items()):
        place, _, pair = source.rpartition(":")
        name, _, path = place.rpartition("=")
        kinds = [int(kind) for kind in pair.split(",")]
        found = [one_run(path, kinds, epsilon, shares, seed) for seed in range(asked.seeds)]
        cells = " | ".join(f"{value:.1f}" for value in np.mean(found, 0))
        print(f"| {name or path}, {pair} | {epsilon:g} | {title} | {cells} |", flush=True)


def one_run(
    path: str, kinds: list[int], epsilon: float, shares: list[float] | None, seed: int
) -> list[float]:
    """Train once, and judge."""
    data, chance = load_dataset(path), np.random.default_rng(seed)
    assert data.labels is not None
    images, held = images_of(data), np.arange(data.records) // 2 % 6 == 5

    def some(mask: NDArray[np.bool_], counts: tuple[int, ...]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        rows = [
            chance.permutation(np.flatnonzero(mask & (data.labels == kind)))[:count]
            for kind, count in zip(kinds, counts, strict=True)
        ]
        return images[np.concatenate(rows)], np.repeat([0, 1], [len(part) for part in rows])

    private, tests = some(~held, COUNTS), some(held, (TESTED, TESTED))
    model = DPSinkhorn(
        epsilon, classes=2, labels=shares or "uniform", random_state=seed, device="cpu", verbose=False
    ).fit(*private)
    drawn, labels = model.sample(DRAWN, np.arange(DRAWN) % 2, random_state=seed)
    scores = []
    for classifier in (LogisticRegression(max_iter=60), RandomForestClassifier(60, random_state=seed)):
        classifier.fit(drawn.reshape(DRAWN, -1) / 255, labels)
        guesses = classifier.predict(tests[0].reshape(len(tests[0]), -1) / 255)
        scores.append(100 * float(balanced_accuracy_score(tests[1], guesses)))
    return scores


if __name__ == "__main__":
    main()
