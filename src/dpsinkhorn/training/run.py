"""A run is a folder: its plan, ledger, checkpoint, statistics and pictures, and in the end its release.

run.json              the plan, and where the data are
ledger.jsonl          what was spent (or a ledger elsewhere, shared by the runs on a data set)
checkpoint.safetensors
statistics.jsonl      a line per block of steps: nothing of private data
samples/              pictures of generated images while training
release/              the only part that may leave the building
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dp_accounting as dp  # type: ignore[import-untyped]
import torch

from dpsinkhorn import __version__
from dpsinkhorn.data import Dataset
from dpsinkhorn.generators import draw_labels, draw_latents, recompute_batch_statistics
from dpsinkhorn.privacy import Budget, Charge, Ledger, Statement, epsilon
from dpsinkhorn.privacy.ledger import EpsilonOf
from dpsinkhorn.release import PrivacyStatement, grid_picture, to_uint8, write_release
from dpsinkhorn.training.building import build_sanitizer
from dpsinkhorn.training.errors import TrainingError
from dpsinkhorn.training.loop import Block, LedgerReservation, train
from dpsinkhorn.training.plan import Plan
from dpsinkhorn.training.records import Records, facts_of
from dpsinkhorn.training.sanitizers import release_label_frequencies
from dpsinkhorn.training.state import TrainingState, write_atomically

__all__ = ["Progress", "Run", "Saving"]

_STATISTICS_BATCH = 500  # images in a batch of BatchNorm's statistics, at least
_PICTURE_COLUMNS = 10


@dataclass(frozen=True)
class Saving:
    """How often a run writes things down. None of it changes what is learnt, or ε."""

    checkpoint_seconds: float = 60.0
    picture_steps: int = 500
    """0: no pictures while training."""


@dataclass(frozen=True)
class Progress:
    """What is shown while training. `epsilon` is the ledger's, of all that is on record."""

    block: Block
    epsilon: float


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
    ) -> Run:
        """Begin a run in a new or empty folder. `source` says where the data are, for `resume`."""
        path = Path(folder)
        if path.is_dir() and any(path.iterdir()):
            kind = "already holds a run" if (path / "run.json").exists() else "is not empty"
            hint = "resume it, or " if (path / "run.json").exists() else ""
            raise TrainingError(f"{path} {kind}; {hint}choose another folder")
        if path.exists() and not path.is_dir():
            raise TrainingError(f"{path} is a file; choose another folder")
        if ledger is not None and Path(ledger).exists():
            _check_room(Path(ledger), plan)
        settings = {
            "version": 1,
            "dpsinkhorn": __version__,
            "name": f"{path.resolve().name}-{os.urandom(4).hex()}",
            "plan": plan.to_json(),
            "source": source or {},
            "ledger": None if ledger is None else str(Path(ledger).resolve()),
        }
        try:
            path.mkdir(parents=True, exist_ok=True)
            write_atomically(path / "run.json", json.dumps(settings, indent=1).encode())
        except OSError as error:
            raise TrainingError(f"the run folder {path} cannot be written: {error.strerror}") from error
        return cls(path, settings)

    @classmethod
    def resume(cls, folder: str | os.PathLike[str]) -> Run:
        """Go on with a run that was interrupted."""
        path = Path(folder)
        try:
            settings = json.loads((path / "run.json").read_text(encoding="utf-8"))
            if settings["version"] != 1:
                raise TrainingError(f"{path} was made by another version ({settings['dpsinkhorn']})")
            return cls(path, settings)
        except FileNotFoundError as error:
            raise TrainingError(f"{path} holds no run to resume; start one without --resume") from error
        except TrainingError:
            raise
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise TrainingError(f"{path / 'run.json'} cannot be read: {error}") from error

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
    ) -> bool:
        """Train from where the run stands to its end, and write the release. False: stopped by `watch`.

        Raises:
            TrainingError: The data are not those of the plan, or the run is done.
        """
        plan, saving = self.plan, saving or Saving()
        if self.done:
            raise TrainingError(f"{self.folder} is finished: its release is in {self.release_folder}")
        _check_same(dataset, plan)
        place = torch.device(device)
        state = TrainingState(plan, place)
        with self._open_ledger() as ledger:
            kept = state.load(self._checkpoint) if self._checkpoint.exists() else {}
            records = Records(dataset, place)
            if not kept:
                kept = {"probabilities": list(self._probabilities(ledger, records, state))}
                state.save(self._checkpoint, kept)  # what was released once is not released again
            probabilities = tuple(kept["probabilities"])
            reservation = LedgerReservation(ledger, plan, self.name, covered=self._covered(ledger, state))
            horizon = reservation.horizon(plan.steps)
            sanitizer = build_sanitizer(plan)
            pace = _Pace(ledger, saving)
            blocks = train(plan, state, records, sanitizer, reservation, probabilities, horizon=horizon)
            for block in blocks:
                spent = pace.epsilon(final=block.step == horizon)
                self._note(block, spent)
                if pace.picture_due(block.step):
                    self._picture(state)
                stop = watch is not None and watch(Progress(block, spent)) and block.step < horizon
                if stop or pace.checkpoint_due():
                    state.save(self._checkpoint, kept)
                if stop:
                    return False
            state.save(self._checkpoint, kept)
            self._release(state, probabilities, ledger, dataset.class_names)
        return True

    # ---- the ledger

    def _open_ledger(self) -> Ledger:
        plan = self.plan
        shared = self.settings["ledger"] and self.ledger_path.exists()
        budget = None if shared else Budget(plan.budget_epsilon, plan.delta)
        return Ledger.open(self.ledger_path, _epsilon_by(plan), budget=budget)

    def _covered(self, ledger: Ledger, state: TrainingState) -> int:
        """Steps of the run that need no further charge: none that secure noise would draw anew."""
        if self.plan.seed is None:
            return state.step
        charge = self.plan.step_charge
        spends = [s for s in ledger.statement().spends if s.run == self.name and s.charge == charge]
        return sum(spend.steps for spend in spends)

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
        released = release_label_frequencies(
            labels, self.plan.facts.classes, mechanism, state.noise, groups=groups
        )
        return released.probabilities

    # ---- what is written

    @property
    def _checkpoint(self) -> Path:
        return self.folder / "checkpoint.safetensors"

    def _note(self, block: Block, spent: float) -> None:
        line = {
            "step": block.step,
            "epsilon": None if math.isinf(spent) else spent,
            "steps_per_second": round(block.steps / max(block.seconds, 1e-9), 2),
            "gradient_norm": block.gradient_norm,
        }
        with open(self.folder / "statistics.jsonl", "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def _picture(self, state: TrainingState) -> None:
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
        grid_picture(images, None if labels is None else labels.numpy(), path)

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


class _Pace:
    """When to look at the ledger, to write a checkpoint, to draw a picture: rarely enough to cost little."""

    def __init__(self, ledger: Ledger, saving: Saving) -> None:
        self._ledger = ledger
        self._saving = saving
        self._saved = time.monotonic()
        self._spent = 0.0
        self._next_look = 0.0
        self._pictures = 0

    def epsilon(self, *, final: bool) -> float:
        """ε of all that is on record; computed anew when that takes a small part of the time."""
        now = time.monotonic()
        if final or now >= self._next_look:
            self._spent = self._ledger.epsilon()
            self._next_look = now + 30 * (time.monotonic() - now)
        return self._spent

    def checkpoint_due(self) -> bool:
        now = time.monotonic()
        due = now - self._saved >= self._saving.checkpoint_seconds
        if due:
            self._saved = now
        return due

    def picture_due(self, step: int) -> bool:
        if not self._saving.picture_steps:
            return False
        pictures = step // self._saving.picture_steps
        due, self._pictures = pictures > self._pictures, pictures
        return due


@contextmanager
def _buffers_kept(module: torch.nn.Module) -> Iterator[None]:
    """Within it a network in training mode uses the statistics of its batch; its own stay as they were."""
    kept = {name: value.clone() for name, value in module.named_buffers()}
    try:
        yield
    finally:
        for name, value in module.named_buffers():
            value.copy_(kept[name])


def statement_of(plan: Plan, spent: Statement, noise: str) -> PrivacyStatement:
    """What a run guarantees: everything on its ledger, other runs on the same data included."""
    total = spent.total()
    return PrivacyStatement(
        epsilon=epsilon(total, spent.budget.delta, plan.accountant) if plan.private else math.inf,
        delta=spent.budget.delta,
        adjacency=total.adjacency.value,
        unit=plan.facts.unit,
        accountant=plan.accountant,
        charges=tuple(charge.to_json() for charge in _merged(spent)),
        ledger_digest=spent.digest,
        mechanism=plan.recipe.privacy.mechanism,
        published_epsilon=plan.published_epsilon,
        noise=noise,
        seeded=plan.seed is not None,
        notes=(),
    )


def _merged(spent: Statement) -> list[Charge]:
    """One charge for all spends of a kind, so that a statement stays short."""
    steps: dict[str, int] = {}
    for spend in spent.spends:
        key = json.dumps(spend.charge.to_json(), sort_keys=True)
        steps[key] = steps.get(key, 0) + spend.steps
    single = {key: Charge.from_json(json.loads(key)) for key in steps}
    return [
        Charge(dp.SelfComposedDpEvent(single[key].event, n), single[key].adjacency)
        for key, n in steps.items()
    ]


def _epsilon_by(plan: Plan) -> EpsilonOf:
    return lambda charge, delta: epsilon(charge, delta, plan.accountant)


def _check_room(path: Path, plan: Plan) -> None:
    """Refuse a run that a shared ledger cannot pay for, before anything is spent."""
    with Ledger.open(path, _epsilon_by(plan)) as ledger:
        allowed = ledger.affordable(plan.step_charge, at_most=plan.steps)
        if allowed < plan.steps:
            raise TrainingError(
                f"the ledger {path} has room for {allowed} of the {plan.steps} steps; "
                f"its budget is epsilon {ledger.budget.epsilon:g} and {ledger.epsilon():.3g} is spent"
            )


def _check_same(dataset: Dataset, plan: Plan) -> None:
    found, planned = facts_of(dataset), plan.facts
    for what, here, there in (
        ("images of shape", found.image_shape, planned.image_shape),
        ("classes:", found.classes, planned.classes),
        ("persons named:", found.grouped, planned.grouped),
    ):
        if here != there:
            raise TrainingError(f"these are not the data of the run: {what} {here}, not {there}")
