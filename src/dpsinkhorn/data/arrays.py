"""Files of arrays: NumPy's .npz and .npy, MNIST's idx, and CIFAR-10. Pickled objects are refused."""

from __future__ import annotations

import gzip
import lzma
import math
import re
import struct
import zipfile
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from dpsinkhorn.data.pictures import check_fits
from dpsinkhorn.data.request import Content, Request
from dpsinkhorn.errors import DataError
from dpsinkhorn.files import failing_as

# Ways to name the parts of a file: plain, Keras (mnist.npz), MedMNIST. {} stands for the split.
_IMAGES = ("{}_images", "x_{}", "X_{}", "images", "x", "X")
_LABELS = ("{}_labels", "y_{}", "Y_{}", "labels", "y", "Y")
_GROUPS = ("{}_groups", "groups_{}", "groups")
# What reading an archive raises where it is damaged, encrypted, or packed in a way that is not known here.
UNREADABLE = (
    OSError,
    EOFError,
    ValueError,
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    NotImplementedError,
    RuntimeError,
)
_SPLIT_WORDS = {"train": ("train",), "test": ("test",), "valid": ("val", "valid")}


def read_npy_set(path: Path, label: str | None, groups: str | None) -> Content:
    """Images in NAME.npy, memory-mapped; labels in the file `label` or NAME.labels.npy; groups likewise."""
    beside = _array_beside(path, label, "labels"), _array_beside(path, groups, "groups")
    return Content(read_npy(path), *beside)


def _array_beside(path: Path, given: str | None, what: str) -> npt.NDArray[Any] | None:
    if given is not None:
        file = Path(given)
        if not file.is_file():
            raise DataError(f"for {path.name} the {what} are a .npy file, and there is no file {file}")
        return np.array(read_npy(file))
    beside = path.with_suffix(f".{what}.npy")
    return np.array(read_npy(beside)) if beside.is_file() else None


def read_npy(path: Path) -> npt.NDArray[Any]:
    """The array of a .npy file as a read-only memory map: nothing is read before it is used."""
    with failing_as(DataError, f"cannot read {path}"):
        with path.open("rb") as stream:
            shape, fortran, dtype = _npy_header(stream, path)
            start = stream.tell()
        return _mapped(path, start, dtype, shape, "write it again", order="F" if fortran else "C")


def _mapped(
    path: Path,
    start: int,
    dtype: np.dtype[Any],
    shape: tuple[int, ...],
    hint: str,
    *,
    order: Literal["C", "F"] = "C",
    whole: bool = False,
) -> npt.NDArray[Any]:
    """Map the values of a file from `start` on; as a `whole` file, it holds nothing after them."""
    length, present = math.prod(shape) * dtype.itemsize, path.stat().st_size - start
    if present < length or (whole and present > length):
        raise DataError(f"{path} declares {length} bytes of values but holds {present}; {hint}")
    return np.memmap(path, dtype, "r", start, shape, order) if length else np.empty(shape, dtype)


def read_npz_set(path: Path, asked: Request) -> Content:
    """Images, labels and groups of an .npz file, by their names."""
    split, image = asked.split, asked.image
    try:
        with zipfile.ZipFile(path) as archive:
            members = {
                info.filename.removesuffix(".npy"): info
                for info in archive.infolist()
                if info.filename.endswith(".npy")
            }
            names = _spelled(_IMAGES, split)
            found = _choose(members, image, names, path, "images")
            if found is None:
                others = ", ".join(sorted(members)) or "none"
                raise DataError(
                    f"{path} has no array of {split} images (images or x_{split}); it has {others}; "
                    "name one with image (--image), or another split (--split)"
                )
            if split != "train" and image is None and found in ("images", "x", "X"):
                raise asked.no_part(path)
            images = _read_member(archive, members[found], path, may_map=True)
            label = None
            if not asked.unlabelled:
                label = _choose(members, asked.label, _spelled(_LABELS, split), path, "label")
            groups = _choose(members, asked.groups, _spelled(_GROUPS, split), path, "groups")
            return Content(
                images,
                None if label is None else _read_member(archive, members[label], path),
                None if groups is None else _read_member(archive, members[groups], path),
                unused=_unused(members, {found, label, groups}, asked.unlabelled),
            )
    except DataError:
        raise
    except UNREADABLE as error:
        raise DataError(f"cannot read {path}: {error}; write it again with np.savez") from error


