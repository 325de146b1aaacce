"""CIFAR-10 in its binary version; the Python version is pickled and is not read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dpsinkhorn.data.errors import DataError

__all__ = ["CIFAR_CLASSES", "CIFAR_FILES", "is_cifar", "read_cifar"]

CIFAR_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
CIFAR_FILES = {
    "train": tuple(f"data_batch_{k}.bin" for k in range(1, 6)),
    "test": ("test_batch.bin",),
}
_ROW = 1 + 3 * 32 * 32  # a label, then the red, green and blue planes


def is_cifar(folder: Path) -> bool:
    """Whether a folder holds the files of the binary version."""
    return any((folder / name).is_file() for names in CIFAR_FILES.values() for name in names)


def read_cifar(folder: Path, split: str) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Images (N, 32, 32, 3) and labels of a split."""
    if split not in CIFAR_FILES:
        raise DataError(f"CIFAR-10 has the splits train and test, not {split}")
    parts = []
    for name in CIFAR_FILES[split]:
        path = folder / name
        try:
            content = np.fromfile(path, np.uint8)
        except OSError as error:
            raise DataError(f"cannot read {path}: {error.strerror or error}") from error
        if content.size == 0 or content.size % _ROW:
            raise DataError(f"{path} is {content.size} bytes long, no multiple of {_ROW}; fetch it again")
        parts.append(content.reshape(-1, _ROW))
    rows = np.concatenate(parts)
    images = np.ascontiguousarray(rows[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))
    return images, rows[:, 0]
