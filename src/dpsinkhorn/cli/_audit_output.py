"""What `dpsinkhorn audit` prints: its results as a table, as JSON, as a picture; and how a replay goes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from dpsinkhorn.cli._shared import DataOptions, print_json, printable

if TYPE_CHECKING:  # torch is slow to import: `--help` does without
    import numpy as np
    import numpy.typing as npt
    from matplotlib.figure import Figure

    from dpsinkhorn.data import Dataset
    from dpsinkhorn.privacy.audit import OneRunBound, Replayed
    from dpsinkhorn.training.auditing import RunAudit, StepAudit

_CLOUD = 30  # points of either side
_BINS = 60  # of a histogram of scores
_SHOWN = 20  # violations that the table is followed by; --json has them all


@dataclass(frozen=True)
class AuditResult:
    """An audit, as it is told."""

    title: str
    claimed: float
    bound: float
    rows: tuple[tuple[str, str | None], ...]
    sentence: str
    values: dict[str, Any]
    """For `--json`."""
    figure: Callable[[], Figure]


def result_of_step(found: StepAudit, *, published: bool) -> AuditResult:
    """An audit of steps; `published`: the paper's count is held against."""
    from dpsinkhorn.privacy import format_epsilon, format_lower_bound

    setting, theirs = found.setting, found.published
    rows = (
        ("claimed epsilon", format_epsilon(found.claimed)),
        ("published epsilon (not a guarantee)", None if theirs is None else format_epsilon(theirs)),
        ("lower bound, by threshold", format_lower_bound(found.threshold.epsilon)),
        (f"lower bound, given {found.gaussian.assumption}", format_lower_bound(found.gaussian.epsilon)),
        ("confidence of each", f"{100 * found.threshold.confidence:g} %"),
        ("delta", f"{found.delta:g}"),
        ("mechanism", setting.mechanism),
        ("rows", None if theirs is None else str(setting.rows)),
        ("noise multiplier", f"{setting.noise_multiplier:.5g}"),
        ("sampling rate", f"{setting.sampling_rate:.5g}"),
        ("steps", f"{setting.steps:,}"),
        ("repetitions", f"{len(found.present):,} of each data set"),
    )
    values = {
        "game": "step",
        "claimed_epsilon": found.claimed,
        "published_epsilon": theirs,
        "epsilon_lower_bound": found.bound,
        "delta": found.delta,
        "confidence": found.threshold.confidence,
        "threshold": asdict(found.threshold),
        "gaussian": asdict(found.gaussian),
        "repetitions": len(found.present),
        **asdict(setting),
    }
    sentence = (
        "Two data sets, of no and of one record, the worst there are for this mechanism, are told apart by "
        "what the real code releases."
    )
    claimed = theirs if published and theirs is not None else found.claimed
    figure = partial(_figure_of_step, found)
    return AuditResult("Audit of single steps", claimed, found.bound, rows, sentence, values, figure)


def result_of_run(found: RunAudit) -> AuditResult:
    from dpsinkhorn.privacy import format_epsilon

    plan, included = found.plan, int(found.included.sum())
    rows = (
        ("claimed epsilon", format_epsilon(found.claimed)),
        *(
            (f"lower bound, from every step ({name})", _guesses(each))
            for name, each in _bounds(found).items()
        ),
        ("lower bound, from the generator (the largest)", _guesses(found.final.largest)),
        ("confidence of each", f"{100 * found.every_step.steinke.confidence:g} %"),
        ("delta", f"{plan.delta:g}"),
        ("canaries", f"{len(found.included):,} {plan.facts.unit}s, of which {included:,} were in"),
        ("mechanism", plan.recipe.privacy.mechanism),
        ("noise multiplier", f"{plan.noise_multiplier:.5g}"),
        ("sampling rate", f"{plan.sampling_rate:.5g}"),
        ("steps", f"{plan.steps:,}"),
        ("recipe", plan.recipe.name),
    )
    values = {
        "game": "run",
        "private": False,
        "claimed_epsilon": found.claimed,
        "epsilon_lower_bound": found.bound,
        "delta": plan.delta,
        "confidence": found.every_step.steinke.confidence,
        "every_step": asdict(found.every_step),
        "final": asdict(found.final),
        "canaries": len(found.included),
        "included": included,
        "unit": plan.facts.unit,
        "mechanism": plan.recipe.privacy.mechanism,
        "noise_multiplier": plan.noise_multiplier,
        "sampling_rate": plan.sampling_rate,
        "steps": plan.steps,
        "recipe": plan.recipe.name,
    }
    sentence = (
        f"Made-up {plan.facts.unit}s were put into the data by coin flips, and guessed at by one who knows "
        "all other records. Nothing was released; keep this output with the data."
    )
    figure = partial(_figure_of_run, found)
    return AuditResult("Audit of one training", found.claimed, found.bound, rows, sentence, values, figure)


