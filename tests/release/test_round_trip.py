"""Write, load, sample."""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image
from scipy import stats

import dpsinkhorn
from dpsinkhorn.generators import Variation, draw_latents
from dpsinkhorn.privacy import format_epsilon
from dpsinkhorn.release import ReleaseError, load, to_uint8, write_release
from support.releases import CONFIGS, EPSILON, not_private, statement, trained, write_small_release
from support.runs import tiny_arrays, tiny_recipe


def written(folder, config, **changes):
    arguments = {"label_probabilities": None, "privacy": statement(), "releasable": True}
    write_release(folder, trained(config), **{**arguments, **changes})
    return load(folder)


class TestRoundTrip:
    def test_same_bits(self, tmp_path, config):
        release = written(tmp_path / "r", config)
        assert release.config == config
        before, after = trained(config).state_dict(), release.generator.state_dict()
        assert list(before) == list(after)
        for name, value in before.items():
            assert value.dtype == after[name].dtype
            assert torch.equal(value, after[name]), name
        assert not release.generator.training
        assert not any(parameter.requires_grad for parameter in release.generator.parameters())

    def test_the_generator_is_left_as_it_was(self, tmp_path, config):
        generator = trained(config).train().to(memory_format=torch.channels_last)
        before = {name: value.clone() for name, value in generator.state_dict().items()}
        write_release(
            tmp_path / "r", generator, label_probabilities=None, privacy=statement(), releasable=True
        )
        assert generator.training
        assert all(torch.equal(value, before[name]) for name, value in generator.state_dict().items())

    def test_same_arguments_same_bytes(self, tmp_path, config):
        for name in ("one", "two"):
            written(tmp_path / name, config)
        files = sorted(path.name for path in (tmp_path / "one").iterdir())
        assert files == ["README.md", "config.json", "generator.safetensors", "privacy.json", "samples.png"]
        for name in files:
            assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()

    def test_everything_else(self, release_folder):
        release = dpsinkhorn.load(release_folder)
        assert release.title == "Small digits"
        assert release.class_names == ("zero", "one", "two | <b>")
        assert release.label_probabilities == (0.5, 0.2, 0.3)
        assert release.privacy == statement()
        assert release.privacy.recomputed_epsilon() == release.privacy.epsilon == EPSILON
        assert release.releasable
        assert (release.classes, release.image_shape) == (3, (1, 8, 8))

    def test_a_run_folder(self, tmp_path):
        written(tmp_path / "run" / "release", CONFIGS["mlp"])
        assert load(tmp_path / "run").config == CONFIGS["mlp"]
        assert load(str(tmp_path / "run" / "release")).config == CONFIGS["mlp"]

    def test_a_copy_is_all_that_is_needed(self, release_folder, tmp_path):
        """Another place, another process, another working directory; only the five files."""
        elsewhere = tmp_path / "elsewhere"
        shutil.copytree(release_folder, elsewhere / "copy")
        images, labels = load(release_folder).sample(5, random_state=1)
        for path in release_folder.iterdir():
            path.unlink()
        code = "import dpsinkhorn, json; x, y = dpsinkhorn.load('copy').sample(5, random_state=1); "
        code += "print(json.dumps([x.tolist(), y.tolist()]))"
        ran = subprocess.run(
            [sys.executable, "-c", code], cwd=elsewhere, capture_output=True, text=True, check=True
        )
        assert json.loads(ran.stdout) == [images.tolist(), labels.tolist()]


