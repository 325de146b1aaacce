"""Readers of arrays and of folders of pictures, by the contract of all readers."""

from __future__ import annotations

import math
import pickle

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from PIL import Image

from dpsinkhorn.data import DataError, has_parts, load_dataset
from dpsinkhorn.data.pictures import _box
from support.readers import COLOUR, GREY, LABELS, NAMES, PERSONS, ReaderContract, encoded, write_idx


class TestIdx(ReaderContract):
    has_parts = True
    holds_colour = holds_names = holds_depth = holds_persons = False
    end = ""
    dash = "-"

    def write(self, folder, images, labels=None, persons=None):
        assert persons is None
        write_idx(folder / f"train-images{self.dash}idx3-ubyte{self.end}", images[..., 0])
        if labels is not None:
            write_idx(folder / f"train-labels{self.dash}idx1-ubyte{self.end}", np.asarray(labels, np.uint8))
        return folder

    def test_the_part_for_testing(self, tmp_path):
        self.write(tmp_path, GREY, LABELS)
        write_idx(tmp_path / f"t10k-images{self.dash}idx3-ubyte", GREY[::-1, ..., 0])
        write_idx(tmp_path / f"t10k-labels{self.dash}idx1-ubyte.gz", LABELS[::-1].astype(np.uint8))
        self.check(load_dataset(tmp_path, split="test"), GREY[::-1], LABELS[::-1])

    def test_one_file_by_its_path(self, tmp_path):
        self.write(tmp_path, GREY, LABELS)
        file = tmp_path / f"train-images{self.dash}idx3-ubyte{self.end}"
        self.check(load_dataset(file), GREY, LABELS)
        assert not has_parts(file)

    def test_colour_and_floats_have_idx_types_too(self, tmp_path):
        write_idx(tmp_path / "train-images-idx4-ubyte", COLOUR)
        self.check(load_dataset(tmp_path), COLOUR)
        half = (GREY / 255).astype(">f4")
        write_idx(tmp_path / "f-images-idx3.gz", half[..., 0], kind=0x0D)
        self.check(load_dataset(tmp_path / "f-images-idx3.gz"), half)

    def test_two_sets_in_one_folder(self, tmp_path):
        self.write(tmp_path, GREY)
        write_idx(tmp_path / "letters-train-images-idx3-ubyte", GREY[..., 0])
        with pytest.raises(DataError, match=r"2 files like .*; name one of them"):
            load_dataset(tmp_path)


class TestGzippedIdx(TestIdx):
    end = ".gz"


class TestDottedIdx(TestIdx):
    dash = "."


class TestNpz(ReaderContract):
    names = ("images", "labels", "groups")
    save = staticmethod(np.savez_compressed)

    def write(self, folder, images, labels=None, persons=None):
        arrays = dict(zip(self.names, (images, labels, persons), strict=True))
        self.save(folder / "set.npz", **{k: np.asarray(v) for k, v in arrays.items() if v is not None})
        return folder / "set.npz"

    def test_arrays_named_by_the_user(self, tmp_path):
        file = tmp_path / "mine.npz"
        np.savez(file, faces=GREY, kind=LABELS, who=np.array(PERSONS), images=COLOUR)
        found = load_dataset(file, image="faces", label="kind", groups="who")
        self.check(found, GREY, LABELS)
        assert found.units == len(set(PERSONS))
        with pytest.raises(DataError, match="no array mood"):
            load_dataset(file, label="mood")

    def test_arrays_that_nothing_is_read_from(self, tmp_path):
        images, labels, _ = self.names
        arrays = {
            images: GREY,
            labels: LABELS,
            "patient": np.array(PERSONS),
            "x_test": GREY,
            "y_test": LABELS,
        }
        np.savez(tmp_path / "a.npz", **arrays)
        assert load_dataset(tmp_path / "a.npz").unused_columns == ("patient",)
        assert load_dataset(tmp_path / "a.npz", groups="patient").unused_columns == ()
        assert load_dataset(tmp_path / "a.npz", unlabelled=True).unused_columns == ("patient",)

    def test_no_images(self, tmp_path):
        np.savez(tmp_path / "none.npz", weights=GREY)
        with pytest.raises(DataError, match=r"it has weights; name one with image \(--image\)"):
            load_dataset(tmp_path / "none.npz")


