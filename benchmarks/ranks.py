"""Seeded trainings of every mechanism on several ranks: the same bits or not, and what ranks send each other.

    for W in 1 2 4; do torchrun --nproc-per-node $W benchmarks/ranks.py runs mnist=DIR; done
    python benchmarks/ranks.py runs --table

Small settings: a few steps of each mechanism on digits, and on the first 2,000 records of whatever is named.
For `record` it keeps the clipped sums of the first step, and how far they may be off by rounding.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from dpsinkhorn.data import Dataset, from_arrays, load_dataset
from dpsinkhorn.mechanisms import find_mechanism
from dpsinkhorn.mechanisms.record import Record
from dpsinkhorn.mechanisms.shared.clipping import on_grid
from dpsinkhorn.mechanisms.shared.shares import arrange, sort_by_class
from dpsinkhorn.ranks import joined
from dpsinkhorn.training import Run, load_recipe, make_plan
from dpsinkhorn.training.records import facts_of
from dpsinkhorn.training.shared_records import answer

MECHANISMS = (
    *("moments", "record", "flow", "batch", "image", "parameter", "none"),
    *("dp_merf", "dp_cgan", "gs_wgan", "datalens", "g_pate"),
)
RECORDS = 2000
COUNTED: Counter[str] = Counter()
SUMS: list[tuple[torch.Tensor, float]] = []


def count_bytes() -> None:
    """Count what rank 0 sends to each rank, and what comes from each, or from all together."""

    def counting(real: Any, direction: str) -> Any:
        def counted(tensor: torch.Tensor, *rest: Any, **named: Any) -> Any:
            COUNTED[direction] += tensor.numel() * tensor.element_size()
            return real(tensor, *rest, **named)

        return counted

    dist.broadcast = counting(dist.broadcast, "asked")
    dist.reduce = counting(dist.reduce, "answered")
    dist.irecv = counting(dist.irecv, "gathered")


def keep_sums() -> None:
    """Keep the first step's clipped sums of `record`, and the margin of its proof."""
    real = Record.sum_of_shares

    def kept(self: Record, sample: Any, images: torch.Tensor, labels: torch.Tensor | None, *rest: Any):
        found = real(self, sample, images, labels, *rest)
        if len(SUMS) < 2 and bool(
            found.any()
        ):  # not of a trial: over the sample, and over images in its place
            kinds = torch.zeros(len(images), dtype=torch.int64) if labels is None else labels
            (own,) = sort_by_class([kinds], [len(images)], self.classes, images.device)
            placed = arrange(kinds, len(images), own).place(on_grid(images))
            SUMS.append((found.clone(), self.mechanism.clip - self._sum.bound(placed, persons=False)))
        return found

    Record.sum_of_shares = kept


def plan_of(mechanism: str, data: Dataset) -> Any:
    kind = find_mechanism(mechanism)
    settings = kind.audit_settings(data.records)
    settings["privacy"]["noise_multiplier"] = 2.0 if kind.private else None
    if kind.takes_samples:
        settings["privacy"]["sampling_rate"] = 0.25
    recipe = load_recipe(kind.audit_recipe).replace(**settings)
    return make_plan(recipe, facts_of(data), accountant="rdp", seed=3)


def train(mechanism: str, data: Dataset, folder: Path) -> dict[str, Any] | None:
    """Train on all ranks; at rank 0, what came of it."""
    COUNTED.clear()
    SUMS.clear()
    with joined(600) as ranks:
        if ranks is not None and ranks.rank:
            answer(ranks, data, torch.device("cpu"))
            return None
        started = time.process_time()
        run = Run.create(folder, plan_of(mechanism, data))
        assert run.train(data, ranks=ranks)
        if ranks is not None:
            ranks.ask("end")
    weights = (run.release_folder / "generator.safetensors").read_bytes()
    found = {"sha": hashlib.sha256(weights).hexdigest(), "steps": run.plan.steps, **COUNTED}
    if SUMS:
        torch.save(SUMS, folder / "sums.pt")
    return {**found, "seconds": time.process_time() - started}


def measure(folder: Path, sources: list[str]) -> None:
    torch.set_num_threads(1)
    os.environ["DPSINKHORN_USED_DATA"] = "off"
    rank, count = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if not rank:
        count_bytes()
        keep_sums()
    data = {"digits": load_dataset("digits")}
    for source in sources:
        name, _, place = source.partition("=")
        whole = load_dataset(place)
        data[name] = from_arrays(whole.images[:RECORDS], whole.labels[:RECORDS], classes=10)
    for name, dataset in data.items():
        for mechanism in MECHANISMS:
            place = folder / name / mechanism / str(count)
            found = train(mechanism, dataset, place)
            if found is not None:
                (place / "found.json").write_text(json.dumps(found))
                print(name, mechanism, found, flush=True)


def table(folder: Path) -> None:
    """Print a row for each mechanism, with a cell's part for each data set."""
    sources = sorted(place.name for place in folder.iterdir())
    print(f"| mechanism | bits of the release ({' / '.join(sources)}) | asked, bytes | answered, bytes |")
    print("|---|---|---|---|")
    for mechanism in MECHANISMS:
        cells = zip(*(cells_of(folder / source / mechanism) for source in sources), strict=True)
        print(f"| `{mechanism}` | {' | '.join(' / '.join(dict.fromkeys(parts)) for parts in cells)} |")


def cells_of(place: Path) -> tuple[str, str, str]:
    """Say whether all numbers of ranks left the same bits, and what two ranks sent each other."""
    found = {int(path.parent.name): json.loads(path.read_text()) for path in place.glob("*/found.json")}
    said = "the same" if len({each["sha"] for each in found.values()}) == 1 else "not the same"
    said += f" on {', '.join(map(str, sorted(found)))}"
    if (place / "1" / "sums.pt").exists():
        sums = {n: torch.load(place / str(n) / "sums.pt") for n in found}
        off = max(
            float((own - one).norm())
            for n in found
            for (own, _), (one, _) in zip(sums[n], sums[1], strict=True)
        )
        said += f"; sums differ by {off:.1e} of {min(proved for _, proved in sums[1]):.1e} that are proved"
    two = found[2]
    asked, answered = two["asked"], two.get("answered", 0) + two.get("gathered", 0)
    return said, f"{asked / two['steps']:,.0f}", f"{answered / two['steps']:,.0f}"


if __name__ == "__main__":
    runs, *rest = sys.argv[1:]
    if rest == ["--table"]:
        table(Path(runs))
    else:
        measure(Path(runs), rest)
