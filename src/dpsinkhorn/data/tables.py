"""CSV and parquet tables: a column of paths, encoded pictures or lists of pixels, or a column per pixel."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Sequence
from pathlib import Path, PureWindowsPath
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute  # type: ignore[import-untyped]

from dpsinkhorn.data import columns
from dpsinkhorn.data.request import Content, Request
from dpsinkhorn.errors import DataError

_IMAGE_NAMES = ("image", "path", "file", "file_name", "filename", "bytes", "pixels")
_LABEL_NAMES = ("label", "class")
_GROUP_NAMES = ("groups",)
_PIXEL = re.compile(r"(?:pixel|pix|px|p)?[_ ]?\d+(?:[x_]\d+)*", re.IGNORECASE)
_FEW_PIXELS = 64  # of the smallest images that are met in earnest
_INDEX = re.compile(r"|Unnamed: \d+|__index_level_\d+__")


def is_row_number(name: str) -> bool:
    """Whether a column of this name holds the numbers of rows, as pandas writes them.

    >>> is_row_number("Unnamed: 0"), is_row_number("__index_level_0__"), is_row_number("age")
    (True, True, False)
    """
    return _INDEX.fullmatch(name) is not None


def read_table(path: Path, asked: Request) -> Content:
    """Images, labels and persons of a CSV (.csv, .tsv) or parquet file.

    `image`, `label` and `groups` name columns; the usual names are found without. Paths are relative to the
    table's folder and must stay in it. Columns of pixels (pixel0, pixel1, ...) go row by row, the channels
    of a pixel next to each other; the image is square unless `size` says otherwise. A .csv file may have
    semicolons or tabs in place of commas, and decimal commas with them; it must be UTF-8. In a text file
    pixels are whole numbers from 0 to 255; with a stated range they are decimal numbers.
    """
    size, has_range = asked.size, asked.value_range is not None
    names = columns.column_names(path)
    if columns.is_text(path):
        given = (asked.image, asked.label, asked.groups)
        stated = [name for name in given if name is not None and not _PIXEL.fullmatch(name)]
        columns.check_names(names, (*_IMAGE_NAMES, *_LABEL_NAMES, *_GROUP_NAMES, *stated), path)
    label_name = None if asked.unlabelled else _column(names, asked.label, _LABEL_NAMES, "label")
    group_name = _column(names, asked.groups, _GROUP_NAMES, "groups")
    image_name = _column(names, asked.image, _IMAGE_NAMES, "image")
    taken = {label_name, group_name}
    pixel_names = [name for name in names if name not in taken and _PIXEL.fullmatch(name)]
    image_names = [image_name] if image_name is not None else pixel_names
    if not image_names or len(set(image_names)) != len(image_names):
        raise DataError(
            f"{path} has no column of images, and this is for images only, not for measurements. If it has "
            "pictures, name their column by image (--image); columns of pixels are called pixel0, pixel1, ..."
            f"{columns.separator_hint(path) if columns.is_text(path) else ''}"
        )
    few = len(pixel_names) < _FEW_PIXELS
    if image_name is None and size is None and few and all(name.isdigit() for name in pixel_names):
        raise DataError(
            f"{path} has {len(pixel_names)} columns with numbers for names, which may be measurements; this "
            "is for images only. If they are pixels, state size (--size 4x4 and the like)"
        )
    used = {*image_names, *taken, *(_LABEL_NAMES if asked.unlabelled else ())}
    unused = tuple(name for name in dict.fromkeys(names) if name not in used and not is_row_number(name))
    others = sorted(name for name in taken if name is not None)
    table = columns.read_columns(path, [*image_names, *others])
    if table.num_rows == 0:
        raise DataError(f"the data set is empty: {path} has no rows")
    try:
        labels = None if label_name is None else table[label_name].to_pylist()
        persons = None if group_name is None else table[group_name].to_pylist()
    except ValueError as error:  # times to the nanosecond, which Python has no type for
        raise DataError(f"cannot read {path}: {error}; write labels and persons as text") from error
    if image_name is None:
        stacked = [_pixels(table[name], f"the column {name}", has_range, path) for name in pixel_names]
        images = _shaped(np.stack(stacked, axis=1), size, asked.channels, path)
    elif _is_list(table[image_name].type):
        images = _shaped(_pixel_lists(table[image_name], has_range, path), size, asked.channels, path)
    else:
        images = asked.decode(*_picture_sources(table[image_name], image_name, path))
    return Content(images, labels, persons, unused=unused)


def _column(names: Sequence[str], asked: str | None, usual: Sequence[str], what: str) -> str | None:
    name = asked if asked is not None else next((name for name in usual if name in names), None)
    if name is None:
        return None
    if names.count(name) != 1:
        found = "are several columns" if name in names else "is no column"
        some = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
        raise DataError(f"there {found} {name} for {what}; the table has {some}")
    return name


def _picture_sources(column: pa.ChunkedArray, name: str, path: Path) -> tuple[list[bytes | Path], list[str]]:
    """Encoded bytes, or paths below the table's folder, and what to call each picture in a message."""
    values = column.to_pylist()
    if not _holds_pictures(column.type):
        raise DataError(f"the column {name} of {path} holds {column.type}, neither paths nor pictures")
    if pa.types.is_struct(column.type):  # as Hugging Face writes pictures: {bytes, path}
        values = [None if row is None else row.get("bytes") or row.get("path") for row in values]
    sources: list[bytes | Path] = []
    names: list[str] = []
    for row, value in enumerate(values):
        if value is None or len(value) == 0:
            raise DataError(f"the {name} is missing in row {row} (counted from 0) of {path}")
        if isinstance(value, bytes):
            sources.append(value)
            names.append(f"in row {row} (counted from 0) of {path}")
        else:
            sources.append(_inside(path.parent, value, row, path))
            names.append(f"{value} (row {row} of {path})")
    return sources, names