class TestSample:
    def test_shapes(self, tmp_path, config):
        release = written(tmp_path / "r", config)
        for count in (1, 7):
            images, labels = release.sample(count)
            channels, height, width = config.image_shape
            assert images.shape == ((count, height, width) if channels == 1 else (count, height, width, 3))
            assert images.dtype == np.uint8
            if config.classes:
                assert labels.shape == (count,)
                assert labels.dtype == np.int64
            else:
                assert labels is None

    def test_images_are_the_generators_own(self, tmp_path, config):
        """Against the generator itself, at the latents that a seed gives."""
        release = written(tmp_path / "r", config)
        chosen = np.arange(20) % config.classes if config.classes else None
        images, labels = release.sample(20, chosen, random_state=3, batch_size=7)
        latents = draw_latents(20, config.latent, torch.Generator().manual_seed(3))
        expected = release.generator(latents, None if chosen is None else torch.tensor(chosen))
        expected = ((expected + 1) / 2 * 255).permute(0, 2, 3, 1).numpy().reshape(images.shape)
        assert np.abs(images - expected).max() <= 0.51  # 0.5 is rounding, the rest float32
        assert images.max() - images.min() > 50
        if chosen is not None:
            assert (labels == chosen).all()

    def test_bfloat16(self, tmp_path, config):
        """Close to the exact images, but really something else."""
        release = written(tmp_path / "r", config)
        exact, fast = (
            release.sample(20, random_state=3, precision=name)[0] for name in ("float32", "bfloat16")
        )
        difference = np.abs(exact.astype(int) - fast)
        assert 0 < difference.mean() < 1.5
        assert difference.max() < 25

    def test_seeds(self, tmp_path):
        release = written(tmp_path / "r", CONFIGS["mlp"])
        first, again, other = (release.sample(50, random_state=seed) for seed in (7, 7, 8))
        assert (first[0] == again[0]).all()
        assert (first[1] == again[1]).all()
        assert (first[0] != other[0]).any()
        fresh, fresher = release.sample(50), release.sample(50)
        assert (fresh[0] != fresher[0]).any()

    def test_the_global_random_state_is_left_alone(self, release_folder):
        state = torch.random.get_rng_state()
        load(release_folder).sample(3)
        assert torch.equal(torch.random.get_rng_state(), state)

    def test_labels_follow_the_distribution(self, release_folder):
        _, labels = load(release_folder).sample(4000, random_state=0)
        counts = np.bincount(labels, minlength=3)
        assert stats.chisquare(counts, 4000 * np.array([0.5, 0.2, 0.3])).pvalue > 1e-4

    def test_one_class(self, release_folder):
        _, labels = load(release_folder).sample(6, 2)
        assert labels.tolist() == [2] * 6
        _, labels = load(release_folder).sample(1, np.int32(1))
        assert labels.tolist() == [1]

    def test_given_labels(self, release_folder):
        _, labels = load(release_folder).sample(3, [2, 0, 1])
        assert labels.tolist() == [2, 0, 1]

    def test_progress(self, release_folder):
        done = []
        load(release_folder).sample(10, batch_size=4, progress=done.append)
        assert done == [4, 4, 2]

    @pytest.mark.parametrize(
        "arguments",
        [
            {"count": 0},
            {"count": -1},
            {"count": 2.5},
            {"count": True},
            {"count": "3"},
            {"count": 10**15},
            {"count": 3, "labels": 3},
            {"count": 3, "labels": -1},
            {"count": 3, "labels": [0, 1]},
            {"count": 3, "labels": [0.0, 1.0, 2.0]},
            {"count": 3, "labels": "three"},
            {"count": 3, "labels": ["one", 1, 2]},
            {"count": 3, "labels": ["one", "two"]},
            {"count": 3, "random_state": -1},
            {"count": 3, "random_state": 2**64},
            {"count": 3, "random_state": 1.5},
            {"count": 3, "batch_size": 0},
            {"count": 3, "precision": "float8"},
            {"count": 3, "device": "abacus"},
            {"count": 3, "device": "meta"},
            {"count": 3, "device": "cuda:99"},
        ],
        ids=str,
    )
    def test_bad_input(self, release_folder, arguments):
        with pytest.raises(ReleaseError) as error:
            load(release_folder).sample(**arguments)
        assert "\n" not in str(error.value)

    @pytest.mark.parametrize("labels", [1, "one"])
    def test_labels_without_classes(self, tmp_path, labels):
        with pytest.raises(ReleaseError, match="no classes"):
            written(tmp_path / "r", CONFIGS["unconditional"]).sample(3, labels=labels)

    def test_to_uint8(self):
        values = torch.linspace(-1, 1, 256)
        assert to_uint8(values.reshape(1, 1, 16, 16)).ravel().tolist() == list(range(256))
        assert to_uint8(torch.zeros(2, 3, 4, 5)).shape == (2, 4, 5, 3)


