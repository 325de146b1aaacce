"""`dpsinkhorn train`: from private images to a release."""

from __future__ import annotations

import enum
import math
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from dpsinkhorn.cli._output import STOPPED, BadInputError, print_json, print_table, warn
from dpsinkhorn.cli.data import (
    ChannelsOption,
    ClassesOption,
    GroupsOption,
    ImageOption,
    LabelOption,
    RangeOption,
    SizeOption,
    UnlabelledOption,
    load_data,
)
from dpsinkhorn.cli.privacy import AccountantName, AccountantOption, JsonOption, parse_rate

if TYPE_CHECKING:  # torch and the rest are slow to import: `--help` does without
    import torch

    from dpsinkhorn.data import Dataset
    from dpsinkhorn.training import Plan, Run
    from dpsinkhorn.training.recipe import MechanismName
    from dpsinkhorn.training.run import Progress as RunProgress

_MANY_STEPS = 1000


class Mechanism(str, enum.Enum):
    record = "record"
    moments = "moments"
    batch = "batch"
    image = "image"
    parameter = "parameter"
    none = "none"


def train(
    data: Annotated[
        str | None,
        typer.Option(
            "--data", help="A name (digits, mnist, ...) or a path: idx folder, .npz, images, CSV, parquet."
        ),
    ] = None,
    epsilon: Annotated[
        float | None, typer.Option("--epsilon", help="The budget; the noise follows from it.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder of the run: new, or with --resume.")
    ] = None,
    delta: Annotated[
        float | None,
        typer.Option("--delta", help="Chance that the guarantee fails; the recipe's by default."),
    ] = None,
    mechanism: Annotated[
        Mechanism | None,
        typer.Option("--mechanism", help="Where the privacy barrier stands; default: the recipe's."),
    ] = None,
    recipe: Annotated[
        str | None,
        typer.Option("--recipe", help="A recipe by name, or a .toml file; default: by size and epsilon."),
    ] = None,
    steps: Annotated[int | None, typer.Option("--steps", help="Training steps.")] = None,
    sampling_rate: Annotated[
        str | None,
        typer.Option("--sampling-rate", help="Chance of a record to be in a batch: 0.2 or 1/1200."),
    ] = None,
    clip: Annotated[float | None, typer.Option("--clip", help="Clipping bound.")] = None,
    noise_multiplier: Annotated[
        float | None, typer.Option("--noise-multiplier", help="Noise / sensitivity, in place of --epsilon.")
    ] = None,
    generator: Annotated[
        str | None,
        typer.Option("--generator", help="dcgan, biggan, mlp or mixture, in place of the recipe's."),
    ] = None,
    image: ImageOption = None,
    label: LabelOption = None,
    unlabelled: UnlabelledOption = False,
    groups: GroupsOption = None,
    classes: ClassesOption = None,
    size: SizeOption = None,
    channels: ChannelsOption = None,
    value_range: RangeOption = None,
    labels: Annotated[
        str,
        typer.Option("--labels", help="Labels of generated images: uniform, released, or shares as 0.9,0.1."),
    ] = "uniform",
    records: Annotated[
        int | None, typer.Option("--records", help="Public number of records, where theirs is not public.")
    ] = None,
    ledger: Annotated[
        Path | None, typer.Option("--ledger", help="Ledger shared by all runs on these data.")
    ] = None,
    accountant: AccountantOption = AccountantName.pld,
    seed: Annotated[
        int | None, typer.Option("--seed", help="Replay bit for bit. Such a run is NOT for release.")
    ] = None,
    device: Annotated[
        str | None, typer.Option("--device", help="cpu or cuda; a GPU where there is one.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the plan: nothing is trained, written or spent.")
    ] = False,
    checkpoint_every: Annotated[
        float, typer.Option("--checkpoint-every", min=0, help="Seconds between checkpoints.")
    ] = 60.0,
    picture_every: Annotated[
        int, typer.Option("--picture-every", min=0, help="Steps between pictures of samples; 0 for none.")
    ] = 500,
    as_json: JsonOption = False,
) -> None:
    """Train a generator on private images and write a release.

    Examples:

        dpsinkhorn train --data digits --epsilon 10 --out runs/digits

        dpsinkhorn train --data scans.parquet --label diagnosis --groups patient --epsilon 3 --out runs/scans

        dpsinkhorn train --out runs/digits --resume
    """
    source = {
        "data": data,
        "image": image,
        "label": label,
        "unlabelled": unlabelled or None,
        "groups": groups,
        "classes": classes,
        "size": size,
        "channels": channels,
        "value_range": value_range,
    }
    privacy = {"steps": steps, "clip": clip, "noise_multiplier": noise_multiplier}
    begun = False
    try:
        with _one_line_errors():
            place = _device(device)
            if resume:
                fixed = {
                    **{name: value for name, value in source.items() if name != "data"},
                    **privacy,
                    "epsilon": epsilon,
                    "delta": delta,
                    "mechanism": mechanism,
                    "recipe": recipe,
                    "sampling_rate": sampling_rate,
                    "generator": generator,
                    "labels": None if labels == "uniform" else labels,
                    "records": records,
                    "ledger": ledger,
                    "seed": seed,
                }
                run, dataset = _resumed(out, data, fixed, as_json)
                plan = run.plan
            else:
                _need(data, "--data")
                if not dry_run:
                    _need(out, "--out, the folder of the run")
                source = _found_again(source)
                dataset = _load(source, as_json)
                privacy["sampling_rate"] = parse_rate(sampling_rate, None, None)
                plan = _plan(
                    dataset,
                    {"privacy": {name: value for name, value in privacy.items() if value is not None}},
                    recipe,
                    generator,
                    mechanism,
                    epsilon,
                    delta,
                    accountant,
                    labels,
                    seed,
                    records,
                )
            _warn_about(plan, place)
            if dataset.class_names != dataset.public_names:
                warn(
                    "the names of the classes were read off the private labels, and stay out of the release; "
                    "state them with --classes if they are public"
                )
            if dry_run:
                _show_plan(plan, place, as_json)
                return
            if not resume:
                run = _created(out, plan, source, ledger)
            begun = True
            finished = _trained(run, dataset, place, checkpoint_every, picture_every, as_json)
    except KeyboardInterrupt:
        lost = "at once; go on from the last checkpoint with --resume" if begun else "before training began"
        typer.echo(f"dpsinkhorn: stopped {lost}", err=True)
        raise typer.Exit(STOPPED) from None
    if not finished:
        typer.echo(
            f"Stopped, with a checkpoint. Go on with: dpsinkhorn train --out {run.folder} --resume", err=True
        )
        raise typer.Exit(STOPPED)
    _show_end(run, as_json)


