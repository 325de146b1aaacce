"""The systems of other papers, by their recipes: trained at the same ε, measured by one protocol.

    python benchmarks/systems.py mnist fashion-mnist              # all rows, on a GPU, seed 0
    python benchmarks/systems.py mnist=FOLDER --methods dp_merf --seeds 0,1,2 --protocol paper
    python benchmarks/systems.py digits --tiny --out tiny.jsonl   # every row in a few steps: does it run?

Of each method there are rows at every ε of `--epsilons` and, where what its authors count is no guarantee,
one with the noise of their code. A line of JSON is appended to `--out` for each training as soon as it is
measured; lines that are there are not made again, and what was trained but not measured is measured alone.
With `--minutes` nothing is begun after that time. A method that fails is named, and the next is taken.
Samples are as they are, not varied. Runs are seeded, so that they replay; they are not releases. The table of
what there is: `python benchmarks/systems_table.py`.
"""

from __future__ import annotations

import json
import platform
import shutil
import time
import traceback
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from dpsinkhorn.cli.train import parse_changes
from dpsinkhorn.data import Dataset, load_dataset
from dpsinkhorn.evaluation import downstream_utility, draw_images, find_protocol, images_of
from dpsinkhorn.mechanisms import find_mechanism
from dpsinkhorn.release import Release, load
from dpsinkhorn.training import Plan, Request, Run, Saving, plan_for

METHODS = ("dp_merf", "gs_wgan", "datalens", "g_pate", "dp_cgan")
# by the authors' code, where what it counts is no guarantee; of `gs_wgan` for a row, of others for a step
PUBLISHED_NOISE = {"gs_wgan": 1.07, "datalens": 45.6, "g_pate": 4.05}
CLASSIFIERS = ("logistic", "mlp", "cnn")
KEPT = Path(__file__).parent / "results" / "systems.jsonl"
TINY = ("privacy.steps=3", "loss.iterations=2", "privacy.batch=60", "loss.generated=20", "privacy.clip=4")


@dataclass(frozen=True)
class Row:
    """What a line is of."""

    data: str
    method: str
    """With changes to its recipe behind it, as METHOD:SECTION.NAME=VALUE."""
    epsilon: float | None
    """None: the recipe's own noise."""
    seed: int
    protocol: str
    count: int


