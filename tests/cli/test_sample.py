"""`dpsinkhorn sample`, as a user meets it."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from functools import partial

import numpy as np
import pytest
from PIL import Image

from dpsinkhorn.privacy import format_epsilon
from dpsinkhorn.release import grid_image, load, write_release
from support.releases import CONFIGS, EPSILON, not_private, statement, trained, write_small_release


@pytest.fixture
def run(run):
    """Run `dpsinkhorn sample ARGUMENTS`."""
    return partial(run, "sample")


@pytest.fixture(scope="module")
def release(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run") / "release"
    write_small_release(folder)
    return folder


@pytest.mark.parametrize("name", ["s.npz", "s.parquet", "s"])
def test_writes(run, release, tmp_path, name):
    status, out, err = run(release, "--count", 12, "--output", tmp_path / name)
    assert (status, err) == (0, "")
    first, second = out.splitlines()
    assert first.startswith(f"12 images written to {tmp_path / name}")
    assert f"ε = {format_epsilon(EPSILON)}, δ = 1e-05" in second
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_images_are_those_of_the_release(run, release, tmp_path):
    run(release, "--count", 9, "--output", tmp_path / "s.npz", "--seed", 5, "--device", "cpu")
    images, labels = load(release).sample(9, random_state=5, device="cpu")
    with np.load(tmp_path / "s.npz") as found:
        assert (found["images"] == images).all()
        assert (found["labels"] == labels).all()


def test_a_file_says_what_it_is(run, release, tmp_path):
    run(release, "--count", 3, "--output", tmp_path / "s.npz")
    with np.load(tmp_path / "s.npz") as found:
        said = json.loads(str(found["statement"]))
    assert said == {**load(release).statement, "variation": {}}
    assert said["synthetic"] is True
    assert said["class_names"] == ["zero", "one", "two | <b>"]
    assert (said["epsilon"], said["delta"], said["unit"]) == (EPSILON, 1e-5, "record")
    assert said["releasable"] is True


def test_variation_is_asked_for_and_said(run, release, tmp_path):
    config = dataclasses.replace(CONFIGS["mlp"], warp=0.5, grain=0.25)
    write_release(tmp_path / "r", trained(config), label_probabilities=None, privacy=statement())
    plain, varied = (
        load(tmp_path / "r").sample(6, random_state=5)[0],
        load(tmp_path / "r").sample(6, random_state=5, vary=True)[0],
    )
    for flags, expected, words in (((), plain, ""), (("--vary",), varied, "(--vary): warp 0.5, grain 0.25.")):
        asked = (
            "--count",
            6,
            "--output",
            tmp_path / "s.npz",
            "--seed",
            5,
            "--device",
            "cpu",
            "--force",
            *flags,
        )
        status, out, _ = run(tmp_path / "r", *asked)
        assert status == 0
        assert words in out
        assert ("augmentation for classifiers" in out) == bool(words)
        assert (np.load(tmp_path / "s.npz")["images"] == expected).all()
        assert json.loads(run(tmp_path / "r", *asked, "--json")[1])["variation"] == (
            {"warp": 0.5, "grain": 0.25} if words else {}
        )
    assert "no variation of its own" in run(release, *asked)[1]


def test_run_folder(run, release, tmp_path):
    assert run(release.parent, "--count", 1, "--output", tmp_path / "s.npz")[0] == 0


@pytest.mark.parametrize(("text", "label"), [("1", 1), ("one", 1), ("two | <b>", 2)])
def test_one_class(run, release, tmp_path, text, label):
    assert run(release, "--count", 3, "--output", tmp_path / "s.npz", "--label", text)[0] == 0
    assert np.load(tmp_path / "s.npz")["labels"].tolist() == [label] * 3


def test_a_class_that_is_none(run, release, tmp_path):
    _, _, err = run(release, "--count", 3, "--output", tmp_path / "s.npz", "--label", "three")
    assert "'three' is none of the classes: they are zero, one, two | <b>; numbers from 0 to 2 will do" in err


def test_a_name_of_digits_comes_before_a_number(run, tmp_path):
    write_small_release(tmp_path / "r", class_names=["2", "1", "0"])
    assert run(tmp_path / "r", "--count", 3, "--output", tmp_path / "s.npz", "--label", "2")[0] == 0
    assert np.load(tmp_path / "s.npz")["labels"].tolist() == [0] * 3


def test_fast(run, release, tmp_path):
    for name, flags in (("exact", []), ("fast", ["--fast"])):
        assert run(release, "--count", 50, "--output", tmp_path / f"{name}.npz", "--seed", 1, *flags)[0] == 0
    exact, fast = (np.load(tmp_path / f"{name}.npz")["images"].astype(int) for name in ("exact", "fast"))
    assert 0 < np.abs(exact - fast).mean() < 1.5


def test_grid(run, release, tmp_path):
    status, out, _ = run(release, "--count", 40, "--output", tmp_path / "s", "--grid", tmp_path / "g.png")
    assert status == 0
    assert str(tmp_path / "g.png") in out
    with Image.open(tmp_path / "g.png") as picture:
        assert picture.height == 3 * 90 - 2


def test_names_of_classes(run, tmp_path):
    """They come from the release, which may be a stranger's."""
    write_small_release(tmp_path / "r", class_names=["zero", "../../one", "/two"])
    out, grid = tmp_path / "in" / "out", tmp_path / "in" / "g.png"
    (tmp_path / "in").mkdir()
    status, _, _ = run(tmp_path / "r", "--count", 60, "--output", out, "--grid", grid, "--seed", 0)
    assert status == 0
    assert {path.name for path in out.iterdir()} == {"zero", "_.._one", "_two", "labels.csv"}
    assert {path.name for path in tmp_path.iterdir()} == {"r", "in"}
    assert {path.name for path in (tmp_path / "in").iterdir()} == {"out", "g.png"}
    images, labels = load(tmp_path / "r").sample(60, random_state=0)
    with Image.open(grid) as picture:
        expected = grid_image(images, labels, class_names=["zero", "../../one", "/two"])
        assert (np.asarray(picture) == np.asarray(expected)).all()
        assert picture.size != grid_image(images, labels).size
    # the picture in the release names them too
    with Image.open(tmp_path / "r" / "samples.png") as picture:
        assert picture.width == expected.width


