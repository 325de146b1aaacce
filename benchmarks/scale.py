"""Trainings on shards, on one rank and on several: time of a step and memory of a process, by records.

    python benchmarks/scale.py moments 10_000_000 --folder /tmp/scale --ranks 1 2
    python benchmarks/scale.py record 10_000_000 --folder /tmp/scale --steps 40 200
    python benchmarks/scale.py flat 60_000 1_000_000 10_000_000 100_000_000 --folder /tmp/scale

Records are 8 x 8: digits of scikit-learn, each with noise of its own. They are written once, and kept.
"""

from __future__ import annotations

import itertools
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from argparse import ArgumentParser
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits

from dpsinkhorn.cli import main
from dpsinkhorn.data import Dataset, from_arrays, write_shards
from dpsinkhorn.data.shards import is_sharded, read_shards
from dpsinkhorn.training import load_recipe, make_plan
from dpsinkhorn.training.records import facts_of, records_of
from dpsinkhorn.training.state import TrainingState
from dpsinkhorn.training.steps import make_steps

AT_ONCE = 2**20
SETTINGS = {
    "moments": ["--mechanism", "moments", "--epsilon", "3"],
    # in a batch of 2,048, whatever the number of records
    "record": ["--recipe", "digits", "--epsilon", "3"],
}
BATCH = 2048
STEPS = 5  # of a round of `flat`


def made(folder: Path, records: int) -> Path:
    """Shards of so many records."""
    place = folder / f"shards-{records}"
    if not is_sharded(place):
        many = min(AT_ONCE, -(-records // 64))
        write_shards(drawn(records, many), place, many)
    return place


def drawn(records: int, many: int) -> Iterator[Dataset]:
    """So many records, drawn a part at a time."""
    digits, random = load_digits(), np.random.default_rng(0)
    images = digits.images.astype(np.uint8)
    for at in range(0, records, many):
        count = min(many, records - at)
        rows = random.integers(len(images), size=count)
        noise = random.integers(0, 3, size=(count, 8, 8), dtype=np.uint8)
        part = np.minimum(images[rows] + noise, 16)
        yield from_arrays(part, digits.target[rows], classes=10, value_range=(0, 16), name=str(records))


def train(run: str, arguments: list[str]) -> None:
    """In a rank: train, and note the memory that this process took at most."""
    try:
        main(["train", "--out", run, *arguments])
    except SystemExit as left:
        used = resource.getrusage(resource.RUSAGE_SELF)
        line = json.dumps({"peak": used.ru_maxrss / 1024, "cpu": used.ru_utime + used.ru_stime})
        Path(run, f"used{os.environ.get('RANK', '0')}.json").write_text(line)
        raise SystemExit(left.code) from None


def measured(
    mechanism: str, data: Path, records: int, ranks: int, steps: int | None = None, batch: int = BATCH
) -> None:
    """One training, and what it took."""
    settings = [
        *SETTINGS[mechanism],
        "--data",
        str(data),
        "--picture-every",
        "0",
        "--json",
        "--device",
        "cpu",
    ]
    if mechanism == "record":
        settings += ["--set", f"privacy.batch={batch}"]
    if steps is not None:
        settings += ["--steps", str(steps)]
    with tempfile.TemporaryDirectory() as place:
        torchrun = ["-m", "torch.distributed.run", "--nproc-per-node", str(ranks)]
        command = [sys.executable, *torchrun, __file__, "rank", place + "/run", *settings]
        subprocess.run(
            command,
            check=True,
            stdout=subprocess.DEVNULL,
            env={**os.environ, "OMP_NUM_THREADS": "1", "DPSINKHORN_USED_DATA": "off"},
        )
        lines = [json.loads(line) for line in Path(place, "run", "statistics.jsonl").read_text().splitlines()]
        privacy = json.loads(Path(place, "run", "release", "privacy.json").read_text())
        used = [json.loads(path.read_text()) for path in sorted(Path(place, "run").glob("used*.json"))]
    seconds = [1 / line["steps_per_second"] for line in lines]
    each = "; ".join(f"{one['peak']:.0f} MiB and {one['cpu']:.1f} s of processor time" for one in used)
    print(
        f"{mechanism}  {records:>11,} records  {ranks} ranks  {lines[-1]['step']} steps to epsilon "
        f"{privacy['epsilon']:.4f}, {np.median(seconds):.4f} s a step; processes: {each}; "
        f"load {os.getloadavg()[0]:.1f}",
        flush=True,
    )


def flat(folder: Path, counts: list[int], rounds: int, cold: bool) -> None:
    """Time of a step of `record` at one expected batch, by records: interleaved, in one process."""
    torch.set_num_threads(1)
    takers = {}
    for count in counts:
        data = read_shards(made(folder, count))
        options = {"steps": 10**6, "sampling_rate": BATCH / count, "noise_multiplier": 1.0}
        recipe = load_recipe("digits").replace(privacy=options)
        plan = make_plan(recipe, facts_of(data), accountant="rdp")
        state, records = TrainingState(plan, torch.device("cpu")), records_of(data, torch.device("cpu"))
        labels = (0.1,) * 10
        takers[count] = make_steps(plan, state, records, plan.build(), labels, horizon=plan.steps)
    times: dict[int, list[tuple[float, float]]] = {count: [] for count in counts}
    for _ in range(rounds + 1):
        for count, steps in takers.items():
            if cold:
                forget(made(folder, count))
            started = time.process_time(), time.perf_counter()
            steps.take(STEPS)
            ended = time.process_time(), time.perf_counter()
            times[count].append(((ended[0] - started[0]) / STEPS, (ended[1] - started[1]) / STEPS))
    for count, found in times.items():
        rest = found[1:]  # the first touches files for the first time
        of_processor, elapsed = (
            "{1:.1f} ms ({0:.1f} to {2:.1f})".format(*np.quantile(each, [0.25, 0.5, 0.75]) * 1e3)
            for each in zip(*rest, strict=True)
        )
        print(
            f"record  {count:>11,} records  a step: {of_processor} of a processor, {elapsed} elapsed; "
            f"load {os.getloadavg()[0]:.1f}",
            flush=True,
        )


def forget(folder: Path) -> None:
    """Let the system's cache forget the shards."""
    for path in folder.glob("*.npy"):
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


if __name__ == "__main__":
    if sys.argv[1] == "rank":
        train(sys.argv[2], sys.argv[3:])
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("mechanism", choices=[*SETTINGS, "flat"])
    parser.add_argument("records", type=int, nargs="+")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--cold", action="store_true", help="of `flat`: every round reads from the disk")
    parser.add_argument("--batch", type=int, default=BATCH, help="of `record`")
    parser.add_argument("--steps", type=int, nargs="+", default=[None])
    asked = parser.parse_args()
    asked.folder.mkdir(parents=True, exist_ok=True)
    if asked.mechanism == "flat":
        flat(asked.folder, asked.records, asked.rounds, asked.cold)
        raise SystemExit
    for count in asked.records:
        place = made(asked.folder, count)
        for ranks, steps in itertools.product(asked.ranks, asked.steps):
            measured(asked.mechanism, place, count, ranks, steps, asked.batch)
