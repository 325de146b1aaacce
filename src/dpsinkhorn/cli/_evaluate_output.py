"""What `dpsinkhorn evaluate` prints: a bar while it works, tables of what it found."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

if TYPE_CHECKING:  # they load PyTorch, which --help can do without
    from dpsinkhorn.data import Dataset
    from dpsinkhorn.evaluation import ClassifierScore, Evaluation
    from dpsinkhorn.release import Release

__all__ = ["progress_bar", "show_evaluation"]

_SHOWN = 20  # classes in the table, the worst served first if there are more


def show_evaluation(result: Evaluation, release: Release, count: int, test: Dataset) -> None:
    """The figures, as tables."""
    console = Console(highlight=False)
    scores = () if result.utility is None else result.utility.scores
    title = f"{count:,} synthetic images, {test.records:,} real ones of {escape(test.name)} to test on"
    console.print(title)
    if scores:
        console.print(_accuracy_table(result, scores))
    likeness = result.likeness
    real, ours = likeness.real_diversity, likeness.diversity
    table = Table()
    for heading in ("measure", "synthetic", "real"):
        table.add_column(heading, justify="left" if heading == "measure" else "right")
    table.add_row(
        f"{likeness.name} (low is good)", _three_digits(likeness.frechet), _three_digits(likeness.floor)
    )
    table.add_row("precision", f"{ours.precision:.3f}", f"{real.precision:.3f}")
    table.add_row("recall", f"{ours.recall:.3f}", f"{real.recall:.3f}")
    console.print(table)
    console.print(f"Features: {escape(likeness.features)}.")
    console.print(f"Column real, what a perfect generator would have: {likeness.floor_from}.")
    console.print(f"Precision and recall are of {likeness.compared:,} images on either side.")
    console.print(f"The generator: {escape(release.privacy.guarantee)}.")


def _three_digits(value: float) -> str:
    """Three that count, whatever the size: distances go from thousandths to hundreds.

    >>> [_three_digits(value) for value in (0.004567, 1.2345, 98.76, 1234.5)]
    ['0.00457', '1.23', '98.8', '1234']
    """
    return f"{value:.0f}" if value >= 1000 else f"{value:.3g}"


def _accuracy_table(result: Evaluation, scores: tuple[ClassifierScore, ...]) -> Table:
    """Per cent of the real images that classifiers trained on synthetic ones get right."""
    table = Table()
    for heading in ("accuracy, per cent", *(score.name for score in scores)):
        table.add_column(heading, justify="left" if heading.startswith("accuracy") else "right")
    titles = [_class_title(result, k) for k in range(len(scores[0].per_class))]
    spreads = [f" ± {score.spread:.1f}" if score.spread is not None else "" for score in scores]
    overall = [f"{score.mean:.1f}{spread}" for score, spread in zip(scores, spreads, strict=True)]
    table.add_row("all classes", *overall)
    worst = [f"{score.per_class[score.worst_class]:.1f} ({titles[score.worst_class]})" for score in scores]
    table.add_row("worst class", *worst, end_section=True)
    present = [k for k, value in enumerate(scores[-1].per_class) if value is not None]
    if len(present) > _SHOWN:
        present = sorted(present, key=lambda k: scores[-1].per_class[k] or 0.0)[:_SHOWN]
    for k in present:
        table.add_row(f"class {titles[k]}", *(f"{score.per_class[k]:.1f}" for score in scores))
    return table


def _class_title(result: Evaluation, k: int) -> str:
    return escape(result.class_names[k]) if k < len(result.class_names) else str(k)


@contextmanager
def progress_bar(names: list[str], runs: int, *, quiet: bool) -> Iterator[Callable[[str, int, int], None]]:
    """A step for each training of a classifier and one for the features; results alone go to stdout.

    Where stderr is no terminal, a line per stage: what runs for minutes should say that it does.
    """
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[detail]}"),
        TimeElapsedColumn(),
    )
    total = sum(1 if name == "logistic" else runs for name in names) + 1
    hidden = quiet or not console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=hidden) as bar:
        task = bar.add_task("evaluating", total=total, detail="")
        started: set[tuple[str, int]] = set()
        last = ""

        def progress(stage: str, run: int, done: int) -> None:
            nonlocal last
            if not quiet and hidden and stage != last:
                print(f"dpsinkhorn: {_stage_title(stage, runs, bool(started))}", file=sys.stderr, flush=True)
            last = stage
            started.add((stage, run))
            detail = "" if not done else f"{done} images" if stage == "features" else f"epoch {done}"
            bar.update(task, description=stage, completed=len(started) - 1, detail=detail)

        yield progress


def _stage_title(stage: str, runs: int, again: bool) -> str:
    if stage == "features":
        return "comparing the images by their features" if again else "getting the network of features"
    return f"training the classifier {stage}" + (
        "" if stage == "logistic" or runs == 1 else f", {runs} times"
    )
