"""Data sets by name, in small copies of their own layouts."""

from __future__ import annotations

import gzip
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

from dpsinkhorn.data import KNOWN, DataError, data_folder, find_known, load_dataset

RNG = np.random.default_rng(3)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("DPSINKHORN_DATA", str(tmp_path / "data"))
    # what happens to be installed on this machine plays no part
    for name, known in list(KNOWN.items()):
        monkeypatch.setitem(KNOWN, name, replace(known, system_places=()))
    return tmp_path / "data"


def write_idx(folder: Path, stem: str, images: np.ndarray, labels: np.ndarray) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for kind, values in (("images-idx3", images), ("labels-idx1", labels)):
        header = bytes([0, 0, 8, values.ndim]) + b"".join(n.to_bytes(4, "big") for n in values.shape)
        (folder / f"{stem}-{kind}-ubyte.gz").write_bytes(
            gzip.compress(header + values.astype(np.uint8).tobytes())
        )


class TestDigits:
    def test_the_split(self):
        """Together the parts are scikit-learn's images; each class is split three to one."""
        train, test = load_dataset("digits"), load_dataset("digits", split="test")
        assert (train.records, test.records) == (1347, 450)
        whole = load_digits()
        both = np.concatenate([train.images, test.images])[..., 0]
        assert sorted(map(bytes, both)) == sorted(map(bytes, whole.images.astype(np.uint8)))
        for digit in range(10):
            of_class = (whole.target == digit).sum()
            assert abs((test.labels == digit).sum() - of_class / 4) < 1
        pixels = whole.images.astype(np.uint8)
        pairs = {(bytes(image), label) for image, label in zip(pixels, whole.target, strict=True)}
        assert all((bytes(i), y) in pairs for i, y in zip(test.images[..., 0], test.labels, strict=True))

    def test_the_range_is_that_of_the_format(self):
        data = load_dataset("digits")
        assert data.value_range == (0, 16)
        assert data.classes == 10
        assert (data.points().min(), data.points().max()) == (-1, 1)

    def test_other_sizes(self):
        assert load_dataset("digits", size=28, channels=3).image_shape == (3, 28, 28)

    def test_unlabelled(self):
        data = load_dataset("digits", unlabelled=True)
        assert (data.labels, data.classes) == (None, 0)


@pytest.mark.parametrize(
    ("name", "place"), [("mnist", "mnist"), ("mnist", "MNIST/raw"), ("fashion-mnist", "fashion-mnist")]
)
def test_idx_sets(folder, name, place):
    images, labels = RNG.integers(0, 256, (9, 28, 28)), np.arange(9) % 4
    write_idx(folder / place, "train", images, labels)
    data = load_dataset(name)
    np.testing.assert_array_equal(data.images[..., 0], images)
    np.testing.assert_array_equal(data.labels, labels)
    assert data.classes == 10  # known, not read off the labels
    assert data.class_names == KNOWN[name].class_names
    assert load_dataset(name, unlabelled=True).class_names == ()
    with pytest.raises(DataError, match="data get"):
        load_dataset(name, split="test")
    assert find_known(KNOWN[name]) is None  # half of it is not all
    write_idx(folder / place, "t10k", images[:2], labels[:2])
    assert load_dataset(name, split="test").records == 2
    assert find_known(KNOWN[name]) == folder / place


def test_a_package_of_the_system(tmp_path, monkeypatch):
    """Where Debian's dataset-fashion-mnist puts its files, they are found without a data folder."""
    place = tmp_path / "usr"
    for stem in ("train", "t10k"):
        write_idx(place, stem, np.zeros((10, 28, 28)), np.arange(10))
    monkeypatch.setitem(KNOWN, "fashion-mnist", replace(KNOWN["fashion-mnist"], system_places=(str(place),)))
    assert load_dataset("fashion-mnist").class_names[9] == "Ankle boot"


def test_another_folder(tmp_path):
    write_idx(tmp_path / "elsewhere" / "mnist", "train", np.zeros((2, 28, 28)), np.arange(2))
    assert load_dataset("mnist", folder=tmp_path / "elsewhere").records == 2