def _unused(names: Iterable[str], used: set[str | None], unlabelled: bool) -> tuple[str, ...]:
    known = {
        "statement",
        *_part_names((*_IMAGES, *_LABELS, *_GROUPS)),
    }  # the first is of samples of a release
    known |= set(_LABELS) if unlabelled else set()
    return tuple(name for name in names if name not in used and name not in known)


def npz_has_parts(path: Path) -> bool:
    """Whether the arrays of an .npz file are of parts, x_train and the like; a damaged file has none."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = {name.removesuffix(".npy") for name in archive.namelist()}
    except (OSError, ValueError, zipfile.BadZipFile, NotImplementedError):
        return False
    return not names.isdisjoint(_part_names(_IMAGES))


def _spelled(patterns: Iterable[str], split: str) -> list[str]:
    words = _SPLIT_WORDS.get(split, (split,))
    return list(dict.fromkeys(pattern.format(word) for pattern in patterns for word in words))


def _part_names(patterns: Iterable[str]) -> set[str]:
    """The names that say which part they belong to."""
    ours = [pattern for pattern in patterns if "{}" in pattern]
    return {name for split in _SPLIT_WORDS for name in _spelled(ours, split)}


def _choose(
    members: dict[str, zipfile.ZipInfo], asked: str | None, usual: list[str], path: Path, what: str
) -> str | None:
    if asked is None:
        return next((name for name in usual if name in members), None)
    if asked not in members:
        raise DataError(f"{path} has no array {asked} for {what}; it has {', '.join(sorted(members))}")
    return asked


def _read_member(
    archive: zipfile.ZipFile, info: zipfile.ZipInfo, path: Path, may_map: bool = False
) -> npt.NDArray[Any]:
    """One array of the archive; what it declares is checked against its size and the memory first."""
    where = f"{path} ({info.filename})"
    with archive.open(info) as stream:
        shape, fortran, dtype = _npy_header(stream, Path(where))
        start = stream.tell()
        length = math.prod(shape) * dtype.itemsize
        if info.file_size != start + length:
            raise DataError(f"{where} declares {length} bytes of values but holds {info.file_size - start}")
        if may_map and length and info.compress_type == zipfile.ZIP_STORED and not info.flag_bits & 1:
            offset = _data_offset(path, info) + start
            return np.memmap(path, dtype, "r", offset, shape, "F" if fortran else "C")
        check_fits(length, where)
        values = stream.read(length)
    array = np.frombuffer(values, dtype)
    return array.reshape(shape[::-1]).T if fortran else array.reshape(shape)


def _data_offset(path: Path, info: zipfile.ZipInfo) -> int:
    """Where the content of an uncompressed member starts; its local header has names of its own length."""
    with path.open("rb") as stream:
        stream.seek(info.header_offset)
        header = stream.read(30)
    if len(header) < 30:
        raise DataError(f"{path} is damaged; write it again with np.savez")
    name_length, extra_length = struct.unpack("<HH", header[26:30])
    return int(info.header_offset) + 30 + int(name_length) + int(extra_length)


def _npy_header(stream: Any, path: Path) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    try:
        version = np.lib.format.read_magic(stream)
        if version == (1, 0):
            shape, fortran, dtype = np.lib.format.read_array_header_1_0(stream)
        elif version == (2, 0):
            shape, fortran, dtype = np.lib.format.read_array_header_2_0(stream)
        else:
            raise DataError(f"{path} is of version {version} of NumPy's format; save numbers only")
    except DataError:
        raise
    except Exception as error:  # a hostile header can make the parser fail in many ways
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DataError(f"{path} is not a file of NumPy's: {reason}") from error
    if dtype.hasobject:
        raise DataError(
            f"{path} holds pickled objects, which are never loaded; save arrays of numbers or text"
        )
    if dtype.itemsize == 0 or any(size < 0 for size in shape):
        raise DataError(f"{path} declares an impossible shape or type")
    return shape, fortran, dtype


# ---- files of well-known sets

_TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
_PREFIX = {"train": "train", "test": "(?:t10k|test)"}
_NAME = re.compile(r"(images|labels)[-.]idx\d(-ubyte)?(\.gz)?$")

CIFAR_FILES = {"train": tuple(map("data_batch_{}.bin".format, range(1, 6))), "test": ("test_batch.bin",)}
_ROW = 1 + 3 * 32 * 32  # a label, then the red, green and blue planes


def is_idx_name(name: str) -> bool:
    """Return whether a file is called as MNIST's files are: train-images-idx3-ubyte.gz and the like."""
    return _NAME.search(name) is not None


