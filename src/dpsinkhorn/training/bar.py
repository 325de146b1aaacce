"""The progress bar of a training: steps, ε spent, and the time left. In a terminal and in a notebook."""

from __future__ import annotations

import importlib.util
import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as Bars

from dpsinkhorn.privacy import format_epsilon
from dpsinkhorn.training.run import Progress


@contextmanager
def progress_bar(console: Console, *, hidden: bool) -> Iterator[Callable[[Progress, str], None]]:
    """Within it there is a bar, which is shown a progress and what to write of ε."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("ε ≤ {task.fields[spent]}"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Bars(*columns, console=console, disable=hidden) as bars:
        task = bars.add_task("training", total=None, spent="-")

        def show(now: Progress, spent: str) -> None:
            block, done, total = now.block, now.block.step, now.block.horizon
            if block.updates_in_all:  # by what was released before the first step
                done, total = block.updates, block.updates_in_all
            doing = "learning from the sketch" if block.updates_in_all else "training"
            bars.update(task, description=doing, completed=done, total=total, spent=spent)

        yield show


def spent_of(epsilon: float, allowed: str) -> str:
    """Return ε so far beside what is allowed.

    >>> spent_of(2.5, "10"), spent_of(math.inf, "10")
    ('2.5 of 10', '∞')
    """
    return "∞" if math.isinf(epsilon) else f"{format_epsilon(epsilon)} of {allowed}"


def notebook_or_terminal() -> Console | None:
    """Return where a bar can be drawn, or None where there is neither a terminal nor a notebook."""
    console = Console(stderr=True)
    if not console.is_jupyter:
        return console if console.is_terminal else None
    if importlib.util.find_spec("ipywidgets") is not None:  # what rich draws with there
        return console
    return Console(file=sys.stdout, force_jupyter=False, force_terminal=True, width=100)