@contextmanager
def _one_line_errors() -> Iterator[None]:
    import torch

    from dpsinkhorn.data import DataError
    from dpsinkhorn.privacy.journal import JournalDamagedError, JournalLockedError
    from dpsinkhorn.release import ReleaseError
    from dpsinkhorn.training import TrainingError

    try:
        yield
    except (DataError, TrainingError, ReleaseError, JournalDamagedError, JournalLockedError) as error:
        raise BadInputError(str(error)) from error
    except (MemoryError, torch.cuda.OutOfMemoryError) as error:
        raise BadInputError("the memory is full; use a recipe with fewer generated images a step") from error


def _resumed(out: Path | None, data: str | None, fixed: dict[str, Any], quiet: bool) -> tuple[Run, Dataset]:
    """The run in a folder, and its data, which may have moved. All else is as it was when it began."""
    from dpsinkhorn.training import Run, TrainingError

    run = Run.resume(_need(out, "--out, the folder of the run"))
    for name, value in fixed.items():
        if value is not None:
            flag = "--" + name.replace("_", "-")
            raise BadInputError(f"{flag} was settled when the run began; leave it out, or begin another run")
    if run.done:
        raise TrainingError(f"{run.folder} is finished: its release is in {run.release_folder}")
    source = {**run.settings["source"], **({"data": data} if data else {})}
    if not source.get("data"):
        raise BadInputError(f"give --data: {run.folder} was begun from Python and knows no file")
    return run, _load(source, quiet)


def _created(out: Path | None, plan: Plan, source: dict[str, Any], ledger: Path | None) -> Run:
    from dpsinkhorn.training import Run

    assert out is not None
    return Run.create(out, plan, source=source, ledger=ledger)