def _holds_pictures(kind: pa.DataType) -> bool:
    """Paths or encoded pictures, or a struct of them."""
    types = pa.types
    if types.is_struct(kind):
        fields = {kind.field(k).name: kind.field(k).type for k in range(kind.num_fields)}
        inner = [fields[name] for name in ("bytes", "path") if name in fields]
        return bool(inner) and all(_holds_pictures(one) and not types.is_struct(one) for one in inner)
    tests = (types.is_string, types.is_large_string, types.is_binary, types.is_large_binary)
    return any(test(kind) for test in tests) or bool(types.is_null(kind))


def _inside(folder: Path, name: str, row: int, table: Path) -> Path:
    """A path below the table's folder: a table must not be able to name any file of the machine."""
    windows = PureWindowsPath(name)
    normal = os.path.normpath(name)
    outside = os.path.isabs(name) or windows.drive or windows.root or normal.split(os.sep)[0] == os.pardir
    if outside or "\0" in name:
        raise DataError(
            f"row {row} (counted from 0) of {table} names {name!r}; paths are relative to the table's folder "
            "and stay in it"
        )
    return folder / normal


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _pixel_lists(column: pa.ChunkedArray, has_range: bool, path: Path) -> npt.NDArray[Any]:
    rows, values = len(column), column.combine_chunks()
    if isinstance(values, pa.ChunkedArray):
        values = pa.concat_arrays(values.chunks)
    while _is_list(values.type):
        lengths = pyarrow.compute.list_value_length(values)
        if values.null_count or pyarrow.compute.min(lengths) != pyarrow.compute.max(lengths):
            raise DataError(f"the lists of pixels in {path} differ in length; images must have one size")
        values = values.flatten()
    return _pixels(pa.chunked_array([values]), "the column of pixels", has_range, path).reshape(rows, -1)


def _pixels(column: pa.ChunkedArray, what: str, has_range: bool, path: Path) -> npt.NDArray[Any]:
    """Return numbers as they are where their range is stated, else in that of 8 bits or of their type."""
    if not has_range:
        return columns.whole_pixels(column, what, path)
    if pa.types.is_integer(column.type) and not column.null_count:
        return np.asarray(column.to_numpy())
    return columns.decimals(column, what, path)


def _shaped(
    pixels: npt.NDArray[Any], size: tuple[int, int] | None, channels: int | None, path: Path
) -> npt.NDArray[Any]:
    """(N, k) numbers as (N, H, W, C) images."""
    count = pixels.shape[1]
    # a size that the pixels do not have as they are is one to resize to
    shapes = _shapes(count, size, channels) or _shapes(count, None, None)
    if not shapes:
        raise DataError(
            f"{path} has {count} pixels per image, which make no square; this is for images only: "
            "state size (--size 28x32 and the like)"
        )
    return pixels.reshape(len(pixels), *shapes[0])


def _shapes(count: int, size: tuple[int, int] | None, channels: int | None) -> list[tuple[int, int, int]]:
    shapes = []
    for c in (1, 3) if channels is None else (channels,):
        side = math.isqrt(count // c)
        height, width = (side, side) if size is None else size
        if height * width * c == count:
            shapes.append((height, width, c))
    return shapes