def has_idx(folder: Path) -> bool:
    """Return whether a folder holds such files."""
    with failing_as(DataError, f"cannot read the folder {folder}"):
        return any(is_idx_name(entry.name) for entry in folder.iterdir())


def find_idx(folder: Path, split: str) -> Path | None:
    """Return the file of images of a split in a folder of idx files; None where there is none."""
    found = list_idx(folder, split)
    plain = {path.name.removesuffix(".gz") for path in found}
    if len(plain) > 1:
        raise DataError(
            f"{folder} holds several sets of idx files ({', '.join(sorted(plain))}); name one file"
        )
    return found[0] if found else None  # the unpacked one sorts first, and is the quicker to read


def list_idx(folder: Path, split: str) -> list[Path]:
    """Return all files of images of a split in a folder of idx files."""
    if split not in _PREFIX:
        return []
    pattern = re.compile(rf"(?:.*-)?{_PREFIX[split]}-images[-.]idx\d-ubyte(\.gz)?")
    return sorted(path for path in folder.iterdir() if pattern.fullmatch(path.name) and path.is_file())


def labels_beside(images: Path) -> Path | None:
    """Return the file of labels that belongs to a file of images, gzipped or not."""
    stem = re.sub(r"images([-.])idx\d", r"labels\1idx1", images.name).removesuffix(".gz")
    for name in (stem, stem + ".gz"):
        path = images.with_name(name)
        if path != images and path.is_file():
            return path
    return None


def read_idx(path: Path) -> npt.NDArray[Any]:
    """Read the array in an idx file. A plain file is memory-mapped, a gzipped one is read.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "labels-idx1-ubyte"
    >>> _ = file.write_bytes(bytes([0, 0, 8, 1, 0, 0, 0, 3, 7, 8, 9]))
    >>> read_idx(file).tolist()
    [7, 8, 9]
    """
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as stream:
            dtype, shape = _idx_header(stream, path)
            length = math.prod(shape) * dtype.itemsize
            check_fits(length, str(path))
            if path.suffix != ".gz":
                return _mapped(path, stream.tell(), dtype, shape, "fetch it again", whole=True)
            values = stream.read(length + 1)  # one more, to notice values beyond the declared ones
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"cannot read {path}: {error}; fetch it again") from error
    if len(values) != length:
        found = f"at least {len(values)}" if len(values) > length else str(len(values))
        raise DataError(f"{path} declares {length} bytes of values but holds {found}; fetch it again")
    return np.frombuffer(values, dtype=dtype).reshape(shape)


def _idx_header(stream: Any, path: Path) -> tuple[np.dtype[Any], tuple[int, ...]]:
    magic = stream.read(4)
    if len(magic) < 4 or magic[:2] != b"\0\0" or magic[2] not in _TYPES or not 1 <= magic[3] <= 4:
        raise DataError(f"{path} is not an idx file: its first bytes are {magic.hex(' ') or 'missing'}")
    sizes = stream.read(4 * magic[3])
    if len(sizes) != 4 * magic[3]:
        raise DataError(f"{path} ends within its header; fetch it again")
    return np.dtype(_TYPES[magic[2]]), struct.unpack(f">{magic[3]}I", sizes)


def is_cifar(folder: Path) -> bool:
    return any((folder / name).is_file() for names in CIFAR_FILES.values() for name in names)


def read_cifar(folder: Path, split: str) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Read images (N, 32, 32, 3) and labels of a split."""
    if split not in CIFAR_FILES:
        raise DataError(f"CIFAR-10 has the splits train and test, not {split}")
    parts = []
    for name in CIFAR_FILES[split]:
        path = folder / name
        with failing_as(DataError, f"cannot read {path}"):
            content = np.fromfile(path, np.uint8)
        if content.size == 0 or content.size % _ROW:
            raise DataError(f"{path} is {content.size} bytes long, no multiple of {_ROW}; fetch it again")
        parts.append(content.reshape(-1, _ROW))
    rows = np.concatenate(parts)
    images = np.ascontiguousarray(rows[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))
    return images, rows[:, 0]
