"""One contract for every reader: the same images, written in each format, come back as the same data set."""

from __future__ import annotations

import csv
import gzip
import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dpsinkhorn.data import DataError, from_arrays, has_parts, load_dataset

RNG = np.random.default_rng(11)
GREY = RNG.integers(0, 256, (12, 6, 6, 1)).astype(np.uint8)
COLOUR = RNG.integers(0, 256, (12, 6, 6, 3)).astype(np.uint8)
DEEP = RNG.integers(0, 65536, (12, 6, 6, 1)).astype(np.uint16)
LABELS = np.array([0, 0, 0, 0, 1, 1, 1, 2, 2, 2, 2, 2])  # in order, as a folder per class gives them
NAMES = ("fig", "pear", "plum")
PERSONS = ["ann", "bob", "ann", "eve", "eve", "bob", "zoe", "ann", "bob", "cat", "dan", "dan"]


def encoded(image: np.ndarray, form: str = "PNG") -> bytes:
    stream = io.BytesIO()
    Image.fromarray(image[..., 0] if image.shape[2] == 1 else image).save(stream, form)
    return stream.getvalue()


def write_idx(path: Path, array: np.ndarray, kind: int = 8) -> None:
    header = bytes([0, 0, kind, array.ndim]) + b"".join(int(n).to_bytes(4, "big") for n in array.shape)
    content = header + array.tobytes()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


def write_csv(path: Path, columns: dict[str, list]) -> Path:
    with path.open("w", newline="") as stream:
        writer = csv.writer(stream, delimiter="\t" if path.suffix == ".tsv" else ",")
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))
    return path


def pixel_columns(images: np.ndarray) -> dict[str, list]:
    flat = images.reshape(len(images), -1)
    return {f"pixel{k}": flat[:, k].tolist() for k in range(flat.shape[1])}


class ReaderContract:
    """What every reader keeps to. A format says what it can hold, and writes it."""

    has_parts = False
    holds_colour = True
    holds_names = True
    holds_depth = True
    holds_persons = True
    may_leave_labels_out = True

    def write(self, folder: Path, images, labels=None, persons=None) -> Path:
        raise NotImplementedError

    def check(self, found, images, labels=None, **stated):
        expected = from_arrays(images, labels, **stated)
        assert found.images.dtype == expected.images.dtype
        np.testing.assert_array_equal(found.images, expected.images)
        assert found.classes == expected.classes
        assert found.class_names == expected.class_names
        assert found.value_range == expected.value_range
        if labels is None:
            assert found.labels is None
        else:
            np.testing.assert_array_equal(found.labels, expected.labels)
        np.testing.assert_array_equal(found.points([3, 1]), expected.points()[[3, 1]])

    def test_grey(self, tmp_path):
        self.check(load_dataset(self.write(tmp_path, GREY, LABELS)), GREY, LABELS)

    def test_colour(self, tmp_path):
        if self.holds_colour:
            self.check(load_dataset(self.write(tmp_path, COLOUR, LABELS)), COLOUR, LABELS)

    def test_sixteen_bits(self, tmp_path):
        if self.holds_depth:
            self.check(load_dataset(self.write(tmp_path, DEEP, LABELS)), DEEP, LABELS)

    def test_a_twelve_bit_range(self, tmp_path):
        if self.holds_depth:
            found = load_dataset(self.write(tmp_path, DEEP % 4096, LABELS), value_range=(0, 4095))
            self.check(found, DEEP % 4096, LABELS, value_range=(0, 4095))

    def test_without_labels(self, tmp_path):
        if self.may_leave_labels_out:
            self.check(load_dataset(self.write(tmp_path, GREY)), GREY)

    def test_labels_left_out(self, tmp_path):
        self.check(load_dataset(self.write(tmp_path, GREY, LABELS), unlabelled=True), GREY)

    def test_stated_classes(self, tmp_path):
        source = self.write(tmp_path, GREY, LABELS)
        self.check(load_dataset(source, classes=10), GREY, LABELS, classes=10)
        with pytest.raises(DataError, match="label 2, but with the 2 classes"):
            load_dataset(source, classes=2)

    def test_names_as_labels(self, tmp_path):
        if self.holds_names:
            texts = [NAMES[k] for k in LABELS]
            source = self.write(tmp_path, GREY, texts)
            self.check(load_dataset(source), GREY, texts)
            self.check(load_dataset(source, classes=NAMES[::-1]), GREY, texts, classes=NAMES[::-1])
            with pytest.raises(DataError, match="2 classes"):
                load_dataset(source, classes=2)

    def test_persons(self, tmp_path):
        if self.holds_persons:
            found = load_dataset(self.write(tmp_path, GREY, LABELS, PERSONS))
            assert found.units == len(set(PERSONS))
            for i, left in enumerate(PERSONS):
                same = [left == right for right in PERSONS]
                assert (found.groups == found.groups[i]).tolist() == same

    def test_another_size_and_number_of_channels(self, tmp_path):
        found = load_dataset(self.write(tmp_path, GREY, LABELS), size=(4, 8), channels=3)
        assert found.image_shape == (3, 4, 8)
        np.testing.assert_array_equal(found.images[..., 0], found.images[..., 2])
        assert abs(found.images.mean() - GREY.mean()) < 10
        small = load_dataset(self.write(tmp_path, GREY, LABELS), size=3).images[..., 0]
        # halving with antialiasing: each pixel of the middle is near the mean of its surroundings
        around = GREY[:, 1:5, 1:5, 0].mean(axis=(1, 2))
        assert np.corrcoef(small[:, 1, 1], around)[0, 1] > 0.8

    def test_no_part_for_testing(self, tmp_path):
        with pytest.raises(DataError, match=r"test.*--split"):
            load_dataset(self.write(tmp_path, GREY, LABELS), split="test")

    def test_nothing_is_left_unused(self, tmp_path):
        persons = PERSONS if self.holds_persons else None
        assert load_dataset(self.write(tmp_path, GREY, LABELS, persons)).unused_columns == ()

    def test_whether_it_has_parts(self, tmp_path):
        assert has_parts(self.write(tmp_path, GREY, LABELS)) is self.has_parts
