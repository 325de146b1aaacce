"""What a run does beside its steps takes a small part of the time."""

from __future__ import annotations

import pytest

from dpsinkhorn.training import pace
from dpsinkhorn.training.pace import Pace, Saving


class Clock:
    """Stands still unless something takes time."""

    def __init__(self):
        self.now = 1000.0

    def monotonic(self):
        return self.now


class SlowLedger:
    def __init__(self, clock, seconds):
        self.clock, self.seconds, self.looks = clock, seconds, 0

    def epsilon(self):
        self.clock.now += self.seconds
        self.looks += 1
        return float(self.looks)


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(pace, "time", clock)
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


def test_looks_at_the_ledger_take_a_small_part_of_the_time(clock):
    ledger = SlowLedger(clock, 2.0)
    paced = Pace(ledger, Saving(), 0)
    started = clock.now
    looked = []
    for step in range(2000):
        clock.now += 1.0
        if paced.look(final=step == 1999):
            looked.append(step)
            assert paced.spent == ledger.looks
    assert looked[0] == 0  # the first at once, the last in any case
    assert looked[-1] == 1999
    assert ledger.looks * 2.0 / (clock.now - started) < 0.015


def test_checkpoints_go_by_time(clock):
    paced = Pace(SlowLedger(clock, 0.0), Saving(checkpoint_seconds=60.0), 0)
    due = []
    for second in range(1, 200):
        clock.now += 1.0
        if paced.checkpoint_due():
            due.append(second)
    assert due == [60, 120, 180]


def test_a_clock_that_went_back_does_not_stop_anything(clock):
    ledger = SlowLedger(clock, 2.0)
    paced = Pace(ledger, Saving(), 0)
    assert paced.look(final=False)
    assert not paced.look(final=False)
    clock.now -= 500
    assert paced.look(final=False)
    assert paced.checkpoint_due()
