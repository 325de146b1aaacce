"""Folders of pictures: a sub-folder per class, or all in one folder, unlabelled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dpsinkhorn.data.errors import DataError
from dpsinkhorn.data.labels import sorted_names
from dpsinkhorn.data.pictures import PICTURE_SUFFIXES

__all__ = ["Listing", "folder_has_parts", "list_pictures"]

_SPLITS = {"train": ("train",), "test": ("test",), "valid": ("valid", "val", "validation")}
_SPLIT_NAMES = {name for names in _SPLITS.values() for name in names}


@dataclass(frozen=True)
class Listing:
    """Pictures of a folder, in a fixed order; the labels are the names of their sub-folders."""

    paths: list[Path]
    labels: list[str] | None
    classes: tuple[str, ...]  # all sub-folders, those without pictures too


def list_pictures(folder: Path, split: str = "train") -> Listing:
    """The pictures under a folder. Sub-folders named train, test, val are splits; others are classes."""
    folder = _split_folder(folder, split)
    entries = _visible(folder)
    classes = [entry for entry in entries if entry.is_dir()]
    loose = [entry for entry in entries if _is_picture(entry)]
    if not classes:
        if not loose:
            raise DataError(
                f"{folder} holds no pictures ({_suffixes()}) and no idx files; name a folder that does"
            )
        return Listing(loose, None, ())
    if loose:
        raise DataError(
            f"{folder} holds both pictures ({loose[0].name}) and sub-folders ({classes[0].name}); keep "
            "pictures in a sub-folder per class, or all in one folder"
        )
    paths: list[Path] = []
    labels: list[str] = []
    for name in sorted_names([entry.name for entry in classes]):
        found = _pictures_within(folder / name)
        paths += found
        labels += [name] * len(found)
    if not paths:
        raise DataError(f"the data set is empty: no sub-folder of {folder} holds pictures ({_suffixes()})")
    return Listing(paths, labels, sorted_names([entry.name for entry in classes]))


def folder_has_parts(folder: Path) -> bool:
    """Whether the sub-folders of a folder of pictures are parts (train, test, val), and not classes."""
    return bool(_parts(folder))


def _parts(folder: Path) -> set[str]:
    folders = {entry.name for entry in _visible(folder) if entry.is_dir()}
    return folders if folders <= _SPLIT_NAMES else set()


def _split_folder(folder: Path, split: str) -> Path:
    folders = _parts(folder)
    if not folders:
        if split != "train":
            raise DataError(
                f"{folder} has no {split} part; name the folder of the {split} pictures itself, "
                "or give split train (--split train)"
            )
        return folder
    for name in _SPLITS[split]:
        if name in folders:
            return folder / name
    only = ", ".join(sorted(folders))
    raise DataError(f"{folder} has no {split} part, only {only}; choose one by split (--split)")


def _pictures_within(folder: Path) -> list[Path]:
    entries = _visible(folder)
    nested = next((entry for entry in entries if entry.is_dir()), None)
    if nested is not None:
        raise DataError(
            f"the class folder {folder} holds a folder itself ({nested.name}); move its pictures up"
        )
    return [entry for entry in entries if _is_picture(entry)]


def _visible(folder: Path) -> Sequence[Path]:
    try:
        return sorted(entry for entry in folder.iterdir() if not entry.name.startswith("."))
    except OSError as error:
        raise DataError(f"cannot read the folder {folder}: {error.strerror}") from error


def _is_picture(path: Path) -> bool:
    return path.suffix.lower() in PICTURE_SUFFIXES


def _suffixes() -> str:
    return ", ".join(sorted(PICTURE_SUFFIXES))
