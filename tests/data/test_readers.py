"""One contract for every reader: the same images, written in each format, come back as the same data set."""

from __future__ import annotations

import csv
import gzip
import io
import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
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
        with pytest.raises(DataError, match="several"):
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


class TestParquetOfPictures(ReaderContract):
    def write(self, folder, images, labels=None, persons=None):
        columns = {"image": [encoded(image) for image in images], "label": labels, "groups": persons}
        table = pa.table({k: v for k, v in columns.items() if v is not None})
        pq.write_table(table, folder / "set.parquet", row_group_size=5)
        return folder / "set.parquet"

    def test_columns_named_by_the_user(self, tmp_path):
        table = pa.table({"scan": [encoded(i) for i in GREY], "diagnosis": LABELS, "patient": PERSONS})
        pq.write_table(table, tmp_path / "s.parquet")
        found = load_dataset(tmp_path / "s.parquet", image="scan", label="diagnosis", groups="patient")
        self.check(found, GREY, LABELS)
        assert found.units == len(set(PERSONS))
        with pytest.raises(DataError, match="no column mood"):
            load_dataset(tmp_path / "s.parquet", image="scan", label="mood")

    def test_pictures_as_hugging_face_writes_them(self, tmp_path):
        rows = [{"bytes": encoded(image), "path": None} for image in GREY]
        pq.write_table(pa.table({"image": rows, "label": LABELS}), tmp_path / "h.parquet")
        self.check(load_dataset(tmp_path / "h.parquet"), GREY, LABELS)

    def test_missing_values(self, tmp_path):
        good = [encoded(image) for image in GREY[:3]]
        pq.write_table(pa.table({"image": good, "label": [0, None, 1]}), tmp_path / "m.parquet")
        with pytest.raises(DataError, match="label is missing in row 1"):
            load_dataset(tmp_path / "m.parquet")
        pq.write_table(pa.table({"image": [*good[:2], None], "label": [0, 1, 1]}), tmp_path / "m.parquet")
        with pytest.raises(DataError, match="image is missing in row 2"):
            load_dataset(tmp_path / "m.parquet")

    def test_columns_that_nothing_is_read_from(self, tmp_path):
        pictures = [encoded(image) for image in GREY]
        columns = {"image": pictures, "finding": NAMES * 4, "patient_id": PERSONS}
        pq.write_table(pa.table({**columns, "__index_level_0__": list(range(12))}), tmp_path / "s.parquet")
        found = load_dataset(tmp_path / "s.parquet")
        assert (found.classes, found.groups) == (0, None)
        assert found.unused_columns == ("finding", "patient_id")
        assert load_dataset(tmp_path / "s.parquet", label="finding").unused_columns == ("patient_id",)
        assert replace(found, groups=None).unused_columns == found.unused_columns
        assert pickle.loads(pickle.dumps(found)).unused_columns == found.unused_columns
        assert "finding" not in repr(found)

    def test_progress(self, tmp_path):
        seen = []
        load_dataset(self.write(tmp_path, GREY), progress=lambda done, total: seen.append((done, total)))
        assert seen[-1] == (12, 12)


class TestParquetOfPixelLists(ReaderContract):
    def write(self, folder, images, labels=None, persons=None):
        kind = pa.list_(pa.from_numpy_dtype(images.dtype))
        columns = {"pixels": pa.array([i.ravel().tolist() for i in images], kind)}
        rest = {"label": labels, "groups": persons}
        table = pa.table({**columns, **{k: v for k, v in rest.items() if v is not None}})
        pq.write_table(table, folder / "set.parquet")
        return folder / "set.parquet"

    def test_lists_of_several_lengths(self, tmp_path):
        pq.write_table(pa.table({"pixels": [[0] * 4, [0] * 9]}), tmp_path / "u.parquet")
        with pytest.raises(DataError, match="differ in length"):
            load_dataset(tmp_path / "u.parquet")


class TestParquetOfPixelColumns(ReaderContract):
    def write(self, folder, images, labels=None, persons=None):
        pixels = {k: pa.array(v, pa.from_numpy_dtype(images.dtype)) for k, v in pixel_columns(images).items()}
        rest = {"label": labels, "groups": persons}
        table = pa.table({**{k: v for k, v in rest.items() if v is not None}, **pixels})
        pq.write_table(table, folder / "set.parquet")
        return folder / "set.parquet"


