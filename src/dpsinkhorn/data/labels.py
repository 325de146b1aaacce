"""Labels and persons: any values become whole numbers from 0, or one clear line says why not."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dpsinkhorn.data.errors import DataError

__all__ = ["encode_groups", "encode_labels", "sorted_names"]

# Without a stated number of classes a larger label is more likely an identifier than a class, and one
# stray value would make the generator's label table as long as itself.
_LARGEST_UNSTATED_LABEL = 9_999


def encode_labels(
    values: npt.ArrayLike | Sequence[Any], classes: int | Sequence[str] | None = None
) -> tuple[npt.NDArray[np.int64], int, tuple[str, ...]]:
    """Labels as 0..K-1, the number of classes K, and their names (none where labels are numbers).

    Whole numbers, also written as text, stand for themselves. Any other text becomes its place in the sorted
    list of names. `classes` states K, or the names in their order; it is then not read off the data.

    >>> encode_labels(["dog", "cat", "dog"])
    (array([1, 0, 1]), 2, ('cat', 'dog'))
    >>> encode_labels([0, 2, 1], classes=10)
    (array([0, 2, 1]), 10, ())
    """
    array = _one_column(values, "labels")
    _refuse_missing(array, "label")
    stated = _stated(classes)
    if isinstance(stated, tuple):
        return _by_name([_text(value) for value in array.tolist()], stated), len(stated), stated
    numbers = _whole_numbers(array)
    if numbers is not None:
        return numbers, _count_classes(numbers, stated), ()
    texts = [_text(value) for value in array.tolist()]
    names = sorted_names(set(texts))
    if stated is not None and len(names) > stated:
        raise DataError(f"there are {len(names)} different labels, more than the {stated} classes stated")
    return _by_name(texts, names), len(names) if stated is None else stated, names


def encode_groups(values: npt.ArrayLike | Sequence[Hashable]) -> npt.NDArray[np.int64]:
    """The person behind each record as 0..P-1. Any hashable values will do; equal ones are one person.

    >>> encode_groups(["ann", "bob", "ann"])
    array([0, 1, 0])
    """
    array = _one_column(values, "groups")
    _refuse_missing(array, "person in groups")
    if array.dtype != object:
        return np.unique(array, return_inverse=True)[1].astype(np.int64).reshape(-1)
    places: dict[Hashable, int] = {}
    try:
        return np.array([places.setdefault(value, len(places)) for value in array.tolist()], dtype=np.int64)
    except TypeError:
        raise DataError(
            "groups must hold one name or number per record; lists and the like will not do"
        ) from None


def sorted_names(names: set[str] | Sequence[str]) -> tuple[str, ...]:
    """Names in order; those that are all whole numbers go by their value, so that 10 comes after 9."""
    if all(_is_number(name) for name in names):
        return tuple(sorted(names, key=int))
    return tuple(sorted(names))


def _stated(classes: int | Sequence[str] | None) -> int | tuple[str, ...] | None:
    """The number of classes, or their names, as the caller states them."""
    if classes is None:
        return None
    if isinstance(classes, (int, np.integer)) and not isinstance(classes, bool):
        if classes < 1:
            raise DataError(f"classes must be 1 or more, not {classes}")
        return int(classes)
    if isinstance(classes, (str, bytes)) or not isinstance(classes, Sequence):
        raise DataError(f"classes must be a whole number or a list of names, not {classes!r}")
    names = tuple(str(name) for name in classes)
    if not names or len(set(names)) != len(names):
        raise DataError("classes must name each class once, and at least one")
    return names


def _one_column(values: Any, what: str) -> npt.NDArray[Any]:
    array = values if isinstance(values, np.ndarray) else _array(values)
    if array.ndim == 2 and array.shape[1] == 1:  # a column vector, as some files hold their labels
        array = array[:, 0]
    if array.ndim != 1:
        raise DataError(f"{what} must be one value per record, not an array of shape {array.shape}")
    return array


def _array(values: Any) -> npt.NDArray[Any]:
    """NumPy's array of the values, unless it would make texts of numbers or rows of tuples."""
    if hasattr(values, "__array__"):
        return np.asarray(values)
    items = list(values)
    kinds = {type(item) for item in items}
    if len(kinds) <= 1 and kinds <= {int, float, bool, str}:
        try:
            return np.asarray(items)
        except OverflowError:
            pass
    array = np.empty(len(items), dtype=object)
    array[:] = items
    return array


