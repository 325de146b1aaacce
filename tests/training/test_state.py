"""Checkpoints: everything comes back, damage is one line, and a write is whole or not there."""

from __future__ import annotations

import json
import os

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from dpsinkhorn.files import replace_file
from dpsinkhorn.privacy import SeededNoise
from dpsinkhorn.training import Facts, Run, TrainingError, load_recipe, make_plan
from dpsinkhorn.training import state as state_module
from dpsinkhorn.training.state import TrainingState, read_extra
from support.runs import DATA, tiny_data, tiny_plan

CPU = torch.device("cpu")


@pytest.fixture
def stopped(tmp_path):
    """A run that was stopped after its first step."""
    run = Run.create(tmp_path / "run", tiny_plan(DATA))
    assert not run.train(DATA, watch=lambda _: True)
    return run


def resume(run):
    with pytest.raises(TrainingError) as raised:
        Run.resume(run.folder).train(tiny_data())
    assert "\n" not in str(raised.value)
    return str(raised.value)


@pytest.mark.parametrize("ema", [None, 0.9])
def test_everything_comes_back(tmp_path, ema):
    plan = tiny_plan(tiny_data(), ema=ema)
    state = TrainingState(plan, CPU)
    for _ in range(3):
        for parameter in state.parameters:
            parameter.grad = torch.rand(parameter.shape, generator=state.random)
        state.optimizer.step()
        if state.averaged is not None:
            state.averaged.update_parameters(state.generator)
        state.step += 1
    state.noise.words(5)
    state.save(tmp_path / "checkpoint", {"note": [1, 2]})
    again = TrainingState(plan, CPU)
    assert again.load(tmp_path / "checkpoint") == {"note": [1, 2]} == read_extra(tmp_path / "checkpoint")
    assert again.step == 3
    assert torch.equal(again.noise.words(4), state.noise.words(4))
    assert torch.equal(again.random.get_state(), state.random.get_state())
    for name, module in state._modules().items():
        for key, value in module.state_dict().items():
            assert torch.equal(value, again._modules()[name].state_dict()[key]), (name, key)
    first, second = (each.optimizer.state_dict()["state"] for each in (state, again))
    assert first.keys() == second.keys()
    assert all(torch.equal(first[i][key], second[i][key]) for i in first for key in first[i])


def test_the_average_is_what_is_released():
    state = TrainingState(tiny_plan(tiny_data(), ema=0.9), CPU)
    assert state.best is state.generator
    state.step = 1
    assert state.best is state.averaged.module


class TestDamage:
    def test_bytes_that_are_cut_off(self, stopped):
        path = stopped.folder / "checkpoint.safetensors"
        path.write_bytes(path.read_bytes()[:-100])
        assert "is not a checkpoint that can be read" in resume(stopped)

    @pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"\xff" * 64])
    def test_other_files(self, stopped, content):
        (stopped.folder / "checkpoint.safetensors").write_bytes(content)
        assert "is not a checkpoint that can be read" in resume(stopped)

    @staticmethod
    def rewrite(run, change):
        path = run.folder / "checkpoint.safetensors"
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            metadata = file.metadata()
        change(tensors, metadata)
        save_file(tensors, path, metadata)

    def test_another_version(self, stopped):
        self.rewrite(stopped, lambda _, metadata: metadata.update(version="7"))
        assert "is a checkpoint of version 7, not 1: resume it with the version" in resume(stopped)

    def test_a_tensor_that_is_missing(self, stopped):
        self.rewrite(stopped, lambda tensors, _: tensors.pop(next(n for n in tensors if "generator" in n)))
        assert "does not fit this run" in resume(stopped)

    def test_a_tensor_of_another_shape(self, stopped):
        def change(tensors, _):
            name = next(name for name in tensors if name.startswith("generator") and "weight" in name)
            tensors[name] = torch.zeros(3, 3, 3)

        self.rewrite(stopped, change)
        assert "does not fit this run" in resume(stopped)

    @pytest.mark.parametrize("state", ["[]", "{}", '{"extra": 5}', "no JSON", '{"extra": {}}'])
    def test_a_broken_header(self, stopped, state):
        self.rewrite(stopped, lambda _, metadata: metadata.update(state=state))
        assert resume(stopped)

    def test_a_broken_random_state(self, stopped):
        self.rewrite(stopped, lambda tensors, _: tensors.update(random=torch.zeros(3, dtype=torch.uint8)))
        assert "does not fit this run" in resume(stopped)

    def test_a_broken_noise_state(self, stopped):
        def change(_, metadata):
            state = json.loads(metadata["state"])
            state["noise"]["requests"] = -1
            metadata["state"] = json.dumps(state)

        self.rewrite(stopped, change)
        assert "does not fit this run" in resume(stopped)


class TestAtomicWrites:
    def test_a_failure_leaves_the_old_file(self, tmp_path, monkeypatch):
        replace_file(tmp_path / "file", b"old")

        def full(_handle):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space"):
            replace_file(tmp_path / "file", b"new")
        assert (tmp_path / "file").read_bytes() == b"old"
        assert os.listdir(tmp_path) == ["file"]

    def test_no_pickle(self, stopped):
        content = (stopped.folder / "checkpoint.safetensors").read_bytes()
        length = int.from_bytes(content[:8], "little")
        head = json.loads(content[8 : 8 + length])
        assert head["__metadata__"]["version"] == "1"
        assert not content.startswith((b"PK", b"\x80"))


class TestPrecision:
    def state_of(self, precision):
        recipe = load_recipe("grey").replace(optimizer={"precision": precision}, generator={"width": 8})
        recipe = recipe.replace(privacy={"noise_multiplier": 1.0, "steps": 3})
        return TrainingState(make_plan(recipe, Facts((1, 12, 12), 2, 50, 50), seed=0), torch.device("cpu"))

    @pytest.mark.parametrize("has_it", [True, False])
    def test_reduced_only_where_asked_for_and_where_the_processor_has_it(self, has_it, monkeypatch):
        monkeypatch.setattr(state_module, "_has_bfloat16", lambda _: has_it)
        for precision in ("float32", "bfloat16"):
            state = self.state_of(precision)
            with state.precision():
                assert torch.is_autocast_enabled("cpu") == (has_it and precision == "bfloat16")
            assert not torch.is_autocast_enabled("cpu")

    def test_images_are_close_and_stay_in_float32(self, monkeypatch):
        monkeypatch.setattr(state_module, "_has_bfloat16", lambda _: True)
        latents, labels = torch.rand(8, 20), torch.arange(8) % 2
        images = []
        for precision in ("float32", "bfloat16"):
            state = self.state_of(precision)
            with torch.no_grad(), state.precision():
                images.append(state.generator(latents, labels))
        assert images[0].dtype == images[1].dtype == torch.float32
        assert 0 < (images[0] - images[1]).abs().max() < 0.05


def test_a_source_of_noise_is_for_seeded_plans():
    """What is released of a run without a seed has secure noise, whatever source an audit would like."""
    plan = tiny_plan(tiny_data(), seed=None)
    with pytest.raises(TrainingError, match="seeded plans alone"):
        TrainingState(plan, torch.device("cpu"), SeededNoise(0))
