"""Disks that fill up or fail, clocks that go back, processes at once: see `kills.py` for how they are run."""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch._dynamo  # noqa: F401  which optimizers load, taking a second: once, not in every life

from dpsinkhorn.privacy import Budget, Ledger, epsilon, read_ledger
from dpsinkhorn.privacy.journal import JournalLockedError
from dpsinkhorn.release import ReleaseError
from dpsinkhorn.training import Run, Saving, TrainingError, trainer
from dpsinkhorn.training.plan import Plan
from dpsinkhorn.training.state import TrainingState
from support import disks
from support.kill_campaigns import KINDS, check_run, count_what_is_used
from support.kills import Tally, at_once, life
from support.releases import write_small_release
from support.runs import bits, header, tiny_data, tiny_plan

STEPS = 40
SAVING = Saving(checkpoint_seconds=0.0, picture_steps=7)


def _small_blocks() -> None:
    rng = random.Random(0)
    trainer._next_block = lambda _steps, _seconds: rng.randint(1, 5)


def _new_tally() -> Tally:
    return Tally("drawn", "furthest", "counted", "promised")


# ---- disks


def full_disks(folder: Path, rounds: int, seed: int) -> dict[str, Any]:
    """Trainings on a disk that fills up at a random moment: one line; with room again they go on."""
    return _with_a_disk(folder, partial(_fill, rounds=rounds, seed=seed))


def failing_disks(folder: Path, rounds: int, seed: int) -> dict[str, Any]:
    """Trainings on a disk that nobody may write to any more when they are resumed."""
    return _with_a_disk(folder, partial(_fail, rounds=rounds, seed=seed))


def _with_a_disk(folder: Path, work: Callable[[Path, Path, Counter[str]], None]) -> dict[str, Any]:
    disk, notes = folder / "disk", folder / "notes"
    disk.mkdir()

    def on_it() -> None:
        try:
            disks.mount(disk, 512 * 1024)
        except (disks.NoDiskError, OSError) as error:
            notes.write_text(f"skipped: {error}")
            return
        found: Counter[str] = Counter()
        work(disk, folder, found)
        notes.write_text("\n".join(f"{count} {name}" for name, count in found.items()))

    killed, error = life(on_it)
    assert not killed
    assert not error, error
    text = notes.read_text()
    if text.startswith("skipped"):
        return {"skipped": text}
    return {name: int(count) for count, _, name in (line.partition(" ") for line in text.splitlines())}


