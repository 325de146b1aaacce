"""The loop: what is asked of the ledger, what a step generates, and that blocks pay before they start."""

from __future__ import annotations

import dataclasses
import itertools
import math
from types import SimpleNamespace

import pytest
import torch

from dpsinkhorn.privacy import Budget, Ledger, compose, epsilon, read_ledger
from dpsinkhorn.training import Run, TrainingError, loop
from dpsinkhorn.training.building import build_mechanism
from dpsinkhorn.training.loop import LedgerReservation, _next_block, train
from dpsinkhorn.training.records import Records
from dpsinkhorn.training.spending import epsilon_by
from dpsinkhorn.training.state import TrainingState
from dpsinkhorn.training.steps import generate, training_labels
from support.runs import MECHANISMS, Everything, tiny_data, tiny_plan

CPU = torch.device("cpu")


@pytest.fixture
def ledger_of(tmp_path):
    opened = []

    def open_one(plan):
        budget = Budget(plan.budget_epsilon, plan.delta)
        opened.append(Ledger.open(tmp_path / "ledger.jsonl", epsilon_by(plan), budget=budget))
        return opened[-1]

    yield open_one
    for ledger in opened:
        ledger.close()


class TestReservation:
    def test_grants_what_the_budget_allows_and_no_more(self, ledger_of):
        plan = tiny_plan(tiny_data(), steps=20)
        ledger = ledger_of(plan)
        reservation = LedgerReservation(ledger, plan, "run", covered=0)
        assert reservation.horizon(20) == 20
        assert reservation.horizon(1000) == 20
        step, granted = 0, []
        while count := reservation.reserve(step, 7):
            granted.append(count)
            step += count
        assert granted == [7, 7, 6]
        assert sum(spend.steps for spend in ledger.statement().spends) == 20

    def test_what_others_spent_is_gone(self, ledger_of):
        plan = tiny_plan(tiny_data(), steps=20)
        ledger = ledger_of(plan)
        ledger.spend(plan.step_charge, run="another", steps=5)
        reservation = LedgerReservation(ledger, plan, "run", covered=0)
        assert reservation.horizon(20) == 15
        assert [reservation.reserve(0, 9), reservation.reserve(9, 9), reservation.reserve(15, 9)] == [9, 6, 0]
        assert ledger.epsilon() <= plan.budget_epsilon

    def test_covered_steps_are_free_and_only_those(self, ledger_of):
        plan = tiny_plan(tiny_data(), steps=20)
        ledger = ledger_of(plan)
        ledger.spend(plan.step_charge, run="run", steps=8)
        reservation = LedgerReservation(ledger, plan, "run", covered=8)
        assert reservation.horizon(20) == 20
        assert reservation.reserve(5, 10) == 3  # up to what is covered: the rest is asked for next time
        assert len(ledger.statement().spends) == 1
        assert reservation.reserve(8, 10) == 10
        assert reservation.reserve(18, 10) == 2
        assert reservation.reserve(20, 10) == 0

    def test_lost_steps_shorten_the_run(self, ledger_of):
        plan = tiny_plan(tiny_data(), steps=20)
        ledger = ledger_of(plan)
        ledger.spend(plan.step_charge, run="run", steps=8)  # of which only 5 are kept
        assert LedgerReservation(ledger, plan, "run", covered=5).horizon(20) == 17

    def test_also_where_others_left_room(self, tmp_path):
        """A run keeps within its own plan; what else the ledger has is for other runs."""
        plan = tiny_plan(tiny_data(), steps=20)
        budget = Budget(3 * plan.epsilon, plan.delta)
        with Ledger.open(tmp_path / "shared.jsonl", epsilon_by(plan), budget=budget) as ledger:
            ledger.spend(plan.step_charge, run="another", steps=4)
            ledger.spend(plan.step_charge, run="run", steps=8)  # of which only 5 are kept
            reservation = LedgerReservation(ledger, plan, "run", covered=5)
            assert reservation.horizon(20) == 17
            assert reservation.reserve(5, 9) == 9
            assert reservation.reserve(14, 9) == 3
            assert reservation.reserve(17, 9) == 0
            assert sum(spend.steps for spend in ledger.statement().spends if spend.run == "run") == 20

    def test_frequencies_that_were_released_twice_take_their_part(self, tmp_path):
        plan = tiny_plan(tiny_data(), steps=20, labels="released", epsilon=5.0)
        lost = plan.count_mechanism.charge()
        with Ledger.open(
            tmp_path / "shared.jsonl", epsilon_by(plan), budget=Budget(50.0, plan.delta)
        ) as ledger:
            ledger.spend(lost, run="another", steps=3)
            ledger.spend(lost, run="run")
            assert LedgerReservation(ledger, plan, "run", covered=0).horizon(20) == 20
            ledger.spend(lost, run="run", steps=1)
            horizon = LedgerReservation(ledger, plan, "run", covered=0).horizon(20)

            def cost(steps):
                return epsilon(
                    compose(lost, lost, plan.mechanism.sampled(plan.sampling_rate, steps)), plan.delta, "rdp"
                )

            assert cost(horizon) <= 5.0 < cost(horizon + 1)
            assert 10 < horizon < 20

    def test_epsilon_at_a_step(self, ledger_of):
        plan = tiny_plan(tiny_data(), steps=20)
        ledger = ledger_of(plan)
        reservation = LedgerReservation(ledger, plan, "run", covered=0)
        assert reservation.reserve(0, 8) == 8
        at = {
            n: epsilon(plan.mechanism.sampled(plan.sampling_rate, n), plan.delta, "rdp") for n in (8, 9, 20)
        }
        for step, expected in ((5, at[8]), (8, at[8]), (9, at[9]), (20, at[20])):
            assert reservation.epsilon_by(step) == pytest.approx(expected, rel=1e-12)
        assert ledger.epsilon() == pytest.approx(at[8], rel=1e-12)  # nothing was spent by asking


