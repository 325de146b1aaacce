"""`dpsinkhorn train`: from private images to a release."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpsinkhorn.cli._shared import (
    BadInputError,
    DataOptions,
    JsonOption,
    StoppedError,
    parse_rate,
    takes_options,
    warn,
)
from dpsinkhorn.cli._train_output import show_end, show_plan, show_progress, warn_about
from dpsinkhorn.cli.privacy import AccountantName, AnyMechanism

if TYPE_CHECKING:  # torch and the rest are slow to import: `--help` does without
    import torch

    from dpsinkhorn.data import Dataset
    from dpsinkhorn.ranks import Ranks
    from dpsinkhorn.release import About
    from dpsinkhorn.training import Plan, Progress, Request, Run

# Options that a run may be resumed with; all others are settled when it begins.
_ANY_TIME = (
    *("data", "out", "device", "resume", "dry_run", "anyway"),
    *("checkpoint_every", "picture_every", "rank_timeout", "as_json"),
    "reading",  # of which those given are looked at one by one
)


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """All options of `dpsinkhorn train`; None where one was not given."""

    data: Annotated[
        str | None, "A name (digits, mnist, ...) or a path: idx folder, .npz, images, CSV, parquet."
    ] = None
    epsilon: Annotated[float | None, "The budget; the noise follows from it."] = None
    out: Annotated[Path | None, "Folder of the run: new, or with --resume."] = None
    shards: Annotated[
        Path | None, "New folder: write --data there as shards first, file by file, and train on these."
    ] = None
    delta: Annotated[float | None, "Probability added to what epsilon allows; 1e-5 by default."] = None
    mechanism: Annotated[AnyMechanism | None, "Where the privacy barrier stands; default: the recipe's."] = (
        None
    )
    recipe: Annotated[
        str | None, "A recipe by name, or a .toml file; default: by what is public of the data."
    ] = None
    steps: Annotated[int | None, "Training steps."] = None
    sampling_rate: Annotated[str | None, "Chance of a record to be in a batch: 0.2 or 1/1200."] = None
    clip: Annotated[float | None, "Clipping bound."] = None
    noise_multiplier: Annotated[float | None, "Noise / sensitivity, in place of --epsilon."] = None
    generator: Annotated[str | None, "dcgan, biggan, mlp or mixture, in place of the recipe's."] = None
    reading: DataOptions
    title: Annotated[str | None, "Of the release: public, in its card."] = None
    description: Annotated[str | None, "What the release is, in a line for strangers."] = None
    purpose: Annotated[str | None, "What it is released for."] = None
    contact: Annotated[str | None, "Where questions about it go."] = None
    legal_basis: Annotated[str | None, "What allows the use and the release."] = None
    recipients: Annotated[str | None, "Who it is for."] = None
    labels: Annotated[
        str | None, "Labels of generated images: uniform (default), released, or shares as 0.9,0.1."
    ] = None
    records: Annotated[
        int | None, "Public number of records (persons, with --groups) where theirs is not."
    ] = None
    ledger: Annotated[Path | None, "Ledger shared by all runs on these data."] = None
    budget: Annotated[float | None, "Epsilon of all runs on a new --ledger; default: that of this run."] = (
        None
    )
    accountant: Annotated[AccountantName | None, "pld (default) is the tightest."] = None
    set: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SECTION.NAME=VALUE", help="Change the recipe: --set optimizer.learning_rate=1e-3."
        ),
    ] = None
    seed: Annotated[int | None, "Replay bit for bit. Such a run is NOT for release."] = None
    anyway: Annotated[bool, "Train even where public numbers say that nothing can come of it."] = False
    device: Annotated[str | None, "cpu or cuda; a GPU where there is one."] = None
    resume: Annotated[bool, "Go on with the run in --out."] = False
    dry_run: Annotated[bool, "Print the plan: nothing is trained, written or spent."] = False
    checkpoint_every: Annotated[
        float | None,
        typer.Option(min=0, help="Seconds between checkpoints; by default they take 3 % of the time."),
    ] = None
    picture_every: Annotated[
        int, typer.Option(min=0, help="Steps between pictures of samples, at least; 0 for none.")
    ] = 500
    rank_timeout: Annotated[
        float, typer.Option(min=1, help="Under torchrun: seconds that a rank may keep the others waiting.")
    ] = 600
    as_json: JsonOption = False

    def settled(self) -> list[str]:
        """Return the options given that are settled when a run begins, as they are spelled."""
        given = {**vars(self), **self.reading.given()}
        names = [name for name, value in given.items() if value is not None and name not in _ANY_TIME]
        return ["--" + name.replace("_", "-") for name in names]

    def about(self) -> About:
        """Return what is said of the release."""
        from dpsinkhorn.release import About

        return About.of(vars(self))

    def request(self, *, quick: bool) -> Request:
        """Return what is asked of the training."""
        from dpsinkhorn.training import Request

        if self.epsilon is not None and self.noise_multiplier is not None:
            raise BadInputError("give --epsilon or --noise-multiplier, not both: one follows from the other")
        return Request(
            epsilon=self.epsilon,
            delta=self.delta,
            recipe=self.recipe,
            mechanism=self.mechanism,
            settings=self._settings(),
            generator=self.generator,
            labels=_shares(self.labels or "uniform"),
            records=self.records,
            accountant=self.accountant or "pld",
            seed=self.seed,
            quick=quick,
            anyway=self.anyway or self.dry_run,
        )

    def _settings(self) -> dict[str, dict[str, Any]]:
        settings = parse_changes(self.set or ())
        options = {
            "steps": self.steps,
            "clip": self.clip,
            "noise_multiplier": self.noise_multiplier,
            "sampling_rate": parse_rate(self.sampling_rate, None, None),
        }
        for name, value in options.items():
            if value is not None and settings.setdefault("privacy", {}).setdefault(name, value) != value:
                raise BadInputError(
                    f"--{name.replace('_', '-')} and --set privacy.{name} are the same: give one"
                )
        return settings


@takes_options()
def train(options: TrainOptions) -> None:
    """Train a generator on private images and write a release.

    Examples:

        dpsinkhorn train --data digits --epsilon 10 --out runs/digits

        dpsinkhorn train --data scans.parquet --label diagnosis --groups patient --epsilon 3 --out runs/scans

        dpsinkhorn train --data digits --epsilon 3 --set generator.components=8 --out runs/more

        dpsinkhorn train --out runs/digits --resume

        torchrun --nproc-per-node 4 -m dpsinkhorn train --data shards --epsilon 3 --out runs/shards
    """
    from dpsinkhorn.ranks import joined

    with joined(options.rank_timeout) as ranks:
        if ranks is not None and ranks.rank:
            _hold_records(options, ranks)
            return
        _train(options, ranks)
        if ranks is not None:
            ranks.ask("end")


def _hold_records(options: TrainOptions, ranks: Ranks) -> None:
    """What ranks other than the first do: that one has the plan, the ledger and the folder."""
    from dpsinkhorn.generators import choose_device
    from dpsinkhorn.training.shared_records import answer
    from dpsinkhorn.training.watching import stop_on_interrupt

    def load(source: dict[str, Any]) -> Dataset:
        return DataOptions.of(source).load(source["data"], quiet=True)

    with stop_on_interrupt():  # rank 0 stops after the block of steps, and says so
        answer(ranks, load, ranks.device(choose_device(options.device, BadInputError)))


def _train(options: TrainOptions, ranks: Ranks | None) -> None:
    begun = False
    try:
        from dpsinkhorn.generators import choose_device
        from dpsinkhorn.training import Run, plan_for
        from dpsinkhorn.training.account import check_ledger

        device, quiet = choose_device(options.device, BadInputError), options.as_json
        if ranks is not None:
            device = ranks.device(device)
        if options.resume:
            run, source, dataset = _resumed(options, ranks)
            plan, shared = run.plan, None
        else:
            data, about = _need(options.data, "--data"), options.about()
            if not options.dry_run:
                _need(options.out, "--out, the folder of the run")
            source = _found_again({"data": data, **options.reading.given()})
            if options.shards is not None:
                source = _as_shards(source, options, ranks)
            dataset = _loaded(source, ranks, quiet=quiet)
            plan = plan_for(dataset, options.request(quick=device.type == "cpu"))
        warn_about(plan, dataset, device)
        if options.dry_run:
            if not options.resume:
                shared = check_ledger(options.ledger, plan, options.budget)
            _note_use(source, dataset, plan, None, run.ledger_path if options.resume else options.ledger)
            show_plan(plan, device, shared, quiet)
            return
        if not options.resume:
            assert options.out is not None
            run = Run.create(
                options.out, plan, source=source, ledger=options.ledger, budget=options.budget, about=about
            )
        _note_use(source, dataset, plan, run.name, run.ledger_path)
        begun = True
        finished = _trained(run, dataset, device, options, ranks)
    except KeyboardInterrupt:
        lost = "at once; go on from the last checkpoint with --resume" if begun else "before training began"
        raise StoppedError(f"dpsinkhorn: stopped {lost}") from None
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError) and type(error).__name__ != "OutOfMemoryError":  # a GPU's
            raise
        raise BadInputError("the memory is full; use a recipe with fewer generated images a step") from error
    if not finished:
        raise StoppedError(
            f"Stopped, with a checkpoint. Go on with: dpsinkhorn train --out {run.folder} --resume"
        )
    show_end(run, quiet)


def _note_use(
    source: dict[str, Any], dataset: Dataset, plan: Plan, run: str | None, ledger: Path | None
) -> None:
    """Note the use of data that are not public by their name, and warn of earlier ones on other ledgers."""
    from dpsinkhorn.data import KNOWN
    from dpsinkhorn.training.used_data import note_use

    if source["data"] not in KNOWN and (warning := note_use(dataset, plan, run, ledger)):
        warn(warning)


def _loaded(source: dict[str, Any], ranks: Ranks | None, *, quiet: bool) -> Dataset:
    if ranks is not None:
        ranks.ask("load", {"source": source})
    return DataOptions.of(source).load(source["data"], quiet=quiet)


def _as_shards(source: dict[str, Any], options: TrainOptions, ranks: Ranks | None) -> dict[str, Any]:
    """Write a source as shards, while the other ranks wait; return these in its place."""
    from dpsinkhorn.data import write_shards

    if options.dry_run:
        raise BadInputError("--dry-run writes no --shards: leave one of the two out")
    assert options.shards is not None

    def parts() -> Iterator[Dataset]:
        for part in DataOptions.of(source).parts(source["data"]):
            yield part
            if ranks is not None:
                ranks.ask("wait")

    write_shards(parts(), options.shards)
    return {"data": str(options.shards.absolute())}


def _resumed(options: TrainOptions, ranks: Ranks | None) -> tuple[Run, dict[str, Any], Dataset]:
    """Return the run in a folder, where its data are, which may have moved, and what they are.

    All else is as it was when it began.
    """
    from dpsinkhorn.training import Run
    from dpsinkhorn.training.trainer import check_data

    run = Run.resume(_need(options.out, "--out, the folder of the run"))
    for flag in options.settled():
        raise BadInputError(f"{flag} was settled when the run began; leave it out, or begin another run")
    run.check_open()
    source = {**run.settings["source"]}
    source["data"] = options.data or source.get("data")
    if not source["data"]:
        raise BadInputError(f"give --data: {run.folder} was begun from Python and knows no file")
    dataset = _loaded(source, ranks, quiet=options.as_json)
    check_data(run.plan, dataset)
    return run, source, dataset


def _trained(
    run: Run, dataset: Dataset, device: torch.device, options: TrainOptions, ranks: Ranks | None
) -> bool:
    from dpsinkhorn.training.watching import Saving, stop_on_interrupt

    saving = Saving(checkpoint_seconds=options.checkpoint_every, picture_steps=options.picture_every)
    with show_progress(run, quiet=options.as_json) as bar, stop_on_interrupt() as stop:

        def watch(progress: Progress) -> bool:
            bar(progress)
            return stop.asked

        return run.train(dataset, device=device, saving=saving, watch=watch, ranks=ranks)


def _found_again(source: dict[str, Any]) -> dict[str, Any]:
    """Files by their full paths, so that a run can be resumed from anywhere."""
    from dpsinkhorn.data import KNOWN

    kept = dict(source)
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


def parse_changes(changes: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Settings by section from `SECTION.NAME=VALUE`, the value as in JSON, or a bare word.

    >>> parse_changes(["optimizer.learning_rate=1e-4", "loss.cost=l1l2", "generator.batch_norm=false"])
    {'optimizer': {'learning_rate': 0.0001}, 'loss': {'cost': 'l1l2'}, 'generator': {'batch_norm': False}}
    """
    settings: dict[str, dict[str, Any]] = {}
    for change in changes:
        key, equals, text = change.partition("=")
        section, dot, name = key.strip().partition(".")
        if not (section and dot and name and equals):
            raise BadInputError(
                f"--set takes SECTION.NAME=VALUE, such as loss.regularization=2, not {change!r}"
            )
        try:
            value = json.loads(text)
        except json.JSONDecodeError:
            value = text.strip()
        if name in settings.setdefault(section, {}):
            raise BadInputError(f"--set {section}.{name} was given twice")
        settings[section][name] = value
    return settings


def _shares(labels: str) -> str | tuple[float, ...]:
    if labels in ("uniform", "released"):
        return labels
    try:
        return tuple(float(share) for share in labels.split(","))
    except ValueError:
        raise BadInputError(
            f"--labels must be uniform, released, or shares such as 0.9,0.1, not {labels}"
        ) from None
