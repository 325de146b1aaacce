"""`dpsinkhorn evaluate` of a run, which knows the images and the classes that it was trained on."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
from PIL import Image

from dpsinkhorn.data import load_dataset
from dpsinkhorn.evaluation import images_of
from support.releases import write_small_release
from support.runs import IMAGES, LABELS, RECIPE, tiny_arrays

NAMES = np.array(["healthy", "benign", "malignant"])
QUICK = ("--count", 40, "--only", "logistic", "--device", "cpu")


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    """A working folder with data of three classes by name, in two files, and a small recipe."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.toml").write_text(RECIPE.format(steps=2))
    for name, seed in (("train", 0), ("test", 1)):
        images, labels, _ = tiny_arrays(seed=seed)
        np.savez(f"{name}.npz", images=images, labels=NAMES[labels])
    return tmp_path


@pytest.fixture
def train(run):
    """Train on some data: the folder of the run."""

    def train(data, *options, folder="run"):
        fixed = ("--recipe", "tiny.toml", "--accountant", "rdp", "--picture-every", 0)
        status, _, err = run("train", "--data", data, "--out", folder, *fixed, *options)
        assert status == 0, err
        return folder

    return train


@pytest.fixture
def evaluate(run):
    """Evaluate: status, the result where there is one, and what was said but for a warning that is usual."""

    def evaluate(folder, data, *options):
        status, out, err = run("evaluate", folder, "--data", data, *QUICK, "--json", *options)
        lines = [line for line in err.splitlines() if "is not itself private" not in line]
        return status, json.loads(out) if out else None, lines

    return evaluate


def check(found, expected):
    """Whether images were those of training, in the result, and in one line."""
    status, result, lines = found
    assert status == 0, lines
    assert result["trained_on"] is expected
    assert ["trained on:" in line and "hold some back" in line for line in lines] == [True] * bool(expected)


class TestImages:
    def test_a_file_of_ones_own(self, train, evaluate, place):
        folder = train("train.npz")
        check(evaluate(folder, "train.npz"), True)
        check(evaluate(folder, "test.npz"), False)
        (place / "link.npz").symlink_to("train.npz")
        check(evaluate(folder, "./link.npz"), True)
        check(evaluate(place / folder / "release", "train.npz"), True)
        result = place / "e.json"
        assert evaluate(folder, "train.npz", "--output", result)[0] == 0
        assert json.loads(result.read_text())["trained_on"] is True

    def test_a_copy_is_known_by_its_images(self, train, evaluate):
        """In another order, another format and another type; half of them other images do not hide it."""
        folder = train("train.npz")
        with np.load("train.npz") as found:
            images, labels = found["images"][::-1], found["labels"][::-1]
        np.savez("copy.npz", images=(images / 255).astype(np.float32), labels=labels)
        check(evaluate(folder, "copy.npz"), True)
        with np.load("test.npz") as other:
            for many, expected in ((60, False), (30, True)):
                mixed = np.concatenate([images[: 90 - many], other["images"][:many]])
                kinds = np.concatenate([labels[: 90 - many], other["labels"][:many]])
                np.savez("mixed.npz", images=mixed, labels=kinds)
                check(evaluate(folder, "mixed.npz"), expected)

    def test_what_cannot_be_known(self, train, evaluate, place):
        folder = train("train.npz", "--classes", "benign,healthy,malignant")
        shutil.copytree(place / folder / "release", place / "received")
        check(evaluate("received", "train.npz"), None)
        (place / "train.npz").rename(place / "moved.npz")
        check(evaluate(folder, "moved.npz"), None)
        (place / folder / "run.json").write_text("{")
        check(evaluate(folder, "test.npz"), None)

    def test_parts(self, train, evaluate, place):
        """A folder with a test part, and a named set: what is held back is not warned about."""
        for part, seed in (("train", 0), ("test", 1)):
            images, labels, _ = tiny_arrays(seed=seed)
            for k, (image, label) in enumerate(zip(images, labels, strict=True)):
                path = place / "scans" / part / NAMES[label] / f"{k}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(image).save(path)
        folder = train("scans")
        check(evaluate(folder, "scans"), False)
        check(evaluate(folder, "scans", "--split", "train"), True)
        check(evaluate(folder, "scans/test"), False)
        check(evaluate(folder, "scans/train"), True)

    def test_a_named_set(self, train, evaluate):
        folder = train("digits")
        check(evaluate(folder, "digits"), False)
        check(evaluate(folder, "digits", "--split", "train"), True)

    def test_arrays_of_one_file(self, train, evaluate):
        others, kinds, _ = tiny_arrays(seed=1)
        np.savez("both.npz", x_train=IMAGES, y_train=LABELS, x_test=others, y_test=kinds)
        folder = train("both.npz", "--image", "x_train", "--label", "y_train")
        named = ("--image", "x_test", "--label", "y_test")
        check(evaluate(folder, "both.npz", *named), False)
        check(evaluate(folder, "both.npz", "--image", "x_train", "--label", "y_train"), True)
        check(evaluate(folder, "both.npz"), False)


class TestClasses:
    def refused(self, found):
        status, result, lines = found
        assert (status, result, len(lines)) == (2, None, 1)
        return lines[0]

    def test_other_names(self, train, evaluate):
        folder = train("train.npz", "--classes", "healthy,benign,malignant")
        with np.load("test.npz") as found:
            np.savez("capitals.npz", images=found["images"], labels=np.char.capitalize(found["labels"]))
        line = self.refused(evaluate(folder, "capitals.npz"))
        assert "Benign, Healthy, Malignant" in line
        assert "healthy, benign, malignant" in line
        assert "in another order; state --classes healthy" in self.refused(evaluate(folder, "test.npz"))
        check(evaluate(folder, "test.npz", "--classes", "healthy,benign,malignant"), False)

    def test_names_that_the_release_does_not_have(self, train, evaluate, place):
        """They are private; the run knows where they are."""
        folder = train("train.npz")
        assert json.loads((place / folder / "release" / "config.json").read_text())["class_names"] == []
        for data in ("train.npz", "test.npz"):
            line = self.refused(evaluate(folder, data, "--classes", "healthy,benign,malignant"))
            assert "in another order; state --classes benign,healthy,malignant" in line
        check(evaluate(folder, "test.npz", "--classes", "benign,healthy,malignant"), False)
        with np.load("test.npz") as found:
            np.savez("capitals.npz", images=found["images"], labels=np.char.capitalize(found["labels"]))
        assert "trained on benign, healthy" in self.refused(evaluate(folder, "capitals.npz"))

    def test_names_of_one_side_only(self, train, evaluate, place):
        folder = train("train.npz")
        images, labels, _ = tiny_arrays(seed=1)
        np.savez("numbers.npz", images=images, labels=labels)
        for release, data in ((folder, "numbers.npz"), ("received", "test.npz")):
            if release == "received":
                shutil.copytree(place / folder / "release", place / "received")
            status, _, lines = evaluate(release, data)
            assert (status, len(lines)) == (0, 1)
            assert "matched by their order, benign, healthy, malignant" in lines[0]
        assert evaluate("received", "numbers.npz")[2] == []

    def test_names_as_a_release_writes_them(self, evaluate, place):
        """What cannot be printed, and what is too long, is the same name still."""
        names = ["zero\n0", "one" * 100, "two"]
        write_small_release(place / "r", class_names=names)
        data = load_dataset("digits", split="test")
        kept = data.labels < 3
        np.savez("t.npz", images=images_of(data)[kept], labels=np.array(names)[data.labels[kept]])
        assert evaluate("r", "t.npz", "--classes", ",".join(names))[0] == 0
