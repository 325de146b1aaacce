"""The ledger: budgets, crashes and tampering."""

from __future__ import annotations

import hashlib
import json
import math
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import dp_accounting as dp
import pytest

from dpsinkhorn.privacy import Adjacency, Charge, epsilon, journal
from dpsinkhorn.privacy.charges import flatten
from dpsinkhorn.privacy.journal import JournalDamagedError, JournalLockedError
from dpsinkhorn.privacy.ledger import Budget, BudgetExceededError, Ledger, read_ledger
from support.windows import behave_like_windows

STEP = Charge(dp.PoissonSampledDpEvent(0.1, dp.GaussianDpEvent(2.0)))
OTHER = Charge(dp.LaplaceDpEvent(100.0))
BUDGET = Budget(1000.0, 1e-5)


def simple(charge: Charge, _delta: float) -> float:
    """An accountant that counts leaves: fast, monotone, and known."""
    return float(sum(part.count for part in flatten(charge.event)))


def steps_of(path: Path) -> int:
    return sum(spend.steps for spend in read_ledger(path).spends)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data" / "ledger.jsonl"


@pytest.fixture
def three(path: Path) -> Path:
    """A ledger with three spends, of 1, 2 and 4 steps."""
    with Ledger.open(path, simple, budget=BUDGET) as ledger:
        for steps in (1, 2, 4):
            ledger.spend(STEP, run="a", steps=steps)
    return path


# --- budgets and totals ---------------------------------------------------------------------------


def test_spends_are_read_back_by_run(path: Path) -> None:
    with Ledger.open(path, simple, budget=BUDGET) as ledger:
        ledger.spend(STEP, run="tuning", steps=10)
        ledger.spend(OTHER, run="count")
    with Ledger.open(path, simple) as ledger:
        ledger.spend(STEP, run="final", steps=5)
        assert ledger.epsilon() == 16
        assert ledger.budget == BUDGET
        statement = ledger.statement()
    assert read_ledger(path) == statement
    assert statement.runs == ("tuning", "count", "final")
    assert simple(statement.total(), 0) == 16
    assert statement.total("final").event == dp.ComposedDpEvent([dp.SelfComposedDpEvent(STEP.event, 5)])


def test_total_is_the_composition_of_all_runs(path: Path) -> None:
    with Ledger.open(path, epsilon, budget=Budget(5.0, 1e-5)) as ledger:
        for run in ("a", "b"):
            ledger.spend(STEP, run=run, steps=50)
        assert ledger.epsilon() == epsilon(dp.SelfComposedDpEvent(STEP.event, 100), 1e-5)


def test_both_adjacencies_meet_as_replace_one(path: Path) -> None:
    transport = Charge(dp.GaussianDpEvent(30.0), Adjacency.REPLACE_ONE)
    with Ledger.open(path, epsilon, budget=Budget(50.0, 1e-5)) as ledger:
        ledger.spend(STEP, run="training", steps=3)
        ledger.spend(transport, run="transport")
        total = ledger.statement().total()
        assert total.adjacency is Adjacency.REPLACE_ONE
        assert ledger.epsilon() == epsilon(total, 1e-5)
        assert ledger.statement().total("training").adjacency is Adjacency.ADD_OR_REMOVE_ONE


def test_step_over_budget_is_refused_before_anything_is_written(path: Path) -> None:
    with Ledger.open(path, simple, budget=Budget(10.0, 0.0)) as ledger:
        ledger.spend(STEP, run="a", steps=8)
        before = path.read_bytes()
        with pytest.raises(BudgetExceededError, match=r"3 more steps would.*nothing was spent now"):
            ledger.spend(STEP, run="a", steps=3)
        assert path.read_bytes() == before
        ledger.spend(STEP, run="a", steps=2)
        with pytest.raises(BudgetExceededError) as caught:
            ledger.spend(OTHER, run="b")
        assert str(caught.value) == (
            "the ledger ledger.jsonl allows epsilon 10 at delta 0, 10 is spent, and this would pass it; "
            "nothing was spent now"
        )
        assert ledger.epsilon() == 10


