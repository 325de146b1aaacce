"""`dpsinkhorn privacy`: what training costs in privacy, and what a budget allows."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import typer

from dpsinkhorn.cli._shared import (
    BadInputError,
    JsonOption,
    check_count,
    check_plot_path,
    check_share,
    draw_plot,
    group,
    parse_rate,
    print_json,
    print_table,
    takes_options,
    warn,
)
from dpsinkhorn.mechanisms import find_mechanism, mechanism_names, private_names

if TYPE_CHECKING:  # torch and the accountants are slow to import: `--help` does without
    from matplotlib.figure import Figure

    from dpsinkhorn.privacy import Accountant, Calibration, Charge

app = group("What training costs in privacy (epsilon), and what a budget allows (calibrate).")

_POINTS = 12  # of a plot


AccountantName = Literal["pld", "rdp", "rdp-classic"]

if TYPE_CHECKING:
    PrivateMechanism: TypeAlias = str
    AnyMechanism: TypeAlias = str
else:  # the choices that the command line shows
    PrivateMechanism = Literal[private_names()]
    AnyMechanism = Literal[mechanism_names()]
MechanismOption = Annotated[PrivateMechanism, "Where clipping and noise stand."]
NoiseOption = Annotated[float | None, "Noise / sensitivity; for image that of one row, as in the papers."]
RateOption = Annotated[str | None, "Chance of a record to be in a step's sample: 0.01 or 1/1200."]
BatchSizeOption = Annotated[float | None, "Expected batch; with --records, in place of the rate."]
RecordsOption = Annotated[int | None, "Number of private records."]
StepsOption = Annotated[int | None, "Number of training steps."]
DeltaOption = Annotated[float, "Probability added to what epsilon allows; well below 1/records."]
RowsOption = Annotated[int | None, "Separately clipped rows of a step; for image, and required there."]
AccountantOption = Annotated[AccountantName, "pld is the tightest."]
PlotOption = Annotated[Path | None, "Draw epsilon against steps into this .png file."]


@dataclass(frozen=True)
class TrainingOptions:
    """A training run as it was given, and how its cost is to be shown."""

    mechanism: MechanismOption = "record"
    noise_multiplier: NoiseOption = None
    sampling_rate: RateOption = None
    batch_size: BatchSizeOption = None
    records: RecordsOption = None
    steps: StepsOption = None
    delta: DeltaOption = 1e-5
    rows: RowsOption = None
    accountant: AccountantOption = "pld"
    as_json: JsonOption = False
    plot: PlotOption = None

    def rate(self) -> float | None:
        """Return the sampling rate, if one was given or follows from the mechanism."""
        rate = parse_rate(self.sampling_rate, self.batch_size, self.records)
        if find_mechanism(self.mechanism).takes_samples:
            return rate
        if rate not in (None, 1.0):
            raise BadInputError(
                f"--mechanism {self.mechanism} takes all records in every step: no sampling rate of {rate:g}"
            )
        return 1.0

    def check(self, noise_multiplier: float, sampling_rate: float, steps: int) -> int:
        """Refuse a run with these numbers where they make no sense; return its rows, 1 but for image."""
        is_image = find_mechanism(self.mechanism).clips_rows
        if self.rows is not None and not is_image:
            raise BadInputError(f"--rows is for --mechanism image; leave it out for {self.mechanism}")
        if self.rows is None and is_image:
            raise BadInputError(
                f"--mechanism {self.mechanism} needs --rows, the number of generated images of a step"
            )
        rows = 1 if self.rows is None else self.rows
        check_count(rows, "--rows")
        if not 1e-50 <= noise_multiplier <= 1e50:
            raise BadInputError(
                f"--noise-multiplier must be a positive number (1e-50 to 1e50), not {noise_multiplier}"
            )
        if not 0 < sampling_rate <= 1:
            raise BadInputError(f"the sampling rate must be above 0 and at most 1, not {sampling_rate:g}")
        check_count(steps, "--steps")
        check_share(self.delta, "--delta", "1e-5")
        check_plot_path(self.plot)
        return rows


@app.command("epsilon")
@takes_options()
def epsilon_command(*, given: TrainingOptions) -> None:
    """The epsilon that a training run spends.

    Example:

        dpsinkhorn privacy epsilon --mechanism batch --noise-multiplier 2 --sampling-rate 1/60 --steps 10000
    """
    from dpsinkhorn.privacy import Calibration, epsilon

    noise, rate, steps = given.noise_multiplier, given.rate(), given.steps
    if noise is None:
        raise BadInputError("give --noise-multiplier")
    if steps is None:
        raise BadInputError("give --steps")
    if rate is None:
        raise BadInputError("give --sampling-rate, or --batch-size and --records")
    delta, rows, name = given.delta, given.check(noise, rate, steps), given.accountant
    charge = find_mechanism(given.mechanism).release_of_size(noise, rows).sampled(rate, steps)
    spent = epsilon(charge, delta, name)
    _report(Calibration(spent, delta, noise, rate, steps, rows, name, charge), given)


@app.command("calibrate")
@takes_options()
def calibrate_command(
    *, target: Annotated[float, typer.Option("--epsilon", help="The budget.")], given: TrainingOptions
) -> None:
    """The noise, the steps or the sampling rate that a budget allows: whichever of the three is left out.

    Example:

        dpsinkhorn privacy calibrate --epsilon 10 --sampling-rate 0.1 --steps 1000
    """
    from dpsinkhorn.privacy import calibrate

    noise, rate, steps = given.noise_multiplier, given.rate(), given.steps
    if sum(value is None for value in (noise, rate, steps)) != 1:
        raise BadInputError(
            "give exactly two of --noise-multiplier, --sampling-rate (or --batch-size and --records) and "
            "--steps; the third is solved for"
        )
    if not (target > 0 and math.isfinite(target)):
        raise BadInputError(f"--epsilon must be a positive number, not {target}")
    rows = given.check(
        1.0 if noise is None else noise, 1.0 if rate is None else rate, 1 if steps is None else steps
    )
    free = {"noise_multiplier": noise, "sampling_rate": rate, "steps": steps}

    def charged(noise: float, rate: float, steps: int) -> Charge:
        return find_mechanism(given.mechanism).release_of_size(noise, rows).sampled(rate, steps)

    options = {"rows": rows, "accountant": given.accountant, "charged": charged}
    found = calibrate(target, given.delta, **options, **free)  # type: ignore[arg-type]
    _report(found, given)


def _report(found: Calibration, given: TrainingOptions) -> None:
    from dpsinkhorn.privacy import ImageMechanism, event_to_json, format_epsilon, meaning, published_epsilon

    is_image = find_mechanism(given.mechanism).clips_rows
    published = None
    if is_image:  # the clipping bound plays no part in ε
        image = find_mechanism(given.mechanism).release_of_size(found.noise_multiplier, found.rows)
        assert isinstance(image, ImageMechanism)
        published = published_epsilon(image, found.sampling_rate, found.steps, found.delta)
    records, plot = given.records, given.plot
    if records is not None and found.delta >= 1 / records:
        warn(
            f"delta {found.delta:g} is not below 1/records = {1 / records:.2g}; "
            "publishing a whole record picked at random would be allowed"
        )
    if plot is not None:
        draw_plot(plot, _epsilon_against_steps(found, given.mechanism))
    if given.as_json:
        result: dict[str, Any] = {
            "epsilon": found.epsilon,
            "delta": found.delta,
            "noise_multiplier": found.noise_multiplier,
            "accountant": found.accountant,
            "adjacency": found.charge.adjacency.value,
            "event": event_to_json(found.charge.event),
            "mechanism": given.mechanism,
            "sampling_rate": found.sampling_rate,
            "steps": found.steps,
        }
        if is_image:
            result["rows"] = found.rows
            result["effective_noise_multiplier"] = found.effective_noise_multiplier
            result["published_epsilon"] = published
            result["published_epsilon_is_a_guarantee"] = False
        print_json(result)
        return
    rows = [
        ("epsilon", format_epsilon(found.epsilon)),
        ("delta", f"{found.delta:g}"),
        ("mechanism", given.mechanism),
        ("noise multiplier", f"{found.noise_multiplier:.5g}"),
        ("rows", str(found.rows) if is_image else None),
        ("effective noise multiplier", f"{found.effective_noise_multiplier:.5g}" if is_image else None),
        ("sampling rate", f"{found.sampling_rate:.5g}"),
        ("steps", f"{found.steps:,}"),
        ("accountant", found.accountant),
        ("adjacency", found.charge.adjacency.value),
        ("published epsilon (not a guarantee)", None if published is None else format_epsilon(published)),
    ]
    sentences = [meaning(found.epsilon, found.delta)]
    if published is not None:
        sentences.append(
            f"The papers count {found.rows} separately sampled queries a step and arrive at epsilon "
            f"{format_epsilon(published)}; all rows share one sample, so that this is not a valid guarantee."
        )
    print_table("Privacy of a training run", rows, sentences)
    if plot is not None:
        typer.echo(f"Drawn: {plot}")


def _epsilon_against_steps(found: Calibration, mechanism: str) -> Figure:
    """ε against the number of steps, up to the run's own, which is marked."""
    import numpy as np
    from matplotlib.figure import Figure  # slow to load

    from dpsinkhorn.privacy import ImageMechanism, epsilon, format_epsilon, published_epsilon

    first = max(1, found.steps // 1000)
    counts = np.unique(np.geomspace(first, found.steps, _POINTS).round().astype(int)).tolist()
    step = find_mechanism(mechanism).release_of_size(found.noise_multiplier, found.rows)
    charges = [step.sampled(found.sampling_rate, count) for count in counts]
    spent = [epsilon(charge, found.delta, found.accountant) for charge in charges]

    figure = Figure(figsize=(6.0, 4.0), layout="constrained")
    axes = figure.subplots()
    axes.plot(counts, spent, marker=".", label=f"epsilon ({found.accountant})")
    axes.margins(y=0.12)
    axes.annotate(
        format_epsilon(spent[-1], digits=3),
        (float(counts[-1]), spent[-1]),
        textcoords="offset points",
        xytext=(-6, 6),
        ha="right",
    )
    if isinstance(step, ImageMechanism) and find_mechanism(mechanism).clips_rows:
        published = [published_epsilon(step, found.sampling_rate, count, found.delta) for count in counts]
        axes.plot(counts, published, linestyle="--", label="as published (not a guarantee)")
        axes.set_yscale("log")
    axes.set(xscale="log", xlabel="steps", ylabel=f"epsilon at delta = {found.delta:g}")
    axes.set_title(
        f"{mechanism}: noise multiplier {found.noise_multiplier:.4g}, "
        f"sampling rate {found.sampling_rate:.4g}",
        fontsize="medium",
    )
    axes.grid(alpha=0.3)
    axes.legend()
    return figure


@app.command("ledger")
@takes_options()
def ledger_command(
    file: Annotated[Path, typer.Argument(help="A ledger, or the folder of a run.")],
    accountant: AccountantOption = "pld",
    as_json: JsonOption = False,
) -> None:
    """What a ledger allows, what is spent, and by which runs. It is checked and left as it is.

    Examples:

        dpsinkhorn privacy ledger all.jsonl

        dpsinkhorn privacy ledger runs/digits
    """
    from dpsinkhorn.privacy import format_epsilon

    found = _read_ledger(file, accountant)
    if as_json:
        print_json(found)
        return

    def spent(epsilon: float) -> str:
        return format_epsilon(epsilon) if math.isfinite(epsilon) else "infinite"

    allowed, total, runs = found["budget_epsilon"], found["epsilon"], found["runs"]
    mixed = len({run["adjacency"] for run in runs}) > 1
    rows = [
        ("ledger", found["ledger"]),
        ("epsilon allowed", spent(allowed) if math.isfinite(allowed) else "no limit"),
        ("epsilon spent", spent(total)),
        ("delta", f"{found['delta']:g}"),
        ("adjacency", found["adjacency"] or "-"),
    ]
    for run in runs:
        charges = "1 charge" if run["steps"] == 1 else f"{run['steps']:,} charges"
        under = f" under {run['adjacency']}" if mixed else ""
        rows.append((f"run {run['name']}", f"{charges}, epsilon {spent(run['epsilon'])}{under}"))
    sentences = [
        f"Digest {found['digest']}",
        "Noted elsewhere, as a release does, it shows up an older copy.",
    ]
    if mixed:
        sentences.insert(
            0,
            "Epsilon spent is that of all runs together, under replace-one, where a run that counts "
            "under add-or-remove-one costs more.",
        )
    elif total < sum(run["epsilon"] for run in runs) < math.inf:
        sentences.insert(0, "Epsilon of several runs is that of all together, which is less than their sum.")
    print_table("Ledger", rows, sentences)


def _read_ledger(file: Path, accountant: Accountant) -> dict[str, Any]:
    from dpsinkhorn.privacy import UnsupportedEventError, epsilon, read_ledger
    from dpsinkhorn.training import Run

    try:
        path = Run.resume(file).ledger_path if file.is_dir() else file
        statement = read_ledger(path)
    except FileNotFoundError as error:
        raise BadInputError(f"there is no ledger {file}") from error
    except OSError as error:
        raise BadInputError(f"cannot read the ledger {file}: {error.strerror}") from error
    delta = statement.budget.delta

    def spent(run: str | None = None) -> float:
        return epsilon(statement.total(run), delta, accountant) if statement.spends else 0.0

    def of_run(run: str, steps: int) -> dict[str, Any]:
        adjacency = statement.total(run).adjacency.value
        return {"name": run, "steps": steps, "epsilon": spent(run), "adjacency": adjacency}

    steps = dict.fromkeys(statement.runs, 0)
    for spend in statement.spends:
        steps[spend.run] += spend.steps
    try:
        return {
            "ledger": str(path),
            "budget_epsilon": statement.budget.epsilon,
            "delta": delta,
            "epsilon": spent(),
            "accountant": accountant,
            "adjacency": statement.total().adjacency.value if statement.spends else None,
            "runs": [of_run(run, count) for run, count in steps.items()],
            "digest": statement.digest,
        }
    except UnsupportedEventError as error:
        raise BadInputError(f"{error}; --accountant pld counts all that a ledger holds") from error
