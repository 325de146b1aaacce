"""How `fit` trains: alone, with nothing but a ledger, or in a run folder that can be gone on with."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from dpsinkhorn.data import Dataset
from dpsinkhorn.errors import TrainingError
from dpsinkhorn.generators import ModuleClass
from dpsinkhorn.privacy import format_epsilon, read_ledger
from dpsinkhorn.ranks import Ranks
from dpsinkhorn.release import Release, load, save_release
from dpsinkhorn.training.account import Account, begin_ledger, check_ledger
from dpsinkhorn.training.plan import Plan
from dpsinkhorn.training.run import Run
from dpsinkhorn.training.shared_records import answer
from dpsinkhorn.training.trainer import Trainer, check_data
from dpsinkhorn.training.watching import (
    Pace,
    Progress,
    Saving,
    Watch,
    notebook_or_terminal,
    progress_bar,
    stop_on_interrupt,
)


@contextmanager
def shown(plan: Plan, ledger: Path | None, watch: Watch | None, *, verbose: bool) -> Iterator[Watch | None]:
    """Within it there is a progress bar, where one can be drawn, beside the caller's own `watch`."""
    console = notebook_or_terminal() if verbose else None
    if console is None:
        yield watch
        return

    def allowed() -> str:
        return format_epsilon(plan.budget_epsilon if ledger is None else read_ledger(ledger).budget.epsilon)

    with progress_bar(console, allowed) as bar:

        def seen(now: Progress) -> bool:
            bar(now)
            return watch is not None and watch(now)

        yield seen


def check_all(plan: Plan, dataset: Dataset, ledger: Path | None, budget: float | None) -> None:
    """Refuse what cannot be trained, and begin a ledger that is named."""
    plan.check_step()
    check_data(plan, dataset)
    with _one_line():
        check_ledger(ledger, plan, budget)
        if ledger is not None:
            begin_ledger(ledger, plan, budget)


def train_alone(
    plan: Plan,
    dataset: Dataset,
    device: torch.device,
    ledger: Path | None,
    name: str,
    watch: Watch | None,
    ranks: Ranks | None = None,
) -> Release:
    """Train without a run folder; without a ledger that is named, on one that is thrown away."""
    with _one_line(), tempfile.TemporaryDirectory() as place:
        path = ledger or Path(place) / "ledger.jsonl"
        with Account.open(path, plan, name, begin=ledger is None) as account:
            trainer = Trainer(plan, dataset, device, account, ranks=ranks)
            pace = Pace(account, Saving(), 0)
            for block in trainer.blocks():
                if watch is None:
                    continue
                pace.look(block)
                now = Progress(block, pace.spent, account.charged, plan.delta)
                if watch(now) and block.step < block.horizon:
                    raise TrainingError("the training was stopped: nothing was learnt that could be kept")
            return trainer.release()


@contextmanager
def _one_line() -> Iterator[None]:
    """Within it what goes wrong with files ends in one line."""
    try:
        yield
    except OSError as error:
        place = error.filename or "the ledger"
        raise TrainingError(f"{place} cannot be read or written: {error.strerror}") from error


def run_in(folder: Path, plan: Plan, ledger: Path | None, budget: float | None) -> Run:
    """Begin a run in a folder, or open the one that is there if it is the same."""
    if not (folder / "run.json").exists():
        return Run.create(folder, plan, ledger=ledger, budget=budget)
    run = Run.resume(folder)
    settled = json.loads(json.dumps(plan.to_json())), None if ledger is None else str(ledger.resolve())
    if settled != (run.settings["plan"], run.settings["ledger"]):
        raise TrainingError(
            f"{folder} holds a run with other settings or data; fit as it was begun, or choose another folder"
        )
    return run


def hand_out(release: Release, ranks: Ranks) -> None:
    """Give a release to all other ranks, and end the training there."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "release"
        save_release(folder, release)
        files = {path.name: path.read_bytes() for path in folder.iterdir()}
    content = {name: torch.frombuffer(bytearray(data), dtype=torch.uint8) for name, data in files.items()}
    ranks.ask("end", content)


def follow(
    ranks: Ranks, dataset: Dataset, device: torch.device, module: ModuleClass | None
) -> tuple[Plan, Release]:
    """Hold records while rank 0 trains; return what it trained by, and the release that it handed out."""
    with stop_on_interrupt(), tempfile.TemporaryDirectory() as place:
        plan, files = answer(ranks, dataset, device)
        assert plan is not None
        for name, content in files.items():
            (Path(place) / name).write_bytes(bytes(content.tolist()))
        return plan, load(place, generator=module)


def train_in(
    run: Run, dataset: Dataset, device: torch.device, watch: Watch | None, ranks: Ranks | None = None
) -> None:
    """Train in a run folder, from where it stands."""
    with stop_on_interrupt() as stop:
        finished = run.train(
            dataset,
            device=device,
            ranks=ranks,
            watch=lambda progress: (watch is not None and watch(progress)) or stop.asked,
        )
    if not finished:
        stopped = f"the training was stopped, with a checkpoint: fit with the folder {run.folder} to go on"
        raise KeyboardInterrupt(stopped) if stop.asked else TrainingError(stopped)
