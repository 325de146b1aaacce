"""`dpsinkhorn train`: from private images to a release."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpsinkhorn._interrupt import stop_on_interrupt
from dpsinkhorn.cli._options import takes_options
from dpsinkhorn.cli._output import BadInputError, StoppedError, warn
from dpsinkhorn.cli._train_output import show_end, show_plan, show_progress, warn_about
from dpsinkhorn.cli._train_request import TrainOptions
from dpsinkhorn.cli.data import DataOptions

if TYPE_CHECKING:  # torch and the rest are slow to import: `--help` does without
    import torch

    from dpsinkhorn.data import Dataset
    from dpsinkhorn.training import Plan, Run
    from dpsinkhorn.training.run import Progress


@takes_options()
def train(options: TrainOptions) -> None:
    """Train a generator on private images and write a release.

    Examples:

        dpsinkhorn train --data digits --epsilon 10 --out runs/digits

        dpsinkhorn train --data scans.parquet --label diagnosis --groups patient --epsilon 3 --out runs/scans

        dpsinkhorn train --data digits --epsilon 3 --set generator.components=8 --out runs/more

        dpsinkhorn train --out runs/digits --resume
    """
    begun = False
    try:
        from dpsinkhorn.generators import choose_device
        from dpsinkhorn.training import Run, plan_for
        from dpsinkhorn.training.shared_ledger import check_ledger

        device, quiet = choose_device(options.device, BadInputError), options.as_json
        if options.resume:
            run, source, dataset = _resumed(options)
            plan, shared = run.plan, None
        else:
            data, about = _need(options.data, "--data"), options.about()
            if not options.dry_run:
                _need(options.out, "--out, the folder of the run")
            source = _found_again({"data": data, **options.reading.given()})
            dataset = DataOptions.of(source).load(source["data"], quiet=quiet)
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
        finished = _trained(run, dataset, device, options)
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


def _resumed(options: TrainOptions) -> tuple[Run, dict[str, Any], Dataset]:
    """Return the run in a folder, where its data are, which may have moved, and what they are.

    All else is as it was when it began.
    """
    from dpsinkhorn.training import Run, TrainingError
    from dpsinkhorn.training.trainer import check_data

    run = Run.resume(_need(options.out, "--out, the folder of the run"))
    for flag in options.settled():
        raise BadInputError(f"{flag} was settled when the run began; leave it out, or begin another run")
    if run.done:
        raise TrainingError(f"{run.folder} is finished: its release is in {run.release_folder}")
    source = {**run.settings["source"]}
    source["data"] = options.data or source.get("data")
    if not source["data"]:
        raise BadInputError(f"give --data: {run.folder} was begun from Python and knows no file")
    dataset = DataOptions.of(source).load(source["data"], quiet=options.as_json)
    check_data(run.plan, dataset)
    return run, source, dataset


def _trained(run: Run, dataset: Dataset, device: torch.device, options: TrainOptions) -> bool:
    from dpsinkhorn.training import Saving

    saving = Saving(checkpoint_seconds=options.checkpoint_every, picture_steps=options.picture_every)
    with show_progress(run, quiet=options.as_json) as bar, stop_on_interrupt() as stop:

        def watch(progress: Progress) -> bool:
            bar(progress)
            return stop.asked

        return run.train(dataset, device=device, saving=saving, watch=watch)


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
