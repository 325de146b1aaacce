"""A run is a folder: its plan, ledger, checkpoint, statistics and pictures, and in the end its release.

run.json              the plan, and where the data are
ledger.jsonl          what was spent (or a ledger elsewhere, shared by the runs on a data set)
checkpoint.safetensors
statistics.jsonl      a line per block of steps: numbers with noise in them, but blocks go by the clock
samples/              pictures of generated images while training
release/              the only part that may leave the building
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import shutil
from pathlib import Path
from typing import Any

import torch

from dpsinkhorn import __version__
from dpsinkhorn.data import Dataset
from dpsinkhorn.errors import TrainingError
from dpsinkhorn.files import drafts_of, write_new
from dpsinkhorn.privacy.noise import ObservedNoise
from dpsinkhorn.privacy.words import new_run_name
from dpsinkhorn.ranks import Ranks
from dpsinkhorn.release import About, ReleaseError, grid_picture, save_release
from dpsinkhorn.training.account import Account, begin_ledger, check_ledger
from dpsinkhorn.training.plan import Plan
from dpsinkhorn.training.recipe import read_value
from dpsinkhorn.training.state import read_extra
from dpsinkhorn.training.trainer import Block, Trainer, check_data
from dpsinkhorn.training.watching import Pace, Progress, Saving, Watch

_SETTINGS: dict[str, Any] = {"name": str, "dpsinkhorn": str, "ledger": str | None, "source": dict[str, Any]}
_PICTURE_COLUMNS = 10


class Run:
    """A run folder that is open for training. `Run.create` begins one, `Run.resume` goes on with one."""

    def __init__(self, folder: Path, settings: dict[str, Any]) -> None:
        """Not for callers: use `create` or `resume`."""
        self.folder = folder
        self.settings = settings
        self.plan = Plan.from_json(settings["plan"])
        self.name: str = settings["name"]
        self._about = About.of(settings["about"])

    @classmethod
    def create(
        cls,
        folder: str | os.PathLike[str],
        plan: Plan,
        *,
        source: dict[str, Any] | None = None,
        ledger: str | os.PathLike[str] | None = None,
        budget: float | None = None,
        about: About | None = None,
    ) -> Run:
        """Begin a run in a new or empty folder. `source` says where the data are, for `resume`.

        `ledger` is a file for several runs on the same data, and `budget` what they may spend together,
        where the file does not exist yet: by default no more than this run. `about` goes into the release.
        """
        path = Path(folder)
        title = path.resolve().name.encode("ascii", "replace").decode()
        settings = {
            "version": 1,
            "dpsinkhorn": __version__,
            "name": new_run_name(title, plan.facts.unit),
            "plan": plan.to_json(),
            "source": source or {},
            "ledger": None if ledger is None else str(Path(ledger).resolve()),
            "about": dataclasses.asdict(about or About()),
        }
        content = json.dumps(settings, indent=1).encode()
        made: Path | None = None
        try:
            others = set(path.iterdir()) - drafts_of(path / "run.json") if path.is_dir() else None
            if (path / "run.json").exists():  # looked at last: another process may just be beginning
                raise FileExistsError
            if others:
                raise TrainingError(f"{path} is not empty; choose another folder")
            if os.path.lexists(path) and not path.is_dir():
                raise TrainingError(f"{path} is a file; choose another folder")
            plan.check_step()
            check_ledger(None if ledger is None else Path(ledger), plan, budget)
            made = None if path.is_dir() else path
            path.mkdir(parents=True, exist_ok=True)
            if ledger is not None:
                begin_ledger(Path(ledger), plan, budget)
            write_new(path / "run.json", content)
        except BaseException as error:
            if made is not None and made.is_dir() and not any(made.iterdir()):
                made.rmdir()
            if isinstance(error, FileExistsError) and (path / "run.json").exists():
                # perhaps since a moment ago only, by another process
                raise TrainingError(
                    f"{path} already holds a run; resume it (--resume), or choose another folder"
                ) from error
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
            read_value(dict[str, Any], settings.setdefault("about", {}), "about")  # runs of before have none
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

    @property
    def begun(self) -> bool:
        """Whether something may have been spent."""
        return self.done or self._checkpoint.exists()

    def train(
        self,
        dataset: Dataset,
        *,
        device: torch.device | str = "cpu",
        saving: Saving | None = None,
        watch: Watch | None = None,
        noise: ObservedNoise | None = None,
        ranks: Ranks | None = None,
    ) -> bool:
        """Train from where the run stands to its end, and write the release. False: stopped by `watch`.

        `noise` stands at the barrier in place of the plan's own source, for an audit of a seeded plan.
        `ranks` are those of several processes that hold the records together, of which this is the first.

        Raises:
            TrainingError: The data are not those of the plan, or the run is done.
        """
        self.check_open()
        check_data(self.plan, dataset)
        try:
            with self._open_account() as account:
                self.check_open()  # again: another process may just have ended it
                trainer = Trainer(self.plan, dataset, torch.device(device), account, noise=noise, ranks=ranks)
                return self._train(trainer, account, saving or Saving(), watch)
        except ReleaseError as error:
            raise TrainingError(f"{error}; mend that, then resume: the last checkpoint is whole") from error
        except OSError as error:
            failed = f"cannot write {error.filename or f'into {self.folder}'}: {error.strerror}"
            raise TrainingError(f"{failed}; mend that, then resume: the last checkpoint is whole") from error

    def _train(self, trainer: Trainer, account: Account, saving: Saving, watch: Watch | None) -> bool:
        self._clear_away()
        begun = self._checkpoint.exists()
        if begun:
            self._load(trainer)
        else:
            trainer.begin()
            self._save(trainer, account)  # what was released once is not released again
        blocks = trainer.blocks()
        if not begun:
            self._save(trainer, account)  # with how steps are taken, which a replay must know
        pace = Pace(account, saving, trainer.state.step)
        for block in blocks:
            if self.plan.kind.steps_are_costly or pace.checkpoint_due():
                with pace.checkpoint():  # before anything else, so that a crash meanwhile loses no step
                    self._save(trainer, account)
            spent = pace.look(block)
            if block.steps:
                self._note(block, spent)
            if pace.picture_due(block.step):
                with pace.picture(block.step):
                    self._picture(trainer)
            now = Progress(block, pace.spent, account.charged, self.plan.delta)
            if watch is not None and watch(now) and block.step < block.horizon:
                self._save(trainer, account)
                return False
        self._save(trainer, account)
        save_release(self.release_folder, dataclasses.replace(trainer.release(), about=self._about))
        return True

    def check_open(self) -> None:
        """Refuse a run whose release is there."""
        if self.done:
            raise TrainingError(f"{self.folder} is finished: its release is in {self.release_folder}")

    def _open_account(self) -> Account:
        """Open the ledger; never a new one where something may have been spent already."""
        begun = self._checkpoint.exists()
        return Account.open(
            self.ledger_path,
            self.plan,
            self.name,
            begin=not begun and self.settings["ledger"] is None,
            seen=read_extra(self._checkpoint).get("ledger") if begun else None,
        )

    # ---- what is written

    @property
    def _checkpoint(self) -> Path:
        return self.folder / "checkpoint.safetensors"

    def _save(self, trainer: Trainer, account: Account) -> None:
        extra = {"run": self.name, "ledger": account.ledger.digest, "probabilities": list(trainer.begin())}
        trainer.state.save(self._checkpoint, extra)

    def _load(self, trainer: Trainer) -> None:
        extra = trainer.state.load(self._checkpoint)
        if extra.get("run") != self.name:
            raise TrainingError(f"{self._checkpoint} is that of another run; put the right one back")
        trainer.probabilities = tuple(extra.get("probabilities", ()))

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
        speed = float(f"{block.steps / max(block.seconds, 1e-9):.4g}")
        line = {
            "step": block.step,
            "epsilon": None if spent is None or math.isinf(spent) else spent,
            "steps_per_second": speed if self.plan.facts.size_is_public else None,
            "gradient_norm": block.gradient_norm,
        }
        with open(self.folder / "statistics.jsonl", "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def _picture(self, trainer: Trainer) -> None:
        images, labels = trainer.images(_PICTURE_COLUMNS)
        folder = self.folder / "samples"
        folder.mkdir(exist_ok=True)
        path = folder / f"step-{trainer.state.step:07d}.png"
        grid_picture(images, labels, path, class_names=trainer.class_names)
