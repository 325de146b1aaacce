"""Who looks on at a training: its progress bar, and `log_to` for trackers of experiments."""

from __future__ import annotations

import importlib.util
import math
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bars

from dpsinkhorn.errors import TrainingError
from dpsinkhorn.privacy import format_epsilon
from dpsinkhorn.training.run import Progress, Watch


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


def log_to(tracker: Any) -> Watch:
    """Return a `watch` for `fit` that logs ε spent, δ and the steps planned, by the step.

    The tracker is the module `mlflow`, a run of Weights & Biases, a `SummaryWriter` of TensorBoard, or a
    function of a dict of numbers and a step. If it fails there is a warning, and it is left alone from then
    on: the training, which is paid for, goes on.

    >>> from dpsinkhorn import DPSinkhorn
    >>> model = DPSinkhorn(epsilon=10, recipe="mixture", verbose=False)
    >>> lines = []
    >>> _ = model.fit("digits", watch=log_to(lambda values, step: lines.append((step, *values))))
    >>> lines[-1]
    (5, 'epsilon', 'delta', 'steps_planned')
    """
    log: Callable[[Mapping[str, float], int], Any] | None = _log_function(tracker)

    def watch(now: Progress) -> bool:
        nonlocal log
        values = {"epsilon": now.epsilon, "delta": now.delta, "steps_planned": float(now.block.horizon)}
        try:
            if log is not None:
                log(values, now.block.step)
        except Exception as error:
            log = None
            reason = " ".join(str(error).split()) or type(error).__name__
            warnings.warn(f"no more is logged, since the tracker failed: {reason}", stacklevel=2)
        return False

    return watch


def _log_function(tracker: Any) -> Callable[[Mapping[str, float], int], Any]:
    """Return how to log numbers by their names, at a step."""
    if hasattr(tracker, "add_scalar"):  # TensorBoard
        return lambda values, step: [tracker.add_scalar(name, value, step) for name, value in values.items()]
    if hasattr(tracker, "log_metrics"):  # MLflow
        return lambda values, step: tracker.log_metrics(values, step=step)
    if hasattr(tracker, "log"):  # Weights & Biases
        return lambda values, step: tracker.log(values, step=step)
    if callable(tracker):
        return lambda values, step: tracker(values, step)
    raise TrainingError(
        f"a {type(tracker).__name__} is no tracker; give the module mlflow, a run of Weights & Biases, a "
        "SummaryWriter of TensorBoard, or a function of a dict of numbers and a step"
    )
