"""`dpsinkhorn train`: from private images to a release."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpsinkhorn._interrupt import stop_on_interrupt
from dpsinkhorn.cli._output import BadInputError, StoppedError
from dpsinkhorn.cli._train_output import progress_bar, show_end, show_plan, warn_about
from dpsinkhorn.cli._train_request import Mechanism, Request
from dpsinkhorn.cli.data import (
    ChannelsOption,
    ClassesOption,
    GroupsOption,
    ImageOption,
    LabelOption,
    RangeOption,
    SizeOption,
    UnlabelledOption,
    load_source,
)
from dpsinkhorn.cli.privacy import AccountantName, JsonOption

if TYPE_CHECKING:  # torch and the rest are slow to import: `--help` does without
    import torch

    from dpsinkhorn.data import Dataset
    from dpsinkhorn.training import Plan, Run
    from dpsinkhorn.training.run import Progress as RunProgress


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
        typer.Option("--delta", help="Probability added to what epsilon allows; the recipe's by default."),
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
        str | None,
        typer.Option(
            "--labels", help="Labels of generated images: uniform (default), released, or shares as 0.9,0.1."
        ),
    ] = None,
    records: Annotated[
        int | None,
        typer.Option(
            "--records", help="Public number of records (persons, with --groups) where theirs is not."
        ),
    ] = None,
    ledger: Annotated[
        Path | None, typer.Option("--ledger", help="Ledger shared by all runs on these data.")
    ] = None,
    budget: Annotated[
        float | None,
        typer.Option("--budget", help="Epsilon of all runs on a new --ledger; default: that of this run."),
    ] = None,
    accountant: Annotated[
        AccountantName | None, typer.Option("--accountant", help="pld (default) is the tightest.")
    ] = None,
    change: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="SECTION.NAME=VALUE",
            help="Change the recipe: --set optimizer.learning_rate=1e-3.",
        ),
    ] = None,
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
        int,
        typer.Option(
            "--picture-every", min=0, help="Steps between pictures of samples, at least; 0 for none."
        ),
    ] = 500,
    as_json: JsonOption = False,
) -> None:
    """Train a generator on private images and write a release.

    Examples:

        dpsinkhorn train --data digits --epsilon 10 --out runs/digits

        dpsinkhorn train --data scans.parquet --label diagnosis --groups patient --epsilon 3 --out runs/scans

        dpsinkhorn train --data digits --epsilon 3 --set optimizer.learning_rate=1e-3 --out runs/slower

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
    request = Request(
        epsilon=epsilon,
        delta=delta,
        mechanism=mechanism,
        recipe=recipe,
        steps=steps,
        sampling_rate=sampling_rate,
        clip=clip,
        noise_multiplier=noise_multiplier,
        generator=generator,
        labels=labels,
        records=records,
        accountant=accountant,
        seed=seed,
        set=change,
    )
    begun = False
    try:
        with _one_line_errors():
            place = _device(device)
            if resume:
                settled = {**source, "data": None, **request.given(), "ledger": ledger, "budget": budget}
                run, dataset = _resumed(out, data, settled, as_json)
                plan = run.plan
            else:
                _need(data, "--data")
                if not dry_run:
                    _need(out, "--out, the folder of the run")
                source = _found_again(source)
                dataset = load_source(source, quiet=as_json)
                plan = request.plan(dataset, place)
            warn_about(plan, dataset, place)
            if dry_run:
                from dpsinkhorn.training.shared_ledger import check_ledger

                show_plan(plan, place, None if resume else check_ledger(ledger, plan, budget), as_json)
                return
            if not resume:
                run = _created(out, plan, source, ledger, budget)
            begun = True
            finished = _trained(run, dataset, place, checkpoint_every, picture_every, as_json)
    except KeyboardInterrupt:
        lost = "at once; go on from the last checkpoint with --resume" if begun else "before training began"
        raise StoppedError(f"dpsinkhorn: stopped {lost}") from None
    if not finished:
        raise StoppedError(
            f"Stopped, with a checkpoint. Go on with: dpsinkhorn train --out {run.folder} --resume"
        )
    show_end(run, as_json)


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


def _resumed(out: Path | None, data: str | None, settled: dict[str, Any], quiet: bool) -> tuple[Run, Dataset]:
    """The run in a folder, and its data, which may have moved. All else is as it was when it began."""
    from dpsinkhorn.training import Run, TrainingError

    run = Run.resume(_need(out, "--out, the folder of the run"))
    for name, value in settled.items():
        if value is not None:
            flag = "--" + name.replace("_", "-")
            raise BadInputError(f"{flag} was settled when the run began; leave it out, or begin another run")
    if run.done:
        raise TrainingError(f"{run.folder} is finished: its release is in {run.release_folder}")
    source = {**run.settings["source"], **({"data": data} if data else {})}
    if not source.get("data"):
        raise BadInputError(f"give --data: {run.folder} was begun from Python and knows no file")
    return run, load_source(source, quiet=quiet)


def _created(
    out: Path | None, plan: Plan, source: dict[str, Any], ledger: Path | None, budget: float | None
) -> Run:
    from dpsinkhorn.training import Run

    assert out is not None
    return Run.create(out, plan, source=source, ledger=ledger, budget=budget)


def _trained(
    run: Run, dataset: Dataset, place: torch.device, checkpoint_every: float, picture_every: int, quiet: bool
) -> bool:
    from dpsinkhorn.training import Saving

    saving = Saving(checkpoint_seconds=checkpoint_every, picture_steps=picture_every)
    with progress_bar(run, quiet=quiet) as bar, stop_on_interrupt() as stop:

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
