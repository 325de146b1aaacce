"""Run folders: what is written there, and which data, sizes and folders are taken."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

from dpsinkhorn import load
from dpsinkhorn.data import DataError, from_arrays
from dpsinkhorn.mechanisms.shared.terms import Terms
from dpsinkhorn.privacy.journal import JournalDamagedError
from dpsinkhorn.report.findings import training_log
from dpsinkhorn.training import Run, TrainingError, facts_of, load_recipe, make_plan
from support.runs import DATA, IMAGES, LABELS, MECHANISMS, finished, lines, tiny_data, tiny_plan, tiny_recipe


class TestWhatIsWritten:
    @pytest.mark.usefixtures("small_blocks")
    def test_statistics_hold_the_known_keys_only(self, tmp_path):
        plan = tiny_plan(DATA, seed=None, steps=20)
        run = finished(tmp_path / "run", plan, DATA)
        found = lines(run.folder)
        assert all(set(line) == {"step", "epsilon", "steps_per_second", "gradient_norm"} for line in found)
        assert [line["step"] for line in found] == sorted({line["step"] for line in found})
        known = [line["epsilon"] for line in found if line["epsilon"] is not None]
        assert known == sorted(known)
        assert found[-1]["step"] == plan.steps
        assert found[-1]["epsilon"] == pytest.approx(plan.epsilon, rel=1e-9)

    def test_where_the_size_is_not_public_the_speed_does_not_tell_it(self, tmp_path):
        run = finished(tmp_path / "run", tiny_plan(DATA, seed=None, records=80), DATA)
        assert {line["steps_per_second"] for line in lines(run.folder)} == {None}
        assert len(training_log(run.folder)["lines"]) == len(lines(run.folder))

    def test_run_json_holds_the_plan_and_where_the_data_are(self, tmp_path):
        plan = tiny_plan(DATA)
        run = Run.create(tmp_path / "run", plan, source={"data": "/there"})
        settings = json.loads((run.folder / "run.json").read_text())
        assert set(settings) == {"version", "dpsinkhorn", "name", "plan", "source", "ledger", "about"}
        assert settings["source"] == {"data": "/there"}
        assert Run.resume(run.folder).plan == plan
        del settings["about"]  # a run of before
        (run.folder / "run.json").write_text(json.dumps(settings))
        assert Run.resume(run.folder).plan == plan
        for wrong in (3, {"title": 3}, {"contact": "two\nlines"}):
            (run.folder / "run.json").write_text(json.dumps({**settings, "about": wrong}))
            with pytest.raises(TrainingError, match="cannot be read"):
                Run.resume(run.folder)

    def test_a_run_on_other_records_of_the_same_shape_differs_by_its_gradient_alone(self, tmp_path):
        """Pictures at step 0 would be equal; what is public beside the gradient does not move."""
        one, other = tiny_data(seed=1), tiny_data(seed=2)
        a = finished(tmp_path / "a", tiny_plan(one), one)
        b = finished(tmp_path / "b", tiny_plan(other), other)
        for key in ("step", "epsilon"):
            assert lines(a.folder)[-1][key] == lines(b.folder)[-1][key]
        first, second = (json.loads((run.folder / "run.json").read_text()) for run in (a, b))
        assert first["plan"] == second["plan"]


class TestClasses:
    @pytest.mark.parametrize("mechanism", [*MECHANISMS, "moments"])
    def test_one_that_was_stated_may_be_empty_and_the_release_does_not_tell(self, tmp_path, mechanism):
        told = []
        for name, kept in (("whole", LABELS >= 0), ("without", LABELS != 1)):
            data = from_arrays(IMAGES[kept], LABELS[kept], classes=["0", "1", "2"])
            facts = facts_of(data, records=90)
            recipe = tiny_recipe(mechanism)
            if mechanism == "moments":
                recipe = load_recipe("mixture").replace(privacy={"noise_multiplier": 2.0, "steps": 5})
            plan = make_plan(recipe, facts, delta=1e-5, accountant="rdp")
            run = finished(tmp_path / name, plan, data)
            found = load(run.release_folder)
            drawn, _ = found.sample(20, "1")
            assert np.isfinite(drawn).all()
            told.append((plan, found.config, found.class_names, found.privacy.notes, found.privacy.charges))
        assert told[0] == told[1]
        if mechanism != "none":
            assert "whether there are records of each is protected" in found.privacy.notes[1]

    def test_one_that_was_not_stated_has_records(self, tmp_path):
        whole = from_arrays(IMAGES, LABELS)
        run = Run.create(tmp_path / "run", tiny_plan(whole))
        with pytest.raises(DataError, match=r"class 1 has no records; state the classes \(--classes 3\)"):
            run.train(from_arrays(IMAGES[LABELS != 1], LABELS[LABELS != 1]))


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
        monkeypatch.setattr(Terms, "largest_sample", property(lambda terms: 4 * terms.facts.records))
        data = tiny_data(records=90)
        run = Run.create(tmp_path / "run", tiny_plan(data, records=20, privacy={"sampling_rate": 0.2}))
        with pytest.raises(TrainingError, match="far more than the 20 declared"):
            run.train(data)
        assert not run.ledger_path.exists()

    def test_public_by_default(self, tmp_path):
        assert load(finished(tmp_path / "run", tiny_plan(DATA), DATA).folder).privacy.size_is_public


class TestCreate:
    def test_a_clip_that_float64_cannot_keep(self, tmp_path):
        with pytest.raises(TrainingError, match=r"raise clip$"):
            Run.create(tmp_path / "run", tiny_plan(DATA, privacy={"clip": 1e-12}))
        assert not (tmp_path / "run").exists()

    def test_a_ledger_that_is_a_folder(self, tmp_path):
        with pytest.raises(TrainingError, match="is a folder"):
            Run.create(tmp_path / "run", tiny_plan(tiny_data()), ledger=tmp_path)
        assert not (tmp_path / "run").exists()

    def test_a_folder_of_an_odd_name(self, tmp_path):
        run = finished(tmp_path / "läuft [b]\udcff", tiny_plan(DATA), DATA)
        assert run.name.isascii()

    @pytest.mark.parametrize(
        "content", ["", "[]", "{}", '{"version": 1}', '{"version": 2, "dpsinkhorn": "9"}']
    )
    def test_a_damaged_run_file(self, tmp_path, content):
        (tmp_path / "run.json").write_text(content)
        with pytest.raises(TrainingError):
            Run.resume(tmp_path)

    def test_a_checkpoint_of_another_run(self, tmp_path):
        for name in ("a", "b"):
            Run.create(tmp_path / name, tiny_plan(DATA, seed=None)).train(DATA, watch=lambda _: True)
        shutil.copy(tmp_path / "a" / "checkpoint.safetensors", tmp_path / "b" / "checkpoint.safetensors")
        with pytest.raises((TrainingError, JournalDamagedError)):
            Run.resume(tmp_path / "b").train(DATA)
