"""A folder of several files of one kind, each with a part of the records: `data shard` reads one by one."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from dpsinkhorn.data import formats
from dpsinkhorn.data.pictures import PICTURE_SUFFIXES
from dpsinkhorn.errors import DataError
from dpsinkhorn.files import failing_as

_KINDS = (".parquet", ".npy", ".npz", ".tar", ".csv", ".tsv")
_BESIDE = (".labels.npy", ".groups.npy")


def find_parts(folder: Path, split: str) -> list[Path]:
    """Return the files of a folder whose records belong together, in the order of their names.

    A folder that holds pictures, or folders, or files of several kinds, has none.
    """
    with failing_as(DataError, f"cannot read the folder {folder}"):
        entries = sorted(entry for entry in folder.iterdir() if not entry.name.startswith("."))
    if any(entry.is_dir() or entry.suffix.lower() in PICTURE_SUFFIXES for entry in entries):
        return []
    if formats.has_idx(folder):
        several = formats.list_idx(folder, split)
        return several if len({path.name.removesuffix(".gz") for path in several}) > 1 else []
    parts = [
        entry for entry in entries if entry.suffix.lower() in _KINDS and not entry.name.endswith(_BESIDE)
    ]
    return parts if len({entry.suffix.lower() for entry in parts}) == 1 else []


class Persons:
    """The persons of the files read so far: a shard holds whole persons, and so must a file."""

    def __init__(self) -> None:
        self._file_of: dict[str, str] = {}

    def add(self, persons: Iterable[Any], file: str) -> None:
        """Note the persons of another file; one who was in an earlier file is refused."""
        own = {str(person).strip() for person in persons}
        for person in own & self._file_of.keys():
            raise DataError(
                f"a person has records in {self._file_of[person]} and in {file}; all records of a person "
                "belong into one file: sort the records by person before they are split into files"
            )
        self._file_of.update(dict.fromkeys(own, file))
