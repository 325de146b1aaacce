"""WebDataset: tar files in which the files of a record follow each other, with names that differ in the end.

00017.jpg   the picture
00017.cls   its class: a number or a name
00017.json  or more about it, by name
"""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dpsinkhorn.data.pictures import PICTURE_SUFFIXES
from dpsinkhorn.data.request import Content, Request
from dpsinkhorn.errors import DataError
from dpsinkhorn.files import failing_as

_LABEL = "cls"
_LARGEST = 2**28  # bytes of a file of a record


def read_tar(path: Path, asked: Request) -> Content:
    """Read the pictures of a tar file, and what `asked` names as labels and persons.

    These are endings (`cls` by default, for labels), or names in the records' .json files.
    """
    pictures: list[bytes] = []
    names: list[str] = []
    labels: list[Any] = []
    persons: list[Any] = []
    labelled: bool | None = False if asked.unlabelled else True if asked.label else None
    for name, files in _records(path):
        found = [ending for ending in files if _is_picture(ending, asked)]
        if len(found) != 1:
            what = f"{len(found)} pictures ({', '.join(found)})" if found else "no picture"
            raise DataError(f"{path}: record {name} has {what}; it should have one (--image ENDING)")
        if labelled is None:  # of the first record: those that have another form are refused
            labelled = _LABEL in files
        pictures.append(files[found[0]])
        names.append(f"{path} ({name}.{found[0]})")
        if labelled:
            labels.append(_value(path, name, files, asked.label or _LABEL))
        elif not asked.unlabelled and _LABEL in files:
            raise DataError(f"{path}: record {name} has a .{_LABEL} file, and others have none")
        if asked.groups is not None:
            persons.append(_value(path, name, files, asked.groups))
    if not pictures:
        raise DataError(f"the data set is empty: {path} holds no records")
    return Content(
        asked.decode(pictures, names), labels if labelled else None, persons if asked.groups else None
    )


def _records(path: Path) -> Iterator[tuple[str, dict[str, bytes]]]:
    """Yield the name of each record, and its files by their endings."""
    current: str | None = None
    files: dict[str, bytes] = {}
    seen: set[str] = set()
    with failing_as(DataError, f"cannot read {path}"):
        try:
            with tarfile.open(path, "r:") as archive:
                for member in archive:
                    if member.isdir():
                        continue
                    if not member.isreg() or member.size > _LARGEST:
                        raise DataError(
                            f"{path}: {member.name!r} is no file, or a very large one; leave it out"
                        )
                    folder, _, base = member.name.rpartition("/")
                    stem, dot, ending = base.partition(".")
                    if not (stem and dot):
                        continue  # hidden files, and notes without an ending
                    name = f"{folder}/{stem}" if folder else stem
                    if name != current:
                        if current is not None:
                            yield current, files
                        if name in seen:
                            raise DataError(f"{path}: the files of record {name} do not follow each other")
                        seen.add(name)
                        current, files = name, {}
                    if ending.lower() in files:
                        raise DataError(
                            f"{path}: record {name} has two files .{ending}; leave one of them out"
                        )
                    content = archive.extractfile(member)
                    assert content is not None
                    files[ending.lower()] = content.read()
        except (tarfile.TarError, EOFError, ValueError) as error:
            raise DataError(f"{path} is no tar file, or damaged: {error}") from error
    if current is not None:
        yield current, files


def _is_picture(ending: str, asked: Request) -> bool:
    if asked.image is not None:
        return ending == asked.image.removeprefix(".").lower()
    return f".{ending.rpartition('.')[2]}" in PICTURE_SUFFIXES


def _value(path: Path, name: str, files: dict[str, bytes], what: str) -> Any:
    """Return what a record says: the text of its file of that ending, or what its .json has."""
    try:
        if what.lower() in files:
            return files[what.lower()].decode("utf-8").strip()
        found = json.loads(files.get("json", b"{}"))
        if isinstance(found, dict) and isinstance(found.get(what), str | int):
            return str(found[what])
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: record {name} cannot be read: {error}") from error
    raise DataError(
        f"{path}: record {name} has no {what}: neither a file .{what} nor a number or text in .json"
    )
