"""What a run does beside its steps takes a small part of the time."""

from __future__ import annotations

import math

import pytest

from dpsinkhorn.training import watching
from dpsinkhorn.training.trainer import Block
from dpsinkhorn.training.watching import Pace, Saving


class Clock:
    """Stands still unless something takes time."""

    def __init__(self):
        self.now = 1000.0

    def monotonic(self):
        return self.now


class SlowLedger:
    """A ledger on which ε is a hundredth of the steps, and takes time."""

    def __init__(self, clock, seconds):
        self.clock, self.seconds, self.asked = clock, seconds, []

    def epsilon_by(self, step):
        self.clock.now += self.seconds
        self.asked.append(step)
        return step / 100


def block(step, *, horizon=10**9, seconds=1.0, steps=1):
    return Block(step, horizon, seconds, steps, 0.0)


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(watching, "time", clock)
    return clock


def pictures(clock, saving, *, step_seconds, picture_seconds, steps, first=0):
    """At which steps a run of single steps draws one, and which part of its time that takes."""
    paced = Pace(SlowLedger(clock, 0.0), saving, first)
    drawn, started = [], clock.now
    for step in range(first + 1, steps + 1):
        clock.now += step_seconds
        if paced.picture_due(step):
            with paced.picture(step):
                clock.now += picture_seconds
            drawn.append(step)
    return drawn, len(drawn) * picture_seconds / (clock.now - started)


class TestPictures:
    def test_every_so_many_steps_where_steps_are_slow(self, clock):
        drawn, _ = pictures(clock, Saving(picture_steps=5), step_seconds=1.0, picture_seconds=0.01, steps=21)
        assert drawn == [5, 10, 15, 20]

    def test_fewer_where_steps_are_fast(self, clock):
        drawn, part = pictures(
            clock, Saving(picture_steps=5), step_seconds=0.001, picture_seconds=0.1, steps=20_000
        )
        assert len(drawn) == 2  # one, then one every 10 s, of 20 s
        assert part == pytest.approx(0.01, rel=0.05)

    def test_a_resumed_run_waits_for_its_next(self, clock):
        saving = Saving(picture_steps=5)
        drawn, _ = pictures(clock, saving, step_seconds=1.0, picture_seconds=0.01, steps=21, first=12)
        assert drawn == [15, 20]

    def test_none(self, clock):
        assert pictures(clock, Saving(picture_steps=0), step_seconds=1.0, picture_seconds=0.01, steps=50) == (
            [],
            0,
        )


class TestLooks:
    @pytest.mark.parametrize("seconds", [0.0, 0.001, 2.0])
    @pytest.mark.parametrize("speed", [1, 50])
    def test_they_take_little_time_and_never_tell_too_little(self, clock, seconds, speed):
        ledger = SlowLedger(clock, seconds)
        paced = Pace(ledger, Saving(), 0)
        horizon, started, looked = 3000 * speed, clock.now, []
        for step in range(speed, horizon + 1, speed):
            clock.now += 1.0
            found = paced.look(block(step, horizon=horizon, steps=speed))
            assert paced.spent >= step / 100
            assert paced.spent <= horizon / 100
            if found is not None:
                looked.append(step)
                assert found == step / 100  # what is on record now, not ahead
        assert looked[0] == speed  # the first at once, the last in any case
        assert looked[-1] == horizon
        assert found == paced.spent == horizon / 100
        assert len(ledger.asked) * seconds / (clock.now - started) < 0.02
        if seconds < 0.01:
            assert len(looked) == 3000  # nothing is gained by waiting

    def test_a_run_that_becomes_faster_is_looked_at_in_time(self, clock):
        ledger = SlowLedger(clock, 0.05)
        paced = Pace(ledger, Saving(), 0)
        step = 0
        for index in range(200):
            clock.now += 1.0
            steps = 10 if index < 100 else 1000
            step += steps
            paced.look(block(step, steps=steps))
            assert paced.spent >= step / 100

    def test_a_resumed_run(self, clock):
        paced = Pace(SlowLedger(clock, 0.0), Saving(), 500)
        assert paced.look(block(501)) == paced.spent == 5.01


def checkpoints(clock, saving, *, cost, seconds=200):
    """After which seconds a run whose blocks take one writes a checkpoint."""
    paced, due = Pace(SlowLedger(clock, 0.0), saving, 0), []
    for second in range(1, seconds):
        clock.now += 1.0
        if paced.checkpoint_due():
            with paced.checkpoint():
                clock.now += cost
            due.append(second)
    return due


def test_checkpoints_go_by_the_seconds_asked_for(clock):
    assert checkpoints(clock, Saving(checkpoint_seconds=60.0), cost=0.1) == [60, 120, 180]
    assert checkpoints(clock, Saving(checkpoint_seconds=math.inf), cost=0.1) == []


@pytest.mark.parametrize(("cost", "every"), [(0.001, 1), (0.09, 3), (1.0, 30), (10.0, 60)])
def test_checkpoints_begin_at_once_and_take_little_time(clock, cost, every):
    assert checkpoints(clock, Saving(), cost=cost)[:3] == [1, 1 + every, 1 + 2 * every]


def test_a_clock_that_went_back_does_not_stop_anything(clock):
    ledger = SlowLedger(clock, 2.0)
    paced = Pace(ledger, Saving(), 0)
    assert [paced.look(block(step)) is None for step in (1, 2, 3)] == [False, False, True]
    clock.now -= 500
    assert paced.look(block(4)) == 0.04
    assert paced.checkpoint_due()
