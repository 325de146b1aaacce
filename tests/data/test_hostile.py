"""Damaged and hostile files: each ends in one line, and none of its content runs or escapes."""

from __future__ import annotations

import contextlib
import gzip
import io
import os
import pickle
import struct
import zipfile
import zlib
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from dpsinkhorn.data import DataError, load_dataset

IDX = bytes([0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 2, 0, 0, 0, 2]) + bytes(range(8))


def refused(source: Path, says: str | None, **options) -> None:
    with pytest.raises(DataError, match=says) as caught:
        load_dataset(source, **options)
    assert "\n" not in str(caught.value)


class Trap:
    """Unpickling this leaves a mark."""

    def __init__(self, mark: Path):
        self.mark = mark

    def __reduce__(self):
        return os.mkdir, (str(self.mark),)


class TestIdx:
    @pytest.mark.parametrize(
        ("content", "says"),
        [
            (b"", "not an idx file"),
            (b"\0\0", "not an idx file"),
            (b"PK\3\4" + IDX[4:], "not an idx file"),
            (bytes([0, 0, 7]) + IDX[3:], "not an idx file"),
            (bytes([0, 0, 8, 9]) + IDX[4:], "not an idx file"),
            (IDX[:10], "header"),
            (IDX[:-1], "declares 8 bytes of values but holds 7"),
            (IDX + b"x", "declares 8 bytes"),
            (IDX[:4] + b"\xff" * 12, "GiB"),
            (IDX[:4] + b"\0" * 12, "empty"),
            (bytes([0, 0, 8, 1, 0, 0, 0, 1, 7]), "height"),
        ],
    )
    @pytest.mark.parametrize("end", ["", ".gz"])
    def test_damaged(self, tmp_path, content, says, end):
        file = tmp_path / f"train-images-idx3-ubyte{end}"
        file.write_bytes(gzip.compress(content) if end else content)
        refused(tmp_path, says)

    def test_garbage_in_place_of_gzip(self, tmp_path):
        file = tmp_path / "train-images-idx3-ubyte.gz"
        for content in (IDX, b"\x1f\x8b" + b"junk" * 9, gzip.compress(IDX)[:-9], gzip.compress(IDX)[:12]):
            file.write_bytes(content)
            refused(tmp_path, "cannot read|declares")

    def test_gzip_with_a_flipped_bit(self, tmp_path):
        packed = bytearray(gzip.compress(IDX))
        packed[-6] ^= 1  # in the checksum
        (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(packed)
        refused(tmp_path, "CRC")

    def test_a_bomb_is_not_unpacked(self, tmp_path):
        """A file of 8 images that unpacks to 200 MB: what is beyond the declared sizes is never held."""
        (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(IDX + bytes(200_000_000), 1))
        refused(tmp_path, "holds at least 9")

    @given(st.binary(max_size=60))
    @settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
    def test_any_bytes(self, tmp_path, content):
        file = tmp_path / "train-images-idx3-ubyte"
        file.write_bytes(IDX[:4] + content)
        with contextlib.suppress(DataError):
            assert load_dataset(file).records > 0

    def test_labels_of_another_length(self, tmp_path):
        (tmp_path / "train-images-idx3-ubyte").write_bytes(IDX)
        (tmp_path / "train-labels-idx1-ubyte").write_bytes(bytes([0, 0, 8, 1, 0, 0, 0, 3, 0, 1, 1]))
        refused(tmp_path, "2 images but 3 labels")


class TestNumpy:
    def test_pickled_objects_do_not_run(self, tmp_path):
        mark = tmp_path / "mark"
        trap = np.empty((2, 2, 2), dtype=object)
        trap[:] = [[[Trap(mark)] * 2] * 2] * 2
        np.savez(tmp_path / "a.npz", images=trap)
        np.savez(tmp_path / "b.npz", images=np.zeros((8, 2, 2)), labels=trap.ravel())
        np.save(tmp_path / "c.npy", trap)
        (tmp_path / "d.npy").write_bytes(pickle.dumps(Trap(mark)))
        (tmp_path / "e.npz").write_bytes(pickle.dumps(Trap(mark)))
        for name, says in (
            ("a.npz", "pickled"),
            ("b.npz", "pickled"),
            ("c.npy", "pickled"),
            ("d.npy", "not a file of NumPy's"),
            ("e.npz", "cannot read"),
        ):
            refused(tmp_path / name, says)
        assert not mark.exists()
        pickle.loads(pickle.dumps(Trap(mark)))  # the trap does work
        assert mark.exists()

    @pytest.mark.parametrize("keep", [3, 60, 200])
    def test_cut_npy(self, tmp_path, keep):
        np.save(tmp_path / "a.npy", np.zeros((10, 4, 4), np.uint8))
        whole = (tmp_path / "a.npy").read_bytes()
        (tmp_path / "a.npy").write_bytes(whole[:keep])
        refused(tmp_path / "a.npy", "not a file of NumPy's|declares 160 bytes")

    @pytest.mark.parametrize(
        "header",
        [
            "{'descr': '|u1', 'fortran_order': False, 'shape': (9223372036854775807, 4, 4)}",
            "{'descr': '|u1', 'fortran_order': False, 'shape': (-1, 4, 4)}",
            "{'descr': '|V0', 'fortran_order': False, 'shape': (1, 4, 4)}",
            "{'descr': '|u1', 'fortran_order': False, 'shape': 'abc'}",
            "{'descr': [('a', '|u1')], 'fortran_order': False, 'shape': (1, 4, 4)}",
            "__import__('os').mkdir('mark')",
            "{" * 500,
            "",
        ],
    )
    def test_hostile_headers(self, tmp_path, header, monkeypatch):
        monkeypatch.chdir(tmp_path)
        text = (header + "\n").encode()
        content = b"\x93NUMPY\1\0" + struct.pack("<H", len(text)) + text + bytes(16)
        (tmp_path / "a.npy").write_bytes(content)
        refused(tmp_path / "a.npy", None)
        with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
            archive.writestr("images.npy", content)
        refused(tmp_path / "a.npz", None)
        assert not (tmp_path / "mark").exists()

    def test_an_archive_that_declares_too_much(self, tmp_path):
        """The declared size of an array is checked before anything is unpacked."""
        stream = io.BytesIO()
        np.lib.format.write_array_header_1_0(
            stream, {"descr": "|u1", "fortran_order": False, "shape": (1 << 40, 8, 8)}
        )
        with zipfile.ZipFile(tmp_path / "a.npz", "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("images.npy", stream.getvalue() + bytes(1000))
        refused(tmp_path / "a.npz", "declares")

    def test_a_packed_array_larger_than_the_memory(self, tmp_path, monkeypatch):
        monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(total=10_000))
        np.savez_compressed(tmp_path / "a.npz", images=np.zeros((100, 16, 16), np.uint8))
        refused(tmp_path / "a.npz", "GiB")

    def test_a_damaged_archive(self, tmp_path):
        np.savez_compressed(
            tmp_path / "a.npz", images=np.random.default_rng(0).integers(0, 9, (99, 8, 8)).astype(np.uint8)
        )
        whole = bytearray((tmp_path / "a.npz").read_bytes())
        (tmp_path / "cut.npz").write_bytes(whole[: len(whole) // 2])
        refused(tmp_path / "cut.npz", "cannot read")
        whole[len(whole) // 2] ^= 255
        (tmp_path / "a.npz").write_bytes(whole)
        refused(tmp_path / "a.npz", "cannot read|declares")


def png_of(width: int, height: int) -> bytes:
    """A well-formed grey PNG of any size whose pixels are never stored: small file, large picture."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        body = kind + content
        return struct.pack(">I", len(content)) + body + struct.pack(">I", zlib.crc32(body))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


class TestPictures:
    @pytest.mark.parametrize("side", [10_000, 60_000])
    def test_bombs(self, tmp_path, side):
        (tmp_path / "a.png").write_bytes(png_of(side, side))
        refused(tmp_path, "too many")
        pq.write_table(pa.table({"image": [png_of(side, side)]}), tmp_path / "t.parquet")
        refused(tmp_path / "t.parquet", "too many", size=8)

    def test_a_bomb_further_on(self, tmp_path):
        """The check holds in the worker threads as well."""
        stream = io.BytesIO()
        Image.effect_noise((80, 80), 50).save(stream, "PNG")
        assert len(stream.getvalue()) > 4096
        pictures = [stream.getvalue()] * 200 + [png_of(10_000, 10_000)]
        pq.write_table(pa.table({"image": pictures}), tmp_path / "t.parquet")
        refused(tmp_path / "t.parquet", "row 200.*too many")

    @pytest.mark.parametrize(
        "content",
        [
            b"",
            b"hello",
            png_of(8, 8),
            b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n",
            b"GIF89a\1\0\1\0",
        ],
    )
    def test_no_pictures(self, tmp_path, content):
        (tmp_path / "a.png").write_bytes(content)
        refused(tmp_path, r"cannot read the picture .*a\.png")

    def test_cut_pictures(self, tmp_path):
        stream = io.BytesIO()
        Image.effect_noise((40, 40), 50).save(stream, "JPEG")
        for keep in (4, 100, len(stream.getvalue()) // 2):
            (tmp_path / "a.jpg").write_bytes(stream.getvalue()[:keep])
            refused(tmp_path, "cannot read the picture")

    def test_several_in_one(self, tmp_path):
        frames = [Image.new("L", (4, 4), k) for k in (1, 99)]
        frames[0].save(tmp_path / "a.gif", save_all=True, append_images=frames[1:])
        refused(tmp_path, "several pictures")

    def test_more_than_the_memory(self, tmp_path, monkeypatch):
        monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(total=10_000))
        for k in range(9):
            Image.new("L", (40, 40)).save(tmp_path / f"{k}.png")
        refused(tmp_path, "GiB")


class TestTables:
    @pytest.mark.parametrize(
        "path",
        [
            "../secret.png",
            "a/../../secret.png",
            "{root}/secret.png",
            "..",
            "C:\\secret.png",
            "\\\\host\\s.png",
        ],
    )
    def test_paths_stay_in_the_folder(self, tmp_path, path):
        Image.new("L", (4, 4)).save(tmp_path / "secret.png")
        folder = tmp_path / "shared"
        (folder / "a").mkdir(parents=True)
        (folder / "t.csv").write_text(f"path,label\n{path.format(root=tmp_path)},0\n")
        refused(folder / "t.csv", "stay in it")

    def test_dots_that_stay_inside(self, tmp_path):
        Image.new("L", (4, 4)).save(tmp_path / "a.png")
        (tmp_path / "t.csv").write_text("path,label\nb/../a.png,0\n./a.png,0\n")
        assert load_dataset(tmp_path / "t.csv").records == 2

    def test_a_path_to_nothing(self, tmp_path):
        (tmp_path / "t.csv").write_text("path,label\na.png,0\n")
        refused(tmp_path / "t.csv", r"a\.png \(row 0 .*no such file")

    def test_no_table(self, tmp_path):
        for name in ("t.parquet", "t.csv"):
            (tmp_path / name).write_bytes(b"\0\1\2\xff" * 20)
            refused(tmp_path / name, None)

    def test_text_that_is_not_utf8(self, tmp_path):
        for content in (
            b"la\xffbel,pixel0\n0,1\n",
            b"label,path\n0,\xff\xfe.png\n",
            b"label,pixel0\n\xff,1\n",
        ):
            (tmp_path / "t.csv").write_bytes(content)
            refused(tmp_path / "t.csv", None, classes=["a"])

    def test_columns_of_other_types(self, tmp_path):
        for column in ([True], [{"a": 1}], [{"bytes": 7}], [1.5]):
            pq.write_table(pa.table({"image": column}), tmp_path / "t.parquet")
            refused(tmp_path / "t.parquet", "neither paths nor pictures")

    def test_ragged_lines(self, tmp_path):
        (tmp_path / "t.csv").write_text("label,pixel0\n0,1\n0,1,2\n")
        refused(tmp_path / "t.csv", "cannot read")

    def test_words_for_pixels(self, tmp_path):
        (tmp_path / "t.csv").write_text("label,pixel0\n0,one\n")
        refused(tmp_path / "t.csv", "holds one, which is no whole number")
        (tmp_path / "t.csv").write_text("label,image\n0,17\n")
        refused(tmp_path / "t.csv", "cannot read the picture 17")
        (tmp_path / "t.csv").write_text("label,pixel0\n0,nan\n")
        refused(tmp_path / "t.csv", "nan|missing")

    def test_two_columns_of_one_name(self, tmp_path):
        (tmp_path / "t.csv").write_text("label,label,pixel0\n0,1,5\n")
        refused(tmp_path / "t.csv", "several columns label")


def seeds() -> dict[str, bytes]:
    """A small good file of each format."""
    images = np.random.default_rng(1).integers(0, 256, (6, 6, 6)).astype(np.uint8)
    files = {"train-images-idx3-ubyte.gz": gzip.compress(IDX)}
    for name, save in (("a.npz", np.savez), ("b.npz", np.savez_compressed)):
        stream = io.BytesIO()
        save(stream, images=images, labels=np.arange(6) % 3)
        files[name] = stream.getvalue()
    stream = io.BytesIO()
    np.save(stream, images)
    files["a.npy"] = stream.getvalue()
    for form in ("PNG", "JPEG", "TIFF", "GIF", "WEBP", "BMP", "PPM"):
        stream = io.BytesIO()
        Image.fromarray(np.kron(images[0], np.ones((4, 4), np.uint8))).save(stream, form)
        files[f"{form}/a.{form.lower()}"] = stream.getvalue()
    stream = io.BytesIO()
    pq.write_table(pa.table({"image": [files["PNG/a.png"]] * 3, "label": ["a", "b", "c"]}), stream)
    files["a.parquet"] = stream.getvalue()
    files["a.csv"] = b"label,groups,pixel0\n0,ann,7\n1,bob,8\n0,ann,255\n"
    return files


SEEDS = seeds()


@pytest.mark.parametrize("name", SEEDS)
@given(
    changes=st.lists(
        st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), min_size=1, max_size=4
    ),
    keep=st.one_of(st.just(1.0), st.floats(0.1, 1)),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25, deadline=None)
def test_any_damage_ends_in_our_error_or_in_data(tmp_path, name, changes, keep):
    content = bytearray(SEEDS[name])
    for place, value in changes:
        content[int(place * len(content))] = value
    file = tmp_path / name
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(content[: max(1, int(keep * len(content)))])
    with contextlib.suppress(DataError):
        data = load_dataset(file.parent if "/" in name else file)
        assert data.points().abs().max() <= 1
