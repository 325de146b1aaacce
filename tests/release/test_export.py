"""Samples as files, and pictures of them, read back by the libraries that people use."""

from __future__ import annotations

import csv
import io
import json
import os
from pathlib import PureWindowsPath

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from dpsinkhorn.data import load_dataset
from dpsinkhorn.evaluation import images_of
from dpsinkhorn.release import ReleaseError, export, grid_image, grid_picture, write_samples
from dpsinkhorn.release.export import folder_names


def random_images(count, shape, classes=12):
    chance = np.random.default_rng(0)
    images = chance.integers(0, 256, (count, *shape), dtype=np.uint8)
    return images, chance.integers(0, classes, count)


@pytest.fixture(params=[(8, 6), (5, 7, 3)], ids=["grey", "colour"])
def samples(request):
    return random_images(30, request.param)


@pytest.fixture(params=[True, False], ids=["labels", "no labels"])
def labelled(request):
    return request.param


class TestForms:
    def test_npz(self, tmp_path, samples, labelled):
        images, labels = samples
        write_samples(tmp_path / "s.npz", images, labels if labelled else None)
        with np.load(tmp_path / "s.npz", allow_pickle=False) as found:
            assert (found["images"] == images).all()
            assert found["images"].dtype == np.uint8
            assert set(found) == ({"images", "labels"} if labelled else {"images"})
            if labelled:
                assert (found["labels"] == labels).all()

    def test_a_statement_goes_along(self, tmp_path, samples, labelled):
        """As JSON, read without pickles, and by our own reader without a word."""
        images, labels = samples
        said = {"class_names": ["größer", "b"], "epsilon": 2.5, "value_range": None}
        for name in ("s.npz", "s.parquet"):
            write_samples(tmp_path / name, images, labels if labelled else None, statement=said)
        with np.load(tmp_path / "s.npz", allow_pickle=False) as found:
            assert json.loads(str(found["statement"])) == said
        schema = pq.read_schema(tmp_path / "s.parquet")
        assert json.loads(schema.metadata[b"dpsinkhorn"]) == said
        assert load_dataset(tmp_path / "s.npz").unused_columns == ()
        assert (images_of(load_dataset(tmp_path / "s.parquet")) == images).all()

    @pytest.mark.parametrize("named", [True, False])
    def test_parquet(self, tmp_path, samples, labelled, named, monkeypatch):
        monkeypatch.setattr(export, "_ROWS", 7)
        images, labels = samples
        names = [f"class {index}" for index in range(12)] if named else []
        write_samples(tmp_path / "s.parquet", images, labels if labelled else None, class_names=names)
        table = pq.read_table(tmp_path / "s.parquet")
        decoded = [np.asarray(Image.open(io.BytesIO(row["bytes"]))) for row in table["image"].to_pylist()]
        assert (np.stack(decoded) == images).all()
        assert table["image"][3].as_py()["path"] == "000003.png"
        features = json.loads(table.schema.metadata[b"huggingface"])["info"]["features"]
        assert features["image"] == {"_type": "Image"}
        assert list(features) == table.column_names == (["image", "label"] if labelled else ["image"])
        if labelled:
            assert table["label"].to_pylist() == labels.tolist()
            expected = (
                {"names": names, "_type": "ClassLabel"} if named else {"dtype": "int64", "_type": "Value"}
            )
            assert features["label"] == expected

    def test_folder(self, tmp_path, samples):
        images, labels = samples
        write_samples(tmp_path / "s", images, labels, class_names=[f"class {index}" for index in range(12)])
        with open(tmp_path / "s" / "labels.csv", newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        assert [int(row["label"]) for row in rows] == labels.tolist()
        for row, image, label in zip(rows, images, labels, strict=True):
            assert row["file"].startswith(f"class {label}/")
            assert row["name"] == f"class {label}"
            assert (np.asarray(Image.open(tmp_path / "s" / row["file"])) == image).all()
        folders = sorted(path.name for path in (tmp_path / "s").iterdir() if path.is_dir())
        assert folders == sorted(f"class {label}" for label in set(labels.tolist()))
        assert len(list((tmp_path / "s").rglob("*.png"))) == 30

    def test_folder_of_classes_without_names(self, tmp_path, samples):
        """Sub-folders of equal width, so that their alphabetical order is that of the labels."""
        images, labels = samples
        write_samples(tmp_path / "s", images, labels)
        folders = sorted(path.name for path in (tmp_path / "s").iterdir() if path.is_dir())
        assert folders == [f"{label:02d}" for label in np.unique(labels)]

    def test_folder_without_labels(self, tmp_path, samples):
        images, _ = samples
        write_samples(tmp_path / "s", images, None)
        files = sorted((tmp_path / "s").iterdir())
        assert (np.stack([np.asarray(Image.open(path)) for path in files]) == images).all()

    @pytest.mark.parametrize("name", ["s.npz", "s.parquet", "s"])
    def test_progress_adds_up(self, tmp_path, name):
        done = []
        write_samples(tmp_path / name, *random_images(230, (4, 4)), progress=done.append)
        assert sum(done) == 230

    def test_one_channel_is_grey(self, tmp_path):
        images, labels = random_images(3, (4, 4, 1))
        write_samples(tmp_path / "s.npz", images, labels)
        assert np.load(tmp_path / "s.npz")["images"].shape == (3, 4, 4)


class TestExisting:
    @pytest.mark.parametrize("name", ["s.npz", "s.parquet", "s"])
    def test_refused_unless_asked(self, tmp_path, name):
        write_samples(tmp_path / name, *random_images(3, (4, 4)))
        with pytest.raises(ReleaseError, match="exists already"):
            write_samples(tmp_path / name, *random_images(5, (4, 4)))
        write_samples(tmp_path / name, *random_images(5, (4, 4)), overwrite=True)
        assert [path.name for path in tmp_path.iterdir()] == [name]
        if name == "s":
            assert len(list((tmp_path / "s").rglob("*.png"))) == 5

    def test_a_folder_with_other_files_is_left_alone(self, tmp_path):
        (tmp_path / "home").mkdir()
        (tmp_path / "home" / "thesis.txt").write_text("thesis")
        with pytest.raises(ReleaseError, match="other files"):
            write_samples(tmp_path / "home", *random_images(3, (4, 4)), overwrite=True)
        assert (tmp_path / "home" / "thesis.txt").read_text() == "thesis"

    def test_named_classes_are_replaced(self, tmp_path):
        images, labels = random_images(6, (4, 4), classes=2)
        write_samples(tmp_path / "s", images, labels, class_names=["ill", "well"])
        write_samples(tmp_path / "s", images, labels, class_names=["cat", "dog"], overwrite=True)
        assert {path.name for path in (tmp_path / "s").iterdir()} == {"cat", "dog", "labels.csv"}

    @pytest.mark.parametrize("added", ["cat/mine.png", "cat/000099.png", "cat/deep/a", "bird/000000.png"])
    def test_pictures_that_were_added_are_left_alone(self, tmp_path, added):
        images, labels = random_images(6, (4, 4), classes=2)
        write_samples(tmp_path / "s", images, labels, class_names=["cat", "dog"])
        (tmp_path / "s" / added).parent.mkdir(exist_ok=True)
        (tmp_path / "s" / added).write_bytes(b"mine")
        with pytest.raises(ReleaseError, match="other files"):
            write_samples(tmp_path / "s", images, labels, overwrite=True)
        assert (tmp_path / "s" / added).read_bytes() == b"mine"

    def test_a_folder_of_ones_own_pictures_is_left_alone(self, tmp_path):
        (tmp_path / "s" / "cat").mkdir(parents=True)
        (tmp_path / "s" / "cat" / "000000.png").write_bytes(b"mine")
        with pytest.raises(ReleaseError, match="other files"):
            write_samples(tmp_path / "s", *random_images(3, (4, 4)), overwrite=True)

    @pytest.mark.parametrize("name", ["s.npz", "s.parquet", "s"])
    def test_a_write_that_fails_leaves_nothing(self, tmp_path, name, monkeypatch):
        def full(*_, **__):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(export, "_png", full)
        monkeypatch.setattr(np, "savez", full)
        with pytest.raises(ReleaseError, match="No space left"):
            write_samples(tmp_path / name, *random_images(3, (4, 4)))
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize("name", ["s.csv", "s.png", "no/such/folder/s.npz"])
    def test_bad_paths(self, tmp_path, name):
        with pytest.raises(ReleaseError):
            write_samples(tmp_path / name, *random_images(3, (4, 4)))
        assert list(tmp_path.iterdir()) == []


class TestBadImages:
    @pytest.mark.parametrize(
        ("images", "labels"),
        [
            (np.zeros((2, 4, 4)), None),
            (np.zeros((2, 4, 4, 2), np.uint8), None),
            (np.zeros((4, 4), np.uint8), None),
            (np.zeros((0, 4, 4), np.uint8), None),
            (np.zeros((2, 4, 4), np.uint8), np.array([0])),
            (np.zeros((2, 4, 4), np.uint8), np.array([0.0, 1.0])),
            (np.zeros((2, 4, 4), np.uint8), np.array([0, -1])),
        ],
    )
    def test_refused(self, tmp_path, images, labels):
        with pytest.raises(ReleaseError):
            write_samples(tmp_path / "s.npz", images, labels)
        with pytest.raises(ReleaseError):
            grid_image(images, labels)

    def test_more_labels_than_names(self, tmp_path):
        with pytest.raises(ReleaseError, match="class names"):
            write_samples(tmp_path / "s", *random_images(30, (4, 4)), class_names=["only one"])


HOSTILE = ["../../evil", "/etc/evil", "..", ".hidden", "C:\\evil", "CON", "nul.txt", "labels.csv", "", "-rf"]


class TestNamesOfFolders:
    def test_no_name_leaves_the_folder(self, tmp_path):
        (tmp_path / "in").mkdir()
        labels = np.arange(len(HOSTILE))
        images, _ = random_images(len(HOSTILE), (4, 4))
        write_samples(tmp_path / "in" / "s", images, labels, class_names=HOSTILE)
        assert [path.name for path in tmp_path.iterdir()] == ["in"]
        assert [path.name for path in (tmp_path / "in").iterdir()] == ["s"]
        folders = [path for path in (tmp_path / "in" / "s").iterdir() if path.is_dir()]
        assert len(folders) == len(HOSTILE)
        with open(tmp_path / "in" / "s" / "labels.csv", newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        assert [row["name"] for row in rows] == HOSTILE
        for row, image in zip(rows, images, strict=True):
            assert (np.asarray(Image.open(tmp_path / "in" / "s" / row["file"])) == image).all()

    @given(
        st.lists(st.text(max_size=80) | st.sampled_from([*HOSTILE, "a", "A", "1", "2", "a (1)"]), max_size=8)
    )
    def test_any_names(self, names):
        found = folder_names(names, len(names))
        assert len({name.casefold() for name in found}) == len(names)
        for name in found:
            assert name
            assert name == os.path.basename(name) == PureWindowsPath(name).name
            assert name.isprintable()
            assert not name.startswith((".", "-", " "))
            assert not name.endswith((".", " "))
            assert len(name.encode()) <= 255
            assert name.split(".")[0].upper() not in ("CON", "PRN", "AUX", "NUL", "COM1", "LPT9")

    def test_what_can_stay_stays(self):
        names = ["zero", "Größe 2 (left)", "日本", "x" * 60, "x" * 70, "a/b", "a:b", "Dog", "dog"]
        found = folder_names(names, 9)
        assert found[:3] == names[:3]
        assert found[3:5] == ["x" * 50 + " (3)", "x" * 50 + " (4)"]
        assert found[5:] == ["a_b (5)", "a_b (6)", "Dog (7)", "dog (8)"]
        assert folder_names(["a", "b"], 3) == ["0", "1", "2"]


class TestGrid:
    def margin(self, names, labels=(0, 1)):
        images = np.zeros((len(labels), 28, 28), np.uint8)
        picture = np.asarray(grid_image(images, np.array(labels), class_names=names))
        assert (picture[0, -84:] == 0).all()
        return picture[:, : picture.shape[1] - 86]

    def row(self, names, label):
        top = 86 * label
        return self.margin(names)[top : top + 84]

    def test_names_beside_the_rows(self):
        """The same letters wherever the class stands, and as wide as they need to be."""
        assert (self.row(["well", "gone"], 0) == self.row(["gone", "well"], 1)).all()
        assert (self.row(["well", "gone"], 0) != self.row(["gone", "well"], 0)).any()
        assert (self.margin(["0", "1"]) == self.margin([])).all()

    def test_long_names_fit(self):
        images = np.zeros((2, 28, 28), np.uint8)
        for names in (["well", "W" * 200], ["adenocarcinoma of the upper lobe", "well"]):
            picture = np.asarray(grid_image(images, np.array([0, 1]), class_names=names))
            inked = np.flatnonzero((picture[:, :-86] < 255).any(axis=0))
            assert inked[0] > 0
            assert inked[-1] < picture.shape[1] - 86 - 3
            assert picture.shape[1] <= 86 + 160

    def test_cut_names_are_told_apart(self):
        names = ["W" * 100 + "a", "W" * 100 + "b"]
        assert (self.row(names, 0) != self.row(names, 1)).any()

    def test_letters_that_the_font_lacks(self):
        assert (self.margin(["日本", "本日"]) == self.margin([])).all()
        assert (self.margin(["Größe", "été"]) == self.margin(["Grosse", "ete"])).all()

    def test_tiles_are_the_images(self):
        """Row by class, column by order, each pixel enlarged to a square."""
        images, _ = random_images(12, (28, 28))
        labels = np.array([5, 2] * 6)
        picture = np.asarray(grid_image(images, labels, columns=4))
        assert picture.shape == (2 * 86 - 2, 30 + 4 * 86 - 2)
        for row, label in enumerate([2, 5]):
            for column, index in enumerate(np.flatnonzero(labels == label)[:4]):
                top, left = row * 86, 30 + column * 86
                tile = picture[top : top + 84, left : left + 84]
                assert (tile == images[index].repeat(3, 0).repeat(3, 1)).all()
        assert (picture[:, :28] < 255).any()  # the labels

    def test_tiny_images_are_enlarged_smoothly(self):
        """A step from black to white has greys between them, and the image is as bright as it was."""
        images = np.zeros((1, 8, 8), np.uint8)
        images[..., 4:] = 255
        picture = np.asarray(grid_image(images, None))
        assert len(np.unique(picture)) > 4
        assert abs(picture.mean() - images.mean()) < 1

    def test_without_labels(self):
        images, _ = random_images(7, (64, 64, 3))
        picture = np.asarray(grid_image(images, None, columns=3))
        assert picture.shape == (3 * 130 - 2, 3 * 130 - 2, 3)
        assert (picture[130 : 130 + 128 : 2, :128:2] == images[3]).all()
        assert (picture[260:, 130:] == 255).all()

    def test_at_most_so_many_rows(self):
        images, labels = random_images(200, (28, 28), classes=50)
        assert np.asarray(grid_image(images, labels, rows=3, columns=2)).shape[0] == 3 * 86 - 2

    def test_small_images_can_be_seen(self, tmp_path):
        grid_picture(*random_images(4, (1, 1)), tmp_path / "g.png")
        with Image.open(tmp_path / "g.png") as picture:
            assert min(picture.size) >= 84
        assert [path.name for path in tmp_path.iterdir()] == ["g.png"]

    def test_nowhere_to_write(self, tmp_path):
        with pytest.raises(ReleaseError, match="cannot write"):
            grid_picture(*random_images(4, (4, 4)), tmp_path / "no" / "g.png")
