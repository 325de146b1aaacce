"""`dpsinkhorn privacy`: what training costs in privacy, and what a budget allows."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import typer

from dpsinkhorn.cli._shared import (
    BadInputError,
    JsonOption,
    check_plot_path,
    draw_plot,
    group,
    print_json,
    print_table,
    takes_options,
    warn,
)
from dpsinkhorn.mechanisms import find_mechanism, mechanism_names, private_names

if TYPE_CHECKING:  # torch and the accountants are slow to import: `--help` does without
    from dpsinkhorn.privacy import Accountant, Charge, ImageMechanism

app = group("What training costs in privacy (epsilon), and what a budget allows (calibrate).")

_LARGEST_COUNT = 10**18  # of steps, rows or records; beyond it products leave the range of float64


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

    def setting(self, noise_multiplier: float, sampling_rate: float, steps: int) -> Setting:
        """Return the run with these numbers, all of it checked."""
        rows, name = self._rows(), self.accountant
        setting = Setting(self.mechanism, noise_multiplier, sampling_rate, steps, self.delta, rows, name)
        setting.check()
        return setting

    def _rows(self) -> int:
        if not find_mechanism(self.mechanism).clips_rows:
            if self.rows is not None:
                raise BadInputError(f"--rows is for --mechanism image; leave it out for {self.mechanism}")
            return 1
        if self.rows is None:
            raise BadInputError(
                f"--mechanism {self.mechanism} needs --rows, the number of generated images of a step"
            )
        _check_count(self.rows, "--rows")
        return self.rows


@app.command("epsilon")
@takes_options()
def epsilon_command(*, given: TrainingOptions) -> None:
    """The epsilon that a training run spends.

    Example:

        dpsinkhorn privacy epsilon --mechanism batch --noise-multiplier 2 --sampling-rate 1/60 --steps 10000
    """
    from dpsinkhorn.privacy import epsilon

    rate = given.rate()
    if given.noise_multiplier is None:
        raise BadInputError("give --noise-multiplier")
    if given.steps is None:
        raise BadInputError("give --steps")
    if rate is None:
        raise BadInputError("give --sampling-rate, or --batch-size and --records")
    setting = given.setting(given.noise_multiplier, rate, given.steps)
    check_plot_path(given.plot)
    _report(setting, epsilon(setting.charge, given.delta, setting.accountant), given)


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
    tried = given.setting(
        1.0 if noise is None else noise, 1.0 if rate is None else rate, 1 if steps is None else steps
    )
    check_plot_path(given.plot)
    found = calibrate(
        target,
        given.delta,
        noise_multiplier=noise,
        sampling_rate=rate,
        steps=steps,
        rows=tried.rows,
        accountant=tried.accountant,
    )
    setting = replace(
        tried, noise_multiplier=found.noise_multiplier, sampling_rate=found.sampling_rate, steps=found.steps
    )
    _report(setting, found.epsilon, given)


@dataclass(frozen=True)
class Setting:
    """A training run as the command line names it."""

    mechanism: str
    noise_multiplier: float
    sampling_rate: float
    steps: int
    delta: float
    rows: int
    accountant: Accountant

    def check(self) -> None:
        if not 1e-50 <= self.noise_multiplier <= 1e50:
            raise BadInputError(
                f"--noise-multiplier must be a positive number (1e-50 to 1e50), not {self.noise_multiplier}"
            )
        if not 0 < self.sampling_rate <= 1:
            raise BadInputError(
                f"the sampling rate must be above 0 and at most 1, not {self.sampling_rate:g}"
            )
        _check_count(self.steps, "--steps")
        if not 0 < self.delta < 1:
            raise BadInputError(f"--delta must be between 0 and 1, not {self.delta:g}; 1e-5 is usual")

    @property
    def image(self) -> ImageMechanism:
        """The noise of a step. The clipping bound plays no part in ε; one row is `batch` and its like."""
        from dpsinkhorn.privacy import ImageMechanism

        return ImageMechanism(1.0, self.noise_multiplier, self.rows)

    @property
    def charge(self) -> Charge:
        return self.image.sampled(self.sampling_rate, self.steps)

    @property
    def published(self) -> float:
        from dpsinkhorn.privacy import published_epsilon

        return published_epsilon(self.image, self.sampling_rate, self.steps, self.delta)


def _check_count(value: int, flag: str) -> None:
    if not 1 <= value <= _LARGEST_COUNT:
        raise BadInputError(f"{flag} must be from 1 to 10^18, not {value}")


def parse_rate(rate: str | None, batch_size: float | None, records: int | None) -> float | None:
    """The sampling rate, from a number, a fraction, or a batch size and a number of records."""
    if records is not None:
        _check_count(records, "--records")
    if rate is not None:
        if batch_size is not None:
            raise BadInputError("give --sampling-rate or --batch-size, not both")
        top, slash, bottom = rate.partition("/")
        try:
            return float(top) / float(bottom) if slash else float(rate)
        except (ValueError, ZeroDivisionError):
            raise BadInputError(
                f"--sampling-rate must be a number like 0.01 or a fraction like 1/1200, not {rate}"
            ) from None
    if batch_size is not None:
        if records is None:
            raise BadInputError("--batch-size needs --records, the number of private records")
        if not 0 < batch_size <= records:
            raise BadInputError(
                f"--batch-size must be above 0 and at most --records {records}, not {batch_size:g}"
            )
        return batch_size / records
    return None


def _report(setting: Setting, spent: float, given: TrainingOptions) -> None:
    from dpsinkhorn.privacy import event_to_json, format_epsilon, meaning

    charge = setting.charge
    is_image = find_mechanism(setting.mechanism).clips_rows
    published = setting.published if is_image else None
    records, plot = given.records, given.plot
    if records is not None and setting.delta >= 1 / records:
        warn(
            f"delta {setting.delta:g} is not below 1/records = {1 / records:.2g}; "
            "publishing a whole record picked at random would be allowed"
        )
    if plot is not None:
        from dpsinkhorn.cli._plots import draw_epsilon_against_steps

        draw_plot(plot, functools.partial(draw_epsilon_against_steps, setting))
    if given.as_json:
        result: dict[str, Any] = {
            "epsilon": spent,
            "delta": setting.delta,
            "noise_multiplier": setting.noise_multiplier,
            "accountant": setting.accountant,
            "adjacency": charge.adjacency.value,
            "event": event_to_json(charge.event),
            "mechanism": setting.mechanism,
            "sampling_rate": setting.sampling_rate,
            "steps": setting.steps,
        }
        if is_image:
            result["rows"] = setting.rows
            result["effective_noise_multiplier"] = setting.image.noise_multiplier
            result["published_epsilon"] = published
            result["published_epsilon_is_a_guarantee"] = False
        print_json(result)
        return
    rows = [
        ("epsilon", format_epsilon(spent)),
        ("delta", f"{setting.delta:g}"),
        ("mechanism", setting.mechanism),
        ("noise multiplier", f"{setting.noise_multiplier:.5g}"),
        ("rows", str(setting.rows) if is_image else None),
        ("effective noise multiplier", f"{setting.image.noise_multiplier:.5g}" if is_image else None),
        ("sampling rate", f"{setting.sampling_rate:.5g}"),
        ("steps", f"{setting.steps:,}"),
        ("accountant", setting.accountant),
        ("adjacency", charge.adjacency.value),
        ("published epsilon (not a guarantee)", None if published is None else format_epsilon(published)),
    ]
    sentences = [meaning(spent, setting.delta)]
    if published is not None:
        sentences.append(
            f"The papers count {setting.rows} separately sampled queries a step and arrive at epsilon "
            f"{format_epsilon(published)}; all rows share one sample, so that this is not a valid guarantee."
        )
    print_table("Privacy of a training run", rows, sentences)
    if plot is not None:
        typer.echo(f"Drawn: {plot}")


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
    from dpsinkhorn.cli._ledger import show_ledger

    show_ledger(file, accountant, as_json)