class TestUncompressedNpz(TestNpz):
    save = staticmethod(np.savez)

    def test_is_memory_mapped(self, tmp_path):
        found = load_dataset(self.write(tmp_path, GREY, LABELS))
        assert isinstance(_owner(found.images), np.memmap)


class TestKerasNpz(TestNpz):
    has_parts = True
    names = ("x_train", "y_train", "groups_train")

    def test_the_part_for_testing(self, tmp_path):
        np.savez(tmp_path / "mnist.npz", x_train=GREY, y_train=LABELS, x_test=GREY[::-1], y_test=LABELS[::-1])
        self.check(load_dataset(tmp_path / "mnist.npz", split="test"), GREY[::-1], LABELS[::-1])


class TestMedmnistNpz(TestNpz):
    has_parts = True
    names = ("train_images", "train_labels", "train_groups")

    def test_validation(self, tmp_path):
        np.savez(tmp_path / "m.npz", val_images=COLOUR, val_labels=LABELS[:, None])
        self.check(load_dataset(tmp_path / "m.npz", split="valid"), COLOUR, LABELS)


class TestNpy(ReaderContract):
    order = "C"

    def write(self, folder, images, labels=None, persons=None):
        np.save(folder / "set.npy", np.asarray(images, order=self.order))
        if labels is not None:
            np.save(folder / "set.labels.npy", np.asarray(labels))
        if persons is not None:
            np.save(folder / "set.groups.npy", np.asarray(persons))
        return folder / "set.npy"

    def test_labels_and_persons_in_named_files(self, tmp_path):
        np.save(tmp_path / "x.npy", GREY)
        np.save(tmp_path / "y.npy", LABELS)
        np.save(tmp_path / "who.npy", np.array(PERSONS))
        found = load_dataset(
            tmp_path / "x.npy", label=str(tmp_path / "y.npy"), groups=str(tmp_path / "who.npy")
        )
        self.check(found, GREY, LABELS)
        assert found.units == len(set(PERSONS))
        with pytest.raises(DataError, match="no file"):
            load_dataset(tmp_path / "x.npy", label="nowhere.npy")

    def test_is_memory_mapped(self, tmp_path):
        found = load_dataset(self.write(tmp_path, GREY, LABELS))
        assert isinstance(_owner(found.images), np.memmap)

    def test_floats(self, tmp_path):
        np.save(tmp_path / "f.npy", GREY / 255)
        self.check(load_dataset(tmp_path / "f.npy"), GREY / 255)
        np.save(tmp_path / "f.npy", GREY / 1.0)
        with pytest.raises(DataError, match="outside of the range 0 to 1"):
            load_dataset(tmp_path / "f.npy")
        self.check(load_dataset(tmp_path / "f.npy", value_range=(0, 255)), GREY / 1.0, value_range=(0, 255))


class TestFortranNpy(TestNpy):
    order = "F"


def test_a_file_larger_than_what_is_asked_of_it(tmp_path):
    """Rows of a sparse file of 8 GB: were it read as a whole, this would take long and fill the memory."""
    file = tmp_path / "large.npy"
    shape = (2_000_000, 64, 64)
    with file.open("wb") as stream:
        np.lib.format.write_array_header_1_0(stream, {"descr": "|u1", "fortran_order": False, "shape": shape})
        start = stream.tell()
        for row in (5, 1_999_999):
            stream.seek(start + row * 4096)
            stream.write(bytes([row % 251]) * 4096)
    data = load_dataset(file)
    assert data.records == 2_000_000
    points = data.points([1_999_999, 17, 5])
    expected = [1_999_999 % 251, 0, 5]
    np.testing.assert_allclose(points[:, 9], [2 * v / 255 - 1 for v in expected], atol=1e-6)


def _owner(array: np.ndarray) -> np.ndarray:
    while isinstance(array.base, np.ndarray) and not isinstance(array, np.memmap):
        array = array.base
    return array


