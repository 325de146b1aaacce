"""Points from files: .npy, .npz, CSV and parquet become an array (points, dimensions)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from numpy.lib.npyio import NpzFile

from dpsinkhorn.data import DataError
from dpsinkhorn.data.arrays import UNREADABLE
from dpsinkhorn.data.columns import TABLES, column_names, decimals, read_columns
from dpsinkhorn.data.tables import is_row_number
from dpsinkhorn.errors import TransportError

_USUAL = ("points", "x", "X", "images")  # names of arrays in .npz files, where there are several


def read_points(path: str | os.PathLike[str], columns: Sequence[str] = ()) -> npt.NDArray[np.float64]:
    """Read points: every row, or entry along the first dimension, is one; pickled objects are refused.

    `columns` are columns of a table, or the one array of an .npz file; by default all, or the usual one.
    """
    found = _read(Path(path), columns)
    if columns and not found.named:
        raise TransportError(f"{path} has no names of columns; leave out columns (--columns)")
    return found.points


def read_together(
    paths: Sequence[str | os.PathLike[str]], columns: Sequence[str] = ()
) -> list[npt.NDArray[np.float64]]:
    """Read points of several files, the same coordinate in the same column of each.

    Tables are matched by the names of their columns, in the order of the first one; tables whose names
    differ are refused. Files without names, such as .npy, are taken as they are.
    """
    found = [_read(Path(path), columns) for path in paths]
    if columns and not any(each.named for each in found):
        raise TransportError("the files have no names of columns; leave out columns (--columns)")
    tables = [(each, path) for each, path in zip(found, paths, strict=True) if each.columns]
    for table, path in tables[1:]:
        first, name = tables[0]
        if sorted(table.columns) != sorted(first.columns):
            ours, theirs = _some(first.columns), _some(table.columns)
            raise TransportError(
                f"the columns differ: {name} has {ours}, {path} has {theirs}; name those of both by --columns"
            )
    return [
        each.points[:, [each.columns.index(name) for name in tables[0][0].columns]]
        if each.columns
        else each.points
        for each in found
    ]


@dataclass(frozen=True, eq=False)
class _Read:
    """Points; the names of a table's columns, if it has any; whether `columns` had a meaning for the file."""

    points: npt.NDArray[np.float64]
    columns: tuple[str, ...] = ()
    named: bool = False


def _read(path: Path, columns: Sequence[str]) -> _Read:
    if twice := [name for name in columns if list(columns).count(name) > 1]:
        raise TransportError(f"the column {twice[0]} is named twice; name it once")
    if not path.is_file():
        raise TransportError(f"there is no file {path}; give .npy, .npz, .csv, .tsv or .parquet")
    suffix = path.suffix.lower()
    if suffix in TABLES:
        return _table(path, columns)
    if suffix not in (".npy", ".npz"):
        raise TransportError(f"cannot read {path}: give .npy, .npz, .csv, .tsv or .parquet")
    try:
        with path.open("rb") as stream:
            loaded = np.load(stream, allow_pickle=False)
            named = isinstance(loaded, NpzFile)  # whatever the file's own ending says
            array = loaded[_name(list(loaded.files), columns, path)] if named else loaded
    except TransportError:
        raise
    except (*UNREADABLE, KeyError) as error:
        raise TransportError(f"cannot read {path}: it holds no plain NumPy array of numbers") from error
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "iuf" or array.ndim == 0:
        raise TransportError(f"{path} must hold an array of numbers, one row a point")
    return _Read(np.asarray(array, dtype=np.float64).reshape(len(array), -1), named=named)


def _some(names: Sequence[str]) -> str:
    """Return names for a message, but none where one is a number: it may be a row that was taken for them."""
    if any(_is_number(name) for name in names) and not _counted(names):
        return f"{len(names)} columns"
    return ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")


def _counted(names: Sequence[str]) -> bool:
    """Return whether the names are 0, 1, 2, ...: as data frames without names are written."""
    return list(names) == [str(k) for k in range(len(names))]


def _check_header(names: list[str], path: Path) -> None:
    """Refuse a table whose first point was taken for its names, and do not show it: it is private."""
    if _counted(names):
        return
    if all(_is_number(name) for name in names):
        raise TransportError(
            f"{path} has no line of column names: its first line holds numbers; add a line above it"
        )


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _name(names: list[str], asked: Sequence[str], path: Path) -> str:
    wanted = asked or [name for name in _USUAL if name in names][:1] or (names if len(names) == 1 else [])
    if len(wanted) != 1 or wanted[0] not in names:
        raise TransportError(f"{path} holds the arrays {', '.join(sorted(names))}; name one by --columns")
    return wanted[0]


def _table(path: Path, columns: Sequence[str]) -> _Read:
    try:
        found = column_names(path)
        _check_header(found, path)
        names = list(columns) or found
        _check_columns(names, found, path, stated=bool(columns))
        table = read_columns(path, names)
    except DataError as error:
        raise TransportError(f"cannot read {path} as a table; is it {path.suffix[1:]}?") from error
    if not table.num_rows:
        raise TransportError(f"{path} has no rows")
    try:
        arrays = [decimals(table[name], f"the column {name}", path) for name in names]
    except DataError as error:
        raise TransportError(f"{error}; name the columns to use by --columns") from error
    return _Read(np.stack(arrays, axis=1), () if _counted(found) else tuple(names), named=True)


def _check_columns(names: list[str], found: list[str], path: Path, *, stated: bool) -> None:
    if missing := [name for name in names if found.count(name) != 1]:
        which = "several columns" if missing[0] in found else "no column"
        raise TransportError(f"{path} has {which} named {missing[0]}; it has {_some(found)}")
    if "" in names:  # the row numbers of a data frame, most likely: they are no coordinate
        raise TransportError(f"{path} has a column without a name; name those to use by --columns")
    if not stated and (numbers := [name for name in names if is_row_number(name)]):
        raise TransportError(
            f"the column {numbers[0]} of {path} seems to hold numbers of rows; name those to use by --columns"
        )
