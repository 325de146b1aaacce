"""Record and replay of whole trainings: one on the data, then one on each neighbour, with all noise frozen.

The trainings are the real ones, with plan, ledger, loop, barrier, checkpoints and release, each in a folder
of its own. What is noised may move by no more than the sensitivity that is claimed of it, the ledger must
have been charged for just the noise that was added, and every other number, file, warning and line of the two
runs must be the same. The number of records is declared, so that the plan is the same with a record more.
"""

from __future__ import annotations

import io
import json
import logging
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from safetensors import safe_open

from dpsinkhorn.data import DataError, Dataset
from dpsinkhorn.errors import TrainingError
from dpsinkhorn.privacy import SeededNoise, read_ledger
from dpsinkhorn.privacy.audit import Outcome, Recorder, Replayer, Shared
from dpsinkhorn.privacy.noise import ObservedNoise
from dpsinkhorn.training.plan import Plan
from dpsinkhorn.training.run import Run
from dpsinkhorn.training.watching import Progress, Saving

_OWN = ("epsilon", "steps_per_second")  # entries of the statistics that go by the clock
_MOST_LINES = 4  # of differences that are told of one neighbour

Seen: TypeAlias = dict[str, Any]


@dataclass(frozen=True)
class Neighbour:
    """A data set that differs from the audited one in one unit of privacy."""

    name: str  # what it is, in words
    # gives the data; raises `DataError` where they are refused. Records of the audited data come first, in
    # their order, and those of the unit more behind them
    read: Callable[[], Dataset]


class TrainingReplay:
    """A training that was recorded, to be replayed on neighbours of its data.

    Args:
        plan: a seeded one, with a declared number of records.
        data: what it is for.
    """

    def __init__(self, plan: Plan, data: Dataset) -> None:
        if plan.seed is None or plan.facts.size_is_public:
            raise ValueError("a replay needs a seeded plan, and a declared number of records")
        self._plan, self._data = plan, data
        recorder = Recorder(SeededNoise(plan.seed))
        with _run_of(plan) as run:
            self._seen = _trained(run, data, recorder)
            charge = read_ledger(run.ledger_path).total()
        self._recording = recorder.recording
        self.own = Outcome("the data themselves", differences=self._recording.differences(charge))
        """Whether what was charged is what was noised."""

    def against(self, neighbours: Iterable[Neighbour]) -> Iterator[Outcome]:
        for turn, neighbour in enumerate(neighbours):
            yield self._against(neighbour, turn)

    def _against(self, neighbour: Neighbour, turn: int) -> Outcome:
        try:
            data = neighbour.read()
        except DataError:
            return Outcome(neighbour.name, refused=True)
        assert self._plan.seed is not None
        shared = _shared(self._data, data)
        replayer = Replayer(self._recording, SeededNoise(self._plan.seed), shared, turn)

        def train() -> tuple[str, ...]:
            with _run_of(self._plan) as run:
                return _differences(self._seen, _trained(run, data, replayer))

        return replayer.outcome(neighbour.name, train, TrainingError)


def _shared(data: Dataset, other: Dataset) -> Shared:
    """Which units both have. Records of the first come first in the other, as its reader has them."""
    common = min(data.records, other.records)
    if data.groups is None or other.groups is None:
        places = np.where(np.arange(data.units) < common, np.arange(data.units), -1)
    else:
        places = np.full(data.units, -1, dtype=np.int64)
        places[data.groups[:common]] = other.groups[:common]
    return Shared(torch.from_numpy(places), other.units)