class TestCsvOfPixels(ReaderContract):
    holds_depth = False
    end = ".csv"

    def write(self, folder, images, labels=None, persons=None):
        rest = {"label": labels, "groups": persons}
        columns = {**{k: list(v) for k, v in rest.items() if v is not None}, **pixel_columns(images)}
        return write_csv(folder / f"set{self.end}", columns)

    def test_sixteen_bits_must_be_stated(self, tmp_path):
        source = self.write(tmp_path, DEEP, LABELS)
        with pytest.raises(DataError, match="outside of 0 to 255"):
            load_dataset(source)
        self.check(load_dataset(source, value_range=(0, 65535)), DEEP, LABELS)

    def test_floats(self, tmp_path):
        images = np.round(GREY / 255, 3)
        self.check(load_dataset(self.write(tmp_path, images, LABELS)), images, LABELS)

    def test_an_oblong_needs_its_size(self, tmp_path):
        wide = GREY.reshape(12, 3, 12, 1)[:, :, :10]
        source = self.write(tmp_path, wide, LABELS)
        with pytest.raises(DataError, match="no square"):
            load_dataset(source)
        self.check(load_dataset(source, size=(3, 10)), wide, LABELS)

    def test_pixels_named_by_row_and_column(self, tmp_path):
        names = [f"{y}x{x}" for y in range(1, 7) for x in range(1, 7)]
        pixels = dict(zip(names, pixel_columns(GREY).values(), strict=True))
        self.check(
            load_dataset(write_csv(tmp_path / "k.csv", {"label": list(LABELS), **pixels})), GREY, LABELS
        )

    def test_other_columns_are_no_pixels(self, tmp_path):
        columns = {"age": [7] * 12, **pixel_columns(GREY), "label": list(LABELS)}
        self.check(load_dataset(write_csv(tmp_path / "a.csv", columns)), GREY, LABELS)

    def test_missing_values(self, tmp_path):
        columns = {"label": [0, "", 1], "pixel0": [1, 2, 3]}
        with pytest.raises(DataError, match="label is missing in row 1"):
            load_dataset(write_csv(tmp_path / "m.csv", columns))
        columns = {"label": [0, 1, 1], "pixel0": [1, "", 3]}
        with pytest.raises(DataError, match=r"column pixel0 .* missing"):
            load_dataset(write_csv(tmp_path / "m.csv", columns))

    @pytest.mark.parametrize("labels", [[0, -1], [0, 0.5]])
    def test_labels_that_are_none(self, tmp_path, labels):
        with pytest.raises(DataError, match="row 1"):
            load_dataset(write_csv(tmp_path / "m.csv", {"label": labels, "pixel0": [1, 2]}))

    def test_no_images_and_no_rows(self, tmp_path):
        with pytest.raises(DataError, match="no column of images"):
            load_dataset(write_csv(tmp_path / "m.csv", {"label": [0, 1], "age": [1, 2]}))
        with pytest.raises(DataError, match="empty"):
            load_dataset(write_csv(tmp_path / "m.csv", {"label": [], "pixel0": []}))
        (tmp_path / "m.csv").write_text("")
        with pytest.raises(DataError, match="cannot read"):
            load_dataset(tmp_path / "m.csv")


class TestTsvOfPixels(TestCsvOfPixels):
    end = ".tsv"


class TestCsvOfPaths(ReaderContract):
    def write(self, folder, images, labels=None, persons=None):
        (folder / "pictures").mkdir(exist_ok=True)
        paths = [f"pictures/{k}.png" for k in range(len(images))]
        for path, image in zip(paths, images, strict=True):
            (folder / path).write_bytes(encoded(image))
        columns = {"path": paths, "label": labels, "groups": persons}
        return write_csv(folder / "set.csv", {k: list(v) for k, v in columns.items() if v is not None})


class TestModes:
    """Pictures that are neither plain grey nor plain colour, and folders of several kinds."""

    def load(self, folder, pictures, **options):
        for k, picture in enumerate(pictures):
            picture.save(folder / f"{k}.png")
        return load_dataset(folder, **options)

    def test_mixed_sizes(self, tmp_path):
        pictures = [Image.new("L", (4, 4)), Image.new("L", (4, 5))]
        with pytest.raises(
            DataError, match=r"differ in size.*0\.png is 4 x 4.*1\.png is 5 x 4.*state size .--size"
        ):
            self.load(tmp_path, pictures)
        assert self.load(tmp_path, pictures, size=3).image_shape == (1, 3, 3)

    def test_mixed_modes(self, tmp_path):
        pictures = [Image.new("L", (4, 4), 9), Image.new("RGB", (4, 4), (9, 9, 9))]
        with pytest.raises(DataError, match=r"differ in mode.*grey.*colour.*state channels .--channels"):
            self.load(tmp_path, pictures)
        for channels in (1, 3):
            data = self.load(tmp_path, pictures, channels=channels)
            assert data.image_shape == (channels, 4, 4)
            assert (data.images == 9).all()

    def test_mixed_depths(self, tmp_path):
        pictures = [Image.new("L", (4, 4)), Image.fromarray(np.zeros((4, 4), np.uint16))]
        with pytest.raises(DataError, match="depth"):
            self.load(tmp_path, pictures)

    @pytest.mark.parametrize("mode", ["RGBA", "LA"])
    def test_transparency_must_be_asked_away(self, tmp_path, mode):
        with pytest.raises(DataError, match=f"mode {mode}.*state channels .--channels"):
            self.load(tmp_path, [Image.new(mode, (4, 4))])
        assert self.load(tmp_path, [Image.new(mode, (4, 4))], channels=1).image_shape == (1, 4, 4)

    def test_palettes_and_single_bits(self, tmp_path):
        red = Image.new("P", (2, 2), 1)
        red.putpalette([0, 0, 0, 200, 10, 30])
        assert self.load(tmp_path, [red]).images[0, 0, 0].tolist() == [200, 10, 30]
        assert self.load(tmp_path, [Image.new("1", (2, 2), 1)]).images.max() == 255

    def test_sixteen_bits_as_colour_and_resized(self, tmp_path):
        ramp = np.linspace(0, 65535, 64).astype(np.uint16).reshape(8, 8)
        data = self.load(tmp_path, [Image.fromarray(ramp)], channels=3, size=4)
        assert data.images.dtype == np.uint16
        assert data.image_shape == (3, 4, 4)
        np.testing.assert_allclose(data.images[0, ..., 1].mean(), ramp.mean(), rtol=0.02)

    def test_a_camera_held_sideways(self, tmp_path):
        picture = Image.fromarray(np.arange(12, dtype=np.uint8).reshape(3, 4) * 20)
        exif = Image.Exif()
        exif[0x0112] = 6
        picture.save(tmp_path / "a.png", exif=exif)
        upright = load_dataset(tmp_path).images[0, ..., 0]
        np.testing.assert_array_equal(upright, np.rot90(np.asarray(picture), -1))

    def test_the_crop_is_about_the_centre(self, tmp_path):
        wide = np.zeros((8, 24), np.uint8)
        wide[:, 8:16] = 200
        data = self.load(tmp_path, [Image.fromarray(wide)], size=8)
        assert (data.images == 200).all()

    def test_a_jpeg_made_small_is_near_its_box_means(self, tmp_path):
        y, x = np.mgrid[:128, :128]
        smooth = (127 + 60 * np.sin(x / 30) + 60 * np.cos(y / 25)).astype(np.uint8)
        Image.fromarray(smooth).save(tmp_path / "a.jpg", quality=95)
        small = load_dataset(tmp_path, size=16).images[0, ..., 0]
        boxes = smooth.reshape(16, 8, 16, 8).mean(axis=(1, 3))
        assert np.abs(small - boxes).max() < 6


