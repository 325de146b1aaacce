"""A run is a folder: its plan, ledger, checkpoint, statistics and pictures, and in the end its release.

run.json              the plan, and where the data are
ledger.jsonl          what was spent (or a ledger elsewhere, shared by the runs on a data set)
checkpoint.safetensors
statistics.jsonl      a line per block of steps: numbers with noise in them, but blocks go by the clock
samples/              pictures of generated images while training
release/              the only part that may leave the building
"""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from dpsinkhorn import __version__
from dpsinkhorn.data import Dataset
from dpsinkhorn.files import drafts_of, write_new
from dpsinkhorn.generators import draw_labels, draw_latents, recompute_batch_statistics
from dpsinkhorn.mechanisms.shared.class_counts import release_label_frequencies
from dpsinkhorn.privacy import Budget, BudgetExceededError, Ledger
from dpsinkhorn.privacy.journal import JournalDamagedError
from dpsinkhorn.privacy.noise import ObservedNoise
from dpsinkhorn.release import ReleaseError, grid_picture, to_uint8, write_release
from dpsinkhorn.training.arithmetic import check_float64
from dpsinkhorn.training.building import build_mechanism, check_mechanism
from dpsinkhorn.training.errors import TrainingError
from dpsinkhorn.training.loop import Block, LedgerReservation, train
from dpsinkhorn.training.pace import Pace, Saving
from dpsinkhorn.training.plan import Plan
from dpsinkhorn.training.reading import read_value
from dpsinkhorn.training.records import Records, facts_of
from dpsinkhorn.training.spending import (
    begin_ledger,
    charged_steps,
    check_budget,
    check_room,
    check_unit,
    epsilon_by,
    run_name,
    statement_of,
)
from dpsinkhorn.training.state import TrainingState, read_extra

__all__ = ["Progress", "Run", "Saving"]

_SETTINGS: dict[str, Any] = {"name": str, "dpsinkhorn": str, "ledger": str | None, "source": dict[str, Any]}
_STATISTICS_BATCH = 500  # images in a batch of BatchNorm's statistics, at least
_PICTURE_COLUMNS = 10


@dataclass(frozen=True)
class Progress:
    """What is shown while training."""

    block: Block
    epsilon: float
    """No less than all that is on record comes to: a little more where computing it anew would take time."""


Watch = Callable[[Progress], bool]
"""Called after every block of steps; an answer of True stops the run there, with a checkpoint."""


