"""`dpsinkhorn audit`: what can be shown of epsilon from below, beside what is claimed."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpsinkhorn.cli._audit_replay import audit_replay
from dpsinkhorn.cli._audit_results import RunResult, StepResult
from dpsinkhorn.cli._options import JsonOption, takes_options
from dpsinkhorn.cli._output import BadInputError, bars, check_plot_path, print_json, print_table
from dpsinkhorn.cli.data import DataOptions
from dpsinkhorn.cli.privacy import (
    DeltaOption,
    NoiseOption,
    PrivateMechanism,
    RateOption,
    RowsOption,
    StepsOption,
    parse_rate,
)
from dpsinkhorn.mechanisms import find_mechanism

if TYPE_CHECKING:  # torch is slow to import: `--help` does without
    from dpsinkhorn.training.auditing import StepSetting

EXCEEDED = 3

_REPETITIONS, _CANARIES = 1000, 1000


class Game(str, enum.Enum):
    step = "step"
    run = "run"
    replay = "replay"


class Claim(str, enum.Enum):
    sound = "sound"
    published = "published"


@takes_options()
def audit(
    *,
    mechanism: Annotated[
        PrivateMechanism | None, "Where clipping and noise stand. [default: record; for replay all]"
    ] = None,
    noise_multiplier: NoiseOption = None,
    sampling_rate: RateOption = None,
    steps: StepsOption = None,
    delta: DeltaOption = 1e-5,
    rows: RowsOption = None,
    game: Annotated[
        Game,
        "step: a worst-case record in single steps; run: canaries in a training; replay: recorded "
        "on the data and replayed on neighbours, with all noise frozen.",
    ] = Game.step,
    repetitions: Annotated[int | None, "Releases of each data set, for step. [default: 1000]"] = None,
    data: Annotated[str | None, "A name or a path, for run and replay. [default: digits]"] = None,
    reading: DataOptions,
    epsilon: Annotated[float | None, "For run, in place of --noise-multiplier."] = None,
    canaries: Annotated[int | None, "Made-up records, or persons, for run. [default: 1000]"] = None,
    claim: Annotated[Claim, "The epsilon to hold against: ours, or the paper's for image."] = Claim.sound,
    confidence: Annotated[float, "Of each bound."] = 0.95,
    seed: Annotated[int | None, "Replayable noise in place of secure noise."] = None,
    as_json: JsonOption = False,
    plot: Annotated[Path | None, "Draw scores and bounds into this .png file."] = None,
) -> None:
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
    if game is Game.replay:
        others: dict[str, Any] = {
            "noise_multiplier": noise_multiplier,
            "sampling_rate": sampling_rate,
            "steps": steps,
            "rows": rows,
            "repetitions": repetitions,
            "epsilon": epsilon,
            "canaries": canaries,
            "seed": seed,
            "plot": plot,
        }
        _refuse_others(game, others)
        with bars(quiet=as_json) as progress:
            clean = audit_replay(data or "digits", reading, mechanism, as_json, progress)
        if not clean:
            raise typer.Exit(EXCEEDED)
        return
    mechanism = mechanism or "record"
    check_plot_path(plot)
    if not 0 < delta < 1:
        raise BadInputError(f"--delta must be between 0 and 1, not {delta:g}; 1e-5 is usual")
    if not 0 < confidence < 1:
        raise BadInputError(f"--confidence must be between 0 and 1, not {confidence:g}; 0.95 is usual")
    rate = parse_rate(sampling_rate, None, None)
    from dpsinkhorn.training import choose_recipe, facts_of
    from dpsinkhorn.training.auditing import audit_run, audit_step

    with bars(quiet=as_json) as progress:
        task = progress.add_task("releases" if game is Game.step else "training steps", total=None)
        common: dict[str, Any] = {
            "delta": delta,
            "confidence": confidence,
            "seed": seed,
            "watch": lambda done: progress.advance(task, done),
        }
        result: StepResult | RunResult
        if game is Game.step:
            _refuse_others(game, {"data": data, **reading.given(), "epsilon": epsilon, "canaries": canaries})
            setting = _setting(mechanism, noise_multiplier, rate, steps, rows)
            if claim is Claim.published and not find_mechanism(mechanism).clips_rows:
                raise BadInputError(f"--claim published is for --mechanism image, not {mechanism}")
            count = _REPETITIONS if repetitions is None else repetitions
            progress.update(task, total=2 * count)
            result = StepResult(audit_step(setting, repetitions=count, **common), claim is Claim.published)
        else:
            others = {"repetitions": repetitions, "rows": rows}
            if claim is Claim.published:
                others["claim"] = 0
            _refuse_others(game, others)
            if epsilon is not None and noise_multiplier is not None:
                raise BadInputError("give --epsilon or --noise-multiplier, not both")
            privacy = {"noise_multiplier": noise_multiplier, "sampling_rate": rate, "steps": steps}
            changes = {name: value for name, value in privacy.items() if value is not None}
            found = reading.load(data or "digits", quiet=progress.disable)
            recipe = choose_recipe(facts_of(found), mechanism=mechanism, settings={"privacy": changes})
            progress.update(task, total=recipe.privacy.steps)
            count = _CANARIES if canaries is None else canaries
            result = RunResult(audit_run(found, recipe, epsilon=epsilon, canaries=count, **common))
    _report(result, as_json, plot)


def _setting(
    mechanism: str, noise: float | None, rate: float | None, steps: int | None, rows: int | None
) -> StepSetting:
    from dpsinkhorn.training.auditing import StepSetting

    if noise is None:
        raise BadInputError("give --noise-multiplier")
    if (rows is None) == find_mechanism(mechanism).clips_rows:
        raise BadInputError(
            "give --rows, an even number of generated images, for --mechanism image, and only there"
        )
    given: dict[str, Any] = {"sampling_rate": rate, "steps": steps, "rows": rows}
    chosen = {name: value for name, value in given.items() if value is not None}
    return StepSetting(mechanism, noise, **chosen)


def _report(result: StepResult | RunResult, as_json: bool, plot: Path | None) -> None:
    exceeded = result.bound > result.claimed
    if plot is not None:
        try:
            result.draw(plot)
        except OSError as error:
            raise BadInputError(f"cannot write --plot {plot}: {error.strerror}; name another file") from error
    if as_json:
        print_json({**result.to_json(), "exceeds_claim": exceeded})
    else:
        from dpsinkhorn.privacy import format_epsilon, format_lower_bound

        bound, claimed = format_lower_bound(result.bound), format_epsilon(result.claimed)
        verdict = (
            f"The bound {bound} exceeds epsilon {claimed}: that claim is refuted."
            if exceeded
            else f"The bound {bound} is within epsilon {claimed}."
        )
        print_table(result.title, result.rows(), [result.told(), verdict])
        if plot is not None:
            typer.echo(f"Drawn: {plot}")
    if exceeded:
        raise typer.Exit(EXCEEDED)


def _refuse_others(game: Game, given: dict[str, Any]) -> None:
    for name, value in given.items():
        if value is not None:
            flag = "--" + name.replace("_", "-")
            raise BadInputError(f"{flag} has no meaning for --game {game.value}; leave it out")
