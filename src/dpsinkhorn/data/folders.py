"""Folders of pictures: a sub-folder per class, all in one folder, or CelebA in its standard layout."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from dpsinkhorn.data.dataset import Dataset
from dpsinkhorn.data.labels import sorted_names
from dpsinkhorn.data.pictures import DICOM_HINT, PICTURE_SUFFIXES, is_dicom
from dpsinkhorn.data.request import Content, Request
from dpsinkhorn.errors import DataError
from dpsinkhorn.files import failing_as

_SPLITS = {"train": ("train",), "test": ("test",), "valid": ("valid", "val", "validation")}
_SPLIT_NAMES = set().union(*_SPLITS.values())
_OF_NO_INTEREST = ("thumbs.db", "desktop.ini")  # file managers leave them in any folder

_PARTITION = {"train": "0", "valid": "1", "test": "2"}
_CELEBA_SIZE = (32, 32)  # as in the papers
_CELEBA_LABEL = "Male"


def read_pictures(folder: Path, name: str, asked: Request) -> Dataset:
    """Read the pictures under a folder. Sub-folders named train, test, val are splits; others are classes.

    Every sub-folder is a class, also one without pictures.
    """
    folder = _split_folder(folder, asked)
    entries = _visible(folder)
    classes = sorted_names([entry.name for entry in entries if entry.is_dir()])
    loose = [entry for entry in entries if _is_picture(entry)]
    if loose and classes:
        raise DataError(
            f"{folder} holds both pictures ({loose[0].name}) and sub-folders ({classes[0]}); keep "
            "pictures in a sub-folder per class, or all in one folder"
        )
    files = {each: _files_within(folder / each) for each in classes} or {"": entries}
    paths = [(each, file) for each in files for file in files[each] if _is_picture(file)]
    others = [file for file in itertools.chain(entries, *files.values()) if _is_other(file)]
    skipped = _kinds(dict.fromkeys(others))
    if not paths:
        count = dict(skipped).get("DICOM", 0)
        hint = f"DICOM files found: {count:,}. {DICOM_HINT}" if count else ""
        if classes:
            what = f"the data set is empty: no sub-folder of {folder} holds pictures ({_suffixes()})"
            raise DataError(f"{what}; {hint}" if hint else what)
        hint = hint or "name a folder that does"
        raise DataError(f"{folder} holds no pictures ({_suffixes()}) and no idx files; {hint}")
    pictures = asked.decode([path for _, path in paths], [str(path) for _, path in paths])
    labels: list[Any] | None = [each for each, _ in paths] if classes else None
    names: tuple[str, ...] = ()
    if labels is not None and not asked.unlabelled and isinstance(asked.classes, (int, type(None))):
        if all(each.isascii() and each.isdigit() and len(each) < 5 for each in classes):
            asked = replace(asked, classes=asked.classes or int(classes[-1]) + 1)
        else:
            labels, names = [classes.index(text) for text in labels], classes
    return asked.finish(Content(pictures, labels, class_names=names, skipped=skipped), name)


def folder_parts(folder: Path) -> set[str]:
    """Return the sub-folders of a folder of pictures where they are parts (train, test, val), not classes."""
    folders = {entry.name for entry in _visible(folder) if entry.is_dir()}
    return folders if folders <= _SPLIT_NAMES else set()


def _split_folder(folder: Path, asked: Request) -> Path:
    folders = folder_parts(folder)
    if not folders:
        if asked.split != "train":
            raise asked.no_part(folder, "folder", of="pictures")
        return folder
    for name in _SPLITS[asked.split]:
        if name in folders:
            return folder / name
    only = ", ".join(sorted(folders))
    raise DataError(f"{folder} has no {asked.split} part, only {only}; choose one by split (--split)")


def _files_within(folder: Path) -> Sequence[Path]:
    entries = _visible(folder)
    nested = next((entry for entry in entries if entry.is_dir()), None)
    if nested is not None:
        raise DataError(
            f"the class folder {folder} holds a folder itself ({nested.name}); move its pictures up"
        )
    return entries


def _visible(folder: Path) -> Sequence[Path]:
    with failing_as(DataError, f"cannot read the folder {folder}"):
        return sorted(entry for entry in folder.iterdir() if not entry.name.startswith("."))


def _is_picture(path: Path) -> bool:
    return path.suffix.lower() in PICTURE_SUFFIXES


def _is_other(path: Path) -> bool:
    return not _is_picture(path) and path.name.lower() not in _OF_NO_INTEREST and path.is_file()


def _kinds(files: Iterable[Path]) -> tuple[tuple[str, int], ...]:
    """Return how many files there are of each kind, the most frequent first."""
    kinds = Counter("DICOM" if is_dicom(file) else file.suffix.lower() or "no ending" for file in files)
    return tuple(sorted(kinds.items(), key=lambda kind: (-kind[1], kind[0])))


def _suffixes() -> str:
    return ", ".join(sorted(PICTURE_SUFFIXES))


def is_celeba(folder: Path) -> bool:
    return _table(folder, "list_attr_celeba") is not None


def read_celeba(folder: Path, name: str, asked: Request) -> Dataset:
    """Read the pictures of a split: label 1 where the attribute holds, else 0; the person where asked for.

    Reads the original .txt tables, and the .csv ones of the copy on Kaggle.
    """
    asked.refuse(name, "image")
    if asked.groups not in (None, "identity"):
        raise DataError(f"the groups of CelebA are called identity, not {asked.groups}")
    attribute = None if asked.unlabelled else asked.label or _CELEBA_LABEL
    pictures = folder / "img_align_celeba"
    if (pictures / "img_align_celeba").is_dir():
        pictures = pictures / "img_align_celeba"
    if not pictures.is_dir():
        raise DataError(f"{folder} has no folder img_align_celeba with the pictures of CelebA")
    rows = _rows(_needed(folder, "list_eval_partition"), 2)
    names = [row[0] for row in rows if row[1] == _PARTITION[asked.split]]
    if not names:
        raise DataError(f"the data set is empty: {folder} lists no {asked.split} pictures")
    if len(set(names)) != len(names):
        raise DataError(f"list_eval_partition of {folder} lists a picture twice; leave one of the lines out")
    for each in names:
        if Path(each).name != each or each in ("", ".", ".."):
            raise DataError(f"list_eval_partition of {folder} names {each!r}, which is no plain file name")
    labels = None if attribute is None else _attribute(folder, attribute, names)
    persons = None
    if asked.groups is not None:
        rows = _rows(_needed(folder, "identity_CelebA"), 2)
        of = _by_picture(((row[0], row[1]) for row in rows), "identity_CelebA")
        persons = [_look_up(of, each, "identity_CelebA") for each in names]
    class_names = () if attribute is None else (f"not {attribute}", attribute)
    asked = replace(asked, size=asked.size or _CELEBA_SIZE, channels=asked.channels or 3)
    decoded = asked.decode([pictures / each for each in names], names)
    return asked.finish(Content(decoded, labels, persons, class_names), name)


def _attribute(folder: Path, attribute: str, names: list[str]) -> list[int]:
    path = _needed(folder, "list_attr_celeba")
    values = _by_picture(_attributes(path, attribute), path.name)
    found = [_look_up(values, name, path.name) for name in names]
    if not set(found) <= {"1", "-1", "0"}:
        raise DataError(f"{path} has values of {attribute} other than 1 and -1")
    return [int(value == "1") for value in found]


def _attributes(path: Path, attribute: str) -> Iterator[tuple[str, str]]:
    """Yield pictures, and their values of the attribute."""
    header: list[str] | None = None
    for row in _rows(path, 2):
        if header is None:
            # the .txt table has its names without one for the file, the .csv table with
            header = row[1:] if row[0] == "image_id" else row
            if attribute not in header:
                raise DataError(f"CelebA has no attribute {attribute}; it has {', '.join(header)}")
            place = header.index(attribute) + 1
        elif len(row) != len(header) + 1:
            raise DataError(
                f"{path} has a line of {len(row)} values where {len(header) + 1} belong: {row[0]}"
            )
        else:
            yield row[0], row[place]


def _by_picture(rows: Iterable[tuple[str, str]], table: str) -> dict[str, str]:
    """Return what a table says of each picture; one line must not take the place of another."""
    values: dict[str, str] = {}
    for name, value in rows:
        if name in values:
            raise DataError(f"{table} has two lines for {name}; leave one of them out")
        values[name] = value
    return values


def _look_up(values: dict[str, str], name: str, table: str) -> str:
    if name not in values:
        raise DataError(f"the label is missing: {table} has no line for {name}")
    return values[name]


def _rows(path: Path, width: int) -> Iterator[list[str]]:
    """Lines with at least `width` values; this leaves out the count in the first line of the .txt tables."""
    try:
        with path.open(encoding="utf-8") as lines:
            for line in lines:
                row = line.replace(",", " ").split()
                if len(row) >= width:
                    yield row
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"cannot read {path}: {error}") from error


def _table(folder: Path, name: str) -> Path | None:
    return next(
        (folder / (name + end) for end in (".txt", ".csv") if (folder / (name + end)).is_file()), None
    )


def _needed(folder: Path, name: str) -> Path:
    path = _table(folder, name)
    if path is None:
        raise DataError(f"{folder} has no {name}.txt (or .csv), which CelebA's archive holds")
    return path
