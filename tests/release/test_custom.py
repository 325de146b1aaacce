"""Releases of a module of the maker's own: loaded with its class, and only with it."""

from __future__ import annotations

import hashlib
import json

import numpy as np
import pytest
import torch
from safetensors.torch import load as load_tensors
from safetensors.torch import load_file, save
from torch import nn

import dpsinkhorn
from dpsinkhorn.cli import main
from dpsinkhorn.generators import config_from_json, custom, register_module
from dpsinkhorn.release import ReleaseError, load, write_release
from dpsinkhorn.report import write_report
from dpsinkhorn.training import Run, TrainingError, make_plan
from dpsinkhorn.training.records import facts_of
from support.modules import OwnNet
from support.releases import CONFIGS, statement, trained, write_small_release
from support.runs import IMAGES, LABELS, tiny_data, tiny_recipe


@pytest.fixture
def folder(tmp_path):
    section = register_module(OwnNet, {"width": 8}, image_shape=(1, 8, 8), classes=3)
    config = config_from_json({"image_shape": [1, 8, 8], "classes": 3, **section})
    write_release(tmp_path / "r", trained(config), label_probabilities=None, privacy=statement())
    return tmp_path / "r"


def change_generator(folder, **changes):
    entries = json.loads((folder / "config.json").read_text())
    entries["generator"].update(changes)
    (folder / "config.json").write_text(json.dumps(entries))


def refused(folder, module_class=OwnNet):
    with pytest.raises(ReleaseError) as error:
        load(folder, generator=module_class)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 500
    return str(error.value)


class TestRoundTrip:
    def test_same_images(self, folder, tmp_path):
        release = load(folder, generator=OwnNet)
        images, labels = release.sample(20, random_state=1)
        assert images.shape == (20, 8, 8)
        write_release(tmp_path / "s", release.generator, label_probabilities=None, privacy=release.privacy)
        for name in ("config.json", "generator.safetensors", "README.md", "samples.png"):
            assert (folder / name).read_bytes() == (tmp_path / "s" / name).read_bytes()
        again = load(tmp_path / "s", generator=OwnNet).sample(20, random_state=1)
        assert np.array_equal(images, again[0])
        assert np.array_equal(labels, again[1])

    def test_tensors_have_the_modules_own_names(self, folder):
        module = OwnNet(width=8)
        module.load_state_dict(load_file(folder / "generator.safetensors"))

    def test_card(self, folder):
        card = (folder / "README.md").read_text(encoding="utf-8")
        assert "`support.modules.OwnNet`" in card
        assert "dpsinkhorn sample" not in card
        snippet = card.split("```python\n")[1].split("```")[0]
        names = {"TheClass": OwnNet}
        exec(snippet.replace("path/to/this/folder", str(folder)), names)
        assert names["images"].shape == (1000, 8, 8)

    def test_report(self, folder, tmp_path):
        written = write_report(folder, output=tmp_path / "report.html", generator=OwnNet)
        page = written.report.read_text(encoding="utf-8")
        assert "generator=TheClass" in page


class TestRefused:
    def test_without_the_class(self, folder):
        assert "generator=THE_CLASS" in refused(folder, None)

    def test_the_command_line_says_so(self, folder, tmp_path, capsys):
        output = tmp_path / "s.npz"
        with pytest.raises(SystemExit) as stopped:
            main(["sample", str(folder), "--count", "3", "--output", str(output)])
        assert stopped.value.code == 2
        assert "load it in Python" in capsys.readouterr().err
        assert not output.exists()

    def test_a_class_for_one_of_ours(self, tmp_path):
        write_small_release(tmp_path / "r")
        assert "leave generator out" in refused(tmp_path / "r")

    def test_another_class(self, folder):
        class Other(nn.Module):
            latent = 5

            def __init__(self, width):
                super().__init__()
                self.layer = nn.Linear(5, 8 * width)

        class Renamed(OwnNet):
            def __init__(self, width):
                super().__init__(width=width)
                self.factor, self.scale = self.scale, None

        assert "parameters" in refused(folder, Other)
        assert "unknown tensor" in refused(folder, Renamed) or "lacks" in refused(folder, Renamed)
        assert "cannot be built" in refused(folder, nn.Identity(3).forward)
        assert "torch.nn.Module" in refused(folder, dict)

    @pytest.mark.parametrize(
        "changes",
        [
            {"settings": None},
            {"settings": []},
            {"settings": {"width": 9}},
            {"settings": {"width": 10**7}},
            {"settings": {"width": 10**15}},
            {"settings": {"width": "os.system"}},
            {"settings": {"latent": 6, "width": 8}},
            {"settings": {"unknown": 1}},
            {"latent": 6},
            {"latent": 0},
            {"parameters": 0},
            {"parameters": 10**12},
            {"module": 3},
            {"module": "a\nb"},
            {"module": "\x1b[2J"},
            {"classes": 4},
            {"embedding": 4},
        ],
        ids=str,
    )
    def test_hostile_config(self, folder, changes):
        change_generator(folder, **changes)
        refused(folder)

    def test_hostile_config_without_the_class(self, folder):
        change_generator(folder, module="os.system", settings={"command": "touch ran"})
        assert "os.system" in refused(folder, None)

    def test_sizes_are_seen_before_memory_is_taken(self, folder):
        class Buffers(OwnNet):
            def __init__(self, width, extra=0):
                super().__init__(width=width)
                self.register_buffer("extra", torch.zeros(extra))

        change_generator(folder, settings={"width": 8, "extra": 2**50})
        assert "does not fit config.json" in refused(folder, Buffers)

    @pytest.mark.parametrize("change", ["shape", "type", "nan", "extra"])
    def test_tensors(self, folder, change):
        state = load_tensors((folder / "generator.safetensors").read_bytes())
        name = "layers.0.weight"
        if change == "extra":
            state["more"] = torch.zeros(1)
        else:
            weight = state[name]
            changed = {"shape": weight.T.contiguous(), "type": weight.to(torch.int32), "nan": weight / 0}
            state[name] = changed[change]
        data = save(state)
        (folder / "generator.safetensors").write_bytes(data)
        entries = json.loads((folder / "config.json").read_text())
        entries["generator_sha256"] = hashlib.sha256(data).hexdigest()
        (folder / "config.json").write_text(json.dumps(entries))
        refused(folder)