@contextmanager
def _run_of(plan: Plan) -> Iterator[Run]:
    """A new run in a folder that is gone afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        yield Run.create(Path(folder) / "run", plan)


def _trained(run: Run, data: Dataset, noise: ObservedNoise) -> Seen:
    """Train, and return all that anyone could see of it, by its name."""
    progress: list[str] = []

    def watch(now: Progress) -> bool:
        block = now.block
        progress.append(f"{block.step} of {block.horizon}, {block.steps} more, {block.gradient_norm!r}")
        return False

    # One picture, at a step that is settled beforehand: when further ones are drawn goes by the clock.
    saving = Saving(checkpoint_seconds=float("inf"), picture_steps=max(2, run.plan.steps - 1))
    with _heard() as heard:
        run.train(data, saving=saving, watch=watch, noise=noise)
    return {**heard, "progress": progress, **_left_behind(run)}


@contextmanager
def _heard() -> Iterator[Seen]:
    """Everything that is printed, logged or warned of."""
    heard: Seen = {}
    log, out, err = (io.StringIO() for _ in range(3))
    handler = logging.StreamHandler(log)
    logging.getLogger().addHandler(handler)
    try:
        with warnings.catch_warnings(record=True) as warned, redirect_stdout(out), redirect_stderr(err):
            warnings.simplefilter("always")
            yield heard
    finally:
        logging.getLogger().removeHandler(handler)
    heard["warnings"] = [str(each.message) for each in warned]
    heard["log"], heard["output"], heard["errors"] = log.getvalue(), out.getvalue(), err.getvalue()


def _left_behind(run: Run) -> Seen:
    """The files of a run, less what goes by the clock and its name, which no two runs share."""
    found: Seen = {}
    digest = read_ledger(run.ledger_path).digest  # of the run's name too
    for path in sorted(path for path in run.folder.rglob("*") if path.is_file()):
        name = path.relative_to(run.folder).as_posix()
        if path.name == "checkpoint.safetensors":
            found[name] = _checkpoint(path)
        elif path.name == "ledger.jsonl":
            statement = read_ledger(path)
            found[name] = [(spend.charge, spend.steps) for spend in statement.spends], statement.budget
        elif path.name == "statistics.jsonl":
            lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
            found[name] = [{key: line[key] for key in line if key not in _OWN} for line in lines]
        elif path.name.startswith("ledger.jsonl"):
            found[name] = None  # its head, which holds the digest, and its lock
        else:
            found[name] = path.read_bytes().replace(run.name.encode(), b"").replace(digest.encode(), b"")
    return found


def _checkpoint(path: Path) -> Seen:
    with safe_open(path, framework="pt") as file:
        state = json.loads(file.metadata()["state"])
        names = list(file.keys())
        tensors = {name: file.get_tensor(name).numpy().tobytes() for name in names}
    extra = {key: value for key, value in state["extra"].items() if key not in ("run", "ledger")}
    return {"state": {**state, "extra": extra}, "tensors": tensors}


def _differences(first: Seen, second: Seen) -> tuple[str, ...]:
    names = [name for name in {**first, **second} if first.get(name) != second.get(name)]
    missing = [name for name in names if name not in first or name not in second]
    lines = [
        f"{name} is there for one of them only" if name in missing else f"{name} differs" for name in names
    ]
    return (
        *lines[:_MOST_LINES],
        *([f"{len(lines) - _MOST_LINES} more differ"] if len(lines) > _MOST_LINES else []),
    )


# ---- neighbours: the same records, and one unit more that is the worst of its kind

Images: TypeAlias = npt.NDArray[Any]

_MANY = 40  # records of one person
_MOST_CLASSES = 10  # that are tried in turn


def first_units(data: Dataset, records: int) -> Dataset:
    """The first records, about so many, of whole persons, and not the last: in float32, which holds any.

    With a record that was left out they are a neighbour too.
    """
    groups = data.groups
    if groups is None:
        return some_rows(data, np.arange(min(records, data.records - 1)))
    order = np.argsort(groups, kind="stable")
    persons = groups[order][min(records, data.records - 1)]
    return some_rows(data, np.flatnonzero(groups < persons))


def neighbours_by_class(data: Dataset) -> Iterator[Neighbour]:
    """A white record of each class in turn, and of none."""
    white = _kinds(data)["white"]
    for label in (*range(min(data.classes, _MOST_CLASSES)), -1, data.classes):
        words = f"class {label}" if 0 <= label < data.classes else f"the label {label}, which is no class"
        yield _one_more(data, f"a white record of {words}", white, [label])


def worst_neighbours(data: Dataset, original: Dataset) -> Iterator[Neighbour]:
    """Records, and persons where the data name them, that are far from all others, or like them.

    `original` are the data that the first units were taken of.
    """
    labels = [0] if data.labels is None else data.labels[:1].tolist()
    for name, images in _kinds(data).items():
        yield _one_more(data, f"a record more: {name}", images, labels)
    if data.labels is not None:
        yield from neighbours_by_class(data)
    units = np.arange(original.records) if original.groups is None else original.groups
    last = some_rows(original, np.flatnonzero(units == data.units))
    found = [] if last.labels is None else last.labels.tolist()
    yield _one_more(data, "a unit of the data that had been left out", last.images, found)
    if data.groups is None:
        return
    every = np.arange(_MANY) % max(1, data.classes)
    for name in ("white", "black", "the negative of a record", "a pixel that is no number"):
        images = np.repeat(_kinds(data)[name], _MANY, axis=0)
        yield _one_more(data, f"a person with {_MANY} records: {name}", images, every.tolist())
        alike = [labels[0]] * _MANY
        yield _one_more(data, f"a person with {_MANY} records of one class: {name}", images, alike)


def some_rows(data: Dataset, rows: npt.NDArray[np.int64]) -> Dataset:
    return replace(
        data,
        images=np.asarray(data.images[rows], dtype=np.float32),
        labels=None if data.labels is None else data.labels[rows],
        groups=None if data.groups is None else data.groups[rows],
    )


def _kinds(data: Dataset) -> dict[str, Images]:
    """Images that are far from all others, or like one of them, or that no reader should let through."""
    low, high = data.value_range
    first = data.images[:1]
    board = np.indices(first.shape[1:3]).sum(0) % 2
    random = np.random.default_rng(0).random(first.shape)
    one = np.full_like(first, low)
    one[:, 0, 0] = high
    found = {
        "white": np.full_like(first, high),
        "black": np.full_like(first, low),
        "grey": np.full_like(first, (low + high) / 2),
        "a chequerboard": low + (high - low) * np.broadcast_to(board[None, :, :, None], first.shape),
        "random pixels": low + (high - low) * random,
        "black but for one pixel": one,
        "the negative of a record": low + high - first,
        "a copy of a record": first,
        "pixels far beyond their range": np.full_like(first, 1e30),
        "infinite pixels": np.full_like(first, -np.inf),
        "a pixel that is no number": np.where(one == high, np.nan, first),
    }
    return {name: np.asarray(images, dtype=np.float32) for name, images in found.items()}


def _one_more(data: Dataset, name: str, images: Images, labels: list[int]) -> Neighbour:
    """The data and one unit more, with these records: whatever they are, nothing checks them here."""
    return Neighbour(name, partial(joined, data, images, labels))


def joined(data: Dataset, images: Images, labels: list[int]) -> Dataset:
    """Return the data and one unit more behind them."""
    person = np.full(len(images), data.units)
    return replace(
        data,
        images=np.concatenate([data.images, images]),
        labels=None if data.labels is None else np.concatenate([data.labels, np.array(labels)]),
        groups=None if data.groups is None else np.concatenate([data.groups, person]),
    )
