"""Real data in the place of synthetic: the row "real data" of the paper's Table 1, and how long it takes.

    python benchmarks/real_rows.py mnist fashion-mnist          # minutes on a GPU
    python benchmarks/real_rows.py digits --protocol quick      # seconds on a processor, no figure to compare

A data set is a name or a path. The figures of the paper are printed beside for MNIST and Fashion-MNIST.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np
import torch

from dpsinkhorn.data import load_dataset
from dpsinkhorn.evaluation import PROTOCOLS, downstream_utility, images_of

CLASSIFIERS = ("logistic", "mlp", "cnn")
PUBLISHED = {"mnist": (92.2, 97.5, 99.3), "fashion-mnist": (84.5, 88.2, 90.8)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("data", nargs="+", help="names or paths of data sets")
    parser.add_argument("--records", type=int, help="train on the first so many records only")
    parser.add_argument("--classifiers", default=",".join(CLASSIFIERS))
    parser.add_argument("--protocol", choices=PROTOCOLS, default="paper")
    parser.add_argument("--runs", type=int, default=5, help="trainings of each, on all records")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device")
    parser.add_argument("--output", type=Path, help="FILE.json")
    options = parser.parse_args()
    results = []
    for source in options.data:
        train, test = (load_dataset(source, split=split) for split in ("train", "test"))
        images, labels = images_of(train)[: options.records], train.labels[: options.records]
        name = Path(source).name
        published = dict(zip(CLASSIFIERS, PUBLISHED.get(name, ()), strict=False))
        for classifier in options.classifiers.split(","):
            started = time.perf_counter()
            score = downstream_utility(
                np.concatenate([images] * options.runs),
                np.concatenate([labels] * options.runs),
                images_of(test),
                test.labels,
                classes=train.classes,
                protocol=options.protocol,
                classifiers=[classifier],
                sets=options.runs,
                seed=options.seed,
                device=options.device,
            )[classifier]
            seconds = time.perf_counter() - started
            spread = "" if score.spread is None else f" ± {score.spread:.2f}"
            paper = f", paper {published[classifier]}" if classifier in published else ""
            epochs = f", epochs {list(score.epochs)}" if score.epochs else ""
            print(
                f"{name} {classifier}: {score.mean:.2f}{spread}{paper} ({seconds:.1f} s{epochs})", flush=True
            )
            results.append(
                {
                    "data": name,
                    "records": options.records or train.records,
                    "published": published.get(classifier),
                    "seconds": round(seconds, 1),
                    "protocol": options.protocol,
                    "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
                    **score.to_json(),
                }
            )
    if options.output:
        options.output.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