def test_json(run, release, tmp_path):
    status, out, err = run(release, "--count", 4, "--output", tmp_path / "s.npz", "--json")
    assert (status, err) == (0, "")
    found = json.loads(out)
    assert found["count"] == 4
    assert found["epsilon"] == EPSILON
    assert found["delta"] == 1e-5
    assert found["image_shape"] == [1, 8, 8]
    assert found["releasable"] is True
    assert found["output"] == str(tmp_path / "s.npz")


@pytest.mark.parametrize("privacy", [not_private(), statement(seeded=True)], ids=["not private", "seeded"])
def test_not_for_release(run, tmp_path, privacy):
    write_release(
        tmp_path / "r", trained(CONFIGS["unconditional"]), label_probabilities=None, privacy=privacy
    )
    status, out, err = run(tmp_path / "r", "--count", 2, "--output", tmp_path / "s.npz")
    assert status == 0
    assert "NOT FOR RELEASE" in err
    assert ("not private" in out) is (not privacy.private)
    status, out, err = run(tmp_path / "r", "--count", 2, "--output", tmp_path / "t.npz", "--json")
    assert json.loads(out)["releasable"] is False
    assert set(np.load(tmp_path / "t.npz")) == {"images", "statement"}


@pytest.mark.parametrize("name", ["s.npz", "s.parquet", "s"])
def test_existing_output(run, release, tmp_path, name):
    assert run(release, "--count", 2, "--output", tmp_path / name)[0] == 0
    status, out, err = run(release, "--count", 2, "--output", tmp_path / name)
    assert (status, out) == (2, "")
    assert "--force" in err
    assert run(release, "--count", 2, "--output", tmp_path / name, "--force")[0] == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ["--count", "0"],
        ["--count", "-3"],
        ["--count", "many"],
        ["--count", "2", "--label", "3"],
        ["--count", "2", "--label", "-1"],
        ["--count", "2", "--label", "three"],
        ["--count", "2", "--label", "²"],
        ["--count", "2", "--seed", "-1"],
        ["--count", "2", "--device", "abacus"],
        ["--count", "2", "--output", "{}/s.csv"],
        ["--count", "2", "--output", "{}/no/s.npz"],
        ["--count", "2", "--grid", "{}/g.jpg"],
        ["--count", "2", "--grid", "{}/no/g.png"],
        ["--count", "2", "--output", "{}/s", "--grid", "{}/s/g.png"],
        ["--count", "999999999999999"],
    ],
    ids=" ".join,
)
def test_bad_input(refused, release, tmp_path, arguments):
    arguments = [argument.replace("{}", str(tmp_path)) for argument in arguments]
    if "--output" not in arguments:
        arguments += ["--output", str(tmp_path / "s.npz")]
    refused(release, *arguments)
    assert list(tmp_path.iterdir()) == []


def test_no_release(refused, tmp_path):
    assert "not a release" in refused(tmp_path, "--count", 2, "--output", tmp_path / "s.npz")


def test_a_run_that_is_not_finished(run, refused, tmp_path):
    folder = tmp_path / "my run"
    folder.mkdir()
    (folder / "run.json").write_text("{}")
    for place in (folder, folder / "release"):
        err = refused(place, "--count", 2, "--output", tmp_path / "s.npz")
        assert f"the run {folder} is not finished" in err
        assert f"dpsinkhorn train --out '{folder}' --resume" in err
    # a release that is there, but damaged, is not taken for an unfinished run
    (folder / "release").mkdir()
    _, _, err = run(folder / "release", "--count", 2, "--output", tmp_path / "s.npz")
    assert "is not a release" in err


def test_as_a_program(release, tmp_path):
    command = [sys.executable, "-m", "dpsinkhorn", "sample", str(release), "--count", "2", "--output", "s"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert ran.stderr == ""
    assert (tmp_path / "s" / "labels.csv").exists()
