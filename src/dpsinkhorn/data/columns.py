"""Columns of a table by name: text files (.csv, .tsv) are read as text, parquet in the types of its schema.

No type is guessed from the values that a column happens to hold: one record would then change how all others
are read, and what is promised of a record rests on the opposite. Text becomes a number where the caller says
so, value by value. Every line of a text file is one record, but for the first, which holds the names. What
cannot be read without doubt is refused. A line that may be a record is never shown: it is private.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from pathlib import Path, PurePath
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute  # type: ignore[import-untyped]
import pyarrow.csv  # type: ignore[import-untyped]
import pyarrow.parquet  # type: ignore[import-untyped]

from dpsinkhorn.data.pictures import PICTURE_SUFFIXES
from dpsinkhorn.errors import DataError

_LONGEST = 1 << 26  # bytes of a line of names
_QUOTED = re.compile(r'"[^"]*"')
_NUMBER = re.compile(r"[+-]?(?:\d+[.,]?\d*|[.,]\d+)(?:e[+-]?\d+)?", re.IGNORECASE)

TABLES = (".csv", ".tsv", ".parquet")
_MISSING = ("", "NA", "N/A", "NaN", "nan", "null", "NULL", "None")  # as programs write it


def separator(path: Path) -> str:
    """What stands between the columns: a tab in .tsv; else a comma, or a semicolon or tab without any comma.

    Where commas and semicolons both occur in the names, commas separate.
    """
    if path.suffix.lower() == ".tsv":
        return "\t"
    names = _QUOTED.sub("", first_line(path))
    return "," if "," in names else next((mark for mark in (";", "\t") if mark in names), ",")


def separator_hint(path: Path) -> str:
    """Return what to add to a message about a table that may have been taken apart at the wrong marks."""
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
    dpsinkhorn.errors.DataError: a.csv has no line of column names: ...
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
            f"{path} has no line of column names: its first line seems to be a record. This is for images "
            "only, not for measurements; for images, add a line: label,pixel0,pixel1,... or path,label"
        )


def not_utf8(path: Path) -> DataError:
    """Return what to say of a table whose letters would be garbled."""
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


def is_text(path: Path) -> bool:
    """Tell a text file from parquet, by its name."""
    return path.suffix.lower() != ".parquet"


def column_names(path: Path) -> list[str]:
    """Return the names of the columns, in their order."""
    try:
        if not is_text(path):
            return list(pyarrow.parquet.read_schema(path).names)
        names = next(csv.reader([first_line(path)], delimiter=separator(path), strict=True), [])
    except csv.Error as error:
        raise DataError(f"cannot read {path}: close the quotes in its line of names, on that line") from error
    except (OSError, pa.ArrowException) as error:
        raise _unreadable(path, error) from error
    if not names:
        raise DataError(f"cannot read {path}: it is empty")
    return names


def read_columns(path: Path, names: Sequence[str]) -> pa.Table:
    """Read the columns of these names; others, however large, stay unread.

    Those of a text file hold strings, whatever is in them.
    """
    try:
        if not is_text(path):
            return pyarrow.parquet.read_table(path, columns=list(names))
        table = pyarrow.csv.read_csv(
            path,
            parse_options=pyarrow.csv.ParseOptions(delimiter=separator(path)),
            convert_options=pyarrow.csv.ConvertOptions(
                include_columns=list(names), column_types={name: pa.string() for name in names}
            ),
        )
        _check_lines(path, table.num_rows)
        return table
    except (OSError, ValueError, MemoryError, pa.ArrowException) as error:
        if isinstance(error, DataError):
            raise
        raise _unreadable(path, error) from error


def decimals(column: pa.ChunkedArray, what: str, path: Path) -> npt.NDArray[np.float64]:
    """Return the numbers of a column. Where no comma separates columns, it may stand for a decimal point.

    The messages show no value: what they are about may be private to others than the curator.
    """
    if pa.types.is_string(column.type):
        return np.asarray(_converted(column, pa.float64(), what, path), dtype=np.float64)
    _check_numbers(column, what, path)
    return np.asarray(column.to_numpy(), dtype=np.float64)


def whole_pixels(column: pa.ChunkedArray, what: str, path: Path) -> npt.NDArray[Any]:
    """Return pixels whose range was not stated: whole numbers from 0 to 255, or the numbers of a typed file.

    A file of a typed format says the range of its numbers by their type, which holds for all of them; a text
    file says nothing of the kind.
    """
    if pa.types.is_string(column.type):
        return np.asarray(_converted(column, pa.uint8(), what, path))
    _check_numbers(column, what, path)
    array = np.asarray(column.to_numpy())
    if array.dtype.kind == "f" or array.dtype in (np.uint8, np.uint16):
        return array
    bad = (array < 0) | (array > 255)
    if bad.any():
        raise _not_a_pixel(what, path, array[bad][0])
    return array.astype(np.uint8)


def _converted(column: pa.ChunkedArray, kind: pa.DataType, what: str, path: Path) -> npt.NDArray[Any]:
    """Turn text into numbers, each value by itself."""
    texts = pyarrow.compute.utf8_trim_whitespace(column)
    if is_text(path) and separator(path) != ",":
        texts = pyarrow.compute.replace_substring(texts, ",", ".")
    try:
        return np.asarray(pyarrow.compute.cast(texts, kind).to_numpy())
    except pa.ArrowInvalid as error:
        bad = next(text for text in texts.to_pylist() if not _converts(text, kind))
        if bad in _MISSING:
            raise _missing(what, path) from error
        if pa.types.is_floating(kind):
            raise _no_numbers(what, path) from error
        raise _not_a_pixel(what, path, bad) from error


def _converts(text: str, kind: pa.DataType) -> bool:
    try:
        pyarrow.compute.cast(pa.scalar(text), kind)
    except pa.ArrowInvalid:
        return False
    return True


def _check_numbers(column: pa.ChunkedArray, what: str, path: Path) -> None:
    if column.null_count:
        raise _missing(what, path)
    if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
        raise _no_numbers(what, path)


def _check_lines(path: Path, rows: int) -> None:
    """Refuse a text file of which not every line is a record.

    A quote that one record leaves open would swallow the records after it.
    """
    with path.open(encoding="latin-1") as stream:  # any bytes will do, lines end in \n, \r\n or \r
        lines = sum(line != "\n" for line in stream)
    if lines != rows + 1:
        raise DataError(
            f"{path} has {lines - 1} lines but {rows} records: a quoted value ends on the line where it "
            "begins; close the quotes, and keep line breaks out of values"
        )


def _unreadable(path: Path, error: Exception) -> DataError:
    if "invalid UTF8" in str(error):
        return not_utf8(path)
    reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    hint = separator_hint(path) if isinstance(error, pa.ArrowInvalid) and is_text(path) else ""
    return DataError(f"cannot read {path}: {reason}{hint}")


def _missing(what: str, path: Path) -> DataError:
    return DataError(f"{what} of {path} has missing values; fill them in or leave those rows out")


def _no_numbers(what: str, path: Path) -> DataError:
    return DataError(f"{what} of {path} holds values that are no numbers")


def _not_a_pixel(what: str, path: Path, value: object) -> DataError:
    return DataError(
        f"{what} of {path} holds {value}, which is no whole number from 0 to 255; where the public range of "
        "the values is another, state value_range (--value-range 0,1 and the like)"
    )
