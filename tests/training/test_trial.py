"""What a plan will take, by steps on made-up records."""

from __future__ import annotations

import time

import pytest
import torch

from dpsinkhorn.training import trial
from dpsinkhorn.training.steps import FixedSteps, PlainSteps, make_steps
from support.runs import MECHANISMS, tiny_data, tiny_plan

CPU = torch.device("cpu")


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize(
    "options", [{}, {"labelled": False}, {"persons": 20}], ids=["", "unlabelled", "persons"]
)
def test_every_kind_of_plan_can_be_tried(mechanism, options):
    plan = tiny_plan(tiny_data(**options), mechanism, steps=1000)
    found = trial.try_plan(plan, CPU)
    assert 0 < found.seconds < 1000
    assert found.memory_bytes > 2**20


def test_memory_does_not_tell_a_size_that_is_not_public():
    """The process has read the data by then, and its memory shows how many there are."""
    plan = tiny_plan(tiny_data(), steps=1000, records=100)
    assert not plan.facts.size_is_public
    assert trial.try_plan(plan, CPU).memory_bytes is None


@pytest.mark.parametrize(
    ("options", "kind"),
    [({}, FixedSteps), ({"labelled": False}, FixedSteps), ({"persons": 20}, PlainSteps)],
    ids=["labelled", "unlabelled", "persons"],
)
def test_steps_are_tried_as_they_are_taken(options, kind, monkeypatch):
    """In fixed shapes where the training has them, as on a GPU."""
    made = []

    def make(*arguments, **given):
        made.append(make_steps(*arguments, **given, capture=False))
        return made[-1]

    monkeypatch.setattr(trial, "make_steps", make)
    found = trial.try_plan(tiny_plan(tiny_data(**options), steps=1000), CPU)
    assert isinstance(made[0], kind)
    assert 0 < found.seconds < 1000


def test_a_step_that_takes_long_is_timed_once(monkeypatch):
    taken = []

    def step(count):
        taken.append(count)
        time.sleep(0.02)

    assert 0.02 <= trial._least(step, 3, 4, CPU) < 5
    assert taken == [3] * 4
    taken.clear()
    monkeypatch.setattr(trial, "_LONG", 0.01)
    assert trial._least(step, 3, 4, CPU) >= 0.02
    assert taken == [3]
