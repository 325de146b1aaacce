"""Damaged and hostile folders end in `ReleaseError`, one line, and nothing of them is run."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import random
import shutil
import struct

import numpy as np
import pytest
import torch
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors

from dpsinkhorn.release import About, ReleaseError, load, write_release
from support.releases import CONFIGS, statement, trained, write_small_release

LOADED = ("config.json", "privacy.json", "generator.safetensors")


@pytest.fixture(scope="module")
def pristine(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hostile") / "release"
    write_small_release(folder)
    return folder


@pytest.fixture
def folder(pristine, tmp_path):
    shutil.copytree(pristine, tmp_path / "release")
    return tmp_path / "release"


def refused(folder):
    with pytest.raises(ReleaseError) as error:
        load(folder)
    message = str(error.value)
    assert "\n" not in message
    assert len(message) < 500
    assert message.isprintable()
    return message


def change(folder, name, **changes):
    path = folder / name
    data = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**data, **changes}), encoding="utf-8")


def put_tensors(folder, data, *, sealed=True):
    """Replace the tensors; `sealed` also mends the digest, as an attacker would."""
    (folder / "generator.safetensors").write_bytes(data)
    if sealed:
        change(folder, "config.json", generator_sha256=hashlib.sha256(data).hexdigest())


class TestFolder:
    def test_the_copy_is_sound(self, folder):
        assert load(folder).sample(1)[0].shape == (1, 8, 8)

    @pytest.mark.parametrize("name", LOADED)
    def test_missing(self, folder, name):
        (folder / name).unlink()
        assert name in refused(folder)

    @pytest.mark.parametrize("name", LOADED)
    def test_empty(self, folder, name):
        (folder / name).write_bytes(b"")
        refused(folder)

    @pytest.mark.parametrize("name", LOADED)
    def test_link(self, folder, name):
        """Even one to a file that would do."""
        (folder / name).rename(folder.parent / name)
        (folder / name).symlink_to(folder.parent / name)
        assert "link" in refused(folder)

    @pytest.mark.parametrize("name", LOADED)
    def test_folder_in_place_of_a_file(self, folder, name):
        (folder / name).unlink()
        (folder / name).mkdir()
        refused(folder)

    @pytest.mark.parametrize("name", LOADED)
    @pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
    def test_pipe_does_not_hang(self, folder, name):
        (folder / name).unlink()
        os.mkfifo(folder / name)
        refused(folder)

    @pytest.mark.parametrize("name", LOADED)
    def test_oversize(self, folder, name):
        with open(folder / name, "r+b") as file:
            file.truncate(2**33)  # sparse: takes no room here
        assert "bytes" in refused(folder)

    def test_release_that_is_a_link(self, folder):
        run = folder.parent / "run"
        run.mkdir()
        (run / "release").symlink_to(folder)
        refused(run)

    @pytest.mark.parametrize("what", ["nowhere", "file", "empty folder"])
    def test_not_a_release(self, tmp_path, what):
        place = tmp_path / "place"
        if what == "file":
            place.write_text("hello")
        elif what == "empty folder":
            place.mkdir()
        assert "release" in refused(place)

    def test_other_files_do_not_matter(self, folder):
        (folder / ".gitattributes").write_text("*.safetensors filter=lfs\n")
        (folder / "README.md").write_text("changed by the curator")
        (folder / "samples.png").unlink()
        load(folder)


class TestConfig:
    @pytest.mark.parametrize(
        "changes",
        [
            {"version": 1},  # with entries of version 2
            {"version": 3},
            {"version": 1.0},
            {"version": "1"},
            {"version": True},
            {"version": None},
            {"format": "pytorch"},
            {"title": "a\nb"},
            {"title": "\ud800"},
            {"title": 3},
            {"title": None},
            {"title": " "},
            {"description": "x" * 2001},
            {"description": None},
            {"purpose": "\u202eevil"},
            {"contact": ["a"]},
            {"label_source": "guessed"},
            {"value_range": [0]},
            {"value_range": [1, 0]},
            {"value_range": [0, True]},
            {"value_range": {"low": 0}},
            {"generator": None},
            {"generator": {}},
            {"generator": {"kind": "os.system"}},
            {"generator_sha256": None},
            {"generator_sha256": "0" * 64},
            {"label_probabilities": None},
            {"label_probabilities": [0.5, 0.5]},
            {"label_probabilities": [0.5, 0.5, 0.5]},
            {"label_probabilities": ["0.5", "0.2", "0.3"]},
            {"label_probabilities": {"0": 1}},
            {"label_probabilities": "abc"},
            {"class_names": None},
            {"class_names": "abc"},
            {"class_names": ["a"]},
            {"class_names": ["a", "b", "\x1b[2J"]},
            {"class_names": ["a", "b", ["c"]]},
            {"path": "../../etc/passwd"},
        ],
        ids=str,
    )
    def test_fields(self, folder, changes):
        change(folder, "config.json", **changes)
        refused(folder)

    @pytest.mark.parametrize(
        "changes",
        [
            {"classes": 4},
            {"hidden": [9]},
            {"hidden": [60000, 4000]},
            {"image_shape": [1, 512, 512]},
            {"image_shape": [1, 8, 9]},
            {"batch_norm": False},
            {"classes": 0},
            {"kind": "dcgan"},
            {"hidden": [8, 8]},
        ],
        ids=str,
    )
    def test_another_generator(self, folder, changes):
        data = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        change(folder, "config.json", generator={**data["generator"], **changes})
        refused(folder)

    def test_a_field_left_to_its_default(self, folder):
        data = json.loads((folder / "config.json").read_text(encoding="utf-8"))["generator"]
        del data["activation"]
        change(folder, "config.json", generator=data)
        assert "every field" in refused(folder)

    @pytest.mark.parametrize("name", ["config.json", "privacy.json"])
    @pytest.mark.parametrize(
        "text",
        [
            "[]",
            "null",
            "{",
            "[" * 100_000,
            '{"a": ' * 5000,
            '{"a": NaN}',
            '{"version": 1e999}',
            '{"version": ' + "9" * 5000 + "}",
            '{"version": 1, "version": 1}',
            "\xff\xfe",
        ],
        ids=lambda text: text[:16],
    )
    def test_not_an_object(self, folder, name, text):
        (folder / name).write_bytes(text.encode("latin-1"))
        refused(folder)

    def test_newer_versions_say_what_to_do(self, folder):
        change(folder, "config.json", version=7)
        assert "install a newer one" in refused(folder)


class TestPrivacy:
    @pytest.mark.parametrize(
        "changes",
        [
            {"version": 2},
            {"format": "dpsinkhorn-release"},
            {"epsilon": None},
            {"epsilon": "10"},
            {"epsilon": -1},
            {"epsilon": True},
            {"delta": 2},
            {"adjacency": "none"},
            {"charges": None},
            {"charges": "abc"},
            {"charges": [{}]},
            {"charges": [{"adjacency": "add-or-remove-one", "event": {"type": "__import__"}}]},
            {"charges": [[]]},
            {"seeded": True},  # and releasable: a contradiction
            {"epsilon": "infinite"},
            {"releasable": "yes"},
            {"warning": 3},
            {"notes": ["a\nb"]},
            {"extra": 1},
        ],
        ids=str,
    )
    def test_fields(self, folder, changes):
        change(folder, "privacy.json", **changes)
        refused(folder)

    def test_deep_charges(self, folder):
        event = '{"type": "SelfComposed", "count": 1, "event": ' * 400 + '{"type": "NoOp"}' + "}" * 400
        text = (folder / "privacy.json").read_text(encoding="utf-8")
        data = json.loads(text)
        data["charges"] = ["HERE"]
        charge = '{"adjacency": "add-or-remove-one", "event": ' + event + "}"
        (folder / "privacy.json").write_text(json.dumps(data).replace('"HERE"', charge), encoding="utf-8")
        try:
            load(folder)
        except ReleaseError as error:
            assert "\n" not in str(error)  # noqa: PT017 - either way is fine, a crash is not


class TestTensors:
    def tensors(self, folder):
        return load_tensors((folder / "generator.safetensors").read_bytes())

    def test_one_flipped_bit(self, folder):
        data = bytearray((folder / "generator.safetensors").read_bytes())
        data[-3] ^= 1
        put_tensors(folder, bytes(data), sealed=False)
        assert "not the one" in refused(folder)

    @pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
    def test_not_finite(self, folder, value):
        state = self.tensors(folder)
        state["layers.0.weight"][0, 0] = value
        put_tensors(folder, save_tensors(state))
        assert "not finite" in refused(folder)

    def test_negative_variance(self, folder):
        state = self.tensors(folder)
        state["layers.1.running_var"][0] = -1
        put_tensors(folder, save_tensors(state))
        assert "negative variance" in refused(folder)

    def test_other_names(self, folder):
        state = self.tensors(folder)
        put_tensors(folder, save_tensors({**state, "layers.9.weight": torch.zeros(1)}))
        assert "unknown tensor" in refused(folder)
        state.pop("layers.0.weight")
        put_tensors(folder, save_tensors({**state, "padding": torch.zeros(200)}))
        assert "tensor" in refused(folder)

    def test_other_shape(self, folder):
        state = self.tensors(folder)
        state["layers.0.weight"] = state["layers.0.weight"].T.contiguous()
        put_tensors(folder, save_tensors(state))
        assert "does not fit" in refused(folder)

    @pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.bool])
    def test_other_type(self, folder, dtype):
        state = self.tensors(folder)
        state["layers.0.weight"] = state["layers.0.weight"].to(dtype)
        put_tensors(folder, save_tensors(state))
        refused(folder)

    def test_a_pickle(self, folder):
        marker = folder.parent / "ran"

        class Attack:
            def __reduce__(self):
                return os.mkdir, (str(marker),)

        size = (folder / "generator.safetensors").stat().st_size  # a size that fits, to get past that check
        put_tensors(folder, pickle.dumps(Attack()).ljust(size, b"\0"))
        refused(folder)
        assert not marker.exists()

    @pytest.mark.parametrize("length", [0, 1, 7, 2**31, 2**63, 2**64 - 1])
    def test_length_of_the_header(self, folder, length):
        data = (folder / "generator.safetensors").read_bytes()
        put_tensors(folder, struct.pack("<Q", length) + data[8:])
        refused(folder)

    @pytest.mark.parametrize("offsets", [[0, 10**12], [-4, 0], [8, 4], [2**63, 2**63 + 4], [0, 3], "ab"])
    def test_offsets(self, folder, offsets):
        data = (folder / "generator.safetensors").read_bytes()
        (length,) = struct.unpack("<Q", data[:8])
        header = json.loads(data[8 : 8 + length])
        header["layers.0.weight"]["data_offsets"] = offsets
        text = json.dumps(header).encode()
        put_tensors(folder, struct.pack("<Q", len(text)) + text + data[8 + length :])
        refused(folder)


class TestMixtures:
    """Every number of a mixture at random, of any size: refused, or images, or one line."""

    @pytest.mark.parametrize("seed", range(20))
    def test_tensors(self, tmp_path, seed):
        folder, config = tmp_path / "release", CONFIGS["mixture"]
        write_release(
            folder,
            trained(config),
            label_probabilities=[0.5, 0.5],
            privacy=statement(),
            about=About(title="A mixture"),
        )
        chance = np.random.default_rng(seed)
        state = load_tensors((folder / "generator.safetensors").read_bytes())
        for name, value in state.items():
            bits = chance.integers(0, 2**32, tuple(value.shape), dtype=np.uint32)
            wild = torch.from_numpy(bits.view(np.float32).copy())
            if chance.random() < 0.8:
                wild = wild.nan_to_num(0.0, posinf=3e38, neginf=-3e38)
            if chance.random() < 0.6:
                wild = wild.clamp(-(10.0 ** chance.integers(-40, 20)), 10.0 ** chance.integers(-40, 20))
            state[name] = wild if chance.random() < 0.7 else value
        put_tensors(folder, save_tensors(state))
        try:
            images, _ = load(folder).sample(20, random_state=0, device="cpu")
            assert images.shape == (20, 6, 5, 3)
        except ReleaseError as error:
            assert "not finite" in str(error)  # noqa: PT017


class TestMutations:
    """A few hundred random changes of bytes: each is refused, or leaves a release that can be sampled."""

    @pytest.mark.parametrize("name", LOADED)
    def test_bytes(self, folder, name):
        original = (folder / name).read_bytes()
        config = (folder / "config.json").read_bytes()
        chance = random.Random(7)
        refusals = 0
        for _ in range(150):
            data = bytearray(original)
            # the header of safetensors is where a parser can go wrong
            end = 600 if name == "generator.safetensors" and chance.random() < 0.7 else len(data)
            for _ in range(chance.choice([1, 1, 2, 8])):
                position = chance.randrange(min(end, len(data)))
                match chance.randrange(4):
                    case 0:
                        data[position] ^= 1 << chance.randrange(8)
                    case 1:
                        data[position] = chance.randrange(256)
                    case 2:
                        del data[position : position + chance.choice([1, 5, 100])]
                    case _:
                        data[position:position] = chance.choice([b"0", b"9" * 20, b'"', b"[", b"-", b"\0"])
            if name == "generator.safetensors":
                (folder / "config.json").write_bytes(config)
                put_tensors(folder, bytes(data))
            else:
                (folder / name).write_bytes(data)
            try:
                release = load(folder)
            except ReleaseError as error:
                refusals += 1
                assert "\n" not in str(error)  # noqa: PT017
            else:
                try:
                    images, _ = release.sample(2, random_state=0, device="cpu")
                    assert images.shape == (2, 8, 8)
                except ReleaseError as error:
                    assert "not finite" in str(error)  # noqa: PT017
        assert refusals > 30

    def test_values(self, pristine, folder):
        """Any JSON value in the place of any other."""
        chance = random.Random(11)
        values = [None, True, 0, -1, 2**70, 1.5, 1e308, "", "x", "infinite", [], {}, [1], {"type": "NoOp"}]
        for name in ("config.json", "privacy.json"):
            text = (pristine / name).read_text(encoding="utf-8")
            for _ in range(150):
                data = json.loads(text)
                place, key = chance.choice(list(places(data)))
                place[key] = chance.choice(values)
                (folder / name).write_text(json.dumps(data), encoding="utf-8")
                try:
                    images, _ = load(folder).sample(1)
                    assert images.dtype == np.uint8
                except ReleaseError as error:
                    assert "\n" not in str(error)  # noqa: PT017
            (folder / name).write_text(text, encoding="utf-8")


def places(value):
    """Every container and key in a JSON value."""
    if isinstance(value, (dict, list)):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield value, key
            yield from places(inner)
