"""Processes killed while they write a release, or spend from a ledger that they share. See `kills.py`."""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import dp_accounting as dp

from dpsinkhorn import files
from dpsinkhorn.privacy import Budget, Charge, Ledger, journal, read_ledger
from dpsinkhorn.privacy.charges import flatten
from dpsinkhorn.privacy.journal import JournalLockedError
from dpsinkhorn.release import About, ReleaseError, load, write_release
from dpsinkhorn.release import folder as release_folder
from support.kills import Death, Plant, Tally, life, plant_nothing
from support.releases import CONFIGS, statement, trained

MOST_A_SPEND = 9


def releases(folder: Path, kills: int, seed: int, plant: Plant = plant_nothing) -> dict[str, Any]:
    """Kill processes that write a release or replace one: at its path is a whole one, or none."""
    plant()
    rng, generator = random.Random(f"releases {seed}"), trained(CONFIGS["mlp"])
    found: Counter[str] = Counter()
    exchange, no_exchange = files._exchange, lambda *_: False
    number = 0
    while found["kills"] < kills:
        place = folder / f"{number}" / "release"
        place.parent.mkdir()
        there: str | None = None
        replaces = number % 3 != 0
        files._exchange = no_exchange if number % 6 == 4 else exchange  # as on other systems
        for turn in range(20):
            title = f"number {turn}"
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
                assert killed
                assert files._exchange is no_exchange
                # beside it may lie what is left of one before, whose removal was killed
                aside = next(path for path in _set_aside(place) if _title(path) == there)
                aside.rename(place)
                found["old releases set aside, whole"] += 1
            names = {path.name for path in place.parent.iterdir()} - {"release"}
            assert all(name.startswith(".release.") for name in names)  # drafts, which nobody takes for one
            if not replaces and there is not None:
                break
        number += 1
    found["releases"] = number
    return dict(found)


def _set_aside(place: Path) -> list[Path]:
    return list(place.parent.glob(f".{place.name}.*.old/{place.name}"))


def _title(place: Path) -> str | None:
    """That of a whole release; none where files are missing."""
    try:
        return load(place).title
    except ReleaseError:
        return None


def _write(place: Path, generator: Any, title: str, overwrite: bool) -> None:
    write_release(
        place,
        generator,
        label_probabilities=None,
        privacy=statement(),
        releasable=True,
        about=About(title=title),
        overwrite=overwrite,
    )


def leaves(charge: Charge, _delta: float) -> float:
    """An accountant that counts steps: fast, and known."""
    return float(sum(part.count for part in flatten(charge.event)))


STEP = Charge(dp.PoissonSampledDpEvent(0.1, dp.GaussianDpEvent(2.0)))


def shared_ledgers(folder: Path, kills: int, seed: int, plant: Plant = plant_nothing) -> dict[str, Any]:
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


def releases_in_place() -> None:
    """A release is written where it will be read."""

    @contextmanager
    def new_folder(target: Path, *_: Any, **__: Any) -> Iterator[Path]:
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
