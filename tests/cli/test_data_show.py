"""What `dpsinkhorn data show` tells the curator of classes and of files passed over."""

from __future__ import annotations

import json

import numpy as np
import pytest
from PIL import Image


@pytest.fixture
def scans(tmp_path):
    for name in ("ill", "well"):
        (tmp_path / "scans" / name).mkdir(parents=True)
        for k in range(3):
            Image.new("L", (4, 4), 60 * k).save(tmp_path / "scans" / name / f"{k}.png")
    return tmp_path / "scans"


def test_files_that_are_skipped(run, scans):
    assert run("data show", scans)[2] == ""
    for k in range(2):
        (scans / "ill" / f"{k}.dcm").write_bytes(b"\0" * 128 + b"DICM")
    (scans / "well" / "a.[b]").write_text("x")
    status, out, err = run("data show", scans, "--json")
    assert status == 0
    assert json.loads(out)["skipped_files"] == {"DICOM": 2, ".[b]": 1}
    assert err.count("\n") == 1
    assert "warning: 3 files that are no pictures were skipped in scans: 2 DICOM, 1 .[b]" in err
    assert "convert it to 16-bit PNG" in err
    status, out, err = run("train --epsilon 10 --delta 0.01 --anyway --dry-run --json --data", scans)
    assert status == 0, err
    assert "2 DICOM" in err
    assert "DICOM" not in out


def words(out):
    """What a table says, without its frame and its line breaks."""
    return " ".join(out.replace("│", " ").split())


class TestRecordsPerClass:
    def save(self, path, counts, names=None):
        labels = np.repeat(np.arange(len(counts)) if names is None else names, counts)
        images = np.zeros((len(labels), 2, 2), np.uint8)
        images[0] = 255
        np.savez(path, images=images, labels=np.random.default_rng(0).permutation(labels))
        return path

    def test_every_class_is_counted(self, run, tmp_path):
        counts = [50, 49, 1200, 1]
        file = self.save(tmp_path / "a.npz", counts, ["a", "b", "[c]", "d"])
        status, out, err = run("data show", file)
        assert (status, err) == (0, "")
        assert "records per class [c]: 1,200, a: 50, b: 49, d: 1" in words(out)
        assert "fewer than 50: d: 1, b: 49." in words(out)
        assert "for the curator's eyes only" in words(out)
        found = json.loads(run("data show", file, "--json")[1])
        assert dict(zip(found["class_names"], found["class_counts"], strict=True)) == {
            "a": 50,
            "b": 49,
            "[c]": 1200,
            "d": 1,
        }

    def test_numbered_classes_and_an_empty_one(self, run, tmp_path):
        file = self.save(tmp_path / "a.npz", [60, 0, 70])
        out = words(run("data show", file)[1])
        assert "records per class 0: 60, 1: 0, 2: 70" in out
        assert "classes without a record 1" in out
        assert "few records" not in out

    def test_many_classes_are_cut_short(self, run, tmp_path):
        file = self.save(tmp_path / "a.npz", [3] * 100)
        out = words(run("data show", file)[1])
        assert "39: 3 and 60 more" in out
        assert "11: 3 and 88 more." in out
        assert json.loads(run("data show", file, "--json")[1])["class_counts"] == [3] * 100

    def test_unlabelled(self, run, tmp_path):
        file = self.save(tmp_path / "a.npz", [3, 4])
        assert "per class" not in run("data show", file, "--unlabelled")[1]
        assert json.loads(run("data show", file, "--unlabelled", "--json")[1])["class_counts"] == []