def test_not_installed(folder):
    with pytest.raises(DataError, match=f"mnist is not in {folder}; run `dpsinkhorn data get mnist`"):
        load_dataset("mnist")
    with pytest.raises(DataError, match="accept its terms") as caught:
        load_dataset("celeba")
    assert "\n" not in str(caught.value)


class TestCifar:
    def write(self, folder: Path, rows: np.ndarray) -> None:
        place = folder / "cifar10" / "cifar-10-batches-bin"
        place.mkdir(parents=True, exist_ok=True)
        for k, part in enumerate(np.array_split(rows, 5), 1):
            (place / f"data_batch_{k}.bin").write_bytes(part.tobytes())
        (place / "test_batch.bin").write_bytes(rows[:3].tobytes())

    def test_planes(self, folder):
        rows = RNG.integers(0, 256, (15, 3073)).astype(np.uint8)
        rows[:, 0] = np.arange(15) % 10
        self.write(folder, rows)
        data = load_dataset("cifar10")
        assert data.labels.tolist() == rows[:, 0].tolist()
        assert data.image_shape == (3, 32, 32)
        for n, c, y, x in [(0, 0, 0, 0), (7, 2, 31, 5), (14, 1, 3, 30)]:
            assert data.images[n, y, x, c] == rows[n, 1 + 1024 * c + 32 * y + x]
        # channels come first in both
        np.testing.assert_allclose(data.points(), rows[:, 1:] / 127.5 - 1, atol=1e-6)
        assert data.class_names[3] == "cat"
        assert load_dataset("cifar10", split="test").records == 3
        assert load_dataset("cifar10", channels=1).image_shape == (1, 32, 32)

    def test_damaged(self, folder):
        self.write(folder, np.zeros((5, 3073), np.uint8))
        file = folder / "cifar10" / "cifar-10-batches-bin" / "data_batch_2.bin"
        file.write_bytes(file.read_bytes()[:-1])
        with pytest.raises(DataError, match="3072 bytes long"):
            load_dataset("cifar10")

    def test_the_pickled_version_is_not_read(self, folder):
        (folder / "cifar10").mkdir(parents=True)
        (folder / "cifar10" / "data_batch_1").write_bytes(b"\x80\x02}q\x01.")
        with pytest.raises(DataError, match="not in"):
            load_dataset("cifar10")