def main() -> None:
    """Run the command."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="+", help="names, or NAME=PATH")
    parser.add_argument("--methods", default=",".join(METHODS), help="METHOD[:SECTION.NAME=VALUE...]")
    parser.add_argument("--epsilons", default="10,1")
    parser.add_argument("--delta", type=float, default=1e-5)
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--protocol", default="quick", help="of the classifiers, as in `dpsinkhorn evaluate`")
    parser.add_argument("--minutes", type=float, default=float("inf"))
    parser.add_argument("--runs", type=Path, default=Path("systems-runs"), help="where trainings are kept")
    parser.add_argument("--tiny", action="store_true", help="a few steps of each; figures mean nothing")
    parser.add_argument("--out", type=Path, default=KEPT)
    arguments = parser.parse_args()
    started, failed = time.monotonic(), 0
    for row, path in rows(arguments):
        if row in made(arguments.out):
            continue
        if time.monotonic() - started > 60 * arguments.minutes:
            print("left out:", row, flush=True)
            continue
        try:
            line = json.dumps({"row": asdict(row), **measured(row, path, arguments)})
        except Exception:
            failed += 1
            print("failed:", row, traceback.format_exc(), flush=True)
            continue
        with arguments.out.open("a") as file:
            file.write(line + "\n")
        print(line, flush=True)
    raise SystemExit(failed and f"{failed} rows failed")


def rows(arguments: Namespace) -> Iterator[tuple[Row, str]]:
    """Give all rows, those of most worth first, and where their data are."""
    protocol = find_protocol(arguments.protocol)
    epsilons = [float(each) for each in arguments.epsilons.split(",") if each]
    methods = arguments.methods.split(",")
    asked = [(method, epsilon) for epsilon in epsilons[:1] for method in methods]
    asked += [
        (f"{method}:privacy.noise_multiplier={PUBLISHED_NOISE[method]}", None)
        for method in methods
        if method in PUBLISHED_NOISE
    ]
    asked += [(method, epsilon) for epsilon in epsilons[1:] for method in methods]
    for seed in map(int, arguments.seeds.split(",")):
        for method, epsilon in asked:
            for source in arguments.data:
                name, _, path = source.rpartition("=")
                yield Row(name or path, method, epsilon, seed, protocol.name, protocol.count), path


def made(out: Path) -> list[Row]:
    """Return the rows that are there."""
    lines = out.read_text().splitlines() if out.exists() else []
    return [Row(**json.loads(line)["row"]) for line in lines]


def measured(row: Row, path: str, arguments: Namespace) -> dict[str, Any]:
    """Train, unless that was done, and measure."""
    mechanism, _, changes = row.method.partition(":")
    settings = [each for each in changes.split(":") if each]
    if arguments.tiny:
        kind = find_mechanism(mechanism)
        unused = (*kind.unused_settings, *(() if kind.takes_samples else ("privacy",)))
        settings += [each for each in TINY if not each.startswith(unused)]
    training, test = (load_dataset(path, split=split) for split in ("train", "test"))
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    request = Request(
        row.epsilon,
        arguments.delta,
        mechanism=mechanism,
        settings=parse_changes(settings),
        seed=row.seed,
        anyway=True,
    )
    release, told = trained(plan_for(training, request), training, device, run_folder(row, arguments.runs))
    began, protocol = time.monotonic(), find_protocol(row.protocol)
    images, labels = draw_images(release, row.count, protocol, seed=row.seed, device=device)
    assert labels is not None
    assert test.labels is not None
    utility = downstream_utility(
        images,
        labels,
        images_of(test),
        test.labels,
        classes=training.classes,
        protocol=protocol,
        classifiers=CLASSIFIERS,
        seed=row.seed,
        device=device,
    )
    scores = {score.name: round(score.mean, 2) for score in utility.scores}
    return {**scores, **told, "measure_seconds": round(time.monotonic() - began, 1)}


def trained(
    plan: Plan, training: Dataset, device: torch.device, folder: Path
) -> tuple[Release, dict[str, Any]]:
    """Return a release, and what there is to tell of its training."""
    told = folder / "told.json"
    if not told.exists():
        shutil.rmtree(folder, ignore_errors=True)  # what was begun there and not ended is of no use
        began, busy = time.monotonic(), time.process_time()
        run = Run.create(folder, plan)
        run.train(training, device=device, saving=Saving(picture_steps=0))
        found = {
            "epsilon": plan.epsilon,
            "published_epsilon": plan.published_epsilon,
            "delta": plan.delta,
            "adjacency": "add or remove one record",
            "noise_multiplier": plan.noise_multiplier,
            "records": training.records,
            "recipe": plan.recipe.name,
            "steps": plan.steps,
            "train_seconds": round(time.monotonic() - began, 1),
            "processor_seconds": round(time.process_time() - busy, 1),
            "hardware": hardware(),
        }
        told.write_text(json.dumps(found))
    return load(folder / "release"), json.loads(told.read_text())


def run_folder(row: Row, runs: Path) -> Path:
    """Return where a row's training is kept, whatever protocol it is measured by."""
    name = f"{row.data}-{row.method}-{'own' if row.epsilon is None else f'{row.epsilon:g}'}-{row.seed}"
    return runs / name.replace(":", "-").replace("=", "-")


def hardware() -> str:
    """Return the GPU's name, or the kind of processor and how many of its cores are used."""
    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    return f"{torch.get_num_threads()} CPU cores ({platform.machine()})"


if __name__ == "__main__":
    main()
