"""`dpsinkhorn audit`: what can be shown of epsilon from below, beside what is claimed."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.progress import Progress, TaskID

from dpsinkhorn.cli._audit_output import AuditResult, audit_replay, result_of_run, result_of_step
from dpsinkhorn.cli._shared import (
    BadInputError,
    DataOptions,
    JsonOption,
    bars,
    check_plot_path,
    check_share,
    draw_plot,
    parse_rate,
    print_json,
    print_table,
    takes_options,
)
from dpsinkhorn.cli.privacy import (
    DeltaOption,
    NoiseOption,
    PrivateMechanism,
    RateOption,
    RowsOption,
    StepsOption,
)
from dpsinkhorn.mechanisms import find_mechanism

EXCEEDED = 3

_COUNT = 1000  # of repetitions, or of canaries, unless another is given


@dataclass(frozen=True, kw_only=True)
class AuditOptions:
    mechanism: Annotated[
        PrivateMechanism | None, "Where clipping and noise stand. [default: record; for replay all]"
    ] = None
    noise_multiplier: NoiseOption = None
    sampling_rate: RateOption = None
    steps: StepsOption = None
    delta: DeltaOption = 1e-5
    rows: RowsOption = None
    game: Annotated[
        Literal["step", "run", "replay"],
        "step: a worst-case record in single steps; run: canaries in a training; replay: recorded "
        "on the data and replayed on neighbours, with all noise frozen.",
    ] = "step"
    repetitions: Annotated[int | None, "Releases of each data set, for step. [default: 1000]"] = None
    data: Annotated[str | None, "A name or a path, for run and replay. [default: digits]"] = None
    reading: DataOptions
    epsilon: Annotated[float | None, "For run, in place of --noise-multiplier."] = None
    canaries: Annotated[int | None, "Made-up records, or persons, for run. [default: 1000]"] = None
    claim: Annotated[
        Literal["sound", "published"], "The epsilon to hold against: ours, or the paper's for image."
    ] = "sound"
    confidence: Annotated[float, "Of each bound."] = 0.95
    seed: Annotated[int | None, "Replayable noise in place of secure noise."] = None
    as_json: JsonOption = False
    plot: Annotated[Path | None, "Draw scores and bounds into this .png file."] = None

    def check(self) -> None:
        """Refuse what has no meaning for the game, or no sense."""
        if self.game != "replay":
            check_plot_path(self.plot)
            check_share(self.delta, "--delta", "1e-5")
            check_share(self.confidence, "--confidence", "0.95")
        given = {**vars(self), **self.reading.given(), "claim": None if self.claim == "sound" else self.claim}
        for name in _MEANINGLESS[self.game]:
            if given.get(name) is not None:
                flag = "--" + name.replace("_", "-")
                raise BadInputError(f"{flag} has no meaning for --game {self.game}; leave it out")

    def settings(self) -> dict[str, Any]:
        """Return the settings of a step that were given."""
        rate = parse_rate(self.sampling_rate, None, None)
        given = {"noise_multiplier": self.noise_multiplier, "sampling_rate": rate, "steps": self.steps}
        return {name: value for name, value in given.items() if value is not None}


_MEANINGLESS = {
    "step": ("data", *(field.name for field in fields(DataOptions)), "epsilon", "canaries"),
    "run": ("repetitions", "rows", "claim"),
    "replay": (
        *("noise_multiplier", "sampling_rate", "steps", "rows", "repetitions"),
        *("epsilon", "canaries", "seed", "plot"),
    ),
}


@takes_options()
def audit(asked: AuditOptions) -> None:
    """An empirical lower bound on epsilon, by attacking the real code, beside the epsilon that is claimed.

    Exit status: 0 if the largest of the bounds is within the claim, 3 if it exceeds it (then code or claim
    are wrong, or chance was against you), 2 for bad input. For replay: 0 if no neighbour moves what is noised
    by more than its claimed sensitivity, and nothing else differs; else 3.

    Example:

        dpsinkhorn audit --mechanism record --noise-multiplier 1 --sampling-rate 0.2 --steps 10 --delta 1e-5

        dpsinkhorn audit --game run --data digits --epsilon 10 --plot audit.png

        dpsinkhorn audit --game run --data scans.parquet --label diagnosis --groups patient --epsilon 3

        dpsinkhorn audit --game replay --data scans.csv --label diagnosis --groups patient
    """
    asked.check()
    with bars(quiet=asked.as_json) as progress:
        if asked.game == "replay":
            data = asked.data or "digits"
            clean = audit_replay(data, asked.reading, asked.mechanism, asked.as_json, progress)
            raise typer.Exit(0 if clean else EXCEEDED)
        result = _step(asked, progress) if asked.game == "step" else _run(asked, progress)
    _report(result, asked.as_json, asked.plot)


def _step(asked: AuditOptions, progress: Progress) -> AuditResult:
    from dpsinkhorn.training.auditing import StepSetting, audit_step

    mechanism, settings = asked.mechanism or "record", asked.settings()
    if asked.noise_multiplier is None:
        raise BadInputError("give --noise-multiplier")
    if (asked.rows is None) == find_mechanism(mechanism).clips_rows:
        raise BadInputError(
            "give --rows, an even number of generated images, for --mechanism image, and only there"
        )
    if asked.rows is not None:
        settings["rows"] = asked.rows
    if asked.claim == "published" and not find_mechanism(mechanism).clips_rows:
        raise BadInputError(f"--claim published is for --mechanism image, not {mechanism}")
    count = _COUNT if asked.repetitions is None else asked.repetitions
    task = progress.add_task("releases", total=2 * count)
    found = audit_step(
        StepSetting(mechanism, **settings), repetitions=count, **_common(asked, progress, task)
    )
    return result_of_step(found, published=asked.claim == "published")


def _run(asked: AuditOptions, progress: Progress) -> AuditResult:
    from dpsinkhorn.training import choose_recipe, facts_of
    from dpsinkhorn.training.auditing import audit_run

    settings = {"privacy": asked.settings()}
    if asked.epsilon is not None and asked.noise_multiplier is not None:
        raise BadInputError("give --epsilon or --noise-multiplier, not both")
    data = asked.reading.load(asked.data or "digits", quiet=progress.disable)
    recipe = choose_recipe(facts_of(data), mechanism=asked.mechanism or "record", settings=settings)
    task = progress.add_task("training steps", total=recipe.privacy.steps)
    count = _COUNT if asked.canaries is None else asked.canaries
    common = _common(asked, progress, task)
    return result_of_run(audit_run(data, recipe, epsilon=asked.epsilon, canaries=count, **common))


def _common(asked: AuditOptions, progress: Progress, task: TaskID) -> dict[str, Any]:
    return {
        "delta": asked.delta,
        "confidence": asked.confidence,
        "seed": asked.seed,
        "watch": lambda done: progress.advance(task, done),
    }


def _report(result: AuditResult, as_json: bool, plot: Path | None) -> None:
    exceeded = result.bound > result.claimed
    if plot is not None:
        draw_plot(plot, result.figure())
    if as_json:
        print_json({**result.values, "exceeds_claim": exceeded})
    else:
        from dpsinkhorn.privacy import format_epsilon, format_lower_bound

        bound, claimed = format_lower_bound(result.bound), format_epsilon(result.claimed)
        verdict = (
            f"The bound {bound} exceeds epsilon {claimed}: that claim is refuted."
            if exceeded
            else f"The bound {bound} is within epsilon {claimed}."
        )
        print_table(result.title, result.rows, [result.sentence, verdict])
        if plot is not None:
            typer.echo(f"Drawn: {plot}")
    if exceeded:
        raise typer.Exit(EXCEEDED)
