"""`dpsinkhorn audit --game replay`: all mechanisms, recorded on the data and replayed on neighbours."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from dpsinkhorn.cli._shared import print_json, printable
from dpsinkhorn.cli.data import DataOptions

if TYPE_CHECKING:  # torch is slow to import: `--help` does without
    from dpsinkhorn.data import Dataset
    from dpsinkhorn.privacy.audit import Replayed

_CLOUD = 30  # points of either side
_SHOWN = 20  # violations that the table is followed by; --json has them all


def audit_replay(
    data: str, reading: DataOptions, mechanism: str | None, as_json: bool, progress: Progress
) -> bool:
    """Replay one mechanism, or all of them and transport, and print what was found; True if it is clean."""
    from dpsinkhorn.data import load_dataset
    from dpsinkhorn.training.auditing import REPLAYED_RECORDS, replay_training

    options = reading.parsed()
    task = progress.add_task("", total=None)

    def watch(name: str) -> None:
        progress.update(task, description=name)

    found = replay_training(data, [mechanism] if mechanism else None, watch=watch, **options)
    loaded = load_dataset(data, **options)
    if mechanism is None:
        found += _transport(loaded, watch)
    clean = not any(each.violations for each in found)
    records = min(REPLAYED_RECORDS, loaded.records)
    if as_json:
        rows = [asdict(each) for each in found]
        print_json(
            {"game": "replay", "private": False, "records": records, "clean": clean, "mechanisms": rows}
        )
    else:
        _print(found, records, clean)
    return clean


def _transport(data: Dataset, watch: Callable[[str], None]) -> list[Replayed]:
    """Transport between some records of the data and others, as points, at a bound that caps some costs."""
    import numpy as np

    from dpsinkhorn.transport.replay import replay_transport

    points = data.points(np.arange(min(data.records, 2 * _CLOUD))).double().numpy()
    half = len(points) // 2
    bound = float(np.square(points[:half] - points[half : 2 * half]).sum(1).mean())
    return replay_transport(points[:half], points[half:], cost_bound=bound or 1.0, watch=watch)


def _print(found: list[Replayed], records: int, clean: bool) -> None:
    console = Console(highlight=False)
    table = Table(title="Audit by record and replay", title_justify="left")
    table.add_column("mechanism")
    for name in ("neighbours", "refused", "largest move / sensitivity", "violations"):
        table.add_column(name, justify="right")
    for each in found:
        counts = (
            f"{each.neighbours:,}",
            f"{each.refused:,}",
            f"{each.move:.4f}",
            f"{len(each.violations):,}",
        )
        table.add_row(each.mechanism, *counts)
    console.print(table)
    lines = [f"{each.mechanism}: {line}" for each in found for line in each.violations]
    for line in lines[:_SHOWN]:
        console.print(printable(line), soft_wrap=True, markup=False)
    if len(lines) > _SHOWN:
        console.print(f"{len(lines) - _SHOWN:,} more; --json has them all")
    console.print(
        f"Every mechanism ran on up to {records:,} records with its noise recorded, then on neighbours with "
        "that noise. Nothing was released; keep this output with the data."
    )
    console.print(
        "What is noised moves by no more than the claimed sensitivity, and nothing else differs."
        if clean
        else "What is claimed does not hold: one record shows more than it may."
    )
