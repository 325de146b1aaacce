"""Binary files of well-known sets: idx, the format of MNIST, and CIFAR-10."""

from __future__ import annotations

import gzip
import math
import re
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dpsinkhorn.data.pictures import check_fits
from dpsinkhorn.errors import DataError
from dpsinkhorn.files import failing_as

_TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
_PREFIX = {"train": "train", "test": "(?:t10k|test)"}
_NAME = re.compile(r"(images|labels)[-.]idx\d(-ubyte)?(\.gz)?$")

CIFAR_FILES = {"train": tuple(f"data_batch_{k}.bin" for k in range(1, 6)), "test": ("test_batch.bin",)}
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
            dtype, shape = _header(stream, path)
            length = math.prod(shape) * dtype.itemsize
            check_fits(length, str(path))
            if path.suffix != ".gz":
                return _map(path, dtype, shape)
            values = stream.read(length + 1)  # one more, to notice values beyond the declared ones
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"cannot read {path}: {error}; fetch it again") from error
    if len(values) != length:
        raise _wrong_length(path, f"at least {len(values)}" if len(values) > length else len(values), length)
    return np.frombuffer(values, dtype=dtype).reshape(shape)


def _header(stream: Any, path: Path) -> tuple[np.dtype[Any], tuple[int, ...]]:
    magic = stream.read(4)
    if len(magic) < 4 or magic[:2] != b"\0\0" or magic[2] not in _TYPES or not 1 <= magic[3] <= 4:
        raise DataError(f"{path} is not an idx file: its first bytes are {magic.hex(' ') or 'missing'}")
    sizes = stream.read(4 * magic[3])
    if len(sizes) != 4 * magic[3]:
        raise DataError(f"{path} ends within its header; fetch it again")
    return np.dtype(_TYPES[magic[2]]), struct.unpack(f">{magic[3]}I", sizes)


def _map(path: Path, dtype: np.dtype[Any], shape: tuple[int, ...]) -> npt.NDArray[Any]:
    start = 4 + 4 * len(shape)
    length = math.prod(shape) * dtype.itemsize
    present = path.stat().st_size - start
    if present != length:
        raise _wrong_length(path, present, length)
    if not length:
        return np.empty(shape, dtype)
    return np.memmap(path, dtype=dtype, mode="r", offset=start, shape=shape)


def _wrong_length(path: Path, found: int | str, declared: int) -> DataError:
    return DataError(f"{path} declares {declared} bytes of values but holds {found}; fetch it again")


def is_cifar(folder: Path) -> bool:
    """Return whether a folder holds the files of the binary version."""
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
