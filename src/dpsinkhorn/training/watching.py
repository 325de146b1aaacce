"""Who looks on at a training, or stops it: progress bar, trackers, Ctrl-C; and how often a run writes."""

from __future__ import annotations

import functools
import importlib.util
import math
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bars

from dpsinkhorn.errors import TrainingError
from dpsinkhorn.privacy import format_epsilon
from dpsinkhorn.training.account import Account
from dpsinkhorn.training.trainer import Block

_REST = 100  # times as long as it took, until something is done again
_CHECKPOINT_REST = 30  # likewise, for a checkpoint, since a crash costs more than a picture
_LONGEST_REST = 60.0  # seconds without a checkpoint, even where the disk is slow


@dataclass(frozen=True)
class Progress:
    """What is shown while training."""

    block: Block
    epsilon: float
    """No less than all that is on record comes to: a little more where computing it anew would take time."""
    charged: int
    """Steps of this run that are on record: more than it stands at where a crash lost some."""
    delta: float
    """Of the plan; `epsilon` is for this δ."""


Watch = Callable[[Progress], bool]
"""Called after every block of steps; an answer of True stops the run there, with a checkpoint."""


@contextmanager
def progress_bar(
    console: Console, allowed: Callable[[], str], *, hidden: bool = False
) -> Iterator[Callable[[Progress], str]]:
    """Within it there is a bar. What shows it a progress returns ε so far, beside what is `allowed`.

    That is looked up at the first progress: only then is it known that the ledger is whole.
    """
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("ε ≤ {task.fields[spent]}"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    limit = functools.cache(allowed)
    with Bars(*columns, console=console, disable=hidden) as bars:
        task = bars.add_task("training", total=None, spent="-")

        def show(now: Progress) -> str:
            block, doing, done, total = now.block, "training", now.block.step, now.block.horizon
            if block.updates_in_all:  # by what was released before the first step
                doing, done, total = "learning from the sketch", block.updates, block.updates_in_all
            most = limit()
            spent = "∞" if math.isinf(now.epsilon) else f"{format_epsilon(now.epsilon)} of {most}"
            bars.update(task, description=doing, completed=done, total=total, spent=spent)
            return spent

        yield show


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


# ---- so rarely that it costs little


@dataclass(frozen=True)
class Saving:
    """How often a run writes things down. None of it changes what is learnt, or ε."""

    checkpoint_seconds: float | None = None
    """Between checkpoints. By default they come from the first block on, as often as takes 3 % of the time,
    and at least every minute."""
    picture_steps: int = 500
    """Between pictures, at least: they are fewer where they would cost time. 0: none while training."""


class Pace:
    """When the next of each is due, in a run that stands at `step`."""

    def __init__(self, account: Account, saving: Saving, step: int) -> None:
        self._account = account
        self._saving = saving
        self._looks, self._drawing = _Sparingly(_REST), _Sparingly(_REST)
        self._saves = _Sparingly(_CHECKPOINT_REST)
        self._seen = step - 1
        self._pictures = self._pictures_by(step)
        self.spent = 0.0
        """No less than ε of all that was on record after the last block."""

    def look(self, block: Block) -> float | None:
        """ε of all that is on record; None while it is not worth computing, since `spent` is above it.

        Between looks `spent` is ε at a step ahead, as far as the run will come until the next one.
        """
        final = block.step >= block.horizon
        if not (final or block.step > self._seen or self._looks.due):
            return None
        ahead = int(1.5 * self._looks.rest * block.steps / max(block.seconds, 1e-9))
        self._seen = min(block.step + ahead, block.horizon)
        with self._looks.done():
            found = self._account.epsilon_by(block.step)
            self.spent = self._account.epsilon_by(self._seen) if self._seen > block.step else found
        return found

    def checkpoint_due(self) -> bool:
        """Whether it is time for one."""
        seconds = self._saving.checkpoint_seconds
        return self._saves.rested(min(self._saves.rest, _LONGEST_REST) if seconds is None else seconds)

    def checkpoint(self) -> AbstractContextManager[None]:
        """Within it a checkpoint is written."""
        return self._saves.done()

    def picture_due(self, step: int) -> bool:
        """Whether there were enough steps since the last one, and enough time."""
        return self._pictures_by(step) > self._pictures and self._drawing.due

    @contextmanager
    def picture(self, step: int) -> Iterator[None]:
        """Within it a picture is drawn."""
        with self._drawing.done():
            yield
        self._pictures = self._pictures_by(step)

    def _pictures_by(self, step: int) -> int:
        return step // self._saving.picture_steps if self._saving.picture_steps else 0


class _Sparingly:
    """What must not take more than a small part of the time."""

    def __init__(self, times: float) -> None:
        self._times, self._last, self.rest = times, time.monotonic(), 0.0

    @property
    def due(self) -> bool:
        return self.rested(self.rest)

    def rested(self, seconds: float) -> bool:
        """Whether so much time is over; also where the clock went back, as one day some machine's will."""
        return not 0 <= time.monotonic() - self._last < seconds

    @contextmanager
    def done(self) -> Iterator[None]:
        """Within it the thing is done."""
        started = time.monotonic()
        yield
        self._last = time.monotonic()
        self.rest = self._times * (self._last - started)


# ---- Ctrl-C: a training stops where it can go on later


_SAME_SECONDS = 1.0  # a terminal and whatever stands between may each send the same Ctrl-C


class _Stop:
    asked = False


@contextmanager
def stop_on_interrupt() -> Iterator[_Stop]:
    """Let Ctrl-C, or a polite kill, ask the run to stop after the block of steps; a second one is immediate.

    What arrives within a second of the first is the first: `timeout`, say, signals a process and its group.
    Outside of the main thread, where no signal arrives, nothing is changed.
    """
    stop = _Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    first = 0.0

    def ask(number: int, frame: Any) -> None:
        nonlocal first
        del number, frame
        now = time.monotonic()
        if not stop.asked:
            stop.asked, first = True, now
        elif now - first > _SAME_SECONDS:
            raise KeyboardInterrupt

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
