"""Files in a folder of pictures that are none: counted by kind, with what to do about DICOM."""

from __future__ import annotations

import pickle

import pytest

from dpsinkhorn.data import DataError, load_dataset
from support.readers import GREY, encoded

DICOM = b"\0" * 128 + b"DICM" + b"\2\0\0\0UL\4\0"


@pytest.fixture
def scans(tmp_path):
    """Two classes of two pictures, with other files among them."""
    for name in ("ill", "well"):
        (tmp_path / name).mkdir()
        for k in range(2):
            (tmp_path / name / f"{k}.png").write_bytes(encoded(GREY[k]))
    return tmp_path


def test_counts_by_kind(scans):
    for name in ("a.dcm", "B.DCM", "1.2.840.113619", "no_ending"):
        (scans / "ill" / name).write_bytes(DICOM)
    (scans / "well" / "c.dcm").write_bytes(b"damaged")
    (scans / "well" / "LICENCE").write_text("terms")
    (scans / "notes.TXT").write_text("of the whole set")
    for name in ("Thumbs.db", "desktop.ini", ".hidden"):
        (scans / "well" / name).write_text("of no interest")
    found = load_dataset(scans)
    assert (found.records, found.class_names) == (4, ("ill", "well"))
    assert found.skipped_files == (("DICOM", 5), (".txt", 1), ("no ending", 1))
    assert pickle.loads(pickle.dumps(found)).skipped_files == found.skipped_files
    assert "DICOM" not in repr(found)


def test_none_skipped(scans):
    assert load_dataset(scans).skipped_files == ()
    assert load_dataset("digits").skipped_files == ()


@pytest.mark.parametrize("options", [{"unlabelled": True}, {"classes": ["ill", "well"]}, {"classes": 2}])
def test_whatever_the_labels(scans, options):
    (scans / "ill" / "a.dcm").write_bytes(DICOM)
    assert load_dataset(scans, **options).skipped_files == (("DICOM", 1),)


def test_one_folder_without_classes(scans):
    (scans / "ill" / "a.dcm").write_bytes(DICOM)
    assert load_dataset(scans / "ill").skipped_files == (("DICOM", 1),)


def test_nothing_but_dicom(tmp_path):
    (tmp_path / "ill").mkdir()
    for k in range(3):
        (tmp_path / "ill" / f"1.2.{k}").write_bytes(DICOM)
    for source, says in ((tmp_path, "no sub-folder"), (tmp_path / "ill", "holds no pictures")):
        with pytest.raises(DataError, match=rf"{says}.*DICOM files found: 3.*16-bit PNG"):
            load_dataset(source)
    with pytest.raises(DataError, match=r"no known type; DICOM.*16-bit PNG"):
        load_dataset(tmp_path / "ill" / "1.2.0")
    (tmp_path / "well").mkdir()
    with pytest.raises(DataError) as caught:
        load_dataset(tmp_path / "well")
    assert "DICOM" not in str(caught.value)
