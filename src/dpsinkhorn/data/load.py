"""`load_dataset`: a name or a path becomes a checked data set."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from dpsinkhorn import _checks
from dpsinkhorn.data import arrays, folders
from dpsinkhorn.data.dataset import Dataset
from dpsinkhorn.data.named import KNOWN, require_known
from dpsinkhorn.data.pictures import DICOM_HINT, PICTURE_SUFFIXES, Progress, is_dicom
from dpsinkhorn.data.request import Content, Persons, Request
from dpsinkhorn.data.shards import is_sharded, read_shards
from dpsinkhorn.errors import DataError
from dpsinkhorn.files import failing_as

SPLITS = ("train", "test", "valid")
"""The names of parts of a data set."""


def load_dataset(
    source: str | os.PathLike[str],
    *,
    split: str = "train",
    label: str | None = None,
    groups: str | None = None,
    classes: int | Sequence[str] | None = None,
    class_names: Sequence[str] = (),
    size: int | tuple[int, int] | None = None,
    channels: int | None = None,
    value_range: tuple[float, float] | None = None,
    image: str | None = None,
    unlabelled: bool = False,
    folder: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
    persons: Persons | None = None,
) -> Dataset:
    """Read a data set by its name (`digits`, `mnist`, `fashion-mnist`, `cifar10`, `celeba`) or its path.

    A path is a folder of idx files, an .npz or .npy file, a folder of pictures with a sub-folder per class,
    a .csv, .tsv or .parquet table, a .tar of WebDataset, or a folder of shards. A folder that has a known
    name is written ./mnist.

    `image`, `label` and `groups` say where the images, the labels and the persons are: columns of a table,
    arrays of an .npz, files beside a .npy, for CelebA an attribute and `identity`. `unlabelled` leaves labels
    out. `classes` states their number, or their names in order; `class_names` gives them public names, in the
    same order, where labels are numbers or codes. `size` (one number, or height and width) and
    `channels` (1 or 3) crop and convert. `value_range` is the public range of the pixels where it is not that
    of their type. `folder` replaces the data folder of named sets; `progress` is called with the number of
    pictures decoded so far and of all. `persons` are those of other files, of whom this one may have none.

    >>> load_dataset("digits", split="test")
    Dataset('digits': 450 images of 8 x 8 x 1, uint8, 10 classes)
    """
    if split not in SPLITS:
        raise DataError(f"split must be one of {', '.join(SPLITS)}, not {split}")
    if unlabelled and label is not None:
        raise DataError("give label or unlabelled, not both")
    if unlabelled and classes is not None:
        raise DataError("give classes or unlabelled, not both")
    if channels not in (None, 1, 3):
        raise DataError(f"channels must be 1 (grey) or 3 (colour), not {channels}")
    names = _checked_names(class_names)
    fitted = _parse_size(size), channels
    asked = Request(
        *(split, image, label, groups, unlabelled, classes, names, *fitted, value_range, progress, persons)
    )
    text = os.fspath(source)
    if text in KNOWN:
        return _load_known(text, None if folder is None else Path(folder), asked)
    path = Path(text).expanduser()
    if path.is_dir():
        return _load_folder(path, path.resolve().name, asked)
    if not path.is_file():
        raise DataError(
            f"there is no file or folder {text}, and no data set of that name ({', '.join(KNOWN)})"
        )
    return _load_file(path, asked)


def load_parts(source: str | os.PathLike[str], *, split: str = "train", **options: Any) -> Iterator[Dataset]:
    """Read a folder of several files of one kind, such as .parquet or .tar, one file after the other.

    Each has a part of the records, and whole persons. Any other source is a part by itself. The options are
    those of `load_dataset`.
    """
    path = Path(os.fspath(source)).expanduser()
    known = os.fspath(source) in KNOWN or not path.is_dir() or is_sharded(path)
    parts = [] if known else _find_parts(path, split)
    persons = Persons()
    for part in parts:
        yield load_dataset(part, split=split, persons=persons, **options)
    if not parts:
        yield load_dataset(source, split=split, **options)


def _parse_size(size: int | tuple[int, int] | None) -> tuple[int, int] | None:
    """Return height and width from one number or two.

    >>> _parse_size(32)
    (32, 32)
    """
    if size is None:
        return None
    both = (size, size) if isinstance(size, (int, np.integer)) else tuple(size)
    if len(both) != 2 or not all(isinstance(s, (int, np.integer)) and 1 <= s <= 4096 for s in both):
        raise DataError(f"size must be a height and a width of 1 to 4096 pixels, or one number, not {size!r}")
    return int(both[0]), int(both[1])


def _checked_names(names: Sequence[str]) -> tuple[str, ...]:
    """Refuse names that a release could not have, before anything is read or spent."""
    checked = tuple(_checks.text(name, "a class name", DataError, longest=200) for name in names)
    if not all(name.strip() for name in checked) or len(set(checked)) != len(checked):
        raise DataError("class names must differ from each other, and none may be empty (--class-names)")
    return checked


def has_parts(source: str | os.PathLike[str]) -> bool:
    """Return whether `split` chooses a part of a source. One without parts is read whole, by split `train`.

    >>> has_parts("digits"), has_parts("scans.csv")
    (True, False)
    """
    text = os.fspath(source)
    path = Path(text).expanduser()
    if text in KNOWN:
        return True
    if path.is_dir():
        special = arrays.has_idx(path) or arrays.is_cifar(path) or folders.is_celeba(path)
        return special or bool(folders.folder_parts(path))
    return path.suffix.lower() == ".npz" and arrays.npz_has_parts(path)


def _load_known(name: str, folder: Path | None, asked: Request) -> Dataset:
    known = KNOWN[name]
    if asked.split not in known.records:
        raise DataError(f"{name} has the splits {' and '.join(known.records)}, not {asked.split}")
    asked.refuse(name, "image", "value_range")
    if asked.classes is None and not asked.unlabelled:
        asked = replace(asked, classes=known.classes)
    if name == "digits":
        asked.refuse(name, "label", "groups")
        return replace(asked, value_range=(0.0, 16.0)).finish(_digits(asked.split), name)
    made = _load_folder(require_known(known, folder, asked.split), name, asked)
    if asked.class_names or made.classes != len(known.class_names):
        return made
    return replace(made, class_names=known.class_names)


def _load_folder(path: Path, name: str, asked: Request) -> Dataset:
    if is_sharded(path):
        settled = ("image", "label", "groups", "classes", "size", "channels", "value_range")
        asked.refuse(name, *settled, hint="it was settled when the shards were written")
        if asked.unlabelled or asked.class_names or asked.split != "train":
            raise DataError(f"{name} is a folder of shards: parts, labels and class names are settled there")
        return read_shards(path)
    if arrays.has_idx(path):
        _refuse_parts(path, asked)
        images = arrays.find_idx(path, asked.split)
        if images is None:
            raise DataError(
                f"{path} has no idx file of {asked.split} images ({asked.split}-images-idx3-ubyte); "
                "name another split (--split)"
            )
        return _load_idx(images, name, asked)
    if arrays.is_cifar(path):
        asked.refuse(name, "image", "label", "groups")
        return asked.finish(
            Content(*arrays.read_cifar(path, asked.split), class_names=KNOWN["cifar10"].class_names), name
        )
    if folders.is_celeba(path):
        return folders.read_celeba(path, name, asked)
    _refuse_parts(path, asked)
    asked.refuse(name, "image", "label", "groups", hint="write a table of paths, labels and persons instead")
    return folders.read_pictures(path, name, asked)


def _refuse_parts(path: Path, asked: Request) -> None:
    if parts := _find_parts(path, asked.split):
        raise DataError(
            f"{path} holds {len(parts)} files like {parts[0].name}; name one of them, or write them all as "
            f"shards first: dpsinkhorn data shard {path} --to SHARDS"
        )


_KINDS = (".parquet", ".npy", ".npz", ".tar", ".csv", ".tsv")
_BESIDE = (".labels.npy", ".groups.npy")


def _find_parts(folder: Path, split: str) -> list[Path]:
    """Return the files of a folder whose records belong together, in the order of their names.

    A folder that holds pictures, or folders, or files of several kinds, has none.
    """
    with failing_as(DataError, f"cannot read the folder {folder}"):
        entries = sorted(entry for entry in folder.iterdir() if not entry.name.startswith("."))
    if any(entry.is_dir() or entry.suffix.lower() in PICTURE_SUFFIXES for entry in entries):
        return []
    if arrays.has_idx(folder):
        several = arrays.list_idx(folder, split)
        return several if len({path.name.removesuffix(".gz") for path in several}) > 1 else []
    parts = [
        entry for entry in entries if entry.suffix.lower() in _KINDS and not entry.name.endswith(_BESIDE)
    ]
    return parts if len({entry.suffix.lower() for entry in parts}) == 1 else []


def _load_file(path: Path, asked: Request) -> Dataset:
    suffix = path.suffix.lower()
    if arrays.is_idx_name(path.name):
        return _load_idx(path, path.name, asked)
    if suffix == ".npz":
        return asked.finish(arrays.read_npz_set(path, asked), path.name)
    if suffix not in (".npy", ".csv", ".tsv", ".parquet", ".tar"):
        if is_dicom(path):
            raise DataError(f"{path} is of no known type; {DICOM_HINT} in a folder per class")
        raise DataError(
            f"{path} is of no known type; give a folder, or a file ending in .npz, .npy, .csv, .tsv, "
            ".parquet, .tar"
        )
    if asked.split != "train":
        raise asked.no_part(path)
    if suffix == ".npy":
        asked.refuse(path.name, "image")
        return asked.finish(arrays.read_npy_set(path, asked.label, asked.groups), path.name)
    if suffix == ".tar":
        from dpsinkhorn.data.webdataset import read_tar

        return asked.finish(read_tar(path, asked), path.name)
    from dpsinkhorn.data.tables import read_table

    return asked.finish(read_table(path, asked), path.name)


def _load_idx(path: Path, name: str, asked: Request) -> Dataset:
    asked.refuse(name, "image", "label", "groups", hint="write an .npz file with images, labels and groups")
    images, beside = arrays.read_idx(path), arrays.labels_beside(path)
    labels = None if beside is None or asked.unlabelled else arrays.read_idx(beside)
    return asked.finish(Content(images, labels), name)


def _digits(split: str) -> Content:
    """scikit-learn's digits. Sorted by class, in their order within it, every fourth is for testing."""
    from sklearn.datasets import load_digits  # type: ignore[import-untyped]

    bunch = load_digits()
    by_class = np.argsort(bunch.target, kind="stable")
    is_test = np.zeros(len(by_class), dtype=bool)
    is_test[by_class[::4]] = True
    rows = np.flatnonzero(is_test == (split == "test"))
    return Content(bunch.images[rows].astype(np.uint8), bunch.target[rows].astype(np.int64))