def test_nothing_private_may_run_without_noise_on_a_finite_budget(path: Path) -> None:
    bare = Charge(dp.NonPrivateDpEvent())
    with Ledger.open(path, epsilon, budget=BUDGET) as ledger, pytest.raises(BudgetExceededError):
        ledger.spend(bare, run="a")
    endless = path.with_name("endless.jsonl")
    with Ledger.open(endless, epsilon, budget=Budget(math.inf, 0.0)) as ledger:
        ledger.spend(bare, run="a")
        assert ledger.epsilon() == math.inf
    assert read_ledger(endless).budget == Budget(math.inf, 0.0)


def test_affordable_is_the_last_step_within_budget(path: Path) -> None:
    with Ledger.open(path, epsilon, budget=Budget(2.0, 1e-5)) as ledger:
        block = ledger.affordable(STEP, at_most=10_000)
        assert epsilon(dp.SelfComposedDpEvent(STEP.event, block), 1e-5) <= 2.0
        assert epsilon(dp.SelfComposedDpEvent(STEP.event, block + 1), 1e-5) > 2.0
        ledger.spend(STEP, run="a", steps=block)
        assert ledger.affordable(STEP, at_most=10) == 0
        with pytest.raises(BudgetExceededError):
            ledger.spend(STEP, run="a")


@pytest.mark.parametrize("pattern", ["one event", "two events in turn", "known beforehand"])
def test_accountant_is_asked_rarely_and_the_budget_is_met_exactly(
    path: Path, pattern: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)  # no crash here, and thousands of them are slow
    asked = 0

    def counting(charge: Charge, delta: float) -> float:
        nonlocal asked
        asked += 1
        return simple(charge, delta)

    limit = 1500
    with Ledger.open(path, counting, budget=Budget(limit, 0.0)) as ledger:
        if pattern == "known beforehand":
            assert ledger.affordable(STEP, at_most=limit) == limit
        for step in range(limit):
            ledger.spend(OTHER if pattern == "two events in turn" and step % 2 else STEP, run="a")
        for _ in range(3):
            with pytest.raises(BudgetExceededError):
                ledger.spend(STEP, run="a")
    assert asked - 3 <= (3 if pattern == "known beforehand" else 40)  # each refusal says what is spent


@pytest.mark.parametrize("steps", [0, -1, 1.0, True, None])
def test_steps_are_whole_numbers(path: Path, steps: object) -> None:
    with Ledger.open(path, simple, budget=BUDGET) as ledger, pytest.raises(ValueError, match="whole numbers"):
        ledger.spend(STEP, run="a", steps=steps)  # type: ignore[arg-type]


@pytest.mark.parametrize(("limit", "delta"), [(-1.0, 0.0), (math.nan, 0.0), (1.0, 1.0), (1.0, -0.1)])
def test_budgets_make_sense(limit: float, delta: float) -> None:
    with pytest.raises(ValueError, match="budget"):
        Budget(limit, delta)


