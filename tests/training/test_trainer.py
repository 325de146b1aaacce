"""What is asked of the ledger, what a step generates, and that blocks pay before they start."""

from __future__ import annotations

import dataclasses
import itertools
import math
from types import SimpleNamespace

import pytest
import torch

from dpsinkhorn.privacy import Budget, Ledger, compose, epsilon, read_ledger
from dpsinkhorn.training import Run, TrainingError, trainer
from dpsinkhorn.training.account import Account, epsilon_by
from dpsinkhorn.training.records import Records
from dpsinkhorn.training.state import TrainingState
from dpsinkhorn.training.steps import generate, training_labels
from dpsinkhorn.training.trainer import Trainer, _next_block
from support.runs import DATA, MECHANISMS, Everything, tiny_data, tiny_plan

CPU = torch.device("cpu")


@pytest.fixture
def account_of(tmp_path):
    opened = []

    def open_one(plan):
        opened.append(Account.open(tmp_path / "ledger.jsonl", plan, "run", begin=True))
        return opened[-1]

    yield open_one
    for account in opened:
        account.ledger.close()


def horizon_at(account, step, *, replays=False):
    return account.settle(step, replays=replays, promised=None)


class TestAccount:
    def test_grants_what_the_budget_allows_and_no_more(self, account_of):
        account = account_of(tiny_plan(tiny_data(), steps=20))
        assert horizon_at(account, 0) == 20
        step, granted = 0, []
        while count := account.reserve(step, 7):
            granted.append(count)
            step += count
        assert granted == [7, 7, 6]
        assert sum(spend.steps for spend in account.ledger.statement().spends) == 20

    def test_what_others_spent_is_gone(self, account_of):
        plan = tiny_plan(tiny_data(), steps=20)
        account = account_of(plan)
        account.ledger.spend(plan.step_charge, run="another", steps=5)
        assert horizon_at(account, 0) == 15
        assert [account.reserve(0, 9), account.reserve(9, 9), account.reserve(15, 9)] == [9, 6, 0]
        assert account.ledger.epsilon() <= plan.budget_epsilon

    @pytest.mark.parametrize(("seed", "free"), [(3, 3), (None, 0)])
    def test_steps_on_record_are_free_to_a_replay_alone(self, account_of, seed, free):
        plan = tiny_plan(tiny_data(), steps=20, seed=seed)
        account = account_of(plan)
        account.ledger.spend(plan.step_charge, run="run", steps=8)
        assert horizon_at(account, 5, replays=True) == 17 + free
        if free:
            assert account.reserve(5, 10) == free  # up to what is covered: the rest is asked for next time
            assert len(account.ledger.statement().spends) == 1
        assert account.reserve(5 + free, 10) == 10
        assert account.reserve(15 + free, 10) == 2
        assert account.reserve(17 + free, 10) == 0

    def test_also_where_others_left_room(self, tmp_path):
        """A run keeps within its own plan; what else the ledger has is for other runs."""
        plan = tiny_plan(tiny_data(), steps=20)
        path, budget = tmp_path / "shared.jsonl", Budget(3 * plan.epsilon, plan.delta)
        with Ledger.open(path, epsilon_by(plan), budget=budget) as ledger:
            ledger.spend(plan.step_charge, run="another", steps=4)
            ledger.spend(plan.step_charge, run="run", steps=8)  # of which only 5 are kept
        with Account.open(path, plan, "run") as account:
            assert horizon_at(account, 5) == 17
            assert [account.reserve(5, 9), account.reserve(14, 9), account.reserve(17, 9)] == [9, 3, 0]
            spends = account.ledger.statement().spends
            assert sum(spend.steps for spend in spends if spend.run == "run") == 20

    def test_frequencies_that_were_released_twice_take_their_part(self, tmp_path):
        plan = tiny_plan(tiny_data(), steps=20, labels="released", epsilon=5.0)
        lost = plan.count_mechanism.charge()
        path = tmp_path / "shared.jsonl"
        with Ledger.open(path, epsilon_by(plan), budget=Budget(50.0, plan.delta)) as ledger:
            ledger.spend(lost, run="another", steps=3)
            ledger.spend(lost, run="run")
        with Account.open(path, plan, "run") as account:
            assert horizon_at(account, 0) == 20
            account.ledger.spend(lost, run="run", steps=1)
            horizon = horizon_at(account, 0)

        def cost(steps):
            return epsilon(
                compose(lost, lost, plan.mechanism.sampled(plan.sampling_rate, steps)), plan.delta, "rdp"
            )

        assert cost(horizon) <= 5.0 < cost(horizon + 1)
        assert 10 < horizon < 20

    def test_epsilon_at_a_step(self, account_of):
        plan = tiny_plan(tiny_data(), steps=20)
        account = account_of(plan)
        horizon_at(account, 0)
        assert account.reserve(0, 8) == 8
        at = {
            n: epsilon(plan.mechanism.sampled(plan.sampling_rate, n), plan.delta, "rdp") for n in (8, 9, 20)
        }
        for step, expected in ((5, at[8]), (8, at[8]), (9, at[9]), (20, at[20])):
            assert account.epsilon_by(step) == pytest.approx(expected, rel=1e-12)
        assert account.ledger.epsilon() == pytest.approx(at[8], rel=1e-12)  # nothing was spent by asking


