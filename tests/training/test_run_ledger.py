"""Runs and their ledger: one of its own or a shared one, one that is gone, old or full."""

from __future__ import annotations

import json
import shutil

import pytest

from dpsinkhorn import load
from dpsinkhorn.privacy import Budget, Ledger, epsilon, read_ledger
from dpsinkhorn.privacy.journal import JournalDamagedError, JournalLockedError
from dpsinkhorn.training import Run, TrainingError
from dpsinkhorn.training.account import epsilon_by
from dpsinkhorn.transport import private_cost
from support.runs import DATA, crash_at, finished, header_step, steps_on_record, tiny_data, tiny_plan


class TestLedger:
    def test_one_process_at_a_time(self, tmp_path):
        run = Run.create(tmp_path / "run", tiny_plan(DATA))
        budget = Budget(run.plan.budget_epsilon, 1e-5)
        with Ledger.open(run.ledger_path, epsilon, budget=budget), pytest.raises(JournalLockedError):
            run.train(DATA)
        assert run.train(DATA)

    @pytest.mark.parametrize("seed", [None, 3])
    def test_a_run_whose_ledger_is_gone_is_refused(self, tmp_path, draws, seed):
        run = Run.create(tmp_path / "run", tiny_plan(DATA, seed=seed))
        run.train(DATA, watch=lambda _: True)
        for file in run.folder.glob("ledger.jsonl*"):
            file.unlink()
        taken = len(draws)
        with pytest.raises(TrainingError, match="is gone; put it back"):
            Run.resume(run.folder).train(DATA)
        assert len(draws) == taken
        assert not run.ledger_path.exists()

    @pytest.mark.usefixtures("small_blocks")
    def test_an_older_copy_of_the_ledger_is_refused(self, tmp_path, draws):
        run = Run.create(tmp_path / "run", tiny_plan(DATA, seed=None, steps=30))
        run.train(DATA, watch=lambda _: True)
        shutil.copytree(run.folder, tmp_path / "old")
        run = Run.resume(run.folder)
        run.train(DATA, watch=lambda _: True)
        for file in (tmp_path / "old").glob("ledger.jsonl*"):
            shutil.copy(file, run.folder / file.name)
        taken = len(draws)
        with pytest.raises(JournalDamagedError, match="an older copy"):
            Run.resume(run.folder).train(DATA)
        assert len(draws) == taken

    def test_a_shared_ledger_adds_up_and_refuses_what_does_not_fit(self, tmp_path):
        ledger = tmp_path / "shared" / "ledger.jsonl"
        first = tiny_plan(DATA, seed=None, steps=10)
        # the budget is that of the first run: a second one does not fit
        finished(tmp_path / "first", first, DATA, ledger=ledger)
        before = ledger.read_bytes()
        with pytest.raises(TrainingError, match="has no room for this run"):
            Run.create(tmp_path / "second", first, ledger=ledger)
        assert not (tmp_path / "second").exists()
        assert ledger.read_bytes() == before

    def test_two_runs_on_a_ledger_with_room(self, tmp_path):
        ledger = tmp_path / "ledger.jsonl"
        plan = tiny_plan(DATA, seed=None, steps=10)
        Ledger.open(ledger, epsilon, budget=Budget(100.0, 1e-5)).close()
        first = finished(tmp_path / "first", plan, DATA, ledger=ledger)
        second = finished(tmp_path / "second", plan, DATA, ledger=ledger)
        both = epsilon(read_ledger(ledger).total(), 1e-5, "rdp")
        assert load(first.folder).privacy.epsilon == pytest.approx(plan.epsilon, rel=1e-9)
        assert load(second.folder).privacy.epsilon == pytest.approx(both, rel=1e-9)
        assert both > plan.epsilon
        assert len(read_ledger(ledger).runs) == 2

    def test_released_frequencies_count_towards_the_room(self, tmp_path):
        ledger = tmp_path / "ledger.jsonl"
        plan = tiny_plan(DATA, seed=None, steps=10)
        released = tiny_plan(DATA, seed=None, steps=10, labels="released")
        assert released.epsilon > plan.epsilon
        Ledger.open(ledger, epsilon, budget=Budget(plan.budget_epsilon, 1e-5)).close()
        with pytest.raises(TrainingError, match="no room"):
            Run.create(tmp_path / "run", released, ledger=ledger)
        assert read_ledger(ledger).spends == ()

    def test_a_resumed_run_stops_where_others_left_room(self, tmp_path, draws):
        """Another run took from the shared ledger in between: fewer steps, and never past the budget."""
        ledger = tmp_path / "ledger.jsonl"
        plan = tiny_plan(DATA, seed=None, steps=30)
        run = Run.create(tmp_path / "run", plan, ledger=ledger)
        run.train(DATA, watch=lambda _: True)
        with Ledger.open(ledger, epsilon) as shared:
            shared.spend(plan.step_charge, run="other", steps=12)
        assert Run.resume(run.folder).train(DATA)
        assert header_step(run.folder) == 18 == len(draws)
        privacy = load(run.folder).privacy
        assert plan.epsilon == pytest.approx(privacy.epsilon, rel=1e-9)
        assert privacy.epsilon <= plan.budget_epsilon

    def test_a_ledger_at_another_delta(self, tmp_path):
        Ledger.open(tmp_path / "ledger.jsonl", epsilon, budget=Budget(100.0, 1e-6)).close()
        with pytest.raises(TrainingError, match="delta 1e-06, this run at 1e-05"):
            Run.create(tmp_path / "run", tiny_plan(DATA), ledger=tmp_path / "ledger.jsonl")

    def test_one_unit_of_privacy_per_ledger(self, tmp_path):
        """A charge that protects a record says nothing of a person with several."""
        ledger = tmp_path / "ledger.jsonl"
        Ledger.open(ledger, epsilon, budget=Budget(100.0, 1e-5)).close()
        data, people = tiny_data(), tiny_data(persons=20)
        finished(tmp_path / "records", tiny_plan(data), data, ledger=ledger)
        with pytest.raises(TrainingError, match="protect each record, and this one protects each person"):
            Run.create(tmp_path / "persons", tiny_plan(people), ledger=ledger)
        finished(tmp_path / "more", tiny_plan(data), data, ledger=ledger)

    def test_a_person_is_not_protected_by_charges_of_which_nobody_knows(self, tmp_path):
        ledger = tmp_path / "ledger.jsonl"
        data, people = tiny_data(), tiny_data(persons=20)
        with Ledger.open(ledger, epsilon, budget=Budget(100.0, 1e-5)) as opened:
            opened.spend(tiny_plan(data).step_charge, run="first", steps=4)
        with pytest.raises(TrainingError, match="'first', of which it is not known"):
            Run.create(tmp_path / "persons", tiny_plan(people), ledger=ledger)
        finished(tmp_path / "records", tiny_plan(data), data, ledger=ledger)

    def test_an_accountant_that_cannot_count_what_others_charged(self, tmp_path):
        """RDP knows no conversion to replace-one: the run goes on by PLD, and says so."""
        ledger, data = tmp_path / "ledger.jsonl", tiny_data()
        Ledger.open(ledger, epsilon, budget=Budget(100.0, 1e-5)).close()
        plan = tiny_plan(data)
        run = Run.create(tmp_path / "run", plan, ledger=ledger)
        run.train(data, watch=lambda _: True)
        points = [[0.1, 0.2], [0.3, 0.4], [0.5, 0.1]]
        private_cost(points, points, epsilon=1.0, cost_bound=1.0, ledger=ledger)
        assert Run.resume(run.folder).train(data)
        finished(tmp_path / "second", plan, data, ledger=ledger)
        for folder in ("run", "second"):
            privacy = load(tmp_path / folder).privacy
            assert (plan.accountant, privacy.accountant) == ("rdp", "pld")
            assert privacy.adjacency == "replace-one"
        assert privacy.epsilon == epsilon(read_ledger(ledger).total(), 1e-5, "pld")

    def test_one_unit_also_where_both_runs_began_on_an_empty_ledger(self, tmp_path):
        ledger = tmp_path / "ledger.jsonl"
        Ledger.open(ledger, epsilon, budget=Budget(100.0, 1e-5)).close()
        data, people = tiny_data(), tiny_data(persons=20)
        second = Run.create(tmp_path / "persons", tiny_plan(people), ledger=ledger)
        finished(tmp_path / "x-record-0a1b2c3d-person-deadbeef", tiny_plan(data), data, ledger=ledger)
        with pytest.raises(TrainingError, match="protect each record, and this one protects each person"):
            second.train(people)
        assert len(read_ledger(ledger).runs) == 1

    @pytest.mark.usefixtures("small_blocks")
    @pytest.mark.parametrize("seed", [None, 3])
    def test_others_spend_while_a_run_is_down(self, tmp_path, seed, draws):
        """What was charged and not kept is free only to those who take the very same steps again."""
        data, ledger = tiny_data(), tmp_path / "ledger.jsonl"
        plan = tiny_plan(data, seed=seed)
        run = Run.create(tmp_path / "run", plan, ledger=ledger)
        crash_at(5, run, data)
        spent = steps_on_record(ledger, plan.step_charge)
        assert header_step(run.folder) == 0
        assert 5 <= spent < plan.steps
        with Ledger.open(ledger, epsilon_by(plan)) as shared:
            shared.spend(plan.step_charge, run="another", steps=plan.steps - spent)
        taken = len(draws)
        if seed is None:  # nothing is left for a run whose noise is drawn afresh
            with pytest.raises(TrainingError, match="allows no step"):
                Run.resume(run.folder).train(data)
        else:
            with pytest.raises(TrainingError, match=r"was to end after 12 steps.* now ends it after \d+"):
                Run.resume(run.folder).train(data)
        assert len(draws) == taken

    @pytest.mark.usefixtures("small_blocks")
    @pytest.mark.parametrize("lost", [3, 7])
    def test_a_run_that_lost_steps_keeps_to_its_own_epsilon(self, tmp_path, lost):
        """However much room the ledger has; and its release does not tell how many were lost."""
        data, ledger = tiny_data(), tmp_path / "ledger.jsonl"
        Ledger.open(ledger, epsilon, budget=Budget(100.0, 1e-5)).close()
        plan = tiny_plan(data, seed=None)
        run = Run.create(tmp_path / "run", plan, ledger=ledger)
        crash_at(lost, run, data)
        assert header_step(run.folder) == 0
        assert Run.resume(run.folder).train(data)
        assert header_step(run.folder) <= plan.steps - lost
        privacy = load(run.release_folder).privacy
        assert privacy.epsilon == pytest.approx(plan.epsilon, rel=1e-12)
        assert [charge["event"]["count"] for charge in privacy.charges] == [plan.steps]

    @pytest.mark.parametrize("name", ["noise_multiplier", "sampling_rate"])
    def test_a_plan_that_was_edited_is_refused(self, tmp_path, name, draws):
        """Steps of another kind than those on record are another run's."""
        run = Run.create(tmp_path / "run", tiny_plan(DATA, seed=None, steps=30))
        assert not run.train(DATA, watch=lambda _: True)
        settings = json.loads((run.folder / "run.json").read_text())
        settings["plan"][name] *= 0.9
        (run.folder / "run.json").write_text(json.dumps(settings))
        taken = len(draws)
        with pytest.raises(TrainingError, match=r"charges of run-record-.* that its plan does not have"):
            Run.resume(run.folder).train(DATA)
        assert len(draws) == taken

    def test_a_shared_ledger_that_is_gone(self, tmp_path):
        run = Run.create(tmp_path / "run", tiny_plan(DATA), ledger=tmp_path / "ledger.jsonl")
        for file in tmp_path.glob("ledger.jsonl*"):
            file.unlink()
        with pytest.raises(TrainingError, match="is gone"):
            run.train(DATA)

    def test_without_privacy(self, tmp_path):
        run = finished(tmp_path / "run", tiny_plan(DATA, "none", seed=None), DATA)
        privacy = load(run.folder).privacy
        assert privacy.epsilon == float("inf")
        assert not load(run.folder).releasable
        assert read_ledger(run.ledger_path).spends