class TestPictureFolder(ReaderContract):
    holds_persons = False
    form = "PNG"

    def write(self, folder, images, labels=None, persons=None):
        assert persons is None
        folder = folder / "faces"
        for k, image in enumerate(images):
            place = folder if labels is None else folder / str(labels[k])
            place.mkdir(parents=True, exist_ok=True)
            (place / f"{k:03}.{self.form.lower()}").write_bytes(encoded(image, self.form))
        (folder / ".hidden").mkdir(exist_ok=True)
        return folder

    def test_splits_are_sub_folders(self, tmp_path):
        for split, images in (("train", GREY), ("test", GREY[::-1]), ("val", COLOUR)):
            self.write(tmp_path / split, images, LABELS).rename(tmp_path / "moved")
            (tmp_path / split).rmdir()
            (tmp_path / "moved").rename(tmp_path / split)
        self.check(load_dataset(tmp_path), GREY, LABELS)
        self.check(load_dataset(tmp_path, split="test"), GREY[::-1], LABELS)
        self.check(load_dataset(tmp_path, split="valid"), COLOUR, LABELS)
        assert has_parts(tmp_path)

    def test_an_empty_sub_folder_is_a_class(self, tmp_path):
        folder = self.write(tmp_path, GREY, [NAMES[k] for k in LABELS])
        (folder / "apple").mkdir()
        for stated in (None, 4):
            found = load_dataset(folder, classes=stated)
            assert found.class_names == ("apple", *NAMES)
            np.testing.assert_array_equal(found.labels, LABELS + 1)
        numbered = self.write(tmp_path / "n", GREY, LABELS)
        (numbered / "3").mkdir()
        assert load_dataset(numbered).classes == 4

    def test_what_cannot_be_read_as_classes(self, tmp_path):
        folder = self.write(tmp_path, GREY, LABELS)
        (folder / "loose.png").write_bytes(encoded(GREY[0]))
        with pytest.raises(DataError, match="both pictures"):
            load_dataset(folder)
        (folder / "loose.png").unlink()
        (folder / "1" / "deeper").mkdir()
        with pytest.raises(DataError, match="deeper"):
            load_dataset(folder)

    def test_nothing_there(self, tmp_path):
        with pytest.raises(DataError, match="no pictures"):
            load_dataset(tmp_path)
        (tmp_path / "cats").mkdir()
        with pytest.raises(DataError, match="empty"):
            load_dataset(tmp_path)

    def test_options_that_a_folder_cannot_have(self, tmp_path):
        folder = self.write(tmp_path, GREY, LABELS)
        with pytest.raises(DataError, match="table"):
            load_dataset(folder, groups="person")


class TestTiffFolder(TestPictureFolder):
    form = "TIFF"


SIDES = st.integers(1, 5000)
TARGETS = st.integers(1, 4096)


def check_box(height, width, size):
    left, top, right, bottom = _box(height, width, size)
    assert 0 <= left < right <= width
    assert 0 <= top < bottom <= height
    # centred, of the shape wanted, and it fills the picture one way
    assert math.isclose(left, width - right, abs_tol=1e-6)
    assert math.isclose(top, height - bottom, abs_tol=1e-6)
    assert math.isclose((right - left) * size[0], (bottom - top) * size[1], rel_tol=1e-9)
    assert math.isclose(right - left, width, rel_tol=1e-9) or math.isclose(bottom - top, height, rel_tol=1e-9)


@pytest.mark.parametrize("target", [16, 28, 32, 64])
def test_every_square(target):
    for side in range(1, 1101):
        check_box(side, side, (target, target))


@given(height=SIDES, width=SIDES, tall=TARGETS, wide=TARGETS)
@example(height=29, width=29, tall=28, wide=28)
def test_any_sizes(height, width, tall, wide):
    check_box(height, width, (tall, wide))


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_a_side_that_does_not_divide(tmp_path, dtype):
    """A resize of the whole picture, done by Pillow without a box, is the same."""
    images = np.random.default_rng(0).integers(0, 255, (3, 29, 29)).astype(dtype)
    np.savez(tmp_path / "a.npz", images=images)
    found = load_dataset(tmp_path / "a.npz", size=28).images[..., 0]
    for small, image in zip(found, images, strict=True):
        whole = Image.fromarray(image.astype(np.float32)).resize((28, 28), Image.Resampling.BILINEAR)
        assert np.abs(small - np.asarray(whole)).max() <= 1


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
