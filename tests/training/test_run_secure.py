"""Secure runs never use noise twice, and everything that is used was paid for before."""

from __future__ import annotations

import random

import pytest
import torch

from dpsinkhorn import load
from dpsinkhorn.privacy import SecureNoise, epsilon, read_ledger
from dpsinkhorn.training import Run, Saving, TrainingError, records, state, trainer
from support.runs import (
    AT_THE_END,
    DATA,
    CrashError,
    crash_at,
    go_on,
    header_step,
    steps_on_record,
    tiny_data,
    tiny_plan,
)


class TestSecure:
    @pytest.fixture
    def drawn(self, monkeypatch):
        """All words that secure sources hand out, in every process life of a run."""
        words = []

        class Recorded(SecureNoise):
            def words(self, count, *, device="cpu"):
                found = super().words(count, device=device)
                words.append(found.clone())
                return found

        monkeypatch.setattr(state, "SecureNoise", Recorded)
        return words

    @pytest.mark.usefixtures("small_blocks")
    def test_no_noise_is_drawn_twice(self, tmp_path, drawn):
        plan = tiny_plan(DATA, seed=None, labels="released", steps=40)
        interrupted = go_on(
            tmp_path / "run", plan, DATA, 0.25, random.Random(2), saving=Saving(0.002, picture_steps=0)
        )
        assert interrupted >= 3
        every = torch.cat(drawn)
        assert len(every) > 40 * 50
        assert len(torch.unique(every)) == len(every)  # 64 bits: a chance repetition is out of the question

    def test_latents_are_not_repeated_either(self, tmp_path):
        plan = tiny_plan(tiny_data(), seed=None)
        first = state.TrainingState(plan, torch.device("cpu"))
        first.save(tmp_path / "checkpoint", {})
        again = state.TrainingState(plan, torch.device("cpu"))
        again.load(tmp_path / "checkpoint")
        assert not torch.equal(first.random.get_state(), again.random.get_state())

    @pytest.mark.parametrize("trial", range(4))
    def test_what_is_used_is_on_record_and_lost_steps_are_charged(self, tmp_path, monkeypatch, trial):
        """Each private sample finds itself paid for on disk, at the moment it is drawn."""
        plan = tiny_plan(DATA, seed=None, steps=30, accountant="pld")
        folder, choices = tmp_path / "run", random.Random(trial)
        monkeypatch.setattr(trainer, "_next_block", lambda _steps, _seconds: choices.randint(1, 5))
        used = []
        real = records.Records.draw

        def draw(self, rate, noise):
            used.append(rate)
            assert len(used) <= steps_on_record(folder / "ledger.jsonl", plan.step_charge)
            if choices.random() < 0.05:
                raise CrashError
            return real(self, rate, noise)

        monkeypatch.setattr(records.Records, "draw", draw)
        interrupted = go_on(folder, plan, DATA, 0.2, choices, saving=Saving(0.002, picture_steps=0))
        assert interrupted
        statement = read_ledger(folder / "ledger.jsonl")
        on_record = steps_on_record(folder / "ledger.jsonl", plan.step_charge)
        kept = header_step(folder)
        privacy = load(folder).privacy
        assert kept <= len(used) <= on_record <= plan.steps
        assert on_record == plan.steps  # the budget is used up, exactly
        assert privacy.epsilon == pytest.approx(
            epsilon(statement.total(), plan.delta, plan.accountant), rel=1e-9
        )
        assert privacy.epsilon <= plan.budget_epsilon
        assert privacy.ledger_digest == statement.digest
        assert privacy.recomputed_epsilon() == pytest.approx(privacy.epsilon, rel=1e-9)

    @pytest.mark.usefixtures("small_blocks")
    def test_a_stop_loses_nothing(self, tmp_path, draws):
        plan = tiny_plan(DATA, seed=None, steps=20)
        run = Run.create(tmp_path / "run", plan)
        while not run.train(DATA, saving=AT_THE_END, watch=lambda _: True):
            run = Run.resume(tmp_path / "run")
        assert len(draws) == steps_on_record(run.ledger_path, plan.step_charge) == plan.steps
        assert header_step(run.folder) == plan.steps
        assert load(run.folder).privacy.epsilon == pytest.approx(plan.epsilon, rel=1e-9)

    def test_all_steps_lost(self, tmp_path, draws, monkeypatch):
        """Budget spent, nothing kept: a release of untrained weights would help nobody."""
        plan = tiny_plan(DATA, seed=None)
        monkeypatch.setattr(trainer, "_next_block", lambda _steps, _seconds: plan.steps)
        crash_at(plan.steps, Run.create(tmp_path / "run", plan), DATA)
        assert len(draws) == plan.steps
        with pytest.raises(TrainingError, match="allows no step, and none is kept"):
            Run.resume(tmp_path / "run").train(DATA)
        assert len(draws) == plan.steps
        assert not (tmp_path / "run" / "release").exists()
