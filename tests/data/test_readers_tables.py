"""Readers of tables, by the contract of all readers."""

from __future__ import annotations

import pickle
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dpsinkhorn.data import DataError, load_dataset
from support.readers import (
    DEEP,
    GREY,
    LABELS,
    NAMES,
    PERSONS,
    ReaderContract,
    encoded,
    pixel_columns,
    write_csv,
)


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
        with pytest.raises(DataError, match=r"no whole number from 0 to 255; .* state value_range"):
            load_dataset(source)
        self.check(
            load_dataset(source, value_range=(0, 65535)), DEEP.astype(float), LABELS, value_range=(0, 65535)
        )

    def test_floats(self, tmp_path):
        images = np.round(GREY / 255, 3)
        source = self.write(tmp_path, images, LABELS)
        self.check(load_dataset(source, value_range=(0, 1)), images, LABELS)
        with pytest.raises(DataError, match=r"no whole number from 0 to 255; .* state value_range"):
            load_dataset(source)

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