def _trained(
    run: Run, dataset: Dataset, place: torch.device, checkpoint_every: float, picture_every: int, quiet: bool
) -> bool:
    from dpsinkhorn.training import Saving

    saving = Saving(checkpoint_seconds=checkpoint_every, picture_steps=picture_every)
    with _bar(run, quiet=quiet) as bar, stop_on_interrupt() as stop:

        def watch(progress: RunProgress) -> bool:
            bar(progress)
            return stop.asked

        return run.train(dataset, device=place, saving=saving, watch=watch)


def _found_again(source: dict[str, Any]) -> dict[str, Any]:
    """Files by their full paths, so that a run can be resumed from anywhere."""
    from dpsinkhorn.data import KNOWN

    kept = {name: value for name, value in source.items() if value is not None}
    for name in ("data", "label", "groups"):
        value = kept.get(name)
        is_file = name == "data" or str(value).endswith(".npy")
        if value is not None and value not in KNOWN and is_file and Path(value).expanduser().exists():
            kept[name] = str(Path(value).expanduser().absolute())
    return kept


def _need(value: Any, what: str) -> Any:
    if value is None:
        raise BadInputError(f"give {what}")
    return value


def _device(name: str | None) -> torch.device:
    from dpsinkhorn.generators import choose_device

    return choose_device(name, BadInputError)


def _load(source: dict[str, Any], quiet: bool) -> Dataset:
    from dpsinkhorn.data import check_every_class

    options = {name: value for name, value in source.items() if name != "data"}
    dataset = load_data(source["data"], **options, quiet=quiet)
    check_every_class(dataset)
    return dataset


def _plan(
    dataset: Dataset,
    changes: dict[str, dict[str, Any]],
    recipe: str | None,
    generator: str | None,
    mechanism: Mechanism | None,
    epsilon: float | None,
    delta: float | None,
    accountant: AccountantName,
    labels: str,
    seed: int | None,
    records: int | None,
) -> Plan:
    from dpsinkhorn.training import choose_recipe, facts_of, make_plan

    name: MechanismName | None = None if mechanism is None else mechanism.value
    chosen = choose_recipe(
        dataset.image_shape,
        recipe=recipe,
        mechanism=name,
        settings=changes,
        epsilon=epsilon if generator is None else None,
        persons=dataset.groups is not None,
    )
    if generator is not None and generator != chosen.generator.get("kind"):
        latent = {} if generator == "mixture" else {"latent": chosen.generator.get("latent", 12)}
        chosen = chosen.with_generator({"kind": generator, **latent})
    if epsilon is not None and changes["privacy"].get("noise_multiplier") is not None:
        raise BadInputError("give --epsilon or --noise-multiplier, not both: one follows from the other")
    return make_plan(
        chosen,
        facts_of(dataset, records=records),
        budget_epsilon=epsilon,
        delta=delta,
        accountant=accountant.value,
        labels=_shares(labels),
        seed=seed,
    )


def _shares(labels: str) -> str | tuple[float, ...]:
    if labels in ("uniform", "released"):
        return labels
    try:
        return tuple(float(share) for share in labels.split(","))
    except ValueError:
        raise BadInputError(
            f"--labels must be uniform, released, or shares such as 0.9,0.1, not {labels}"
        ) from None


def _warn_about(plan: Plan, device: torch.device) -> None:
    from dpsinkhorn.release import format_epsilon

    if plan.seed is not None:
        warn("a seeded run replays: who knows the seed knows the noise. It is NOT for release")
    if not plan.private:
        warn("--mechanism none trains WITHOUT privacy; the result is NOT for release")
    elif plan.delta >= 1 / plan.facts.units:
        warn(
            f"delta {plan.delta:g} is not below 1/{plan.facts.unit}s = {1 / plan.facts.units:.2g}; "
            "publishing one at random would be allowed"
        )
    published = plan.published_epsilon
    if published is not None:
        warn(
            f"all images of a step share one sample, so that the papers' epsilon for this run, "
            f"{published:.4g}, is not a valid guarantee; what holds is {format_epsilon(plan.epsilon)}"
        )
    if plan.recipe.name == "grey" and plan.steps >= _MANY_STEPS and device.type == "cpu":
        warn(
            "the recipe grey takes hours on a CPU; --recipe mixture takes seconds and does about as well "
            "(--dry-run says how long)"
        )


