"""CelebA in its standard layout: pictures in img_align_celeba, and tables of attributes and of the split."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from dpsinkhorn.data.errors import DataError

__all__ = ["CelebaListing", "is_celeba", "list_celeba"]

_PARTITION = {"train": "0", "valid": "1", "test": "2"}


@dataclass(frozen=True)
class CelebaListing:
    """The pictures of a split; label 1 where the attribute holds, else 0; the person where asked for."""

    paths: list[Path]
    labels: list[int] | None
    class_names: tuple[str, ...]
    persons: list[str] | None


def is_celeba(folder: Path) -> bool:
    """Whether a folder has CelebA's layout."""
    return _table(folder, "list_attr_celeba") is not None


def list_celeba(folder: Path, split: str, attribute: str | None, identities: bool) -> CelebaListing:
    """The pictures of a split with an attribute as label (None: unlabelled), and their persons.

    Reads the original .txt tables, and the .csv ones of the copy on Kaggle.
    """
    pictures = folder / "img_align_celeba"
    if (pictures / "img_align_celeba").is_dir():
        pictures = pictures / "img_align_celeba"
    if not pictures.is_dir():
        raise DataError(f"{folder} has no folder img_align_celeba with the pictures of CelebA")
    if split not in _PARTITION:
        raise DataError(f"CelebA has the splits train, valid and test, not {split}")
    names = [
        row[0] for row in _rows(_needed(folder, "list_eval_partition"), 2) if row[1] == _PARTITION[split]
    ]
    if not names:
        raise DataError(f"the data set is empty: {folder} lists no {split} pictures")
    if len(set(names)) != len(names):
        raise DataError(f"list_eval_partition of {folder} lists a picture twice; leave one of the lines out")
    for name in names:
        if Path(name).name != name or name in ("", ".", ".."):
            raise DataError(f"list_eval_partition of {folder} names {name!r}, which is no plain file name")
    labels = None if attribute is None else _attribute(folder, attribute, names)
    persons = None
    if identities:
        rows = _rows(_needed(folder, "identity_CelebA"), 2)
        of = _by_picture(((row[0], row[1]) for row in rows), "identity_CelebA")
        persons = [_look_up(of, name, "identity_CelebA") for name in names]
    class_names = () if attribute is None else (f"not {attribute}", attribute)
    return CelebaListing([pictures / name for name in names], labels, class_names, persons)


def _attribute(folder: Path, attribute: str, names: list[str]) -> list[int]:
    path = _needed(folder, "list_attr_celeba")
    values = _by_picture(_attributes(path, attribute), path.name)
    found = [_look_up(values, name, path.name) for name in names]
    if not set(found) <= {"1", "-1", "0"}:
        raise DataError(f"{path} has values of {attribute} other than 1 and -1")
    return [int(value == "1") for value in found]


def _attributes(path: Path, attribute: str) -> Iterator[tuple[str, str]]:
    """Pictures, and their values of the attribute."""
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
    """What a table says of each picture; one line must not take the place of another."""
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