class TestModelCard:
    @pytest.mark.parametrize("private", [True, False])
    @pytest.mark.parametrize("seeded", [True, False])
    @pytest.mark.parametrize("releasable", [True, False])
    def test_not_for_release(self, tmp_path, private, seeded, releasable):
        privacy = statement(seeded=seeded) if private else not_private()
        release = written(tmp_path / "r", CONFIGS["mlp"], privacy=privacy, releasable=releasable)
        card = (tmp_path / "r" / "README.md").read_text(encoding="utf-8")
        data = json.loads((tmp_path / "r" / "privacy.json").read_text(encoding="utf-8"))
        may_leave = private and not privacy.seeded and releasable
        assert release.releasable is data["releasable"] is may_leave
        assert ("NOT FOR RELEASE" in card) is not may_leave
        assert ("not-for-release" in card) is not may_leave
        assert ("NOT FOR RELEASE" in (data["warning"] or "")) is not may_leave
        assert data["epsilon"] == (EPSILON if private else "infinite")
        assert ("ε = " in card) is private

    def test_what_it_says(self, release_folder):
        card = (release_folder / "README.md").read_text(encoding="utf-8")
        assert f"ε = {format_epsilon(EPSILON)}, δ = 1e-05" in card
        assert "# Small digits\n" in card
        assert "(samples.png)" in card
        assert "add-or-remove-one" in card
        assert "with and without that record" in card
        assert "0123456789abcdef" * 4 in card
        assert "- The weights are an average over steps." in card
        assert "| 2 | two \\| &lt;b&gt; | 30 % |" in card

    def test_persons(self, tmp_path):
        written(tmp_path / "r", CONFIGS["mlp"], privacy=statement(unit="person", size_is_public=False))
        card = (tmp_path / "r" / "README.md").read_text(encoding="utf-8")
        assert "for each person, with all of their records" in card
        assert "The number of persons is protected as well." in card

    def test_header(self, release_folder):
        yaml = pytest.importorskip("yaml")
        card = (release_folder / "README.md").read_text(encoding="utf-8")
        _, header, _ = card.split("---\n", 2)
        found = yaml.safe_load(header)
        assert found["library_name"] == "dpsinkhorn"
        assert "differential-privacy" in found["tags"]
        assert "license" not in found

    def test_snippet_runs(self, release_folder):
        card = (release_folder / "README.md").read_text(encoding="utf-8")
        snippet = card.split("```python\n")[1].split("```")[0]
        names = {}
        exec(snippet.replace("path/to/this/folder", str(release_folder)), names)
        assert names["images"].shape == (1000, 8, 8)
        assert names["some"].shape == (100, 8, 8)

    def test_picture(self, release_folder):
        with Image.open(release_folder / "samples.png") as picture:
            picture.load()
            assert picture.width > 500
            assert len(set(picture.get_flattened_data())) > 20


class TestStatement:
    @pytest.mark.parametrize(
        "changes",
        [
            {"epsilon": -1.0},
            {"epsilon": float("nan")},
            {"epsilon": "10"},
            {"delta": 1.0},
            {"delta": -1e-5},
            {"delta": float("nan")},
            {"adjacency": "neighbours"},
            {"unit": "household"},
            {"accountant": "guess"},
            {"charges": [{}]},
            {"charges": [{"adjacency": "add-or-remove-one", "event": {"type": "Magic"}}]},
            {"charges": [3]},
            {"ledger_digest": "abc"},
            {"ledger_digest": "G" * 64},
            {"mechanism": "two\nlines"},
            {"mechanism": None},
            {"noise": 3},
            {"seeded": 0},
            {"size_is_public": "yes"},
            {"published_epsilon": -1.0},
            {"notes": ("a\nb",)},
            {"notes": (1,)},
        ],
        ids=str,
    )
    def test_bad_fields(self, changes):
        with pytest.raises(ReleaseError) as error:
            statement(**changes)
        assert "\n" not in str(error.value)

    @pytest.mark.parametrize("value", [statement(), not_private(), statement(published_epsilon=float("inf"))])
    def test_json(self, value):
        assert type(value).from_json(json.loads(json.dumps(value.to_json(), allow_nan=False))) == value

    def test_summary(self):
        assert statement().summary.startswith(f"ε = {format_epsilon(EPSILON)}, δ = 1e-05, for each record")
        assert "seed" in statement(seeded=True).summary