def _show_plan(plan: Plan, device: torch.device, as_json: bool) -> None:
    from dpsinkhorn.release import format_epsilon
    from dpsinkhorn.training.trial import try_plan

    estimate = try_plan(plan, device)
    if as_json:
        print_json(
            {
                **plan.to_json(),
                "epsilon": plan.epsilon,
                "estimated_seconds": round(estimate.seconds, 1),
                "estimated_memory_mib": estimate.memory_bytes >> 20,
                "device": str(device),
            }
        )
        return
    rows = [
        ("recipe", f"{plan.recipe.name}: {plan.recipe.description}"),
        ("mechanism", plan.recipe.privacy.mechanism),
        ("epsilon, delta", f"{format_epsilon(plan.epsilon)}, {plan.delta:g} ({plan.accountant})"),
        ("unit of privacy", f"{plan.facts.unit} (add or remove one)"),
        ("noise multiplier", f"{plan.noise_multiplier:.5g}" if plan.private else "none"),
        ("steps", f"{plan.steps:,}"),
        ("sampling rate", f"{plan.sampling_rate:.5g} (batch of about {plan.expected_batch:,.0f})"),
        *(
            [("generated a step", f"{plan.generated:,}")]
            if plan.recipe.privacy.mechanism != "moments"
            else []
        ),
        ("generator", f"{plan.generator_config.kind}, {plan.generator_config.parameters:,} parameters"),
        ("time", f"about {_duration(estimate.seconds)} on {device}"),
        ("memory", f"about {estimate.memory_bytes >> 20:,} MiB"),
    ]
    print_table("Plan: nothing was trained, written or spent", rows, [])


def _show_end(run: Run, as_json: bool) -> None:
    from dpsinkhorn.privacy import meaning
    from dpsinkhorn.release import format_epsilon, load

    release = load(run.release_folder)
    spent = release.privacy.epsilon
    report = _write_report(run)
    if as_json:
        print_json(
            {
                "run": str(run.folder),
                "release": str(run.release_folder),
                "report": None if report is None else str(report),
                "epsilon": spent,
                "delta": release.privacy.delta,
                "releasable": release.privacy.releasable,
            }
        )
        return
    console = Console(highlight=False, markup=False, soft_wrap=True)
    console.print(f"Run      {run.folder}")
    console.print(f"Samples  {run.release_folder / 'samples.png'}")
    console.print(f"Release  {run.release_folder}")
    if report is not None:
        console.print(f"Report   {report}")
    if not release.privacy.releasable:
        console.print("NOT FOR RELEASE: " + release.privacy.summary)
        return
    console.print(
        f"epsilon {format_epsilon(spent)} at delta {release.privacy.delta:g}. "
        + meaning(
            spent, release.privacy.delta, unit=release.privacy.unit, adjacency=release.privacy.adjacency
        )
    )
    console.print("Only the folder `release` may leave the building, and the report; the rest is private.")
    console.print(f"Next: dpsinkhorn sample {run.release_folder} --count 1000 --output samples.npz")


def _write_report(run: Run) -> Path | None:
    """The page of the run. The release is there already: whatever goes wrong here must not hide it."""
    try:
        from dpsinkhorn.report import write_report

        return write_report(run.folder).report
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        warn(f"the release is there, but its report could not be written: {reason}")
        return None


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{max(seconds, 1):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


@contextmanager
def _bar(run: Run, *, quiet: bool) -> Iterator[Any]:
    """A progress bar with steps, ε spent and the time left."""
    if quiet:
        yield lambda _: None
        return
    columns = (
        TextColumn("training"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("ε {task.fields[spent]}"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    budget = run.plan.budget_epsilon
    console = Console(stderr=True)
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("training", total=run.plan.steps, spent="-")

        def show(now: RunProgress) -> None:
            spent = "∞" if math.isinf(now.epsilon) else f"{now.epsilon:.2f} of {budget:g}"
            progress.update(task, completed=now.block.step, total=now.block.horizon, spent=spent)

        yield show


class _Stop:
    asked = False


@contextmanager
def stop_on_interrupt() -> Iterator[_Stop]:
    """Ctrl-C, or a polite kill, asks the run to stop after the block of steps; a second one is immediate."""
    stop = _Stop()

    def ask(number: int, frame: Any) -> None:
        del frame
        stop.asked = True
        signal.signal(number, signal.default_int_handler)

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