class TestWhatToDo:
    """Messages say what to do, to a caller of Python and to one of the command line."""

    def test_columns(self, tmp_path):
        (tmp_path / "a.csv").write_text("weight,weight,pixel0\n1,2,3\n")
        with pytest.raises(DataError, match="there are several columns weight for label"):
            load_dataset(tmp_path / "a.csv", label="weight")
        with pytest.raises(DataError, match="there is no column mass for label; the table has weight"):
            load_dataset(tmp_path / "a.csv", label="mass")
        (tmp_path / "b.csv").write_text("weight\n1\n")
        with pytest.raises(DataError, match=r"name it by image \(--image\)"):
            load_dataset(tmp_path / "b.csv")

    @pytest.mark.parametrize(
        ("content", "says"),
        [
            ("pixel0,pixel1\n1,2\n", r"size \(--size "),
            ("pixel0\n300\n", r"value_range \(--value-range "),
            ("label,pixel0\n123456,3\n", r"classes \(--classes\)"),
        ],
    )
    def test_values(self, tmp_path, content, says):
        (tmp_path / "a.csv").write_text(content)
        with pytest.raises(DataError, match=says):
            load_dataset(tmp_path / "a.csv")

    def test_types(self):
        with pytest.raises(DataError, match=r"value_range \(--value-range 0,255\)"):
            from_arrays(np.zeros((2, 4, 4), np.int32))
        with pytest.raises(DataError, match=r"labels \(--label\)"):
            from_arrays(np.zeros((2, 4, 4)), classes=2)

    def test_parts(self, tmp_path):
        (tmp_path / "train").mkdir()
        (tmp_path / "train" / "a.png").write_bytes(encoded(GREY[0]))
        with pytest.raises(DataError, match=r"no test part, only train; choose one by split \(--split\)"):
            load_dataset(tmp_path, split="test")

    def test_pictures_too_large(self, tmp_path, monkeypatch):
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 8)
        (tmp_path / "a.png").write_bytes(encoded(GREY[0]))
        with pytest.raises(DataError, match="remove"):
            load_dataset(tmp_path)


class TestSources:
    def test_nothing_of_that_name(self):
        with pytest.raises(DataError, match=r"no file or folder nowhere.*digits, mnist"):
            load_dataset("nowhere")

    def test_a_file_of_another_type(self, tmp_path):
        (tmp_path / "a.txt").write_text("hello")
        with pytest.raises(DataError, match="no known type"):
            load_dataset(tmp_path / "a.txt")

    @pytest.mark.parametrize(
        ("options", "says"),
        [
            ({"split": "dev"}, "split"),
            ({"size": 0}, "size"),
            ({"size": (8, 8, 8)}, "size"),
            ({"channels": 2}, "channels"),
            ({"label": "x", "unlabelled": True}, "not both"),
            ({"classes": 3, "unlabelled": True}, "not both"),
            ({"split": "valid"}, "splits train and test"),
            ({"groups": "writer"}, "groups cannot be stated"),
            ({"value_range": (0, 255)}, "value_range cannot be stated"),
        ],
    )
    def test_options_that_make_no_sense(self, options, says):
        with pytest.raises(DataError, match=says):
            load_dataset("digits", **options)