class Run:
    """A run folder that is open for training. `Run.create` begins one, `Run.resume` goes on with one."""

    def __init__(self, folder: Path, settings: dict[str, Any]) -> None:
        """Not for callers: use `create` or `resume`."""
        self.folder = folder
        self.settings = settings
        self.plan = Plan.from_json(settings["plan"])
        self.name: str = settings["name"]

    @classmethod
    def create(
        cls,
        folder: str | os.PathLike[str],
        plan: Plan,
        *,
        source: dict[str, Any] | None = None,
        ledger: str | os.PathLike[str] | None = None,
        budget: float | None = None,
    ) -> Run:
        """Begin a run in a new or empty folder. `source` says where the data are, for `resume`.

        `ledger` is a file for several runs on the same data, and `budget` what they may spend together,
        where the file does not exist yet: by default no more than this run.
        """
        path = Path(folder)
        title = path.resolve().name.encode("ascii", "replace").decode()
        settings = {
            "version": 1,
            "dpsinkhorn": __version__,
            "name": run_name(title, plan),
            "plan": plan.to_json(),
            "source": source or {},
            "ledger": None if ledger is None else str(Path(ledger).resolve()),
        }
        content = json.dumps(settings, indent=1).encode()
        made: Path | None = None
        try:
            if (path / "run.json").exists():
                raise FileExistsError
            if path.is_dir() and set(path.iterdir()) - drafts_of(path / "run.json"):
                raise TrainingError(f"{path} is not empty; choose another folder")
            if os.path.lexists(path) and not path.is_dir():
                raise TrainingError(f"{path} is a file; choose another folder")
            check_mechanism(plan)
            if budget is not None:
                check_budget(None if ledger is None else Path(ledger), plan, budget)
            if ledger is not None and Path(ledger).exists():
                check_room(Path(ledger), plan)
            made = None if path.is_dir() else path
            path.mkdir(parents=True, exist_ok=True)
            if ledger is not None and not Path(ledger).exists():
                begin_ledger(Path(ledger), plan, budget)
            write_new(path / "run.json", content)
        except BaseException as error:
            if made is not None and made.is_dir() and not any(made.iterdir()):
                made.rmdir()
            if isinstance(error, FileExistsError) and (path / "run.json").exists():
                # perhaps since a moment ago only, by another process
                held = f"{path} already holds a run; resume it (--resume), or choose another folder"
                raise TrainingError(held) from error
            if isinstance(error, OSError):
                where = error.filename or path
                raise TrainingError(f"the run cannot begin: {where}: {error.strerror}") from error
            raise
        return cls(path, settings)

    @classmethod
    def resume(cls, folder: str | os.PathLike[str]) -> Run:
        """Go on with a run that was interrupted."""
        path = Path(folder)
        try:
            settings = json.loads((path / "run.json").read_text(encoding="utf-8"))
            if settings["version"] != 1:
                other = settings.get("dpsinkhorn", "unknown")
                raise TrainingError(f"{path} was made by another version ({other}): resume it with that one")
            for name, kind in _SETTINGS.items():
                read_value(kind, settings[name], name)
            run = cls(path, settings)
            run.ledger_path.resolve().exists()  # a name that no file can have is refused here
            return run
        except FileNotFoundError as error:
            raise TrainingError(f"{path} holds no run to resume; start one without --resume") from error
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            if isinstance(error, TrainingError) and str(path) in str(error):
                raise
            reason = " ".join(str(error).split())[:200]
            reason = f"it has no {reason}" if isinstance(error, KeyError) else reason
            if not isinstance(error, OSError):
                reason += "; was it edited, or made by another version of dpsinkhorn?"
            raise TrainingError(f"{path / 'run.json'} cannot be read: {reason}") from error

    @property
    def ledger_path(self) -> Path:
        """Where this run's spending is on record."""
        return Path(self.settings["ledger"] or self.folder / "ledger.jsonl")

    @property
    def release_folder(self) -> Path:
        """What may leave the building, once the run is done."""
        return self.folder / "release"

    @property
    def done(self) -> bool:
        """Whether the release is there."""
        return self.release_folder.is_dir()

    def train(
        self,
        dataset: Dataset,
        *,
        device: torch.device | str = "cpu",
        saving: Saving | None = None,
        watch: Watch | None = None,
        noise: ObservedNoise | None = None,
    ) -> bool:
        """Train from where the run stands to its end, and write the release. False: stopped by `watch`.

        `noise` stands at the barrier in place of the plan's own source, for an audit of a seeded plan.

        Raises:
            TrainingError: The data are not those of the plan, or the run is done.
        """
        self._check_open()
        _check_same(dataset, self.plan)
        try:
            with self._open_ledger() as ledger, _replayable(self.plan.seed is not None):
                return self._train(dataset, torch.device(device), ledger, saving or Saving(), watch, noise)
        except BudgetExceededError as error:
            raise TrainingError(str(error)) from error
        except ReleaseError as error:
            raise TrainingError(f"{error}; mend that, then resume: the last checkpoint is whole") from error
        except OSError as error:
            failed = f"cannot write {error.filename or f'into {self.folder}'}: {error.strerror}"
            raise TrainingError(f"{failed}; mend that, then resume: the last checkpoint is whole") from error

    def _train(
        self,
        dataset: Dataset,
        device: torch.device,
        ledger: Ledger,
        saving: Saving,
        watch: Watch | None,
        noise: ObservedNoise | None,
    ) -> bool:
        plan = self.plan
        self._check_open()  # again, now that nobody else is at work: another process may just have ended it
        check_unit(self.ledger_path, ledger.statement(), plan)  # others may have spent since this run began
        check_float64(device)
        state = TrainingState(plan, device, noise)
        records = Records(dataset, device)
        self._clear_away()
        begun = self._checkpoint.exists()
        probabilities = self._load(state) if begun else self._probabilities(ledger, records, state)
        covered = self._covered(ledger, state)
        reservation = LedgerReservation(ledger, plan, self.name, covered=covered)
        horizon = reservation.horizon(plan.steps)
        if covered > state.step and state.horizon not in (None, horizon):
            # What a step asks of the data can depend on where the run ends, and these are not charged anew.
            raise TrainingError(
                f"this seeded run was to end after {state.horizon} steps, and the budget in "
                f"{self.ledger_path} now ends it after {horizon}: it would not replay; begin another run"
            )
        state.horizon = horizon
        if not begun:
            self._save(state, probabilities, ledger)  # what was released once is not released again
        if not horizon:
            raise TrainingError(
                f"the budget, of this run or in {self.ledger_path}, allows no step, and none is kept; "
                "begin another run"
            )
        sanitizer = build_mechanism(plan)
        blocks = train(plan, state, records, sanitizer, reservation, probabilities, horizon=horizon)
        if not begun:
            self._save(state, probabilities, ledger)  # with how steps are taken, which a replay must know
        pace = Pace(reservation, saving, state.step)
        for block in blocks:
            self._note(block, pace.look(block))
            if pace.picture_due(block.step):
                with pace.picture(block.step):
                    self._picture(state, dataset.public_names)
            stop = watch is not None and watch(Progress(block, pace.spent)) and block.step < horizon
            if stop or plan.precious or pace.checkpoint_due():
                self._save(state, probabilities, ledger)
            if stop:
                return False
        self._save(state, probabilities, ledger)
        self._release(state, probabilities, ledger, dataset.public_names)
        return True

    def _check_open(self) -> None:
        if self.done:
            raise TrainingError(f"{self.folder} is finished: its release is in {self.release_folder}")

    # ---- the ledger

    def _open_ledger(self) -> Ledger:
        """The ledger; never a new one where something may have been spent already."""
        begun = self._checkpoint.exists()
        seen = read_extra(self._checkpoint).get("ledger") if begun else None
        budget = Budget(self.plan.budget_epsilon, self.plan.delta)
        try:
            return Ledger.open(
                self.ledger_path,
                epsilon_by(self.plan),
                budget=None if begun or self.settings["ledger"] else budget,
                seen=seen,
            )
        except FileNotFoundError as error:
            raise TrainingError(
                f"the ledger {self.ledger_path} of this run is gone; put it back: it knows what was spent"
            ) from error
        except JournalDamagedError:
            raise
        except ValueError as error:
            raise TrainingError(
                f"{error}; this is the ledger of another run: put the right one back"
            ) from error

    def _covered(self, ledger: Ledger, state: TrainingState) -> int:
        """Steps of the run that need no further charge: none that would be taken otherwise than before.

        So it is with secure noise, and where nothing tells how a replay was begun.
        """
        if self.plan.seed is None or state.way is None:
            return state.step
        return charged_steps(self.plan, ledger.statement(), self.name)

    def _probabilities(self, ledger: Ledger, records: Records, state: TrainingState) -> tuple[float, ...]:
        mechanism = self.plan.count_mechanism
        if mechanism is None:
            assert not isinstance(self.plan.labels, str)
            return self.plan.labels
        labels, groups = records.labels()
        assert labels is not None
        charge = mechanism.charge()
        on_record = any(s.run == self.name and s.charge == charge for s in ledger.statement().spends)
        if self.plan.seed is None or not on_record:
            ledger.spend(charge, run=self.name)
        return release_label_frequencies(
            labels, self.plan.facts.classes, mechanism, state.noise, groups=groups
        )

    # ---- what is written

    @property
    def _checkpoint(self) -> Path:
        return self.folder / "checkpoint.safetensors"

    def _save(self, state: TrainingState, probabilities: tuple[float, ...], ledger: Ledger) -> None:
        extra = {"run": self.name, "ledger": ledger.digest, "probabilities": list(probabilities)}
        state.save(self._checkpoint, extra)

    def _load(self, state: TrainingState) -> tuple[float, ...]:
        extra = state.load(self._checkpoint)
        if extra.get("run") != self.name:
            raise TrainingError(f"{self._checkpoint} is that of another run; put the right one back")
        return tuple(extra.get("probabilities", ()))

    def _clear_away(self) -> None:
        """What a crash left half-written."""
        for draft in drafts_of(self.folder / "run.json"):
            draft.unlink(missing_ok=True)
        for draft in self.folder.glob(".release.*.partial"):
            shutil.rmtree(draft, ignore_errors=True)
        for draft in (self.folder / "samples").glob(".*.partial"):
            draft.unlink(missing_ok=True)
        statistics = self.folder / "statistics.jsonl"
        if statistics.exists():
            content = statistics.read_bytes()
            whole = content.rfind(b"\n") + 1
            if whole < len(content):
                os.truncate(statistics, whole)

    def _note(self, block: Block, spent: float | None) -> None:
        """A line of statistics. `epsilon` is null where there is none, or it was not computed again.

        So is the speed where the number of records is not public: it would tell.
        """
        speed = round(block.steps / max(block.seconds, 1e-9), 2)
        line = {
            "step": block.step,
            "epsilon": None if spent is None or math.isinf(spent) else spent,
            "steps_per_second": speed if self.plan.facts.size_is_public else None,
            "gradient_norm": block.gradient_norm,
        }
        with open(self.folder / "statistics.jsonl", "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def _picture(self, state: TrainingState, class_names: tuple[str, ...]) -> None:
        """Generated images of every class, from latents of their own: training does not notice."""
        classes = self.plan.facts.classes
        count = _PICTURE_COLUMNS * (classes or _PICTURE_COLUMNS)
        random = torch.Generator().manual_seed(state.step)
        labels = torch.arange(count) % classes if classes else None
        latents = draw_latents(count, state.generator.config.latent, random, state.device)
        moved = None if labels is None else labels.to(state.device)
        with torch.no_grad(), _buffers_kept(state.best):
            images = to_uint8(state.best(latents, moved))
        folder = self.folder / "samples"
        folder.mkdir(exist_ok=True)
        path = folder / f"step-{state.step:07d}.png"
        grid_picture(images, None if labels is None else labels.numpy(), path, class_names=class_names)

    def _release(
        self,
        state: TrainingState,
        probabilities: tuple[float, ...],
        ledger: Ledger,
        class_names: tuple[str, ...],
    ) -> None:
        generator = state.best
        size = max(_STATISTICS_BATCH, self.plan.generated)

        def draw() -> tuple[torch.Tensor, torch.Tensor | None]:
            labels = None
            if self.plan.facts.classes:
                labels = draw_labels(size, probabilities, state.random, state.device)
            return draw_latents(size, generator.config.latent, state.random, state.device), labels

        recompute_batch_statistics(generator, draw)
        write_release(
            self.release_folder,
            generator,
            label_probabilities=probabilities or None,
            privacy=statement_of(self.plan, ledger.statement(), state.noise.description),
            class_names=class_names,
        )


@contextmanager
def _replayable(seeded: bool) -> Iterator[None]:
    """Within it a seeded run's convolutions add up in the same order each time, on a GPU too."""
    before = torch.backends.cudnn.deterministic
    torch.backends.cudnn.deterministic = before or seeded
    try:
        yield
    finally:
        torch.backends.cudnn.deterministic = before


@contextmanager
def _buffers_kept(module: torch.nn.Module) -> Iterator[None]:
    """Within it a network in training mode uses the statistics of its batch; its own stay as they were."""
    kept = {name: value.clone() for name, value in module.named_buffers()}
    try:
        yield
    finally:
        for name, value in module.named_buffers():
            value.copy_(kept[name])


def _check_same(dataset: Dataset, plan: Plan) -> None:
    """Refuse other data than the plan was made for, as far as public facts tell, before anything is spent."""
    found, planned = facts_of(dataset), plan.facts
    facts: list[tuple[str, Any, Any]] = [
        ("images of shape", found.image_shape, planned.image_shape),
        ("classes:", found.classes, planned.classes),
        ("persons named:", found.grouped, planned.grouped),
    ]
    if planned.size_is_public:
        facts += [("records:", found.records, planned.records), ("persons:", found.units, planned.units)]
    for what, here, there in facts:
        if here != there:
            raise TrainingError(f"these are not the data of the run: {what} {here}, not {there}")
    if found.records > plan.terms.largest_sample:
        raise TrainingError(
            f"the data hold {found.records} records, far more than the {planned.records} declared; "
            "declare a number nearer to theirs"
        )
