"""A generator measured as DPImageBench measures: trained on 55,000 records at δ = 1/(N ln N).

    python benchmarks/dpimagebench.py mnist fashion-mnist --epsilons 1,10 --out FOLDER
    python benchmarks/dpimagebench.py mnist=PATH --only resnet --count 600 --records 2000

A twelfth of the training split is not trained on: it chooses the epochs of the classifiers a second time.
Prints about how many seconds each part takes, then mean and best of the networks by both choices; all
figures go to `--out`. The networks take a GPU. Runs are seeded: they are not releases.
"""

from __future__ import annotations

import json
import math
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from pathlib import Path

import numpy as np

from dpsinkhorn import DPSinkhorn
from dpsinkhorn.data import load_dataset
from dpsinkhorn.evaluation import draw_images, evaluate_images, find_protocol
from quality import part

PROTOCOL = find_protocol("dpimagebench")


def main() -> None:
    """Run the command."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="+", help="names or paths, or NAME=PATH")
    parser.add_argument("--epsilons", default="1,10")
    parser.add_argument("--recipe", help="by default that of the rule")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--records", type=int, help="of the training split; by default all")
    parser.add_argument("--count", type=int, default=PROTOCOL.count, help="synthetic images")
    parser.add_argument("--only", default=",".join(PROTOCOL.parts))
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    for source in asked.data:
        name, _, path = source.rpartition("=")
        whole, test = (load_dataset(path, split=split) for split in ("train", "test"))
        if asked.records is not None:
            order = np.random.default_rng(1).permutation(whole.records)
            whole = part(whole, np.isin(np.arange(whole.records), order[: asked.records]))
        kept = np.ones(whole.records, dtype=bool)
        kept[PROTOCOL.set_aside(whole.records)] = False
        private = part(whole, kept)
        delta = 1 / (private.records * math.log(private.records))
        for epsilon in map(float, asked.epsilons.split(",")):
            model = DPSinkhorn(
                epsilon, delta, recipe=asked.recipe, value_range=private.value_range, random_state=asked.seed
            ).fit(private.images, private.labels)
            images, labels = draw_images(model.release_, asked.count, PROTOCOL, seed=asked.seed)
            found = evaluate_images(
                images,
                labels,
                test,
                training=whole,
                protocol=PROTOCOL,
                parts=asked.only.split(","),
                seed=asked.seed,
                estimated=lambda seconds: print({name: round(value) for name, value in seconds.items()}),
            )
            row = {"data": name or path, "records": private.records, "epsilon": epsilon, "delta": delta}
            if found.utility is not None:
                for title, chosen in ("synthetic", False), ("sensitive", True):
                    mean, best = found.utility.mean_and_best(by_sensitive=chosen)
                    row |= {f"mean, by {title}": round(mean, 2), f"best, by {title}": round(best, 2)}
            print(json.dumps(row), flush=True)
            if asked.out is not None:
                asked.out.mkdir(parents=True, exist_ok=True)
                file = asked.out / f"dpimagebench-{row['data']}-{epsilon:g}.json"
                file.write_text(json.dumps({**row, **found.to_json()}, indent=1) + "\n")


if __name__ == "__main__":
    main()
