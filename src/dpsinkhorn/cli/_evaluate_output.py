"""What `dpsinkhorn evaluate` prints: bars while it works, tables of what it found."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, TaskID, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from dpsinkhorn.cli._shared import bars, duration

if TYPE_CHECKING:  # they load PyTorch, which --help can do without
    from dpsinkhorn.data import Dataset
    from dpsinkhorn.evaluation import Evaluation, Likeness, Utility
    from dpsinkhorn.release import Release

_SHOWN = 20  # classes in the table, the worst served first if there are more
_UNLIKE = 0.1  # of a class's share: where synthetic and real labels differ by more, it is said


def show_evaluation(result: Evaluation, release: Release, count: int, test: Dataset, *, varied: bool) -> None:
    """The figures, as tables."""
    console = Console(highlight=False)
    sets = "" if result.sets == 1 else f"{result.sets} sets of "
    kind = "with the release's variation" if varied else "plain, as the generator renders them"
    console.print(
        f"{sets}{count:,} synthetic images ({kind}), {test.records:,} real ones of {escape(test.name)} "
        "to test on"
    )
    if result.utility is not None:
        console.print(f"Protocol {result.protocol.name}: {result.protocol.summary}.")
        console.print(_scores_table(result.utility, result.real))
        console.print(_classes_table(result, result.utility, result.real))
        for sentence in (*_about_classifiers(result.utility, result.real), *_beside_published(result)):
            console.print(sentence)
    if result.likeness is not None:
        console.print(_likeness_table(result.likeness))
        console.print(f"Features: {escape(result.likeness.features)}.")
        console.print(f"Column real, what a perfect generator would have: {result.likeness.floor_from}.")
        if result.likeness.compared is not None:
            console.print(f"Precision and recall are of {result.likeness.compared:,} images on either side.")
    console.print(f"The generator: {escape(release.privacy.guarantee)}.")


def _table(title: str, *headings: str) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for k, heading in enumerate(headings):
        table.add_column(heading, justify="right" if k else "left")
    return table


def _scores_table(ours: Utility, real: Utility | None) -> Table:
    """A row for each classifier; figures of the same trained on real images beside."""
    measures = {
        "accuracy": ("mean", "spread", 1),
        "balanced": ("balanced_accuracy", "balanced_accuracy_spread", 1),
        "AUC": ("roc_auc", "roc_auc_spread", 3),
    }
    kinds = ("synthetic",) if real is None else ("synthetic", "real")
    headings = [f"{measure}\n{kind}" for measure in measures for kind in kinds]
    table = _table(
        "Classifiers on the real test images, by what they were trained on", "classifier", *headings
    )
    both = [ours] if real is None else [ours, real]
    for scores in zip(*(one.scores for one in both), strict=True):
        chosen = [score.by_sensitive for score in scores]
        for note, found in ("", scores), (" *", chosen):
            figures = [score.to_json() for score in found if score is not None]
            cells = [
                _number(one[name], one[spread], digits)
                for name, spread, digits in measures.values()
                for one in figures
            ]
            if cells:
                table.add_row(scores[0].name + note, *cells)
    return table


def _number(value: float | None, spread: float | None, digits: int) -> str:
    if value is None:
        return "-"
    return f"{value:.{digits}f}" + ("" if spread is None else f"±{spread:.{digits}f}")


def _classes_table(result: Evaluation, ours: Utility, real: Utility | None) -> Table:
    """Recall of every class, or of those that are served worst."""
    names = [score.name for score in ours.scores]
    order = "" if real is None else ", trained on synthetic / real images"
    table = _table(f"Per cent of each class that is recognised{order}", "class", "tested", *names)
    last = ours.scores[-1].per_class
    present = [k for k, value in enumerate(last) if value is not None]
    if len(present) > _SHOWN:
        present = sorted(present, key=lambda k: last[k] or 0.0)[:_SHOWN]
    for k in present:
        title = escape(result.class_names[k]) if k < len(result.class_names) else str(k)
        cells = [_number(score.per_class[k], None, 1) for score in ours.scores]
        if real is not None:
            beside = [_number(score.per_class[k], None, 1) for score in real.scores]
            cells = [f"{one} / {other}" for one, other in zip(cells, beside, strict=True)]
        table.add_row(title, f"{ours.tested_by_class[k]:,}", *cells)
    return table


def _about_classifiers(ours: Utility, real: Utility | None) -> Iterator[str]:
    yield (
        "Balanced: accuracy as if every class were as frequent. AUC: area under the ROC curve"
        + ("." if len(ours.tested_by_class) <= 2 else ", mean of each class against the rest.")
    )
    if real is None:
        return
    yield f"Column real: the same classifiers, trained on {real.trained_on:,} real training images."
    shares = [[count / sum(one.trained_by_class) for count in one.trained_by_class] for one in (ours, real)]
    if max(abs(one - other) for one, other in zip(*shares, strict=True)) > _UNLIKE:
        yield (
            f"The largest class has {max(shares[0]):.0%} of the synthetic images and {max(shares[1]):.0%} of "
            "the real ones: compare balanced accuracy and AUC, and not accuracy."
        )


def _beside_published(result: Evaluation) -> Iterator[str]:
    """Mean and best of the classifiers, where others publish these, and what theirs are of."""
    ours, published = result.utility, result.protocol.published
    if not published or ours is None:
        return
    if ours.scores[0].by_sensitive is not None:
        yield "*: the same network, its epoch chosen on sensitive training images."
    for note, chosen in ("", False), (", * alone", True):
        if not chosen or ours.scores[0].by_sensitive is not None:
            mean, best = ours.mean_and_best(by_sensitive=chosen)
            yield f"Trained on synthetic images{note}: mean {mean:.1f}, best {best:.1f}."
    yield f"Published figures are of generators {published} (*), which no guarantee covers."


def _likeness_table(likeness: Likeness) -> Table:
    table = _table("How like real images they are", "measure", "synthetic", "real")
    if likeness.frechet is not None and likeness.floor is not None:
        distances = _three_digits(likeness.frechet), _three_digits(likeness.floor)
        table.add_row(f"{likeness.name} (low is good)", *distances)
    ours, real = likeness.diversity, likeness.real_diversity
    if ours is not None and real is not None:
        table.add_row("precision", f"{ours.precision:.3f}", f"{real.precision:.3f}")
        table.add_row("recall", f"{ours.recall:.3f}", f"{real.recall:.3f}")
    return table


def _three_digits(value: float) -> str:
    """Three that count, whatever the size: distances go from thousandths to hundreds.

    >>> [_three_digits(value) for value in (0.004567, 1.2345, 98.76, 1234.5)]
    ['0.00457', '1.23', '98.8', '1234']
    """
    return f"{value:.0f}" if value >= 1000 else f"{value:.3g}"


@contextmanager
def progress_bars(
    *, quiet: bool
) -> Iterator[tuple[Callable[[dict[str, float]], None], Callable[[str, float], None]]]:
    """What to call with the estimated seconds of each part, and with the part of it that is done.

    Where stderr is no terminal there is a line for each part: what runs for minutes should say that it does.
    """
    about = TextColumn("{task.fields[about]}")
    with bars(BarColumn(), TaskProgressColumn(), TimeElapsedColumn(), about, quiet=quiet) as shown:
        tasks: dict[str, TaskID] = {}
        started: set[str] = set()

        def estimated(seconds: dict[str, float]) -> None:
            if not quiet:
                say(f"this takes about {duration(sum(seconds.values()))}")
            for part, value in seconds.items():
                about = f"of about {duration(value)}"
                tasks[part] = shown.add_task(part, total=1.0, start=False, about=about)

        def progress(part: str, done: float) -> None:
            if part not in started:
                started.add(part)
                shown.start_task(tasks[part])
                if shown.disable and not quiet:
                    say(part)
            shown.update(tasks[part], completed=done)

        def say(text: str) -> None:
            print(f"dpsinkhorn: {text}", file=sys.stderr, flush=True)

        yield estimated, progress
