"""Classes by their names, where a release has them."""

from __future__ import annotations

import numpy as np
import pytest

import dpsinkhorn
from dpsinkhorn.release import ReleaseError, load, write_release
from support.releases import CONFIGS, statement, trained, write_small_release
from support.runs import tiny_arrays, tiny_recipe


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


def test_a_release_without_classes(tmp_path):
    generator = trained(CONFIGS["unconditional"])
    write_release(tmp_path / "r", generator, label_probabilities=None, privacy=statement())
    with pytest.raises(ReleaseError, match="no classes"):
        load(tmp_path / "r").sample(3, labels="one")


def test_names_that_were_stated_in_training(tmp_path):
    names = ["healthy", "benign", "malignant"]
    images, numbers, _ = tiny_arrays()
    model = dpsinkhorn.DPSinkhorn(None, classes=names, recipe=tiny_recipe(steps=2), accountant="rdp")
    model.fit(images, np.array(names)[numbers])
    assert model.sample(5, labels="malignant")[1].tolist() == ["malignant"] * 5
    model.save(tmp_path / "r")
    assert dpsinkhorn.load(tmp_path / "r").sample(3, labels="benign")[1].tolist() == [1] * 3
