"""The first line of a CSV: what separates its columns, and whether it holds names at all.

What cannot be read without doubt is refused. A line that may be a record is never shown: it is private.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path, PurePath

from dpsinkhorn.data.errors import DataError
from dpsinkhorn.data.pictures import PICTURE_SUFFIXES

__all__ = ["check_names", "first_line", "not_utf8", "separator", "separator_hint"]

_LONGEST = 1 << 26  # bytes of a line of names
_QUOTED = re.compile(r'"[^"]*"')
_NUMBER = re.compile(r"[+-]?(?:\d+[.,]?\d*|[.,]\d+)(?:e[+-]?\d+)?", re.IGNORECASE)


def separator(path: Path) -> str:
    """What stands between the columns: a tab in .tsv; else a comma, or a semicolon or tab without any comma.

    Where commas and semicolons both occur in the names, commas separate.
    """
    if path.suffix.lower() == ".tsv":
        return "\t"
    names = _QUOTED.sub("", first_line(path))
    return "," if "," in names else next((mark for mark in (";", "\t") if mark in names), ",")


def separator_hint(path: Path) -> str:
    """What to add to a message about a table that may have been taken apart at the wrong marks."""
    names = _QUOTED.sub("", first_line(path))
    if separator(path) == "," and any(mark in names for mark in ";\t|"):
        return "; semicolons or tabs separate columns where no comma is among the names, other marks never do"
    return ""


def check_names(names: Sequence[str], known: Sequence[str], path: Path) -> None:
    """Refuse a first line that is a record: numbers, or a picture's path, where names of columns belong.

    Numbers that count from 0 or 1 are names, as data frames without names are written. So is anything beside
    a column whose name is `known`.

    >>> check_names(["label", "7", "0"], ["label"], Path("a.csv"))
    >>> check_names(["1", "7", "0"], ["label"], Path("a.csv"))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    dpsinkhorn.data.errors.DataError: a.csv has no line of column names: ...
    """
    if any(name in known for name in names):
        return
    # decimal commas split a record that semicolons separate: 0,5;0,7 is taken for 0 and 5;0 and 7
    parts = [part.strip() for name in names for part in re.split(r"[;\t]", name)]
    numbers = [part for part in parts if _NUMBER.fullmatch(part)]
    worded = sum(any(letter.isdigit() for letter in part) for part in parts) - len(numbers)  # such as pixel7
    a_row = len(numbers) > worded and not _counted(numbers)
    if a_row or any(PurePath(part).suffix.lower() in PICTURE_SUFFIXES for part in parts):
        raise DataError(
            f"{path} has no line of column names: its first line seems to be a record; add a line above it, "
            "such as label,pixel0,pixel1,... or path,label"
        )


def not_utf8(path: Path) -> DataError:
    """What to say of a table whose letters would be garbled."""
    return DataError(
        f"{path} is not UTF-8 text; save it as UTF-8 (in Excel: CSV UTF-8), or convert it: "
        "iconv -f latin1 -t utf-8"
    )


def first_line(path: Path) -> str:
    """Return the line of names: the first that is not empty."""
    with path.open("rb") as stream:
        line = b"\n"
        while line and not line.strip():  # the reader passes over empty lines too
            line = stream.readline(_LONGEST)
    try:
        return re.split(r"[\r\n]", line.decode("utf-8-sig").strip())[0]
    except UnicodeDecodeError:
        raise not_utf8(path) from None


def _counted(numbers: Sequence[str]) -> bool:
    if not all(number.isascii() and number.isdigit() and len(number) < 10 for number in numbers):
        return False
    found = [int(number) for number in numbers]
    return any(found == list(range(start, start + len(found))) for start in (0, 1))
