"""What is killed: trainings, releases being written, processes that share a ledger. See `kills.py`."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import dp_accounting as dp
import torch._dynamo  # noqa: F401  which optimizers load, taking a second: once, not in every life

from dpsinkhorn.privacy import Budget, Charge, Ledger, epsilon, journal, read_ledger
from dpsinkhorn.privacy.events import flatten
from dpsinkhorn.privacy.journal import JournalLockedError
from dpsinkhorn.release import _files, copy_release, load, write_release
from dpsinkhorn.release import folder as release_folder
from dpsinkhorn.training import Run, Saving, loop, records, state
from dpsinkhorn.training import run as run_module
from dpsinkhorn.training.plan import Plan
from dpsinkhorn.training.state import read_extra
from support.kills import Death, Tally, life
from support.releases import CONFIGS, statement, trained
from support.runs import bits, header, tiny_data, tiny_plan

STEPS = 60
SAVING = Saving(checkpoint_seconds=0.0, picture_steps=7)
MOST_A_SPEND = 9


Plant = Callable[[], None]
"""Puts a defect into the code, to see that a campaign notices."""


def _nothing() -> None: ...


@dataclass(frozen=True)
class _Kind:
    """A training to be killed."""

    mechanism: str
    seed: int | None
    labels: str
    shared: bool
    """Whether its ledger is one that other runs may share."""


KINDS = (
    _Kind("record", None, "uniform", False),
    _Kind("record", 3, "released", False),
    _Kind("batch", None, "released", True),
    _Kind("record", 3, "uniform", True),
    _Kind("image", None, "uniform", False),
    _Kind("batch", 3, "uniform", False),
    _Kind("parameter", None, "uniform", True),
    _Kind("image", 3, "released", False),
    _Kind("record", None, "released", True),
    _Kind("parameter", 3, "uniform", False),
)


def trainings(
    folder: Path, kills: int, seed: int, kinds: int = 10, plant: Plant = _nothing
) -> dict[str, Any]:
    """Kill trainings, resume them, kill them again, until they are done; then the next."""
    plant()
    rng, data = random.Random(f"trainings {seed}"), tiny_data()
    tally = Tally("drawn", "furthest", "counted", "promised")
    found: Counter[str] = Counter()
    plans = [
        tiny_plan(data, kind.mechanism, seed=kind.seed, labels=kind.labels, steps=STEPS)
        for kind in KINDS[:kinds]
    ]
    for number, plan in enumerate(plans):
        if plan.seed is not None:
            whole = partial(_train, folder / f"whole-{number}", plan, data, None, None, 0)
            assert life(whole) == (False, "")
    number = 0
    while found["kills"] < kills:
        which = number % len(plans)
        place, plan = folder / str(number), plans[which]
        place.mkdir()
        tally.clear()
        ledger = place / "shared.jsonl" if KINDS[which].shared else None
        _until_done(place / "run", plan, data, ledger, tally, rng, found)
        if plan.seed is not None:
            assert bits(place / "run") == bits(folder / f"whole-{which}"), f"other bits: {KINDS[which]}"
        found["seeded runs" if plan.seed is not None else "secure runs"] += 1
        number += 1
    return dict(found)


def _until_done(
    folder: Path,
    plan: Plan,
    data: Any,
    ledger: Path | None,
    tally: Tally,
    rng: random.Random,
    found: Counter[str],
) -> None:
    while True:
        begun = (folder / "run.json").exists()
        death = Death(rng, seconds=0.15, calls=150 if begun or rng.random() < 0.4 else 8)
        work = partial(_train, folder, plan, data, ledger, tally, rng.randrange(2**32))
        killed, error = life(work, death)
        found["kills"] += killed
        _check_run(folder, plan, ledger, tally, found)
        if error:
            # the one refusal that may come: every step was paid for, and each was lost
            assert plan.seed is None, error
            assert "allows no step, and none is kept" in error, error
            found["nothing kept"] += 1
            return
        if not killed:
            assert (folder / "release").is_dir()
            return


def _train(
    folder: Path, plan: Plan, data: Any, ledger: Path | None, tally: Tally | None, choices: int
) -> None:
    """One life of a run, from where it stands; what it does is counted as it does it."""
    rng = random.Random(choices)
    if tally is not None:
        _count(tally)
        if rng.random() < 0.7:  # else the blocks that time brings about
            loop._next_block = lambda _steps, _seconds: rng.randint(1, 5)
    run = Run.resume(folder) if (folder / "run.json").exists() else Run.create(folder, plan, ledger=ledger)
    if not run.done:  # a kill may come between the release and the end of the process
        assert run.train(data, saving=SAVING)


def _count(tally: Tally) -> None:
    """Note what is promised as soon as it is, and what is drawn from private data just before."""
    real_draw, real_spend = records.Records.draw, Ledger.spend
    real_counts, real_train = run_module.release_label_frequencies, run_module.train

    def draw(self: records.Records, *arguments: Any) -> Any:
        tally["drawn"] += 1
        tally["furthest"] = max(tally["furthest"], at.step + 1)
        return real_draw(self, *arguments)

    def spend(self: Ledger, charge: Charge, *, run: str, steps: int = 1) -> Any:
        done = real_spend(self, charge, run=run, steps=steps)
        tally["promised"] += steps
        return done

    def counts(*arguments: Any, **options: Any) -> Any:
        tally["counted"] += 1
        return real_counts(*arguments, **options)

    def train(plan: Plan, state: Any, *arguments: Any, **options: Any) -> Any:
        nonlocal at
        at = state
        return real_train(plan, state, *arguments, **options)

    at: Any = None
    records.Records.draw = draw  # type: ignore[method-assign]
    Ledger.spend = spend  # type: ignore[method-assign]
    run_module.release_label_frequencies = counts
    run_module.train = train


def _check_run(folder: Path, plan: Plan, ledger: Path | None, tally: Tally, found: Counter[str]) -> None:
    """What holds after a kill at any moment."""
    path = ledger or folder / "ledger.jsonl"
    begun = path.exists() or path.with_name(path.name + ".head").exists()
    spends = read_ledger(path).spends if begun else ()
    steps = sum(spend.steps for spend in spends if spend.charge == plan.step_charge)
    count = plan.count_mechanism
    counts = 0 if count is None else sum(spend.charge == count.charge() for spend in spends)

    # what was used is on the ledger: of a seeded run each step once, since a replay shows nothing new
    used = tally["furthest"] if plan.seed is not None else tally["drawn"]
    assert steps >= used, f"{steps} steps on the ledger, {used} used"
    assert counts >= (min(1, tally["counted"]) if plan.seed is not None else tally["counted"])
    # nothing promised is lost, and a kill adds one unfinished spend at most
    assert tally["promised"] <= steps + counts
    spent = epsilon(read_ledger(path).total(), plan.delta, plan.accountant) if spends else 0.0
    assert spent <= plan.budget_epsilon
    found["kills in mid-spend"] += tally["promised"] < steps + counts
    tally["promised"] = steps + counts

    # whole files only
    if (folder / "checkpoint.safetensors").exists():
        assert read_extra(folder / "checkpoint.safetensors")["run"]
        assert header(folder / "checkpoint.safetensors")["step"] <= used
    if (folder / "run.json").exists():
        json.loads((folder / "run.json").read_text())
    for picture in (folder / "samples").glob("step-*.png"):
        assert picture.read_bytes().endswith(b"IEND\xaeB`\x82"), picture
    if (folder / "release").exists():
        privacy = load(folder / "release").privacy
        assert privacy.ledger_digest == read_ledger(path).digest
        assert privacy.epsilon >= spent * (1 - 1e-12)


def releases(folder: Path, kills: int, seed: int, plant: Plant = _nothing) -> dict[str, Any]:
    """Kill processes that write a release, replace one, or copy one: at its path is a whole one, or none."""
    plant()
    rng, generator = random.Random(f"releases {seed}"), trained(CONFIGS["mlp"])
    found: Counter[str] = Counter()
    exchange, no_exchange = _files._exchange, lambda *_: False
    original = folder / "original"
    _write(original, generator, "original", False)
    number = 0
    while found["kills"] < kills:
        place = folder / f"{number}" / "release"
        place.parent.mkdir()
        there: str | None = None
        replaces, copies = number % 3 != 0, number % 3 == 2
        _files._exchange = no_exchange if number % 6 == 4 else exchange  # as on other systems
        for turn in range(20):
            title = f"number {turn}"
            if copies and turn % 2:
                title, work = "original", partial(copy_release, original, place, overwrite=True)
            else:
                work = partial(_write, place, generator, title, replaces)
            killed, error = life(work, Death(rng, seconds=0.06, calls=45))
            found["kills"] += killed
            assert not error, error
            if place.exists():
                title_there = load(place).title
                assert title_there in (there, title)
                found["kills after the name was given"] += killed and title_there == title != there
                there = title_there
            elif there is not None:
                (aside,) = place.parent.glob(".release.*.old/release")
                assert killed
                assert _files._exchange is no_exchange
                assert load(aside).title == there
                aside.rename(place)
                found["old releases set aside, whole"] += 1
            names = {path.name for path in place.parent.iterdir()} - {"release"}
            assert all(name.startswith(".release.") for name in names)  # drafts, which nobody takes for one
            if not replaces and there is not None:
                break
        number += 1
    found["releases"] = number
    return dict(found)


def _write(place: Path, generator: Any, title: str, overwrite: bool) -> None:
    write_release(
        place,
        generator,
        label_probabilities=None,
        privacy=statement(),
        releasable=True,
        title=title,
        overwrite=overwrite,
    )


def leaves(charge: Charge, _delta: float) -> float:
    """An accountant that counts steps: fast, and known."""
    return float(sum(part.count for part in flatten(charge.event)))


STEP = Charge(dp.PoissonSampledDpEvent(0.1, dp.GaussianDpEvent(2.0)))


def shared_ledgers(folder: Path, kills: int, seed: int, plant: Plant = _nothing) -> dict[str, Any]:
    """Processes that spend from one ledger in turn, to the end of its budget, killed one after the other."""
    plant()
    rng = random.Random(f"ledgers {seed}")
    found: Counter[str] = Counter()
    budget = Budget(1000.0, 0.0)
    number = 0
    while found["kills"] < kills:
        path = folder / f"{number}" / "ledger.jsonl"
        tallies = [Tally("promised", "refused") for _ in range(3)]
        children: dict[int, int] = {}
        killed_here = 0
        while True:
            for place in range(3):
                if place not in children.values() and not any(tally["refused"] for tally in tallies):
                    child = os.fork()
                    if child == 0:
                        try:
                            _spend_all(path, budget, tallies[place], rng.randrange(2**32) + place)
                        finally:
                            os._exit(0)
                    children[child] = place
            if not children:
                break
            time.sleep(rng.uniform(0, 0.04))
            victim = rng.choice(list(children))
            ended = os.waitpid(victim, os.WNOHANG)[0]
            if not ended:
                os.kill(victim, signal.SIGKILL)
                _, status = os.waitpid(victim, 0)
                killed_here += os.WIFSIGNALED(status)
            del children[victim]
            if path.exists():
                promised = sum(tally["promised"] for tally in tallies)
                on_record = sum(spend.steps for spend in read_ledger(path).spends)
                assert promised <= on_record <= 1000
        promised = sum(tally["promised"] for tally in tallies)
        on_record = sum(spend.steps for spend in read_ledger(path).spends)
        assert promised <= on_record <= promised + MOST_A_SPEND * killed_here
        assert on_record == 1000, "the budget can be used up, exactly"
        found["kills"] += killed_here
        found["steps"] += on_record
        found["steps begun, and counted"] += on_record - promised
        number += 1
    found["ledgers"] = number
    return dict(found)


def _spend_all(path: Path, budget: Budget, tally: Tally, choices: int) -> None:
    """Spend a little, let others have their turn, and again; to the end of the budget."""
    rng = random.Random(choices)
    while True:
        try:
            with Ledger.open(path, leaves, budget=budget) as ledger:
                for _ in range(rng.randint(1, 4)):
                    steps = ledger.affordable(STEP, at_most=rng.randint(1, MOST_A_SPEND))
                    if not steps:
                        tally["refused"] = 1
                        return
                    ledger.spend(STEP, run=str(choices), steps=steps)
                    tally["promised"] += steps
        except JournalLockedError:  # noqa: PERF203
            time.sleep(rng.uniform(0, 0.002))


# ---- defects, to see that the campaigns notice


def ledger_afterwards() -> None:
    """Steps are granted at once, and charged when the next are asked for."""

    def reserve(self: Any, step: int, wanted: int) -> int:
        owed = getattr(self, "owed", 0)
        if owed:
            self._ledger.spend(self._charge, run=self._run, steps=owed)
        self.owed = int(self._affordable(wanted))
        self._covered = step + self.owed
        return self.owed

    loop.LedgerReservation.reserve = reserve  # type: ignore[method-assign]


def checkpoints_in_place() -> None:
    """Checkpoints are written over the old ones."""
    state.write_atomically = lambda path, content: path.write_bytes(content)


def releases_in_place() -> None:
    """A release is written where it will be read."""

    @contextmanager
    def new_folder(target: Path, **_: Any) -> Iterator[Path]:
        if target.exists():
            shutil.rmtree(target)
        target.mkdir()
        yield target

    release_folder.new_folder = new_folder


def ledger_without_a_head() -> None:
    """The head says `written` from the start: a kill before the line is there cannot be mended."""
    real = journal._write_head
    journal._write_head = lambda path, entry, *, pending: real(
        path, entry, pending=pending and not entry.index
    )
