"""What `dpsinkhorn data show` tells the curator of classes and of files passed over."""

from __future__ import annotations

import json

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
    assert "convert them to 16-bit PNG" in err
    status, out, err = run("train --epsilon 10 --delta 0.01 --steps 2 --dry-run --json --data", scans)
    assert status == 0, err
    assert "2 DICOM" in err
    assert "DICOM" not in out