class TestCeleba:
    @pytest.fixture(autouse=True)
    def faces(self, folder) -> np.ndarray:
        place = folder / "celeba"
        (place / "img_align_celeba").mkdir(parents=True)
        levels = [20, 60, 100, 140, 180, 220]
        for k, level in enumerate(levels):
            # a face about the centre, dark above and below: the crop must leave those out
            picture = np.zeros((218, 178, 3), np.uint8)
            picture[20:198] = level
            Image.fromarray(picture).save(place / "img_align_celeba" / f"{k:06}.jpg", quality=95)
        attributes = ["6", "Bald Male Smiling"]
        attributes += [f"{k:06}.jpg  {' '.join(f'{v:2}' for v in (1, (-1) ** k, -1))}" for k in range(6)]
        (place / "list_attr_celeba.txt").write_text("\n".join(attributes) + "\n")
        (place / "list_eval_partition.txt").write_text("".join(f"{k:06}.jpg {k // 4}\n" for k in range(6)))
        (place / "identity_CelebA.txt").write_text("".join(f"{k:06}.jpg {k // 2 + 70}\n" for k in range(6)))
        return np.array(levels)

    def test_the_usual(self, faces):
        data = load_dataset("celeba")
        assert data.image_shape == (3, 32, 32)
        assert data.labels.tolist() == [1, 0, 1, 0]
        assert data.class_names == ("not Male", "Male")
        middle = data.images[:, 1:-1].astype(int)  # antialiasing mixes a little of the rim into the edges
        assert np.abs(middle - faces[:4, None, None, None]).max() < 4
        assert load_dataset("celeba", split="valid").records == 2

    def test_options(self):
        data = load_dataset("celeba", label="Smiling", size=64, channels=1, groups="identity")
        assert data.image_shape == (1, 64, 64)
        assert data.labels.tolist() == [0, 0, 0, 0]
        assert data.classes == 2
        assert data.groups.tolist() == [0, 0, 1, 1]
        assert load_dataset("celeba", unlabelled=True).labels is None
        with pytest.raises(DataError, match="it has Bald, Male, Smiling"):
            load_dataset("celeba", label="Happy")
        with pytest.raises(DataError, match="identity"):
            load_dataset("celeba", groups="person")
        with pytest.raises(DataError, match="empty"):
            load_dataset("celeba", split="test")

    def test_tables_with_commas(self, folder):
        place = folder / "celeba"
        expected = load_dataset("celeba")
        lines = (place / "list_attr_celeba.txt").read_text().splitlines()[1:]
        rows = ["image_id " + lines[0], *lines[1:]]
        (place / "list_attr_celeba.csv").write_text("\n".join(",".join(row.split()) for row in rows))
        (place / "list_attr_celeba.txt").unlink()
        partition = ["image_id partition", *(place / "list_eval_partition.txt").read_text().splitlines()]
        (place / "list_eval_partition.csv").write_text("\n".join(",".join(row.split()) for row in partition))
        (place / "list_eval_partition.txt").unlink()
        found = load_dataset("celeba")
        np.testing.assert_array_equal(found.images, expected.images)
        np.testing.assert_array_equal(found.labels, expected.labels)

    @pytest.mark.parametrize(
        ("file", "content", "says"),
        [
            ("list_eval_partition.txt", "../secret.jpg 0\n", "no plain file name"),
            ("list_eval_partition.txt", "000009.jpg 0\n", "no line for 000009"),
            ("list_attr_celeba.txt", "1\nBald Male\n000000.jpg 1 1 1\n", "4 values where 3"),
            ("list_attr_celeba.txt", "Bald Male\n" + "".join(f"{k:06}.jpg 1 7\n" for k in range(6)), "other"),
            ("list_attr_celeba.txt", b"\xff\xfe", "cannot read"),
        ],
    )
    def test_damaged_tables(self, folder, file, content, says):
        (folder / "celeba" / file).write_bytes(content if isinstance(content, bytes) else content.encode())
        with pytest.raises(DataError, match=says):
            load_dataset("celeba")

    def test_missing_parts(self, folder):
        (folder / "celeba" / "list_eval_partition.txt").unlink()
        with pytest.raises(DataError, match="no list_eval_partition"):
            load_dataset("celeba")


class TestFolder:
    def test_by_the_environment(self, monkeypatch):
        monkeypatch.setenv("DPSINKHORN_DATA", "/some/where")
        assert data_folder() == Path("/some/where")

    @pytest.mark.skipif(sys.platform != "linux", reason="a matter of platformdirs elsewhere")
    def test_in_the_cache(self, monkeypatch):
        monkeypatch.delenv("DPSINKHORN_DATA")
        monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
        assert data_folder() == Path("/cache/dpsinkhorn")
        monkeypatch.delenv("XDG_CACHE_HOME")
        monkeypatch.setenv("HOME", "/home/me")
        assert data_folder() == Path("/home/me/.cache/dpsinkhorn")

    def test_a_folder_of_a_known_name(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        write_idx(tmp_path / "mnist", "train", np.zeros((3, 28, 28)), np.arange(3))
        assert load_dataset("./mnist").records == 3
        with pytest.raises(DataError, match="not in"):
            load_dataset("mnist")


def test_what_is_known_is_described():
    for name, known in KNOWN.items():
        assert known.name == name
        assert known.homepage.startswith("http")
        assert known.licence
        assert all(url.startswith("https://") for file in known.files for url in file.urls)
        assert all(len(file.sha256) == 64 for file in known.files)
        assert name == "digits" or known.advice