def test_opening_needs_a_ledger_or_a_budget_and_the_right_one(path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no ledger"):
        Ledger.open(path, simple)
    with pytest.raises(FileNotFoundError, match="no ledger"):
        read_ledger(path)
    Ledger.open(path, simple, budget=BUDGET).close()
    with pytest.raises(ValueError, match="has the budget"):
        Ledger.open(path, simple, budget=Budget(2000.0, 1e-5))
    Ledger.open(path, simple, budget=BUDGET).close()  # the failed attempt left no lock


def test_unnamed_runs_and_events_without_a_form_are_refused(path: Path) -> None:
    with Ledger.open(path, simple, budget=BUDGET) as ledger:
        with pytest.raises(ValueError, match="name"):
            ledger.spend(STEP, run="")
        with pytest.raises(ValueError, match="JSON"):
            ledger.spend(Charge(dp.dp_event.UnsupportedDpEvent()), run="a")
    assert steps_of(path) == 0


# --- one writer -----------------------------------------------------------------------------------


@pytest.fixture(params=["here", "as on Windows"])
def system(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param != "here":
        behave_like_windows(monkeypatch)


@pytest.mark.usefixtures("system")
def test_one_writer_at_a_time(three: Path) -> None:
    with Ledger.open(three, simple) as ledger:
        with pytest.raises(JournalLockedError, match="one writer"):
            Ledger.open(three, simple)
        link = three.with_name("link.jsonl")
        link.symlink_to(three)
        with pytest.raises(JournalLockedError):
            Ledger.open(link, simple)
        script = f"import runpy; runpy.run_path({journal.__file__!r})['Journal'].open({str(three)!r})"
        other = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
        assert "JournalLockedError" in other.stderr
        ledger.spend(STEP, run="a")
        assert steps_of(three) == 8  # reading needs no lock
    Ledger.open(three, simple).close()


@pytest.mark.usefixtures("system")
def test_a_forked_child_does_not_keep_a_closed_ledger_locked(three: Path) -> None:
    """A child, a data loader for instance, has a copy of the handle: here it is made by hand."""
    ledger = Ledger.open(three, simple)
    copy = os.dup(ledger._journal._lock)
    try:
        with pytest.raises(JournalLockedError):
            Ledger.open(three, simple)
        ledger.close()
        Ledger.open(three, simple).close()
    finally:
        os.close(copy)


def test_a_child_that_closes_its_copy_does_not_unlock_the_ledger(
    three: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Ledger.open(three, simple) as ledger:
        copy = journal.Journal(three, os.dup(ledger._journal._lock), os.dup(ledger._journal._file), [])
        with monkeypatch.context() as patch:
            patch.setattr(os, "getpid", lambda: -1)
            copy.close()
        with pytest.raises(JournalLockedError):
            Ledger.open(three, simple)


def test_threads_cannot_pass_the_budget_together(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: time.sleep(1e-4))  # where another thread gets its turn

    def spend(_: int) -> bool:
        try:
            ledger.spend(STEP, run="a")
        except BudgetExceededError:
            return False
        return True

    with Ledger.open(path, simple, budget=Budget(30.0, 0.0)) as ledger, ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(spend, range(40))) == 30
        assert ledger.epsilon() == 30
    assert steps_of(path) == 30  # the chain is sound, too


def test_a_closed_ledger_and_a_foreign_process_cannot_spend(
    three: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = Ledger.open(three, simple)
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: -1)
        with pytest.raises(JournalLockedError, match="forked"):
            ledger.spend(STEP, run="a")
    ledger.close()
    with pytest.raises(JournalDamagedError, match="open it again"):
        ledger.spend(STEP, run="a")
    assert steps_of(three) == 7


# --- crashes --------------------------------------------------------------------------------------


class Crash(BaseException):
    """The process ends here: nothing catches it, and what it left on disk is all that remains."""


def count_calls(patch: pytest.MonkeyPatch, crash_at: int, share: float) -> list[str]:
    """Let the `crash_at`-th system call of the ledger write only a share of its bytes, and crash there."""
    calls: list[str] = []

    def wrap(name: str) -> None:
        real = getattr(os, name)

        def call(*arguments: object) -> object:
            calls.append(name)
            if len(calls) - 1 == crash_at:
                if name == "write":
                    handle, data = arguments
                    real(handle, data[: round(share * len(data))])  # type: ignore[index,arg-type]
                raise Crash
            return real(*arguments)

        patch.setattr(journal.os, name, call)

    for name in ("write", "fsync", "replace"):
        wrap(name)
    return calls


@pytest.mark.usefixtures("system")
@pytest.mark.parametrize(
    ("system", "share"),
    [
        *(("here", share) for share in (0.0, 0.01, 0.5, 0.99, 1.0)),
        ("as on Windows", 0.0),
        ("as on Windows", 0.5),
    ],
    indirect=["system"],
)
def test_crash_at_every_system_call_leaves_at_least_what_was_used(
    path: Path, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spending, opening and mending are all cut short, again and again, at every call they make."""
    used = 0
    for crash_at in range(200):
        shutil.rmtree(path.parent, ignore_errors=True)
        used = 0
        finished = False
        with monkeypatch.context() as patch:
            count_calls(patch, crash_at, share)
            try:
                ledger = Ledger.open(path, simple, budget=BUDGET)
                for _ in range(3):
                    ledger.spend(STEP, run="a")
                    used += 1
                finished = True
            except Crash:
                pass
        if "ledger" in locals():
            ledger.close()
        for mending in range(12):  # crash while mending, too; then at last not
            with monkeypatch.context() as patch:
                count_calls(patch, mending % 11 if mending < 11 else 10**9, share)
                with suppress(Crash):
                    Ledger.open(path, simple, budget=BUDGET).close()
            if (path.parent / "ledger.jsonl.head").exists():
                assert used <= steps_of(path) <= used + 1
        assert used <= steps_of(path) <= used + 1
        if finished:
            break
    assert finished
    assert used == 3


@pytest.mark.usefixtures("system")
def test_torn_last_line_counts_as_spent(three: Path) -> None:
    """The file cut at every byte of its last line: the head has the rest, and opening mends the file."""
    whole = three.read_bytes()
    start = whole[:-1].rindex(b"\n") + 1
    for end in range(start + 1, len(whole)):
        three.write_bytes(whole[:end])
        assert steps_of(three) == 7
    Ledger.open(three, simple).close()
    assert three.read_bytes() == whole


def test_spend_is_on_disk_before_it_returns(three: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The order that the proof rests on: head written, synced, named, folder synced; line written, synced."""
    with Ledger.open(three, simple) as ledger, monkeypatch.context() as patch:
        calls = count_calls(patch, -1, 1.0)
        ledger.spend(STEP, run="a")
    pending = ["write", "fsync", "replace", "fsync"]
    assert calls == [*pending, "write", "fsync", "fsync", "write", "fsync", "replace"]


def test_failed_write_stops_the_ledger_until_it_is_opened_again(
    three: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    with Ledger.open(three, simple) as ledger:
        with monkeypatch.context() as patch:
            patch.setattr(journal.os, "write", full)
            with pytest.raises(OSError, match="No space"):
                ledger.spend(STEP, run="a")
        with pytest.raises(JournalDamagedError, match="open it again"):
            ledger.spend(STEP, run="a")
    assert steps_of(three) == 7


KILLER = """
import os, random, select, signal, sys, time
from pathlib import Path
import dp_accounting as dp
from dpsinkhorn.privacy import Charge
from dpsinkhorn.privacy.ledger import Budget, Ledger, read_ledger

folder, rounds = Path(sys.argv[1]), int(sys.argv[2])
charge = Charge(dp.PoissonSampledDpEvent(0.1, dp.GaussianDpEvent(2.0)))
rng = random.Random(0)
kills = used = spent = unfinished = 0
for turn in range(rounds):
    if turn % 20 == 0:
        path = folder / f"ledger-{turn}.jsonl"
        used_here = 0
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        if turn % 4:  # else the kill may also fall into opening and mending
            with Ledger.open(path, lambda *_: 0.0, budget=Budget(1.0, 0.0)):
                pass
        os.write(write, bytes([0]))
        ledger = Ledger.open(path, lambda *_: 0.0, budget=Budget(1.0, 0.0))
        while True:
            steps = rng.randint(1, 9)
            ledger.spend(charge, run=str(turn), steps=steps)
            os.write(write, bytes([steps]))  # the noise of these steps is used now
    os.close(write)
    os.read(read, 1)
    before = used_here
    for _ in range(rng.randrange(4)):  # however busy the machine is, some spends return
        used_here += sum(os.read(read, 1))
    time.sleep(rng.uniform(0, 0.03))
    os.kill(child, signal.SIGKILL)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    kills += 1
    while data := os.read(read, 65536):
        used_here += sum(data)
    os.close(read)
    if not path.exists() and not Path(f"{path}.head").exists():
        assert used_here == 0
        continue
    recorded = sum(spend.steps for spend in read_ledger(path).spends)
    assert recorded >= used_here, f"kill {kills}: used {used_here}, on record {recorded}"
    assert recorded - used_here <= 9, "more than one unfinished spend"
    unfinished += recorded > used_here
    used += used_here - before
    used_here = recorded  # the next round starts from what is on record
assert used and unfinished, "the kills came too early or too late to show anything"
print(f"{kills} kills, {used} steps used, {unfinished} kills in mid-spend, none missing")
"""


AS_ON_WINDOWS = """
import pytest
from support.windows import behave_like_windows

behave_like_windows(pytest.MonkeyPatch())
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.parametrize(("before", "kills"), [("", 200), (AS_ON_WINDOWS, 50)], ids=["here", "as on Windows"])
def test_kill_at_200_random_moments_never_loses_a_spend(tmp_path: Path, before: str, kills: int) -> None:
    """Real processes, really killed. They are forked from a fresh one: this one has threads."""
    done = subprocess.run(
        [sys.executable, "-c", before + KILLER, str(tmp_path), str(kills)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{kills} kills")
    print(done.stdout)


# --- tampering ------------------------------------------------------------------------------------


def lines_of(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines(keepends=True)


def with_other_steps(path: Path) -> None:
    """A careful forger: the digest of the changed line is right again."""
    lines = lines_of(path)
    value = json.loads(lines[2])
    value["body"]["steps"] = 1
    forged = journal._next_entry(value["body"], journal._parse(lines[1], "line 2"))
    lines[2] = forged.line
    path.write_bytes(b"".join(lines))


def rewritten(change: Callable[[list[bytes]], list[bytes]]) -> Callable[[Path], None]:
    return lambda path: (path.write_bytes(b"".join(change(lines_of(path)))), None)[1]


TAMPERINGS: dict[str, tuple[Callable[[Path], None], str]] = {
    "number edited": (
        rewritten(lambda x: [*x[:2], x[2].replace(b'"steps":2', b'"steps":1'), x[3]]),
        "line 3 .*changed",
    ),
    "budget edited": (rewritten(lambda x: [x[0].replace(b"1000.0", b"9999.0"), *x[1:]]), "line 1 .*changed"),
    "digest recomputed": (with_other_steps, "line 4 .*removed or reordered"),
    "spaces added": (rewritten(lambda x: [x[0], x[1].replace(b",", b", "), *x[2:]]), "line 2 .*changed"),
    "middle line removed": (rewritten(lambda x: [*x[:2], x[3]]), "line 3 .*removed or reordered"),
    "reordered": (rewritten(lambda x: [x[0], x[2], x[1], x[3]]), "line 2 .*removed or reordered"),
    "line repeated": (rewritten(lambda x: [*x, x[3]]), "line 5 .*removed or reordered"),
    "last line removed": (rewritten(lambda x: x[:3]), "truncated"),
    "last line edited": (
        rewritten(lambda x: [*x[:3], x[3].replace(b'"steps":4', b'"steps":1')]),
        "line 4 .*changed",
    ),
    "two lines removed": (rewritten(lambda x: x[:2]), "truncated"),
    "torn further up": (rewritten(lambda x: [*x[:2], x[2][:30]]), "truncated"),
    "torn and changed": (rewritten(lambda x: [*x[:3], x[3][:30] + b"?"]), "truncated"),
    "emptied": (lambda path: path.write_bytes(b"") and None, "truncated"),
    "deleted": (lambda path: path.unlink(), "truncated"),
    "text after the end": (rewritten(lambda x: [*x, b"{"]), "changed at the end"),
    "bytes that are no text": (rewritten(lambda x: [*x, b"\xff\xfe\n"]), "line 5 .*changed"),
    "head deleted": (lambda path: path.with_name("ledger.jsonl.head").unlink(), "head is missing"),
    "head emptied": (
        lambda path: path.with_name("ledger.jsonl.head").write_bytes(b"") and None,
        "head was changed",
    ),
}


@pytest.mark.parametrize("name", TAMPERINGS)
def test_tampering_is_refused_with_a_clear_message(three: Path, name: str) -> None:
    tamper, message = TAMPERINGS[name]
    tamper(three)
    with pytest.raises(JournalDamagedError, match=message):
        read_ledger(three)
    with pytest.raises(JournalDamagedError, match=message):
        Ledger.open(three, simple, budget=BUDGET)


def test_any_flipped_byte_is_noticed(three: Path) -> None:
    whole = three.read_bytes()
    rng = random.Random(1)
    for place in rng.sample(range(len(whole)), 150):
        three.write_bytes(
            whole[:place] + bytes([whole[place] ^ (1 << rng.randrange(8))]) + whole[place + 1 :]
        )
        with pytest.raises(JournalDamagedError):
            read_ledger(three)


@pytest.mark.parametrize("index", [-1, "0", None])
def test_forged_head_is_refused(three: Path, index: object) -> None:
    """A line that hashes to its own digest, but that no journal writes."""
    content = journal._content(index, {}, "0" * 64)  # type: ignore[arg-type]
    digest = hashlib.sha256(journal._canonical(content).encode()).hexdigest()
    journal._write_head(three, journal.Entry(index, {}, "0" * 64, digest), pending=True)  # type: ignore[arg-type]
    three.write_bytes(b"")
    with pytest.raises(JournalDamagedError, match="head was changed"):
        read_ledger(three)


def test_older_head_is_refused(three: Path) -> None:
    head = three.with_name("ledger.jsonl.head")
    old = head.read_bytes()
    with Ledger.open(three, simple) as ledger:
        ledger.spend(STEP, run="a")
    head.write_bytes(old)
    with pytest.raises(JournalDamagedError, match="head is older"):
        read_ledger(three)


def test_older_copy_of_both_files_needs_a_noted_digest(three: Path) -> None:
    """What the files alone cannot show: the digest in a release, say, does."""
    head = three.with_name("ledger.jsonl.head")
    old = three.read_bytes(), head.read_bytes()
    with Ledger.open(three, simple) as ledger:
        ledger.spend(STEP, run="a")
        noted = ledger.digest
        ledger.spend(STEP, run="a")
    Ledger.open(three, simple, seen=noted).close()
    three.write_bytes(old[0])
    head.write_bytes(old[1])
    assert steps_of(three) == 7  # not noticed
    with pytest.raises(JournalDamagedError, match="older copy"):
        Ledger.open(three, simple, seen=noted)


@pytest.mark.parametrize(
    "body",
    [
        {"kind": "spend", "run": "a", "steps": 0, "charge": STEP.to_json()},
        {"kind": "spend", "run": "a", "steps": 1, "charge": {"adjacency": "none", "event": {"type": "NoOp"}}},
        {"kind": "spend", "run": "a", "steps": 1, "charge": {**STEP.to_json(), "discount": 2}},
        {"kind": "refund", "run": "a", "steps": 1, "charge": STEP.to_json()},
        {"kind": "spend"},
    ],
)
def test_sound_chain_with_foreign_content_is_refused(three: Path, body: dict[str, object]) -> None:
    with journal.Journal.open(three) as file:
        file.append(body)
    with pytest.raises(JournalDamagedError, match="not a spend"):
        Ledger.open(three, simple)