class TestVariation:
    def test_pixels_get_noise_of_the_stated_size(self, tmp_path):
        config = dataclasses.replace(CONFIGS["mlp"], grain=0.05)
        release = written(tmp_path / "r", config)
        smooth, labels = release.sample(400, random_state=1)
        grainy, same = release.sample(400, random_state=1, vary=True)
        plain, _ = release.sample(400, random_state=1, vary=True, variation=Variation())
        assert np.array_equal(smooth, plain), "what is asked for goes before the release's own"
        assert np.array_equal(labels, same)
        inside = (smooth > 40) & (smooth < 215)  # six deviations from where pixels are clamped
        assert inside.sum() > 1000
        moved = (grainy.astype(float) - smooth)[inside] / 127.5
        assert abs(moved.mean()) < 5 * 0.05 / np.sqrt(inside.sum())
        assert moved.std() == pytest.approx(0.05 / np.sqrt(3), rel=0.1)  # uniform up to 0.05

    def test_it_replays_and_can_be_asked_for(self, tmp_path):
        release = written(tmp_path / "r", CONFIGS["mlp"])
        assert not release.config.variation
        asked = Variation(warp=1.0, sharpen=1.0, grain=0.2)
        first, second = (release.sample(20, random_state=3, variation=asked)[0] for _ in range(2))
        assert np.array_equal(first, second)
        assert not np.array_equal(first, release.sample(20, random_state=3)[0])

    def test_the_card_says_so(self, tmp_path):
        config = dataclasses.replace(CONFIGS["mlp"], grain=0.05, warp=0.5)
        written(tmp_path / "r", config)
        card = (tmp_path / "r" / "README.md").read_text()
        assert "vary=True" in card
        assert "at random (warp 0.5, grain 0.05)" in card
        assert "augmentation" in card
        written(tmp_path / "s", CONFIGS["mlp"])
        assert "at random" not in (tmp_path / "s" / "README.md").read_text()


def test_printing_takes_one_line(tmp_path):
    write_small_release(tmp_path / "r")
    assert repr(load(tmp_path / "r")) == (
        f"Release('Small digits': images of 8 x 8 x 1, 3 classes, ε = {format_epsilon(EPSILON)}, δ = 1e-05 "
        "for each record)"
    )
    write_release(
        tmp_path / "s", trained(CONFIGS["unconditional"]), label_probabilities=None, privacy=not_private()
    )
    found = repr(load(tmp_path / "s"))
    assert "unlabelled, not private: no ε is guaranteed, NOT FOR RELEASE" in found


@pytest.mark.parametrize("name", ["two | <b>", np.str_("two | <b>"), np.array("two | <b>", dtype=object)])
def test_one_class_by_its_name(release_folder, name):
    release = load(release_folder)
    images, labels = release.sample(5, labels=name, random_state=1)
    assert labels.tolist() == [2] * 5
    assert (images == release.sample(5, labels=2, random_state=1)[0]).all()


@pytest.mark.parametrize("form", [list, tuple, np.array, lambda names: np.array(names, dtype=object)])
def test_a_name_for_each_image(release_folder, form):
    release = load(release_folder)
    images, labels = release.sample(3, labels=form(["one", "zero", "one"]), random_state=1)
    assert labels.tolist() == [1, 0, 1]
    assert labels.dtype == np.int64
    assert (images == release.sample(3, labels=[1, 0, 1], random_state=1)[0]).all()


def test_a_name_that_no_class_has(release_folder):
    for labels in ("three", ["one", "three", "zero"]):
        with pytest.raises(
            ReleaseError, match=r"^'three' is none of the classes: they are zero, one, two \| "
        ):
            load(release_folder).sample(3, labels=labels)


def test_classes_without_names(tmp_path):
    write_small_release(tmp_path / "r", class_names=[])
    with pytest.raises(ReleaseError, match=r"'one' is none of the classes, which have no names; .* 0 to 2"):
        load(tmp_path / "r").sample(3, labels="one")


def test_names_that_were_stated_in_training(tmp_path):
    names = ["healthy", "benign", "malignant"]
    images, numbers, _ = tiny_arrays()
    model = dpsinkhorn.DPSinkhorn(None, classes=names, recipe=tiny_recipe(steps=2), accountant="rdp")
    model.fit(images, np.array(names)[numbers])
    assert model.sample(5, labels="malignant")[1].tolist() == ["malignant"] * 5
    model.save(tmp_path / "r")
    assert dpsinkhorn.load(tmp_path / "r").sample(3, labels="benign")[1].tolist() == [1] * 3