def _refuse_missing(array: npt.NDArray[Any], what: str) -> None:
    if array.dtype.kind == "f":
        missing = np.isnan(array)
    elif array.dtype.kind == "O":
        missing = np.array([_is_missing(value) for value in array.tolist()], dtype=bool)
    elif array.dtype.kind in "US":
        missing = np.char.str_len(np.char.strip(array)) == 0
    elif array.dtype.kind in "mM":
        missing = np.isnat(array)
    else:
        return
    if missing.any():
        raise DataError(
            f"the {what} is missing in row {int(np.argmax(missing))} (counted from 0) and in {missing.sum()} "
            "rows altogether; fill them in or leave those rows out"
        )


def _is_missing(value: Any) -> bool:
    if value is None or type(value).__name__ in ("NAType", "NaTType"):  # the latter two are pandas'
        return True
    return (isinstance(value, float) and value != value) or _text(value).strip() == ""


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode("utf-8", errors="replace")
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)


def _is_number(text: str) -> bool:
    body = text.strip().removeprefix("-")
    return body.isascii() and body.isdigit() and len(body) < 19


def _whole_numbers(array: npt.NDArray[Any]) -> npt.NDArray[np.int64] | None:
    """The labels as numbers; None where they are names."""
    if array.dtype.kind in "biu":
        if array.dtype.kind == "u" and array.size and array.max() > np.iinfo(np.int64).max:
            raise DataError(f"the label {array.max()} is too large")
        return array.astype(np.int64)
    if array.dtype.kind == "f":
        return _whole_floats(array)
    if array.dtype.kind in "OUS":
        items = array.tolist()
        if all(isinstance(item, (int, float, np.integer, np.floating)) for item in items):
            return _whole_floats(np.array(items, dtype=np.float64))
        texts = [_text(item) for item in items]
        if all(_is_number(text) for text in texts):
            return np.array([int(text) for text in texts], dtype=np.int64)
        return None
    raise DataError(f"labels of type {array.dtype} are neither whole numbers nor names")


def _whole_floats(array: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    whole = np.isfinite(array) & (array == np.round(array)) & (np.abs(array) < 2**53)
    if not whole.all():
        row = int(np.argmin(whole))
        raise DataError(f"labels must be whole numbers; row {row} (counted from 0) has {array[row]}")
    return array.astype(np.int64)


def _count_classes(numbers: npt.NDArray[np.int64], stated: int | None) -> int:
    if not numbers.size:
        return stated or 0
    smallest, largest = int(numbers.min()), int(numbers.max())
    if smallest < 0:
        row = int(np.argmin(numbers))
        raise DataError(
            f"labels must not be negative; row {row} (counted from 0) has {smallest}; number classes from 0"
        )
    if stated is None:
        if largest > _LARGEST_UNSTATED_LABEL:
            raise DataError(
                f"labels go up to {largest}, which looks like identifiers; "
                "state classes (--classes) where it is meant"
            )
        return largest + 1
    if largest >= stated:
        row = int(np.argmax(numbers))
        raise DataError(
            f"row {row} (counted from 0) has label {largest}, but with the {stated} classes stated labels go "
            f"from 0 to {stated - 1}"
        )
    return stated


def _by_name(texts: Sequence[str], names: Sequence[str]) -> npt.NDArray[np.int64]:
    places = {name: place for place, name in enumerate(names)}
    try:
        return np.array([places[text] for text in texts], dtype=np.int64)
    except KeyError as error:
        raise DataError(f"the label {error.args[0]!r} is not among the {len(names)} classes stated") from None