def _figure_of_step(found: StepAudit) -> Figure:
    steps = "1 step" if found.setting.steps == 1 else f"{found.setting.steps} steps"
    claims = {"claimed": found.claimed, "published (no guarantee)": found.published}
    return _figure(
        title=f"{found.setting.mechanism}: {steps}, {len(found.present):,} repetitions",
        scores={"without the record": found.absent, "with the record": found.present},
        bounds={"by threshold": found.threshold.epsilon, found.gaussian.assumption: found.gaussian.epsilon},
        claims={name: value for name, value in claims.items() if value is not None},
        delta=found.delta,
        counted="releases",
    )


def _figure_of_run(found: RunAudit) -> Figure:
    bounds = {
        name.replace(", ", ",\n").replace(" of ", "\nof "): bound.epsilon
        for name, bound in _bounds(found).items()
    }
    return _figure(
        title=f"one training of {found.plan.steps} steps, {len(found.included):,} canaries; not private",
        scores={
            "canaries left out": found.step_scores[~found.included],
            "canaries in the data": found.step_scores[found.included],
        },
        bounds={**bounds, "the generator": found.final.largest.epsilon},
        claims={"claimed": found.claimed},
        delta=found.plan.delta,
        counted="canaries",
    )


def _figure(
    *,
    title: str,
    scores: Mapping[str, npt.NDArray[np.float64]],
    bounds: Mapping[str, float],
    claims: Mapping[str, float],
    delta: float,
    counted: str,
) -> Figure:
    """The scores of both worlds, and the bounds as bars below the lines of what is claimed."""
    import numpy as np
    from matplotlib.figure import Figure  # slow to load

    figure = Figure(figsize=(9.0, 3.8), layout="constrained")
    left, right = figure.subplots(1, 2)
    # the outermost scores would leave everything else in one bin
    low, high = np.quantile(np.concatenate(list(scores.values())), [0.002, 0.998])
    bins = np.linspace(low, max(high, low + 1e-9), _BINS)
    for name, values in scores.items():
        left.hist(np.clip(values, low, high), bins=bins.tolist(), alpha=0.55, label=name)
    left.set(xlabel="score", ylabel=counted, yscale="log")
    left.legend(fontsize="small")
    names = [name.replace(" on ", "\non ") for name in bounds]
    bars = right.bar(names, list(bounds.values()), width=0.5, color="tab:green")
    right.bar_label(bars, fmt="%.3g", padding=2)
    for (name, value), style in zip(claims.items(), ("-", "--"), strict=False):
        right.axhline(value, linestyle=style, color="tab:red", label=f"{name}: {value:.4g}")
    top = 1.15 * max(*bounds.values(), *claims.values())
    right.set(ylim=(0, top), ylabel=f"epsilon at delta = {delta:g}")
    right.set_title("lower bounds, and what is claimed", fontsize="medium")
    right.legend(fontsize="small")
    left.set_title(title, fontsize="medium")
    return figure


def _bounds(found: RunAudit) -> dict[str, OneRunBound]:
    """The bounds from every step, by what they rest on."""
    bounds = found.every_step
    return {
        "Steinke et al.": bounds.steinke,
        "f-DP, nothing assumed": bounds.f_dp,
        f"f-DP, given {bounds.f_dp_gaussian.assumption}": bounds.f_dp_gaussian,
    }


def _guesses(bound: OneRunBound) -> str:
    from dpsinkhorn.privacy import format_lower_bound

    return f"{format_lower_bound(bound.epsilon)} ({bound.correct} of {bound.guesses} guesses right)"


# ---- all mechanisms, recorded on the data and replayed on neighbours


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
