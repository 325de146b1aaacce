"""Ranks that are killed at random moments: nothing hangs, no ledger loses a line, every training ends."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter

import pytest
import torch

from dpsinkhorn.privacy import read_ledger
from dpsinkhorn.ranks import joined
from dpsinkhorn.release import load
from dpsinkhorn.training import Run, TrainingError
from dpsinkhorn.training.shared_records import answer
from support.ranks import Group
from support.runs import DATA, EVERY_BLOCK, bits, finished, small_plan

ANSWER = 10.0  # seconds that a rank may keep the others waiting
STEPS = {"moments": 5, "record": 60, "batch": 60}
LOST = 3  # exit status of a rank that has lost another


def life(rank, folder, mechanism, seed):
    """One life of a rank: go on with a run from where it stands."""
    try:
        with joined(ANSWER) as ranks:
            if rank:
                answer(ranks, DATA, torch.device("cpu"))
                return
            if (folder / "run.json").exists():
                run = Run.resume(folder)
            else:
                run = Run.create(folder, plan_of(DATA, mechanism, seed))
            if not run.done:
                assert run.train(DATA, saving=EVERY_BLOCK, ranks=ranks)
            ranks.ask("end")
    except TrainingError as error:
        (folder.parent / f"said{rank}.txt").write_text(str(error))
        os._exit(LOST)


def plan_of(data, mechanism, seed):
    plan = {} if mechanism == "moments" else {"steps": STEPS[mechanism]}
    return small_plan(data, mechanism, seed=seed, **plan)


def whole_life(folder):
    """Seconds that a training takes here where nobody is killed."""
    (folder / "first").mkdir()
    for _ in range(2):  # the first one waits for the server that the others are forked from
        started = time.monotonic()
        assert Group(3, life, folder / "first" / str(started), "batch", 3).wait(300) == [0, 0, 0]
    return time.monotonic() - started


def campaign(folder, kills, seed):
    """Trainings whose ranks are killed, one life after the other, on another number of ranks each time."""
    rng, found, number = random.Random(seed), Counter(), 0
    whole = {
        mechanism: bits(finished(folder / f"whole {mechanism}", plan_of(DATA, mechanism, 3), DATA).folder)
        for mechanism in ("moments", "batch")
    }
    span = whole_life(folder)
    while found["kills"] < kills:
        mechanism, secure = rng.choice(list(STEPS)), rng.random() < 0.5
        secure |= mechanism == "record"  # which replays on the same number of ranks only
        place = folder / str(number) / "run"
        place.mkdir(parents=True)
        number += 1
        spends = ()
        while not (place / "release").is_dir():
            count = rng.randint(2, 4)
            group = Group(count, life, place, mechanism, None if secure else 3)
            victim, when = rng.randrange(count), rng.uniform(0, 1.5 * span)
            group.processes[victim].join(when)
            killed = group.processes[victim].is_alive()
            group.send(victim, signal.SIGKILL)
            started = time.monotonic()
            status = group.wait(ANSWER + 30)  # which a busy machine takes to get there
            found["slowest"] = max(found["slowest"], round(time.monotonic() - started))
            found["kills"] += killed
            others = [status[rank] for rank in range(count) if rank != victim]
            assert set(others) <= {0, LOST}, others
            for said in place.parent.glob("said*.txt"):
                assert len(said.read_text().splitlines()) == 1
                said.unlink()
            if (place / "ledger.jsonl.head").exists():
                now = read_ledger(place / "ledger.jsonl").spends
                assert now[: len(spends)] == spends, "the ledger lost a line"
                spends = now
        run, release = Run.resume(place), load(place / "release")
        found["trainings"] += 1
        taken = sum(spend.steps for spend in spends if spend.charge == run.plan.step_charge)
        assert release.privacy.steps_charged == taken <= run.plan.steps
        assert release.privacy.epsilon <= run.plan.epsilon * (1 + 1e-9)
        if taken == run.plan.steps:
            assert release.privacy.epsilon == pytest.approx(run.plan.epsilon, rel=1e-9)
        if not secure:
            assert bits(place) == whole[mechanism]
            found["same bits"] += 1
    return found


def test_a_few_kills(tmp_path):
    found = campaign(tmp_path, 4, 1)
    assert found["trainings"] >= 1


@pytest.mark.long
@pytest.mark.parametrize("seed", [2, 3, 4, 5])
def test_a_hundred_kills(seed, tmp_path):
    """In four parts of 25 kills each."""
    found = campaign(tmp_path, 25, seed)
    print(f"\n{dict(found)}")
    assert found["trainings"] > 3
