"""Columns of a table by name: text files (.csv, .tsv) are read as text, parquet in the types of its schema.

No type is guessed from the values that a column happens to hold: one record would then change how all others
are read, and what is promised of a record rests on the opposite. Text becomes a number where the caller says
so, value by value. Every line of a text file is one record.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute  # type: ignore[import-untyped]
import pyarrow.csv  # type: ignore[import-untyped]
import pyarrow.parquet  # type: ignore[import-untyped]

from dpsinkhorn.data.errors import DataError
from dpsinkhorn.data.headers import first_line, not_utf8, separator, separator_hint

__all__ = ["TABLES", "column_names", "decimals", "is_text", "read_columns", "whole_pixels"]

TABLES = (".csv", ".tsv", ".parquet")
_MISSING = ("", "NA", "N/A", "NaN", "nan", "null", "NULL", "None")  # as programs write it


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