class TestTraining:
    def model(self, mechanism="record", **changes):
        usual = {"generator": OwnNet, "settings": {"generator": {"size": 4}}, "random_state": 0}
        recipe = tiny_recipe(mechanism, steps=3)
        return dpsinkhorn.DPSinkhorn(None, recipe=recipe, accountant="rdp", **{**usual, **changes})

    @pytest.mark.parametrize("mechanism", ["record", "batch", "image", "none"])
    def test_replays(self, mechanism):
        first, again = (self.model(mechanism).fit(IMAGES, LABELS).sample(9, random_state=2) for _ in range(2))
        assert np.array_equal(first[0], again[0])

    @pytest.mark.parametrize("mechanism", ["moments", "parameter"])
    def test_refused_where_it_would_see_more_than_noise(self, mechanism):
        """A module's own backward could keep the gradient that `parameter` clips and noises after it."""
        with pytest.raises(TrainingError, match=f"the mechanism {mechanism} cannot train .*OwnNet"):
            self.model(mechanism).fit(IMAGES, LABELS)

    def test_settings_and_saving(self, tmp_path):
        model = self.model(settings={"generator": {"size": 4, "width": 3}}).fit(IMAGES, LABELS)
        assert model.release_.config.settings == {"size": 4, "width": 3}
        model.save(tmp_path / "r")
        saved = dpsinkhorn.load(tmp_path / "r", generator=OwnNet)
        assert np.array_equal(saved.sample(4, random_state=0)[0], model.sample(4, random_state=0)[0])

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"mechanism": "moments"}, "moments cannot train support.modules.OwnNet"),
            ({"generator": OwnNet()}, "class of modules"),
            ({"settings": {"generator": {"depth": 1}}}, "cannot be built"),
        ],
    )
    def test_refused_before_anything_is_spent(self, tmp_path, changes, message):
        with pytest.raises(ValueError, match=message) as error:
            self.model(ledger=tmp_path / "ledger.jsonl", **changes).fit(IMAGES, LABELS)
        assert "\n" not in str(error.value)
        assert not (tmp_path / "ledger.jsonl").exists()

    def test_a_run_goes_on_once_the_class_is_registered(self, tmp_path, monkeypatch):
        dataset = tiny_data()
        facts = facts_of(dataset)
        settings = {"size": 4}
        section = register_module(OwnNet, settings, image_shape=facts.image_shape, classes=facts.classes)
        plan = make_plan(tiny_recipe(steps=3).with_generator(section), facts, accountant="rdp", seed=0)
        Run.create(tmp_path / "run", plan)
        monkeypatch.setattr(custom, "_registered", {})  # as in another process
        with pytest.raises(TrainingError, match="trained in Python"):
            Run.resume(tmp_path / "run").train(dataset)
        register_module(OwnNet, settings, image_shape=facts.image_shape, classes=facts.classes)
        assert Run.resume(tmp_path / "run").train(dataset)
        assert load(tmp_path / "run", generator=OwnNet).sample(3)[0].shape == (3, 4, 4)

    def test_images_of_another_shape(self):
        with pytest.raises(ValueError, match="must return images of shape"):
            self.model(settings={}).fit(IMAGES, LABELS)


def test_a_mixture_still_needs_no_class(tmp_path):
    write_release(tmp_path / "r", trained(CONFIGS["mixture"]), label_probabilities=None, privacy=statement())
    assert load(tmp_path / "r").sample(2)[0].shape == (2, 6, 5, 3)