def _fill(disk: Path, folder: Path, found: Counter[str], *, rounds: int, seed: int) -> None:
    rng, data = random.Random(f"full {seed}"), tiny_data()
    tally = _new_tally()
    _small_blocks()
    wholes: dict[int, dict[str, Any]] = {}
    count_what_is_used(tally)
    for number in range(rounds):
        kind = KINDS[number % 4]
        plan = tiny_plan(data, kind.mechanism, seed=kind.seed, labels=kind.labels, steps=STEPS)
        if plan.seed is not None and number % 4 not in wholes:
            run = Run.create(folder / f"whole-{number}", plan)
            assert run.train(data, saving=SAVING)
            wholes[number % 4] = bits(run.folder)
        tally.clear()
        place, filler = disk / str(number), disk / "filler"
        room = rng.choice((rng.randrange(12), rng.randrange(60))) * 1024
        _fill_up(filler, room)
        for _ in range(100):
            said = _refusal(partial(_go_on, place, plan, data))
            check_run(place, plan, None, tally, found)
            if not said:
                break
            assert "No space left on device" in said
            assert not (place / "release").exists()
            found["refusals in one line"] += 1
            room += rng.randrange(1, 8) * 1024  # somebody deletes a little, then more
            _fill_up(filler, room)
        else:
            raise AssertionError("never done")
        if plan.seed is not None:
            assert bits(place) == wholes[number % 4]
        found["trainings"] += 1
        filler.unlink(missing_ok=True)
        for path in sorted(place.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()


def _go_on(place: Path, plan: Plan, data: Any) -> None:
    run = Run.resume(place) if (place / "run.json").exists() else Run.create(place, plan)
    assert run.train(data, saving=SAVING)


def _refusal(work: Callable[[], Any]) -> str:
    """What a clean error says, in one line; '' where there is none."""
    try:
        work()
    except (TrainingError, ReleaseError) as error:
        said = str(error)
    else:
        return ""
    assert said
    assert "\n" not in said
    return said


def _fill_up(filler: Path, room: int) -> None:
    """Leave this many bytes of the disk, or what there is."""
    filler.unlink(missing_ok=True)
    state = os.statvfs(filler.parent)
    size = max(0, state.f_bavail * state.f_frsize - room)
    if size:
        filler.write_bytes(bytes(size))


def _fail(disk: Path, folder: Path, found: Counter[str], *, rounds: int, seed: int) -> None:
    rng, data = random.Random(f"fail {seed}"), tiny_data()
    tally = _new_tally()
    _small_blocks()
    plan = tiny_plan(data, steps=STEPS)
    whole = Run.create(folder / "whole", plan)
    assert whole.train(data, saving=SAVING)
    count_what_is_used(tally)
    for number in range(rounds):
        tally.clear()
        place = disk / str(number)
        last = rng.randrange(1, STEPS - 5)
        assert not Run.create(place, plan).train(
            data, saving=SAVING, watch=lambda now, last=last: now.block.step >= last
        )
        disks.set_read_only(disk, True)
        assert "Read-only file system" in _refusal(partial(_go_on, place, plan, data))
        assert "Read-only file system" in _refusal(lambda: Run.create(disk / "another", plan))
        assert "Read-only file system" in _refusal(lambda: write_small_release(disk / "release"))
        found["refusals in one line"] += 3
        disks.set_read_only(disk, False)
        check_run(place, plan, None, tally, found)
        assert Run.resume(place).train(data, saving=SAVING)
        check_run(place, plan, None, tally, found)
        assert bits(place) == bits(whole.folder)
        found["trainings"] += 1


def read_only_folders(folder: Path) -> dict[str, Any]:
    """Folders that this user may not write into: one line each. Root becomes nobody first."""
    data, found = tiny_data(), Counter[str]()
    plan = tiny_plan(data, seed=None)
    begun, locked = folder / "begun", folder / "locked"
    locked.mkdir()

    def begin() -> None:
        Run.create(begun, plan).train(data, watch=lambda _: True)
        write_small_release(folder / "warm")

    assert life(begin) == (False, "")
    if os.geteuid() == 0:
        folder.chmod(0o777)
        _let_others_through(folder)
    Ledger.open(locked / "ledger.jsonl", epsilon, budget=Budget(1e3, plan.delta)).close()
    for path in (begun, locked):
        path.chmod(0o555)
    attempts: dict[str, Callable[[], Any]] = {
        "resuming": lambda: Run.resume(begun).train(data),
        "beginning": lambda: Run.create(locked / "run", plan),
        "a shared ledger": lambda: Run.create(folder / "run", plan, ledger=locked / "ledger.jsonl"),
        "a new shared ledger": lambda: Run.create(folder / "run", plan, ledger=locked / "new.jsonl"),
        "a release": lambda: write_small_release(locked / "release"),
    }
    spent = read_ledger(begun / "ledger.jsonl")
    for name, attempt in attempts.items():

        def as_nobody(attempt: Callable[[], Any] = attempt) -> None:
            if os.geteuid() == 0:
                _import_all(data, plan, folder / "imports")  # files that nobody may not read
                os.setgid(65534)
                os.setuid(65534)
            attempt()

        killed, error = life(as_nobody)
        assert not killed
        assert "Permission denied" in error, f"{name}: {error!r}"
        found[name] += 1
    assert read_ledger(begun / "ledger.jsonl") == spent
    assert sorted(path.name for path in locked.glob("*")) == [
        "ledger.jsonl",
        "ledger.jsonl.head",
        "ledger.jsonl.lock",
    ]
    for path in (begun, locked):
        path.chmod(0o755)
    assert life(lambda: Run.resume(begun).train(data)) == (False, "")
    return dict(found)


def _let_others_through(folder: Path) -> None:
    """pytest keeps its folders to this user; nobody must be able to reach the ones that are tried."""
    for parent in folder.parents:
        if parent.stat().st_uid == os.geteuid() and parent != Path("/") and "pytest" in parent.name:
            parent.chmod(parent.stat().st_mode | 0o011)


def _import_all(data: Any, plan: Any, folder: Path) -> None:
    if not folder.exists():
        Run.create(folder, plan).train(data)
    write_small_release(folder.with_name(f"{folder.name}-{os.getpid()}"))


# ---- clocks


def odd_clocks(folder: Path, rounds: int, seed: int) -> dict[str, Any]:
    """Trainings whose clocks jump forward and back: the same bits, and checkpoints all the same."""
    data, found = tiny_data(), Counter[str]()
    plan = tiny_plan(data, steps=STEPS)

    def work(place: Path, clock: Callable[[], float] | None) -> None:
        if clock is not None:
            _small_blocks()
            time.monotonic = time.time = time.perf_counter = clock
        saved = 0
        real = TrainingState.save

        def save(self: TrainingState, *arguments: Any) -> None:
            nonlocal saved
            saved += 1
            real(self, *arguments)

        TrainingState.save = save  # type: ignore[method-assign]
        assert Run.create(place, plan).train(data, saving=Saving(checkpoint_seconds=3600, picture_steps=7))
        if clock is not None:
            assert saved > 3, "no checkpoint but the first and the last"

    assert life(partial(work, folder / "whole", None)) == (False, "")
    for number in range(rounds):
        place = folder / str(number)
        assert life(partial(work, place, _clock(random.Random(f"{seed} {number}")))) == (False, "")
        assert bits(place) == bits(folder / "whole")
        steps = sum(spend.steps for spend in read_ledger(place / "ledger.jsonl").spends)
        assert steps == plan.steps
        found["trainings"] += 1
    return dict(found)


def _clock(rng: random.Random) -> Callable[[], float]:
    now = rng.choice((0.0, 1e6, 1.7e9))

    def clock() -> float:
        nonlocal now
        now += rng.choice((1e-3, 1e-3, 1e-3, 0.0, -1e-3, -86400.0, 7200.0, -1e9))
        return now

    return clock


# ---- at once


def one_run_at_once(folder: Path, rounds: int, seed: int) -> dict[str, Any]:
    """Processes that begin, or resume, one run at the same moment: one does it, once; others are told."""
    rng, data = random.Random(f"one run {seed}"), tiny_data()
    found: Counter[str] = Counter()
    for number in range(rounds):
        place = folder / str(number)
        plan = tiny_plan(data, seed=3 if number % 2 else None, steps=STEPS)
        begun = rng.random() < 0.5
        if begun:
            Run.create(place, plan)
        tally = _new_tally()

        def work(place: Path = place, plan: Any = plan, begun: bool = begun, tally: Tally = tally) -> None:
            count_what_is_used(tally)
            run = Run.resume(place) if begun else Run.create(place, plan)
            assert run.train(data, saving=SAVING)

        said = at_once([work] * 4)
        assert said.count("") == 1, said
        refusals = ("is open for writing elsewhere", "already holds a run", "is finished", "is not empty")
        assert all(any(words in text for words in refusals) for text in said if text), said
        statement = read_ledger(place / "ledger.jsonl")
        assert sum(spend.steps for spend in statement.spends) == plan.steps == tally["drawn"]
        assert statement.runs == (Run.resume(place).name,)
        check_run(place, plan, None, tally, found)
        found["refused"] += len(said) - 1
        found["rounds"] += 1
    return dict(found)


def one_ledger_at_once(folder: Path, rounds: int, seed: int) -> dict[str, Any]:
    """Runs that share a ledger begin at the same moment, with room for some of them: never beyond it."""
    rng, data = random.Random(f"one ledger {seed}"), tiny_data()
    plan = tiny_plan(data, seed=None, steps=20)
    found: Counter[str] = Counter()
    words = ("is open for writing elsewhere", "has no room for this run", "allows no step, and none is kept")
    for number in range(rounds):
        place = folder / str(number)
        ledger = place / "ledger.jsonl"
        budget = plan.epsilon * rng.uniform(1.05, 1.6)
        Ledger.open(ledger, epsilon, budget=Budget(budget, plan.delta)).close()

        def work(name: str, ledger: Path = ledger) -> None:
            folder = ledger.parent / name
            for _ in range(2000):
                try:
                    run = Run.resume(folder) if folder.exists() else Run.create(folder, plan, ledger=ledger)
                    run.train(data, saving=SAVING)
                    return
                except JournalLockedError:  # noqa: PERF203
                    time.sleep(0.001)

        names = [f"run-{which}" for which in range(4)]
        said = at_once([partial(work, name) for name in names])
        assert all(not text or any(each in text for each in words) for text in said), said
        statement = read_ledger(ledger)
        assert epsilon(statement.total(), plan.delta, plan.accountant) <= budget
        for name, text in zip(names, said, strict=True):
            steps = sum(spend.steps for spend in statement.spends if spend.run.startswith(f"{name}-"))
            kept = 0 if text else header(place / name / "checkpoint.safetensors")["step"]
            assert steps == kept  # nothing was lost, and nothing charged to another
        assert "" in said
        found["refused"] += sum(map(bool, said))
        found["trainings"] += said.count("")
        found["rounds"] += 1
    return dict(found)
