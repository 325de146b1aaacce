"""`load_dataset`: a name or a path becomes a checked data set."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dpsinkhorn import _checks
from dpsinkhorn.data import formats
from dpsinkhorn.data.arrays import npz_has_parts, read_npy_set, read_npz_set
from dpsinkhorn.data.columns import TABLES
from dpsinkhorn.data.dataset import Dataset, from_arrays
from dpsinkhorn.data.folders import (
    DICOM_HINT,
    Listing,
    folder_has_parts,
    is_celeba,
    is_dicom,
    list_celeba,
    list_pictures,
)
from dpsinkhorn.data.formats import is_cifar, read_cifar
from dpsinkhorn.data.named import KNOWN, require_known
from dpsinkhorn.data.pictures import Progress, decode_all, fit_array, parse_size
from dpsinkhorn.data.shards import is_sharded, read_shards
from dpsinkhorn.data.tables import read_table
from dpsinkhorn.errors import DataError

SPLITS = ("train", "test", "valid")
_CELEBA_SIZE = (32, 32)  # as in the papers
_CELEBA_LABEL = "Male"


@dataclass(frozen=True)
class _Request:
    """What the caller asked for, in the form that the readers take."""

    split: str
    image: str | None
    label: str | None
    groups: str | None
    unlabelled: bool
    classes: int | Sequence[str] | None
    class_names: tuple[str, ...]
    size: tuple[int, int] | None
    channels: int | None
    value_range: tuple[float, float] | None
    progress: Progress | None

    def finish(
        self,
        images: npt.NDArray[Any],
        labels: Any,
        groups: Any,
        name: str,
        class_names: tuple[str, ...] = (),
        unused: tuple[str, ...] = (),
    ) -> Dataset:
        """Check everything, then bring the images to the size and channels asked for."""
        if self.unlabelled:
            labels, class_names = None, ()
        classes = self.classes
        if class_names and classes not in (None, len(class_names)):
            raise DataError(f"{name} has {len(class_names)} classes, not the {classes} classes stated")
        if class_names:
            classes = len(class_names)
        elif self.class_names and classes is None:
            classes = len(self.class_names)
        made = from_arrays(
            images, labels, groups=groups, classes=classes, value_range=self.value_range, name=name
        )
        fitted = fit_array(made.images, self.size, self.channels)
        if class_names:  # of folders or columns, not of records
            made = replace(made, class_names=class_names)
        if self.class_names:
            if len(self.class_names) != made.classes:
                given = f"{len(self.class_names)} class names for {made.classes} classes"
                raise DataError(f"{given}; give one for each, in order (--class-names)")
            made = replace(made, class_names=self.class_names)
        return replace(made, images=fitted, unused_columns=unused)


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
) -> Dataset:
    """Read a data set by its name (`digits`, `mnist`, `fashion-mnist`, `cifar10`, `celeba`) or its path.

    A path is a folder of idx files, an .npz or .npy file, a folder of pictures with a sub-folder per class,
    a .csv, .tsv or .parquet table, or a folder of shards. A folder that has a known name is written ./mnist.

    `image`, `label` and `groups` say where the images, the labels and the persons are: columns of a table,
    arrays of an .npz, files beside a .npy, for CelebA an attribute and `identity`. `unlabelled` leaves labels
    out. `classes` states their number, or their names in order; `class_names` gives them public names, in the
    same order, where labels are numbers or codes. `size` (one number, or height and width) and
    `channels` (1 or 3) crop and convert. `value_range` is the public range of the pixels where it is not that
    of their type. `folder` replaces the data folder of named sets; `progress` is called with the number of
    pictures decoded so far and of all.

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
    asked = _Request(
        split=split,
        image=image,
        label=label,
        groups=groups,
        unlabelled=unlabelled,
        classes=classes,
        class_names=_checked_names(class_names),
        size=parse_size(size),
        channels=channels,
        value_range=value_range,
        progress=progress,
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
        return _has_idx(path) or is_cifar(path) or is_celeba(path) or folder_has_parts(path)
    return path.suffix.lower() == ".npz" and npz_has_parts(path)


def _has_idx(path: Path) -> bool:
    try:
        return any(formats.is_idx_name(entry.name) for entry in path.iterdir())
    except OSError as error:
        raise DataError(f"cannot read the folder {path}: {error.strerror}") from error


def _load_known(name: str, folder: Path | None, asked: _Request) -> Dataset:
    known = KNOWN[name]
    if asked.split not in known.records:
        raise DataError(f"{name} has the splits {' and '.join(known.records)}, not {asked.split}")
    _refuse(asked, name, "image", "value_range")
    if asked.classes is None and not asked.unlabelled:
        asked = replace(asked, classes=known.classes)
    if name == "digits":
        _refuse(asked, name, "label", "groups")
        images, labels = _digits(asked.split)
        return replace(asked, value_range=(0.0, 16.0)).finish(images, labels, None, name)
    made = _load_folder(require_known(known, folder, asked.split), name, asked)
    if asked.class_names or made.classes != len(known.class_names):
        return made
    return replace(made, class_names=known.class_names)


def _load_folder(path: Path, name: str, asked: _Request) -> Dataset:
    if is_sharded(path):
        settled = ("image", "label", "groups", "classes", "size", "channels", "value_range")
        _refuse(asked, name, *settled, hint="it was settled when the shards were written")
        if asked.unlabelled or asked.class_names or asked.split != "train":
            raise DataError(f"{name} is a folder of shards: parts, labels and class names are settled there")
        return read_shards(path)
    if _has_idx(path):
        images = formats.find_idx(path, asked.split)
        if images is None:
            raise DataError(
                f"{path} has no idx file of {asked.split} images ({asked.split}-images-idx3-ubyte); "
                "name another split (--split)"
            )
        return _load_idx(images, name, asked)
    if is_cifar(path):
        _refuse(asked, name, "image", "label", "groups")
        pixels, numbers = read_cifar(path, asked.split)
        return asked.finish(pixels, numbers, None, name, KNOWN["cifar10"].class_names)
    if is_celeba(path):
        return _load_celeba(path, name, asked)
    _refuse(
        asked, name, "image", "label", "groups", hint="write a table of paths, labels and persons instead"
    )
    listing = list_pictures(path, asked.split)
    pictures = decode_all(
        listing.paths,
        [str(file) for file in listing.paths],
        size=asked.size,
        channels=asked.channels,
        progress=asked.progress,
    )
    return replace(_of_listing(pictures, listing, name, asked), skipped_files=listing.skipped)


def _of_listing(pictures: npt.NDArray[Any], listing: Listing, name: str, asked: _Request) -> Dataset:
    if listing.labels is None or asked.unlabelled or not isinstance(asked.classes, (int, type(None))):
        return asked.finish(pictures, listing.labels, None, name)
    # every sub-folder is a class, also one without pictures
    if all(name.isascii() and name.isdigit() and len(name) < 5 for name in listing.classes):
        count = int(listing.classes[-1]) + 1
        return replace(asked, classes=asked.classes or count).finish(pictures, listing.labels, None, name)
    places = [listing.classes.index(text) for text in listing.labels]
    return asked.finish(pictures, places, None, name, listing.classes)


def _load_file(path: Path, asked: _Request) -> Dataset:
    suffix = path.suffix.lower()
    if formats.is_idx_name(path.name):
        return _load_idx(path, path.name, asked)
    if suffix == ".npz":
        found = read_npz_set(path, asked.split, asked.image, asked.label, asked.groups, asked.unlabelled)
        return asked.finish(found.images, found.labels, found.groups, path.name, unused=found.unused)
    if suffix not in (*TABLES, ".npy"):
        if is_dicom(path):
            raise DataError(f"{path} is of no known type; {DICOM_HINT} in a folder per class")
        raise DataError(
            f"{path} is of no known type; give a folder, or a file ending in .npz, .npy, .csv, .tsv, .parquet"
        )
    if asked.split != "train":
        raise DataError(
            f"{path} has no {asked.split} part; name the file of the {asked.split} images itself, "
            "or give split train (--split train)"
        )
    if suffix == ".npy":
        _refuse(asked, path.name, "image")
        found = read_npy_set(path, asked.label, asked.groups)
        return asked.finish(found.images, found.labels, found.groups, path.name)
    table = read_table(
        path,
        image=asked.image,
        label=asked.label,
        groups=asked.groups,
        unlabelled=asked.unlabelled,
        size=asked.size,
        channels=asked.channels,
        has_range=asked.value_range is not None,
        progress=asked.progress,
    )
    return asked.finish(table.images, table.labels, table.groups, path.name, unused=table.unused)


def _load_idx(path: Path, name: str, asked: _Request) -> Dataset:
    _refuse(asked, name, "image", "label", "groups", hint="write an .npz file with images, labels and groups")
    images = formats.read_idx(path)
    beside = formats.labels_beside(path)
    labels = None if beside is None or asked.unlabelled else formats.read_idx(beside)
    return asked.finish(images, labels, None, name)


def _load_celeba(path: Path, name: str, asked: _Request) -> Dataset:
    _refuse(asked, name, "image")
    if asked.groups not in (None, "identity"):
        raise DataError(f"the groups of CelebA are called identity, not {asked.groups}")
    attribute = None if asked.unlabelled else asked.label or _CELEBA_LABEL
    listing = list_celeba(path, asked.split, attribute, asked.groups is not None)
    pictures = decode_all(
        listing.paths,
        [file.name for file in listing.paths],
        size=asked.size or _CELEBA_SIZE,
        channels=asked.channels or 3,
        progress=asked.progress,
    )
    return asked.finish(pictures, listing.labels, listing.persons, name, listing.class_names)


def _digits(split: str) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """scikit-learn's digits. Sorted by class, in their order within it, every fourth is for testing."""
    from sklearn.datasets import load_digits  # type: ignore[import-untyped]

    bunch = load_digits()
    by_class = np.argsort(bunch.target, kind="stable")
    is_test = np.zeros(len(by_class), dtype=bool)
    is_test[by_class[::4]] = True
    rows = np.flatnonzero(is_test == (split == "test"))
    return bunch.images[rows].astype(np.uint8), bunch.target[rows].astype(np.int64)


def _refuse(asked: _Request, name: str, *options: str, hint: str = "leave it out") -> None:
    for option in options:
        if getattr(asked, option) is not None:
            raise DataError(f"{option} cannot be stated for {name}; {hint}")
