"""Folders of pictures: a sub-folder per class, or all in one folder, unlabelled."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from dpsinkhorn.data.errors import DataError
from dpsinkhorn.data.labels import sorted_names
from dpsinkhorn.data.pictures import PICTURE_SUFFIXES

__all__ = ["DICOM_HINT", "Listing", "folder_has_parts", "is_dicom", "list_pictures"]

DICOM_HINT = "DICOM (.dcm) is not read: convert it to 16-bit PNG"

_SPLITS = {"train": ("train",), "test": ("test",), "valid": ("valid", "val", "validation")}
_SPLIT_NAMES = {name for names in _SPLITS.values() for name in names}
_DICOM_SUFFIXES = (".dcm", ".dicom")
_OF_NO_INTEREST = ("thumbs.db", "desktop.ini")  # file managers leave them in any folder


@dataclass(frozen=True)
class Listing:
    """Pictures of a folder, in a fixed order; the labels are the names of their sub-folders."""

    paths: list[Path]
    labels: list[str] | None
    classes: tuple[str, ...]  # all sub-folders, those without pictures too
    skipped: tuple[tuple[str, int], ...] = ()  # kinds of files that are no pictures, and how many of each


def list_pictures(folder: Path, split: str = "train") -> Listing:
    """The pictures under a folder. Sub-folders named train, test, val are splits; others are classes."""
    folder = _split_folder(folder, split)
    entries = _visible(folder)
    classes = [entry for entry in entries if entry.is_dir()]
    loose = [entry for entry in entries if _is_picture(entry)]
    others = [entry for entry in entries if _is_other(entry)]
    if not classes:
        if not loose:
            hint = _dicom_hint(others) or "name a folder that does"
            raise DataError(f"{folder} holds no pictures ({_suffixes()}) and no idx files; {hint}")
        return Listing(loose, None, (), _kinds(others))
    if loose:
        raise DataError(
            f"{folder} holds both pictures ({loose[0].name}) and sub-folders ({classes[0].name}); keep "
            "pictures in a sub-folder per class, or all in one folder"
        )
    paths: list[Path] = []
    labels: list[str] = []
    for name in sorted_names([entry.name for entry in classes]):
        files = _files_within(folder / name)
        found = [file for file in files if _is_picture(file)]
        others += [file for file in files if _is_other(file)]
        paths += found
        labels += [name] * len(found)
    if not paths:
        hint = _dicom_hint(others)
        raise DataError(
            f"the data set is empty: no sub-folder of {folder} holds pictures ({_suffixes()})"
            + (f"; {hint}" if hint else "")
        )
    return Listing(paths, labels, sorted_names([entry.name for entry in classes]), _kinds(others))


def is_dicom(path: Path) -> bool:
    """Whether a file is DICOM, by its ending or its mark: many have no ending, or a number for one.

    >>> is_dicom(Path("scan.dcm"))
    True
    """
    if path.suffix.lower() in _DICOM_SUFFIXES:
        return True
    try:
        with path.open("rb") as stream:
            return stream.read(132)[128:] == b"DICM"
    except OSError:
        return False


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


def _files_within(folder: Path) -> list[Path]:
    entries = _visible(folder)
    nested = next((entry for entry in entries if entry.is_dir()), None)
    if nested is not None:
        raise DataError(
            f"the class folder {folder} holds a folder itself ({nested.name}); move its pictures up"
        )
    return list(entries)


def _visible(folder: Path) -> Sequence[Path]:
    try:
        return sorted(entry for entry in folder.iterdir() if not entry.name.startswith("."))
    except OSError as error:
        raise DataError(f"cannot read the folder {folder}: {error.strerror}") from error


def _is_picture(path: Path) -> bool:
    return path.suffix.lower() in PICTURE_SUFFIXES


def _is_other(path: Path) -> bool:
    """A file that is passed over."""
    return not _is_picture(path) and path.name.lower() not in _OF_NO_INTEREST and path.is_file()


def _kinds(files: Iterable[Path]) -> tuple[tuple[str, int], ...]:
    """How many files there are of each kind, the most frequent first."""
    kinds = Counter("DICOM" if is_dicom(file) else file.suffix.lower() or "no ending" for file in files)
    return tuple(sorted(kinds.items(), key=lambda kind: (-kind[1], kind[0])))


def _dicom_hint(files: Sequence[Path]) -> str:
    count = dict(_kinds(files)).get("DICOM", 0)
    return f"DICOM files found: {count:,}. {DICOM_HINT}" if count else ""


def _suffixes() -> str:
    return ", ".join(sorted(PICTURE_SUFFIXES))
