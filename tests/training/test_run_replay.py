"""Seeded runs replay bit for bit, however often they are interrupted."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from dpsinkhorn import load
from dpsinkhorn.data import from_arrays
from dpsinkhorn.training import Run, Saving, watching
from dpsinkhorn.training.state import TrainingState
from support.runs import (
    AT_THE_END,
    DATA,
    EVERY_BLOCK,
    MECHANISMS,
    bits,
    crash_at,
    finished,
    go_on,
    header,
    header_step,
    steps_on_record,
    tiny_data,
    tiny_plan,
)


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
        finished(tmp_path / "a", tiny_plan(DATA, seed=1), DATA)
        finished(tmp_path / "b", tiny_plan(DATA, seed=2), DATA)
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
        plan = tiny_plan(DATA, mechanism, **options)
        finished(tmp_path / "whole", plan, DATA)
        choices = random.Random(str((mechanism, options)))
        interrupted = 0
        for trial in range(3):
            folder = tmp_path / f"broken-{trial}"
            saving = Saving(checkpoint_seconds=choices.choice([0.0, 0.003]), picture_steps=3)
            interrupted += go_on(folder, plan, DATA, 0.4, choices, saving=saving)
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
    def test_pictures_and_statistics_leave_training_alone(self, tmp_path, monkeypatch):
        monkeypatch.setattr(watching, "_REST", 0)  # as many pictures as may be
        plan = tiny_plan(DATA)
        finished(tmp_path / "with", plan, DATA, saving=Saving(checkpoint_seconds=0.0, picture_steps=1))
        finished(tmp_path / "without", plan, DATA, saving=AT_THE_END)
        assert len(list((tmp_path / "with" / "samples").iterdir())) > 3
        assert not (tmp_path / "without" / "samples").exists()
        assert bits(tmp_path / "with") == bits(tmp_path / "without")

    @pytest.mark.usefixtures("small_blocks")
    @pytest.mark.parametrize("loss", ["none", "way", "checkpoint"])
    def test_steps_are_free_only_where_it_is_known_how_they_were_taken(self, tmp_path, loss, draws):
        """A kill before the second checkpoint: the first one tells already."""
        data, folder = tiny_data(), tmp_path / "run"
        plan = tiny_plan(data)
        crash_at(5, Run.create(folder, plan), data)
        taken = len(draws)
        assert header_step(folder) == 0
        assert header(folder / "checkpoint.safetensors")["way"].startswith("one by one, by torch")
        if loss == "way":
            state = TrainingState(plan, torch.device("cpu"))
            extra = state.load(folder / "checkpoint.safetensors")
            state.how_taken = None
            state.save(folder / "checkpoint.safetensors", extra)
        elif loss == "checkpoint":
            (folder / "checkpoint.safetensors").unlink()
        assert Run.resume(folder).train(data)
        steps = plan.steps if loss == "none" else plan.steps - taken
        assert len(draws) - taken == header_step(folder) == steps
        assert steps_on_record(folder / "ledger.jsonl", plan.step_charge) == plan.steps

    def test_a_seeded_run_is_not_for_release(self, tmp_path):
        run = finished(tmp_path / "run", tiny_plan(DATA), DATA)
        release = load(run.release_folder)
        assert release.privacy.seeded
        assert not release.releasable
