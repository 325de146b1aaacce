"""The progress bar of commands that train several generators."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn

from dpsinkhorn.cli._shared import bars

if TYPE_CHECKING:  # it loads PyTorch, which --help can do without
    from dpsinkhorn.training import Progress as RunProgress


@contextmanager
def bar_of_trainings(
    *, quiet: bool
) -> Iterator[tuple[Callable[[str, int, int], None], Callable[[RunProgress], None]]]:
    """Show what is done, of how many, and the step of the one in training."""
    from dpsinkhorn.privacy import format_epsilon

    detail = TextColumn("{task.fields[detail]}")
    with bars(BarColumn(), MofNCompleteColumn(), detail, TimeElapsedColumn(), quiet=quiet) as progress:
        task = progress.add_task("", total=None, detail="")

        def show(what: str, done: int, total: int) -> None:
            progress.update(task, description=what, completed=done, total=total, detail="")

        def step(now: RunProgress) -> None:
            block = now.block
            spent = format_epsilon(now.epsilon)
            progress.update(task, detail=f"step {block.step} of {block.horizon}, ε {spent}")

        yield show, step
