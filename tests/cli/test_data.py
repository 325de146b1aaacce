"""`dpsinkhorn data`, as a user meets it: output, exit status, one line for bad input."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from dpsinkhorn.data import KNOWN


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("DPSINKHORN_DATA", str(tmp_path / "data"))
    for name, known in list(KNOWN.items()):
        # nothing that is installed here, and no network: every place refuses at once
        files = tuple(replace(file, urls=("http://127.0.0.1:9/",)) for file in known.files)
        monkeypatch.setitem(KNOWN, name, replace(known, system_places=(), files=files))
    return tmp_path / "data"


@pytest.fixture
def result(run):
    def result(*command: str):
        status, out, err = run(*command, "--json")
        assert (status, err) == (0, "")
        return json.loads(out)

    return result


def write_mnist(folder) -> None:
    folder.mkdir(parents=True)
    for stem in ("train", "t10k"):
        (folder / f"{stem}-images-idx3-ubyte").write_bytes(
            bytes([0, 0, 8, 3, 0, 0, 0, 10, 0, 0, 0, 28, 0, 0, 0, 28]) + bytes(7840)
        )
        (folder / f"{stem}-labels-idx1-ubyte").write_bytes(
            bytes([0, 0, 8, 1, 0, 0, 0, 10]) + bytes(range(10))
        )


class TestList:
    def test_for_people(self, run):
        status, out, err = run("data", "list")
        assert (status, err) == (0, "")
        for word in (*KNOWN, "MIT", "60,000", "DPSINKHORN_DATA", "data get"):
            assert word in out

    def test_paths_are_whole_at_80_columns(self, run, tmp_path, monkeypatch):
        monkeypatch.setenv("COLUMNS", "80")
        place = tmp_path / ("long" * 20) / "mnist"
        write_mnist(place)
        _, out, _ = run("data", "list", "--folder", str(place.parent))
        assert f"mnist is in {place}" in out.splitlines()
        assert all(len(line) <= 80 for line in out.splitlines() if line.startswith(("│", "┃", "┏", "└")))

    def test_for_machines(self, result, folder):
        before = result("data", "list")
        assert before["data_folder"] == str(folder)
        sets = {entry["name"]: entry for entry in before["data_sets"]}
        assert list(sets) == list(KNOWN)
        assert sets["digits"]["installed"]
        assert not sets["mnist"]["installed"]
        assert sets["mnist"]["image_shape"] == [1, 28, 28]
        assert sets["mnist"]["can_be_fetched"]
        assert not sets["celeba"]["can_be_fetched"]
        write_mnist(folder / "mnist")
        after = {entry["name"]: entry for entry in result("data", "list")["data_sets"]}
        assert after["mnist"]["place"] == str(folder / "mnist")

    def test_another_folder(self, result, tmp_path):
        write_mnist(tmp_path / "other" / "mnist")
        found = result("data", "list", "--folder", str(tmp_path / "other"))
        assert found["data_sets"][1]["installed"]


class TestGet:
    def test_what_is_there(self, run, result, folder):
        write_mnist(folder / "mnist")
        assert result("data", "get", "mnist")["place"] == str(folder / "mnist")
        status, out, err = run("data", "get", "mnist")
        assert (status, err) == (0, "")
        assert f"mnist is in {folder / 'mnist'}" in out
        assert "--data mnist" in out

    def test_a_folder_of_ones_own(self, run, tmp_path):
        write_mnist(tmp_path / "other" / "mnist")
        _, out, _ = run("data", "get", "mnist", "--folder", str(tmp_path / "other"))
        assert f"--data {tmp_path / 'other' / 'mnist'}" in out

    def test_digits(self, run):
        status, out, _ = run("data", "get", "digits")
        assert status == 0
        assert "part of scikit-learn" in out

    @pytest.mark.parametrize(
        ("name", "says"),
        [
            ("mnist", "cannot be reached"),
            ("fashion-mnist", "apt install dataset-fashion-mnist"),
            ("cifar10", "binary version"),
            ("celeba", "accept its terms"),
            ("imagenet", "known are digits"),
        ],
    )
    def test_what_cannot_be_had(self, refused, folder, name, says):
        assert says in refused("data", "get", name)
        assert not folder.exists()


class TestShow:
    def test_digits(self, run, result):
        found = result("data", "show", "digits")
        assert (found["records"], found["classes"], found["image_shape"]) == (1347, 10, [1, 8, 8])
        assert found["value_range"] == [0, 16]
        status, out, _ = run("data", "show", "digits", "--split", "test")
        assert status == 0
        assert "450" in out
        assert "curator" in out

    def test_every_option(self, result, tmp_path):
        file = tmp_path / "a.npz"
        np.savez(file, scans=np.zeros((4, 6, 6), np.uint16), kind=["b", "a", "a", "b"], who=[5, 5, 5, 8])
        options = "--image scans --label kind --groups who --classes a,b,c --size 3x4 --channels 3"
        found = result(f"data show {file} {options} --value-range 0,4095")
        assert found["image_shape"] == [3, 3, 4]
        assert found["class_names"] == ["a", "b", "c"]
        assert found["empty_classes"] == [2]
        assert (found["units"], found["unit"]) == (2, "person")
        assert found["value_range"] == [0, 4095]
        plain = result("data", "show", str(file), "--image", "scans", "--unlabelled")
        assert (plain["classes"], plain["unit"]) == (0, "record")

    def test_names_for_people(self, run, tmp_path):
        for name in ("cats", "dogs"):
            (tmp_path / "pets" / name).mkdir(parents=True)
        Image.new("RGB", (5, 5)).save(tmp_path / "pets" / "dogs" / "a.png")
        status, out, err = run("data", "show", str(tmp_path / "pets"))
        assert (status, err) == (0, "")
        assert "cats, dogs" in out
        assert "classes without a record" in out

    def test_columns_that_are_not_used(self, run, result, tmp_path):
        rows = [
            "patient,label,[bold]note,pixel0,pixel1,pixel2,pixel3",
            "ann,0,x,1,2,3,255",
            "bob,1,y,4,5,6,0",
        ]
        (tmp_path / "a.csv").write_text("\n".join(rows) + "\n")
        status, out, err = run("data", "show", str(tmp_path / "a.csv"))
        assert (status, err) == (0, "")
        assert "patient, [bold]note (--label, --groups name them)" in " ".join(out.replace("│", " ").split())
        assert result("data", "show", str(tmp_path / "a.csv"))["unused_columns"] == ["patient", "[bold]note"]
        _, out, _ = run("data", "show", str(tmp_path / "a.csv"), "--groups", "patient")
        assert "[bold]note (" in out
        assert "patient," not in out
        assert "not used" not in run("data", "show", "digits")[1]

    def test_the_range_found_beside_the_one_declared(self, run, result, tmp_path):
        rows = ["label,pixel0,pixel1,pixel2,pixel3", "0,0,2,3,16", "1,4,5,6,1"]
        (tmp_path / "a.csv").write_text("\n".join(rows) + "\n")
        found = result("data", "show", str(tmp_path / "a.csv"))
        assert (found["value_range"], found["values_found"]) == ([0, 255], [0, 16])
        _, out, _ = run("data", "show", str(tmp_path / "a.csv"))
        assert "0 to 255 declared; found 0 to 16" in out
        assert "nearly black" in out
        assert "--value-range" in out
        _, out, _ = run("data", "show", str(tmp_path / "a.csv"), "--value-range", "0,16")
        assert "0 to 16 declared; found 0 to 16" in out
        assert "black" not in out
        np.save(tmp_path / "bright.npy", np.full((2, 4, 4), 250, np.uint8))
        assert "nearly of one shade" in run("data", "show", str(tmp_path / "bright.npy"))[1]

    def test_messages_name_options(self, refused, tmp_path):
        """What to do is said in words of the command line, beside those of Python."""
        (tmp_path / "pictures").mkdir()
        for k, side in enumerate((4, 5)):
            Image.new("L", (side, side)).save(tmp_path / "pictures" / f"{k}.png")
        np.savez(tmp_path / "a.npz", np.zeros((2, 4, 4), np.uint8))
        np.savez(tmp_path / "b.npz", images=np.full((2, 4, 4), 16.0))
        (tmp_path / "broken").mkdir()
        (tmp_path / "broken" / "a.png").write_text("no picture")
        for name, says in (
            ("pictures", "--size 28"),
            ("a.npz", "it has arr_0; name one with image (--image)"),
            ("b.npz", "--value-range 0,16"),
            ("broken", "a.png: it is none of PNG, JPEG, BMP, GIF, TIFF, WEBP, PPM; remove or repair it"),
        ):
            assert says in refused("data", "show", str(tmp_path / name))

    @pytest.mark.parametrize(
        ("options", "says"),
        [
            (["nowhere"], "no file or folder nowhere"),
            (["digits", "--size", "big"], "--size"),
            (["digits", "--size", "1x2x3"], "--size"),
            (["digits", "--value-range", "0"], "--value-range"),
            (["digits", "--channels", "4"], "channels"),
            (["digits", "--classes", "3"], "3 classes"),
            (["digits", "--split", "dev"], "--split"),
            (["mnist"], "dpsinkhorn data get mnist"),
        ],
    )
    def test_bad_input(self, refused, options, says):
        assert says in refused("data", "show", *options)
