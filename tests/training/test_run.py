"""Run folders: seeded runs replay bit for bit, secure ones never use noise twice, the ledger is right."""

from __future__ import annotations

import json
import random
import shutil

import numpy as np
import pytest
import torch

from dpsinkhorn import load
from dpsinkhorn.data import from_arrays
from dpsinkhorn.privacy import Budget, Ledger, SecureNoise, epsilon, read_ledger
from dpsinkhorn.privacy.journal import JournalDamagedError, JournalLockedError
from dpsinkhorn.training import Run, Saving, TrainingError, loop, records, state
from dpsinkhorn.training import run as run_module
from support.runs import (
    AT_THE_END,
    EVERY_BLOCK,
    MECHANISMS,
    bits,
    finished,
    header,
    lines,
    tiny_data,
    tiny_plan,
)


class CrashError(Exception):
    """As abrupt as an exception can be: nothing is written after it."""


def steps_on_record(path, charge):
    return sum(spend.steps for spend in read_ledger(path).spends if spend.charge == charge)


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks of 1 to 4 steps at random: what is learnt must not depend on them."""
    choices = random.Random(5)
    monkeypatch.setattr(loop, "_next_block", lambda _steps, _seconds: choices.randint(1, 4))


@pytest.fixture
def draws(monkeypatch):
    """Counts the private samples that are really drawn, by a step number each."""
    counted = []
    real = records.Records.draw

    def draw(self, rate, noise):
        counted.append(rate)
        return real(self, rate, noise)

    monkeypatch.setattr(records.Records, "draw", draw)
    return counted


def go_on(folder, plan, data, chance, choices, *, saving):
    """Train with stops and crashes at random blocks until the run is done; how often it was interrupted."""
    run, interrupted = Run.create(folder, plan), 0
    while True:

        def watch(_progress):
            fate = choices.random()
            if fate < chance / 2:
                raise CrashError
            return fate < chance

        try:
            if run.train(data, saving=saving, watch=watch):
                return interrupted
        except CrashError:
            pass
        interrupted += 1
        run = Run.resume(folder)


class TestReplay:
    @pytest.mark.parametrize("mechanism", MECHANISMS)
    @pytest.mark.parametrize("persons", [None, 20])
    def test_two_runs_are_equal(self, tmp_path, mechanism, persons):
        data = tiny_data(persons=persons)
        plan = tiny_plan(data, mechanism)
        finished(tmp_path / "a", plan, data)
        finished(tmp_path / "b", plan, data, saving=AT_THE_END)
        assert bits(tmp_path / "a") == bits(tmp_path / "b")

    def test_another_seed_is_another_run(self, tmp_path):
        data = tiny_data()
        finished(tmp_path / "a", tiny_plan(data, seed=1), data)
        finished(tmp_path / "b", tiny_plan(data, seed=2), data)
        assert bits(tmp_path / "a")["release"] != bits(tmp_path / "b")["release"]

    @pytest.mark.parametrize(
        ("mechanism", "options"),
        [
            *((mechanism, {}) for mechanism in MECHANISMS),
            *((mechanism, {"ema": None, "schedule": "constant"}) for mechanism in MECHANISMS),
            *((mechanism, {"labels": "released"}) for mechanism in MECHANISMS if mechanism != "none"),
        ],
    )
    @pytest.mark.usefixtures("small_blocks")
    def test_interrupted_equals_uninterrupted(self, tmp_path, mechanism, options):
        data = tiny_data()
        plan = tiny_plan(data, mechanism, **options)
        finished(tmp_path / "whole", plan, data)
        choices = random.Random(str((mechanism, options)))
        interrupted = 0
        for trial in range(3):
            folder = tmp_path / f"broken-{trial}"
            saving = Saving(checkpoint_seconds=choices.choice([0.0, 0.003]), picture_steps=3)
            interrupted += go_on(folder, plan, data, 0.4, choices, saving=saving)
            assert bits(folder) == bits(tmp_path / "whole")
            spent = steps_on_record(folder / "ledger.jsonl", plan.step_charge)
            assert spent == plan.steps  # a replay reveals nothing new, and is charged once
        assert interrupted >= 3

    @pytest.mark.usefixtures("small_blocks")
    def test_unlabelled_and_16_bit(self, tmp_path):
        images = np.random.default_rng(0).integers(0, 65536, (60, 4, 5, 3), dtype=np.uint16)
        data = from_arrays(images)
        plan = tiny_plan(data)
        finished(tmp_path / "whole", plan, data)
        go_on(tmp_path / "broken", plan, data, 0.5, random.Random(1), saving=EVERY_BLOCK)
        assert bits(tmp_path / "whole") == bits(tmp_path / "broken")

    @pytest.mark.usefixtures("small_blocks")
    def test_pictures_and_statistics_leave_training_alone(self, tmp_path):
        data = tiny_data()
        plan = tiny_plan(data)
        finished(tmp_path / "with", plan, data, saving=Saving(checkpoint_seconds=0.0, picture_steps=1))
        finished(tmp_path / "without", plan, data, saving=AT_THE_END)
        assert len(list((tmp_path / "with" / "samples").iterdir())) > 3
        assert not (tmp_path / "without" / "samples").exists()
        assert bits(tmp_path / "with") == bits(tmp_path / "without")

    def test_a_seeded_run_is_not_for_release(self, tmp_path):
        data = tiny_data()
        run = finished(tmp_path / "run", tiny_plan(data), data)
        release = load(run.release_folder)
        assert release.privacy.seeded
        assert not release.releasable


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
        data = tiny_data()
        plan = tiny_plan(data, seed=None, labels="released", steps=40)
        interrupted = go_on(
            tmp_path / "run", plan, data, 0.25, random.Random(2), saving=Saving(0.002, picture_steps=0)
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
        data = tiny_data()
        plan = tiny_plan(data, seed=None, steps=30, accountant="pld")
        folder, choices = tmp_path / "run", random.Random(trial)
        monkeypatch.setattr(loop, "_next_block", lambda _steps, _seconds: choices.randint(1, 5))
        used = []
        real = records.Records.draw

        def draw(self, rate, noise):
            used.append(rate)
            assert len(used) <= steps_on_record(folder / "ledger.jsonl", plan.step_charge)
            if choices.random() < 0.05:
                raise CrashError
            return real(self, rate, noise)

        monkeypatch.setattr(records.Records, "draw", draw)
        interrupted = go_on(folder, plan, data, 0.2, choices, saving=Saving(0.002, picture_steps=0))
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
        data = tiny_data()
        plan = tiny_plan(data, seed=None, steps=20)
        run = Run.create(tmp_path / "run", plan)
        while not run.train(data, saving=AT_THE_END, watch=lambda _: True):
            run = Run.resume(tmp_path / "run")
        assert len(draws) == steps_on_record(run.ledger_path, plan.step_charge) == plan.steps
        assert header_step(run.folder) == plan.steps
        assert load(run.folder).privacy.epsilon == pytest.approx(plan.epsilon, rel=1e-9)

    def test_all_steps_lost(self, tmp_path, draws, monkeypatch):
        """Budget spent, nothing kept: a release of untrained weights would help nobody."""
        data = tiny_data()
        plan = tiny_plan(data, seed=None)

        def crash_late(progress):
            if progress.block.step == plan.steps:
                raise CrashError

        monkeypatch.setattr(loop, "_next_block", lambda _steps, _seconds: plan.steps)
        run = Run.create(tmp_path / "run", plan)
        with pytest.raises(CrashError):
            run.train(data, saving=AT_THE_END, watch=crash_late)
        assert len(draws) == plan.steps
        with pytest.raises(TrainingError, match="allows no step, and none is kept"):
            Run.resume(tmp_path / "run").train(data)
        assert len(draws) == plan.steps
        assert not (tmp_path / "run" / "release").exists()


def header_step(folder):
    return header(folder / "checkpoint.safetensors")["step"]


class TestCrashesBetween:
    def test_last_checkpoint_and_release(self, tmp_path, monkeypatch, draws):
        data = tiny_data()
        plan = tiny_plan(data)
        finished(tmp_path / "whole", plan, data)
        taken = len(draws)

        def crash(*_arguments, **_options):
            (tmp_path / "run" / ".release.abc.partial").mkdir()
            (tmp_path / "run" / ".release.abc.partial" / "README.md").write_text("half")
            raise CrashError

        run = Run.create(tmp_path / "run", plan)
        with monkeypatch.context() as patch:
            patch.setattr(run_module, "write_release", crash)
            with pytest.raises(CrashError):
                run.train(data)
        assert len(draws) == 2 * taken
        before = (tmp_path / "run" / "ledger.jsonl").read_bytes()
        assert Run.resume(tmp_path / "run").train(data)
        assert len(draws) == 2 * taken  # no step more
        assert (tmp_path / "run" / "ledger.jsonl").read_bytes() == before
        assert bits(tmp_path / "run") == bits(tmp_path / "whole")
        assert not list((tmp_path / "run").glob(".release*"))

    def test_secure_last_checkpoint_and_release(self, tmp_path, monkeypatch, draws):
        data = tiny_data()
        plan = tiny_plan(data, seed=None)

        def crash(*_arguments, **_options):
            raise CrashError

        run = Run.create(tmp_path / "run", plan)
        with monkeypatch.context() as patch:
            patch.setattr(run_module, "write_release", crash)
            with pytest.raises(CrashError):
                run.train(data)
        spent = read_ledger(tmp_path / "run" / "ledger.jsonl")
        assert Run.resume(tmp_path / "run").train(data)
        assert read_ledger(tmp_path / "run" / "ledger.jsonl") == spent
        assert len(draws) == plan.steps

    @pytest.mark.parametrize("seed", [None, 3])
    def test_spend_and_first_checkpoint(self, tmp_path, monkeypatch, seed):
        """Class frequencies are charged, then the process dies: a secure run releases, and pays, again."""
        data = tiny_data()
        plan = tiny_plan(data, seed=seed, labels="released", steps=20)

        def crash(*_arguments, **_options):
            raise CrashError

        run = Run.create(tmp_path / "run", plan)
        with monkeypatch.context() as patch:
            patch.setattr(run_module, "release_label_frequencies", crash)
            with pytest.raises(CrashError):
                run.train(data)
        assert not (tmp_path / "run" / "checkpoint.safetensors").exists()
        assert Run.resume(tmp_path / "run").train(data)
        statement = read_ledger(tmp_path / "run" / "ledger.jsonl")
        counts = [s for s in statement.spends if s.charge == plan.count_mechanism.charge()]
        assert len(counts) == (2 if seed is None else 1)
        kept = header_step(tmp_path / "run")
        privacy = load(tmp_path / "run").privacy
        assert kept == steps_on_record(tmp_path / "run" / "ledger.jsonl", plan.step_charge)
        assert kept < plan.steps if seed is None else kept == plan.steps
        assert privacy.epsilon == pytest.approx(
            epsilon(statement.total(), plan.delta, plan.accountant), rel=1e-9
        )
        assert privacy.epsilon <= plan.budget_epsilon

    def test_spend_and_the_steps_it_pays_for(self, tmp_path, monkeypatch):
        data = tiny_data()
        plan = tiny_plan(data, seed=None)
        real = Ledger.spend
        crashes = iter([True])

        def spend(self, *arguments, **options):
            real(self, *arguments, **options)
            if next(crashes, False):
                raise CrashError

        monkeypatch.setattr(Ledger, "spend", spend)
        run = Run.create(tmp_path / "run", plan)
        with pytest.raises(CrashError):
            run.train(data)
        assert Run.resume(tmp_path / "run").train(data)
        assert header_step(tmp_path / "run") == plan.steps - 1
        assert steps_on_record(tmp_path / "run" / "ledger.jsonl", plan.step_charge) == plan.steps

    def test_a_torn_line_of_statistics(self, tmp_path):
        data = tiny_data()
        run = Run.create(tmp_path / "run", tiny_plan(data))
        assert not run.train(data, watch=lambda _: True)
        with open(run.folder / "statistics.jsonl", "a") as file:
            file.write('{"step": 2, "epsi')
        assert Run.resume(run.folder).train(data)
        assert lines(run.folder)[0]["step"] == 1

    def test_an_exception_closes_the_ledger(self, tmp_path):
        data = tiny_data()
        plan = tiny_plan(data)
        run = Run.create(tmp_path / "run", plan)

        def crash(_progress):
            raise CrashError

        with pytest.raises(CrashError):
            run.train(data, watch=crash)
        with Ledger.open(run.ledger_path, epsilon) as ledger:  # not locked
            assert ledger.epsilon() > 0


class TestLedger:
    def test_one_process_at_a_time(self, tmp_path):
        data = tiny_data()
        run = Run.create(tmp_path / "run", tiny_plan(data))
        budget = Budget(run.plan.budget_epsilon, 1e-5)
        with Ledger.open(run.ledger_path, epsilon, budget=budget), pytest.raises(JournalLockedError):
            run.train(data)
        assert run.train(data)

    @pytest.mark.parametrize("seed", [None, 3])
    def test_a_run_whose_ledger_is_gone_is_refused(self, tmp_path, draws, seed):
        data = tiny_data()
        run = Run.create(tmp_path / "run", tiny_plan(data, seed=seed))
        run.train(data, watch=lambda _: True)
        for file in run.folder.glob("ledger.jsonl*"):
            file.unlink()
        taken = len(draws)
        with pytest.raises(TrainingError, match="is gone; put it back"):
            Run.resume(run.folder).train(data)
        assert len(draws) == taken
        assert not run.ledger_path.exists()

    @pytest.mark.usefixtures("small_blocks")
    def test_an_older_copy_of_the_ledger_is_refused(self, tmp_path, draws):
        data = tiny_data()
        run = Run.create(tmp_path / "run", tiny_plan(data, seed=None, steps=30))
        run.train(data, watch=lambda _: True)
        shutil.copytree(run.folder, tmp_path / "old")
        run = Run.resume(run.folder)
        run.train(data, watch=lambda _: True)
        for file in (tmp_path / "old").glob("ledger.jsonl*"):
            shutil.copy(file, run.folder / file.name)
        taken = len(draws)
        with pytest.raises(JournalDamagedError, match="an older copy"):
            Run.resume(run.folder).train(data)
        assert len(draws) == taken

    def test_a_shared_ledger_adds_up_and_refuses_what_does_not_fit(self, tmp_path):
        data = tiny_data()
        ledger = tmp_path / "shared" / "ledger.jsonl"
        first = tiny_plan(data, seed=None, steps=10)
        # the budget is that of the first run: a second one does not fit
        finished(tmp_path / "first", first, data, ledger=ledger)
        before = ledger.read_bytes()
        with pytest.raises(TrainingError, match="has no room for this run"):
            Run.create(tmp_path / "second", first, ledger=ledger)
        assert not (tmp_path / "second").exists()
        assert ledger.read_bytes() == before

    def test_two_runs_on_a_ledger_with_room(self, tmp_path):
        data = tiny_data()
        ledger = tmp_path / "ledger.jsonl"
        plan = tiny_plan(data, seed=None, steps=10)
        Ledger.open(ledger, epsilon, budget=Budget(100.0, 1e-5)).close()
        first = finished(tmp_path / "first", plan, data, ledger=ledger)
        second = finished(tmp_path / "second", plan, data, ledger=ledger)
        both = epsilon(read_ledger(ledger).total(), 1e-5, "rdp")
        assert load(first.folder).privacy.epsilon == pytest.approx(plan.epsilon, rel=1e-9)
        assert load(second.folder).privacy.epsilon == pytest.approx(both, rel=1e-9)
        assert both > plan.epsilon
        assert len(read_ledger(ledger).runs) == 2

    def test_released_frequencies_count_towards_the_room(self, tmp_path):
        data = tiny_data()
        ledger = tmp_path / "ledger.jsonl"
        plan = tiny_plan(data, seed=None, steps=10)
        released = tiny_plan(data, seed=None, steps=10, labels="released")
        assert released.epsilon > plan.epsilon
        Ledger.open(ledger, epsilon, budget=Budget(plan.budget_epsilon, 1e-5)).close()
        with pytest.raises(TrainingError, match="no room"):
            Run.create(tmp_path / "run", released, ledger=ledger)
        assert read_ledger(ledger).spends == ()

    def test_a_resumed_run_stops_where_others_left_room(self, tmp_path, draws):
        """Another run took from the shared ledger in between: fewer steps, and never past the budget."""
        data = tiny_data()
        ledger = tmp_path / "ledger.jsonl"
        plan = tiny_plan(data, seed=None, steps=30)
        run = Run.create(tmp_path / "run", plan, ledger=ledger)
        run.train(data, watch=lambda _: True)
        with Ledger.open(ledger, epsilon) as shared:
            shared.spend(plan.step_charge, run="other", steps=12)
        assert Run.resume(run.folder).train(data)
        assert header_step(run.folder) == 18 == len(draws)
        privacy = load(run.folder).privacy
        assert plan.epsilon == pytest.approx(privacy.epsilon, rel=1e-9)
        assert privacy.epsilon <= plan.budget_epsilon

    def test_a_ledger_at_another_delta(self, tmp_path):
        data = tiny_data()
        Ledger.open(tmp_path / "ledger.jsonl", epsilon, budget=Budget(100.0, 1e-6)).close()
        with pytest.raises(TrainingError, match="delta 1e-06, this run at 1e-05"):
            Run.create(tmp_path / "run", tiny_plan(data), ledger=tmp_path / "ledger.jsonl")

    def test_one_unit_of_privacy_per_ledger(self, tmp_path):
        """A charge that protects a record says nothing of a person with several."""
        ledger = tmp_path / "ledger.jsonl"
        Ledger.open(ledger, epsilon, budget=Budget(100.0, 1e-5)).close()
        data, people = tiny_data(), tiny_data(persons=20)
        finished(tmp_path / "records", tiny_plan(data), data, ledger=ledger)
        with pytest.raises(TrainingError, match="protect each record, and this one protects each person"):
            Run.create(tmp_path / "persons", tiny_plan(people), ledger=ledger)
        finished(tmp_path / "more", tiny_plan(data), data, ledger=ledger)

    def test_one_unit_also_where_both_runs_began_on_an_empty_ledger(self, tmp_path):
        ledger = tmp_path / "ledger.jsonl"
        Ledger.open(ledger, epsilon, budget=Budget(100.0, 1e-5)).close()
        data, people = tiny_data(), tiny_data(persons=20)
        second = Run.create(tmp_path / "persons", tiny_plan(people), ledger=ledger)
        finished(tmp_path / "x-record-0a1b2c3d-person-deadbeef", tiny_plan(data), data, ledger=ledger)
        with pytest.raises(TrainingError, match="protect each record, and this one protects each person"):
            second.train(people)
        assert len(read_ledger(ledger).runs) == 1

    def test_a_shared_ledger_that_is_gone(self, tmp_path):
        data = tiny_data()
        run = Run.create(tmp_path / "run", tiny_plan(data), ledger=tmp_path / "ledger.jsonl")
        for file in tmp_path.glob("ledger.jsonl*"):
            file.unlink()
        with pytest.raises(TrainingError, match="is gone"):
            run.train(data)

    def test_without_privacy(self, tmp_path):
        data = tiny_data()
        run = finished(tmp_path / "run", tiny_plan(data, "none", seed=None), data)
        privacy = load(run.folder).privacy
        assert privacy.epsilon == float("inf")
        assert not load(run.folder).releasable
        assert read_ledger(run.ledger_path).spends


class TestWhatIsWritten:
    @pytest.mark.usefixtures("small_blocks")
    def test_statistics_hold_the_known_keys_only(self, tmp_path):
        data = tiny_data()
        plan = tiny_plan(data, seed=None, steps=20)
        run = finished(tmp_path / "run", plan, data)
        found = lines(run.folder)
        assert all(set(line) == {"step", "epsilon", "steps_per_second", "gradient_norm"} for line in found)
        assert [line["step"] for line in found] == sorted({line["step"] for line in found})
        known = [line["epsilon"] for line in found if line["epsilon"] is not None]
        assert known == sorted(known)
        assert found[-1]["step"] == plan.steps
        assert found[-1]["epsilon"] == pytest.approx(plan.epsilon, rel=1e-9)

    def test_run_json_holds_the_plan_and_where_the_data_are(self, tmp_path):
        data = tiny_data()
        plan = tiny_plan(data)
        run = Run.create(tmp_path / "run", plan, source={"data": "/there"})
        settings = json.loads((run.folder / "run.json").read_text())
        assert set(settings) == {"version", "dpsinkhorn", "name", "plan", "source", "ledger"}
        assert settings["source"] == {"data": "/there"}
        assert Run.resume(run.folder).plan == plan

    def test_a_run_on_other_records_of_the_same_shape_differs_by_its_gradient_alone(self, tmp_path):
        """Pictures at step 0 would be equal; what is public beside the gradient does not move."""
        one, other = tiny_data(seed=1), tiny_data(seed=2)
        a = finished(tmp_path / "a", tiny_plan(one), one)
        b = finished(tmp_path / "b", tiny_plan(other), other)
        for key in ("step", "epsilon"):
            assert lines(a.folder)[-1][key] == lines(b.folder)[-1][key]
        first, second = (json.loads((run.folder / "run.json").read_text()) for run in (a, b))
        assert first["plan"] == second["plan"]

    def test_the_statement_says_what_counts_as_public(self, tmp_path):
        data = tiny_data(persons=20)
        card = (finished(tmp_path / "run", tiny_plan(data), data).release_folder / "README.md").read_text()
        assert "the number of classes, and their names where given, count as public" in card
        assert "number of records counts as public too" in card


class TestOtherData:
    @pytest.mark.parametrize(
        ("changes", "words"),
        [
            ({"shape": (5, 4)}, "images of shape"),
            ({"classes": 4}, "classes: 4, not 3"),
            ({"labelled": False}, "classes: 0, not 3"),
            ({"persons": 8}, "persons named: True, not False"),
            ({"records": 91}, "records: 91, not 90"),
        ],
    )
    def test_are_refused_before_anything_is_spent(self, tmp_path, changes, words):
        run = Run.create(tmp_path / "run", tiny_plan(tiny_data()))
        with pytest.raises(TrainingError, match=words):
            run.train(tiny_data(**changes))
        assert not run.ledger_path.exists()

    def test_another_number_of_persons(self, tmp_path):
        images, labels, groups = np.zeros((30, 4, 4), np.uint8), np.arange(30) % 3, np.arange(30) // 2
        plan = tiny_plan(from_arrays(images, labels, groups=groups))
        run = Run.create(tmp_path / "run", plan)
        with pytest.raises(TrainingError, match="persons: 10, not 15"):
            run.train(from_arrays(images, labels, groups=np.arange(30) // 3))


class TestDeclaredSizes:
    def test_nothing_follows_from_the_data_s_own(self):
        plans = [tiny_plan(tiny_data(records=n), records=80) for n in (60, 90, 120)]
        assert plans[0] == plans[1] == plans[2]
        persons = [tiny_plan(tiny_data(persons=n), records=80) for n in (10, 20)]
        assert persons[0] == persons[1]

    @pytest.mark.parametrize("really", [30, 200])
    def test_more_or_fewer_records_than_declared(self, tmp_path, really):
        data = tiny_data(records=really)
        plan = tiny_plan(data, records=90, seed=None, privacy={"sampling_rate": 0.9})
        run = finished(tmp_path / "run", plan, data)
        assert not load(run.folder).privacy.size_is_public
        assert plan.expected_batch == pytest.approx(81)

    def test_far_more_than_declared_is_refused_early(self, tmp_path, monkeypatch):
        from dpsinkhorn.training import building

        monkeypatch.setattr(building, "_LEAST_ROOM", 10)
        data = tiny_data(records=90)
        run = Run.create(tmp_path / "run", tiny_plan(data, records=20, privacy={"sampling_rate": 0.2}))
        with pytest.raises(TrainingError, match="far more than the 20 declared"):
            run.train(data)
        assert not run.ledger_path.exists()

    def test_public_by_default(self, tmp_path):
        data = tiny_data()
        assert load(finished(tmp_path / "run", tiny_plan(data), data).folder).privacy.size_is_public


class TestCreate:
    def test_a_clip_that_float64_cannot_keep(self, tmp_path):
        data = tiny_data()
        with pytest.raises(TrainingError, match=r"raise clip$"):
            Run.create(tmp_path / "run", tiny_plan(data, privacy={"clip": 1e-12}))
        assert not (tmp_path / "run").exists()

    def test_a_ledger_that_is_a_folder(self, tmp_path):
        with pytest.raises(TrainingError, match="is a folder"):
            Run.create(tmp_path / "run", tiny_plan(tiny_data()), ledger=tmp_path)
        assert not (tmp_path / "run").exists()

    def test_a_folder_of_an_odd_name(self, tmp_path):
        data = tiny_data()
        run = finished(tmp_path / "läuft [b]\udcff", tiny_plan(data), data)
        assert run.name.isascii()

    @pytest.mark.parametrize(
        "content", ["", "[]", "{}", '{"version": 1}', '{"version": 2, "dpsinkhorn": "9"}']
    )
    def test_a_damaged_run_file(self, tmp_path, content):
        (tmp_path / "run.json").write_text(content)
        with pytest.raises(TrainingError):
            Run.resume(tmp_path)

    def test_a_checkpoint_of_another_run(self, tmp_path):
        data = tiny_data()
        for name in ("a", "b"):
            Run.create(tmp_path / name, tiny_plan(data, seed=None)).train(data, watch=lambda _: True)
        shutil.copy(tmp_path / "a" / "checkpoint.safetensors", tmp_path / "b" / "checkpoint.safetensors")
        with pytest.raises((TrainingError, JournalDamagedError)):
            Run.resume(tmp_path / "b").train(data)
