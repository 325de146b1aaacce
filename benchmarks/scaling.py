"""How a training step grows: with the records, with the generated images, with the size of an image.

    python benchmarks/scaling.py --output benchmarks/results/scaling.json
    python benchmarks/scaling.py --plot benchmarks/results/scaling.json docs/images/scaling.png

Time of a step and peak memory of `record` (recipe grey, q = 0.2) and of the papers' `batch` (50 records a
step on average), on made-up images, one setting after the other.
"""

from __future__ import annotations

import gc
import json
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dpsinkhorn.data import from_arrays
from steps import made_up, measure

RECORD, BATCH = "grey", "paper-first-mnist"
BASE = {"records": 60_000, "generated": 500, "size": 28}
SWEEPS: dict[str, dict[str, tuple[int, ...]]] = {
    RECORD: {
        "records": (60_000, 200_000, 600_000, 2_000_000, 6_000_000),
        "generated": (50, 100, 500, 1000, 5000),
        "size": (28, 64, 128),
    },
    BATCH: {
        "records": (60_000, 600_000, 6_000_000),
        "generated": (50, 100, 500, 1000),
        "size": (28, 64, 128),
    },
}
NAMES = {"records": "records N", "generated": "generated images n", "size": "pixels d of an image"}


def main() -> None:
    """Run the command."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--most-records", type=int, default=6_000_000)
    parser.add_argument("--plot", nargs=2, metavar=("JSON", "PICTURE"))
    arguments = parser.parse_args()
    if arguments.plot:
        plot(Path(arguments.plot[0]), Path(arguments.plot[1]))
    else:
        sweep(arguments.most_records, arguments.output)


def sweep(most_records: int, output: Path | None) -> None:
    """All settings, one after the other; those that `output` has already are left out."""
    rows: list[dict[str, Any]] = json.loads(output.read_text()) if output and output.exists() else []
    done = [{name: row[name] for name in ("recipe", "varied", *BASE)} for row in rows]
    for recipe, sweeps in SWEEPS.items():
        base = BASE if recipe == RECORD else {**BASE, "generated": 50}
        for varied, values in sweeps.items():
            for value in values:
                setting = {**base, "recipe": recipe, varied: value}
                if setting["records"] > most_records or {**setting, "varied": varied} in done:
                    continue
                try:
                    found = one(setting)
                except torch.OutOfMemoryError as error:
                    found = {"error": str(error)[:300]}
                gc.collect()  # so that the next one finds the memory free
                torch.cuda.empty_cache()
                rows.append({**setting, "varied": varied, **found})
                print(json.dumps(rows[-1]), flush=True)
                if output:
                    output.write_text(json.dumps(rows, indent=1) + "\n")


def one(setting: dict[str, Any]) -> dict[str, Any]:
    """Measure one setting."""
    size, records, generated = setting["size"], setting["records"], setting["generated"]
    first = made_up(min(records, 60_000), size)
    assert first.labels is not None
    repeats = -(-records // first.records)
    images = np.tile(np.asarray(first.images), (repeats, 1, 1, 1))[:records]
    data = from_arrays(images, np.tile(first.labels, repeats)[:records], classes=10)
    settings: dict[str, dict[str, Any]] = {
        "loss": {"generated": generated, "generated_per_class": max(1, generated // 10)},
        "generator": {"batch_norm": True},
    }
    slow = generated >= (5000 if setting["recipe"] == RECORD else 500)
    return measure(setting["recipe"], data, settings, steps=8 if slow else 64)


def plot(source: Path, picture: Path) -> None:
    """Time and memory against each of the three, on logarithmic axes, with a line of slope 1."""
    import matplotlib.pyplot as plt

    rows = [row for row in json.loads(source.read_text()) if "ms" in row]
    figure, axes = plt.subplots(2, 3, figsize=(11, 6), sharex="col", layout="constrained")
    for column, (varied, name) in enumerate(NAMES.items()):
        for recipe, label, colour in ((RECORD, "record", "#1b6ca8"), (BATCH, "batch", "#c8553d")):
            mine = [row for row in rows if row["recipe"] == recipe and row["varied"] == varied]
            x = [row[varied] ** 2 if varied == "size" else row[varied] for row in mine]
            for line, key in enumerate(("ms", "peak_mb")):
                axes[line, column].loglog(x, [row[key] for row in mine], "o-", color=colour, label=label)
        for line, unit in enumerate(("ms a step", "MB at most")):
            axis = axes[line, column]
            low, high = axis.get_xlim()
            bottom = axis.get_ylim()
            axis.loglog([low, high], [bottom[0], bottom[0] * high / low], ":", color="grey", label="linear")
            axis.set_xlim(low, high)
            axis.set_ylim(bottom)
            axis.grid(alpha=0.3)
            if not column:
                axis.set_ylabel(unit)
        axes[1, column].set_xlabel(name)
    axes[0, 0].legend()
    picture.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(picture, dpi=110)


if __name__ == "__main__":
    main()