class Counted:
    """Grants blocks of three, and knows how many steps were allowed."""

    def __init__(self, most):
        self.most, self.granted = most, 0

    def reserve(self, step, wanted):
        assert step == self.granted
        count = min(3, wanted, self.most - self.granted)
        self.granted += count
        return count


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("most", [0, 1, 7, 100])
def test_no_step_without_leave(mechanism, most, monkeypatch):
    data = tiny_data()
    plan = tiny_plan(data, mechanism, steps=12)
    state, records, permit = TrainingState(plan, CPU), Records(data, CPU), Counted(most)
    drawn = []
    real = Records.draw

    def draw(self, rate, noise):
        drawn.append(rate)
        assert len(drawn) <= permit.granted
        if plan.private:  # the rate that is charged
            assert rate == plan.step_charge.event.event.sampling_probability
        return real(self, rate, noise)

    monkeypatch.setattr(Records, "draw", draw)
    blocks = list(
        train(plan, state, records, build_mechanism(plan), permit, (1 / 3,) * 3, horizon=plan.steps)
    )
    expected = min(most, plan.steps)
    assert state.step == len(drawn) == permit.granted == expected
    assert sum(block.steps for block in blocks) == expected
    assert all(math.isfinite(block.gradient_norm) and block.gradient_norm > 0 for block in blocks)


@pytest.mark.parametrize("records", [None, 100])
def test_blocks_do_not_tell_the_time_where_the_size_is_not_public(records, monkeypatch):
    data = tiny_data()
    plan = tiny_plan(data, steps=700, records=records)
    pauses = itertools.cycle([0.001, 0.2, 3.0])
    clock = itertools.accumulate(pauses)
    monkeypatch.setattr(loop, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    state, permit = TrainingState(plan, CPU), Everything()
    found = train(
        plan, state, Records(data, CPU), build_mechanism(plan), permit, (1 / 3,) * 3, horizon=plan.steps
    )
    sizes = [block.steps for block in found]
    assert sum(sizes) == 700
    if records is None:  # by the clock
        assert len(set(sizes)) > 3
    else:
        assert sizes == [3] * 233 + [1]


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("labelled", [True, False])
def test_what_a_step_generates(mechanism, labelled):
    """n images and n' more; the resampled ones repeat the labels of the first n'."""
    data = tiny_data(labelled=labelled)
    plan = tiny_plan(data, mechanism)
    state, sanitizer = TrainingState(plan, CPU), build_mechanism(plan)
    n = plan.generated
    assert n == (9 if labelled else 6)
    labels = training_labels(plan, n, (0.2, 0.3, 0.5), state.random, CPU)
    points, every = generate(state, sanitizer, n, labels)
    extra = sanitizer.resampled(n)
    assert points.shape == (n + extra, 16)
    assert points.abs().max() <= 1
    assert points.requires_grad
    if not labelled:
        assert labels is None
        assert every is None
        return
    assert torch.equal(every[:n], labels)
    assert torch.equal(every[n:], labels[:extra])
    if mechanism == "record":  # every class is shown, as often as any other
        assert torch.bincount(labels).tolist() == [3, 3, 3]


def test_an_empty_sample_is_a_step_like_any_other():
    """With a rate so low that hardly any sample holds a record, as many steps are taken."""
    data = tiny_data()
    plan = tiny_plan(data, privacy={"sampling_rate": 1 / 90}, steps=30)
    state = TrainingState(plan, CPU)
    blocks = train(
        plan, state, Records(data, CPU), build_mechanism(plan), Counted(99), (1 / 3,) * 3, horizon=30
    )
    assert sum(block.steps for block in blocks) == 30


def test_a_training_that_diverges_says_so_while_it_can(tmp_path):
    """Not at the release, when all is spent."""
    data = tiny_data()
    plan = tiny_plan(data, "record", steps=10_000)
    plan = dataclasses.replace(plan, recipe=plan.recipe.replace(optimizer={"learning_rate": 1e30}))
    run = Run.create(tmp_path / "run", plan)
    with pytest.raises(TrainingError, match=r"diverged: by step \d+ .* lower learning rate"):
        run.train(data)
    assert sum(spend.steps for spend in read_ledger(run.ledger_path).spends) < 10_000
    assert not run.done


def test_blocks_grow_to_a_second_and_not_beyond():
    assert _next_block(1, 1e-4) == 10
    assert _next_block(10, 0.1) == 100
    assert _next_block(100, 2.0) == 50
    assert _next_block(9000, 1e-2) == 10_000
    assert _next_block(1, 30.0) == 1
    assert _next_block(1, 0.0) == 10
