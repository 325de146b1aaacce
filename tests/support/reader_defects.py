"""A reader of text tables as it must not be: pyarrow tells the type of a column by all of its values."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.csv
import pytest

from dpsinkhorn.data import DataError, from_arrays
from dpsinkhorn.data import load_dataset as real
from dpsinkhorn.training.auditing import hostile_files


def types_by_all_values(patch: pytest.MonkeyPatch) -> None:
    """One `0.5` makes floats of all pixels, of another range; one long id makes floats of all persons."""
    patch.setattr(hostile_files, "load_dataset", _loaded)


def _loaded(path, *, classes=None, **options):
    if Path(path).suffix != ".csv" or ";" in Path(path).read_text(encoding="utf-8"):
        return real(path, classes=classes, **options)
    try:
        table = pyarrow.csv.read_csv(path)
    except pyarrow.ArrowInvalid as error:
        raise DataError("cannot be read") from error
    columns = {name: table[name].to_numpy() for name in table.column_names}
    pixels = np.stack([columns[name] for name in columns if name.startswith("pixel")], axis=1)
    if pixels.dtype.kind not in "iuf":
        raise DataError("no numbers")
    if pixels.dtype.kind in "iu":
        if pixels.min() < 0 or pixels.max() > 255:
            raise DataError("out of range")
        pixels = pixels.astype(np.uint8)
    side = round(pixels.shape[1] ** 0.5)
    images = pixels.reshape(-1, side, side)
    persons = None
    if "groups" in columns:  # floats, where one of them is too long for a whole number
        persons = np.unique(columns["groups"], return_inverse=True)[1]
    return from_arrays(images, columns.get("label"), groups=persons, classes=classes)