class Counted(Everything):
    """Grants blocks of three, and knows how many steps were allowed."""

    def __init__(self, steps, most):
        super().__init__(steps)
        self.most, self.granted = most, 0

    def reserve(self, step, wanted):
        assert step == self.granted
        count = min(3, wanted, self.most - self.granted)
        self.granted += count
        return count


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("most", [0, 1, 7, 100])
def test_no_step_without_leave(mechanism, most, monkeypatch):
    plan = tiny_plan(DATA, mechanism, steps=12)
    permit = Counted(plan.steps, most)
    training = Trainer(plan, DATA, CPU, permit)
    drawn = []
    real = Records.draw

    def draw(self, rate, noise):
        drawn.append(rate)
        assert len(drawn) <= permit.granted
        if plan.private:  # the rate that is charged
            assert rate == plan.step_charge.event.event.sampling_probability
        return real(self, rate, noise)

    monkeypatch.setattr(Records, "draw", draw)
    blocks = list(training.blocks())
    expected = min(most, plan.steps)
    assert training.state.step == len(drawn) == permit.granted == expected
    assert sum(block.steps for block in blocks) == expected
    assert all(math.isfinite(block.gradient_norm) and block.gradient_norm > 0 for block in blocks)


@pytest.mark.parametrize("records", [None, 100])
def test_blocks_do_not_tell_the_time_where_the_size_is_not_public(records, monkeypatch):
    plan = tiny_plan(DATA, steps=700, records=records)
    pauses = itertools.cycle([0.001, 0.2, 3.0])
    clock = itertools.accumulate(pauses)
    monkeypatch.setattr(trainer, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    sizes = [block.steps for block in Trainer(plan, DATA, CPU, Everything(plan.steps)).blocks()]
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
    state, barrier = TrainingState(plan, CPU), plan.build()
    n = plan.generated
    assert n == (9 if labelled else 6)
    labels = training_labels(plan, n, (0.2, 0.3, 0.5), state.random, CPU)
    points, every = generate(state, barrier, n, labels)
    extra = barrier.resampled(n)
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
    plan = tiny_plan(DATA, privacy={"sampling_rate": 1 / 90}, steps=30)
    blocks = Trainer(plan, DATA, CPU, Counted(plan.steps, 99)).blocks()
    assert sum(block.steps for block in blocks) == 30


def test_a_training_that_diverges_says_so_while_it_can(tmp_path):
    """Not at the release, when all is spent."""
    plan = tiny_plan(DATA, "record", steps=10_000)
    plan = dataclasses.replace(plan, recipe=plan.recipe.replace(optimizer={"learning_rate": 1e30}))
    run = Run.create(tmp_path / "run", plan)
    with pytest.raises(TrainingError, match=r"diverged: by step \d+ .* lower learning rate"):
        run.train(DATA)
    assert sum(spend.steps for spend in read_ledger(run.ledger_path).spends) < 10_000
    assert not run.done


def test_blocks_grow_to_a_second_and_not_beyond():
    assert _next_block(1, 1e-4) == 10
    assert _next_block(10, 0.1) == 100
    assert _next_block(100, 2.0) == 50
    assert _next_block(9000, 1e-2) == 10_000
    assert _next_block(1, 30.0) == 1
    assert _next_block(1, 0.0) == 10
