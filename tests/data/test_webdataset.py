"""Tar files of WebDataset: records whose files follow each other."""

from __future__ import annotations

import io
import tarfile

import numpy as np
import pytest

from dpsinkhorn.data import DataError, load_dataset
from support.readers import encoded

ONE, TWO = (encoded(np.full((2, 2, 1), value, np.uint8)) for value in (1, 2))


def tar(tmp_path, *files, name="set.tar"):
    with tarfile.open(tmp_path / name, "w") as archive:
        for path, content in files:
            member = tarfile.TarInfo(path)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return tmp_path / name


def test_what_is_read(tmp_path):
    path = tar(
        tmp_path,
        ("a/1.seg.png", TWO),
        ("a/1.PNG", ONE),
        ("a/1.cls", b"1\n"),
        ("a/1.json", b'{"patient": 7, "site": "x"}'),
        ("b/1.png", TWO),
        ("b/1.cls", b"0"),
        ("b/1.json", b'{"patient": "7 ", "site": "y"}'),
    )
    found = load_dataset(path, image="png", groups="patient", classes=2)
    assert found.images[..., 0].tolist() == [[[1, 1], [1, 1]], [[2, 2], [2, 2]]]
    assert found.labels.tolist() == [1, 0]
    assert found.groups.tolist() == [0, 0]
    by_site = load_dataset(path, image="png", label="site")
    assert by_site.class_names == ("x", "y")
    assert load_dataset(path, image=".png", unlabelled=True).labels is None


@pytest.mark.parametrize(
    ("files", "why"),
    [
        ([], "holds no records"),
        ([("1.png", ONE), ("1.jpg", ONE)], r"record 1 has 2 pictures \(png, jpg\)"),
        ([("1.cls", b"1")], "record 1 has no picture"),
        ([("1.png", ONE), ("2.png", TWO), ("1.cls", b"1")], "files of record 1 do not follow each other"),
        ([("1.png", ONE), ("1.PNG", TWO)], "record 1 has two files .PNG"),
        ([("1.png", ONE), ("1.cls", b"1"), ("2.png", TWO)], "record 2 has no cls"),
        ([("1.png", ONE), ("2.png", TWO), ("2.cls", b"1")], "record 2 has a .cls file, and others have none"),
        ([("1.png", b"no picture"), ("1.cls", b"1")], r"1.png"),
        ([("1.png", ONE), ("1.cls", b"\xff")], "record 1 cannot be read"),
    ],
)
def test_what_is_refused(files, why, tmp_path):
    with pytest.raises(DataError, match=why) as refused:
        load_dataset(tar(tmp_path, *files))
    assert len(str(refused.value).splitlines()) == 1


def test_links_and_damage(tmp_path):
    with tarfile.open(tmp_path / "link.tar", "w") as archive:
        link = tarfile.TarInfo("1.png")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
    with pytest.raises(DataError, match=r"'1.png' is no file"):
        load_dataset(tmp_path / "link.tar")
    whole = tar(tmp_path, ("1.png", ONE), ("1.cls", b"1")).read_bytes()
    (tmp_path / "short.tar").write_bytes(whole[: 512 + len(ONE) // 2])
    with pytest.raises(DataError, match="no tar file, or damaged"):
        load_dataset(tmp_path / "short.tar")
    (tmp_path / "text.tar").write_text("no tar")
    with pytest.raises(DataError, match="no tar file, or damaged"):
        load_dataset(tmp_path / "text.tar")
