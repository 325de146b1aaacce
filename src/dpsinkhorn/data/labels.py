"""Labels and persons: any values become whole numbers from 0, or one clear line says why not."""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dpsinkhorn.errors import DataError

# Without a stated number of classes a larger label is more likely an identifier than a class, and one
# stray value would make the generator's label table as long as itself.
_LARGEST_UNSTATED_LABEL = 9_999
_NUMBER = re.compile(r"-?[0-9]{1,18}(\.0*)?")  # a whole number; ASCII digits only
_FRACTION = re.compile(r"-?[0-9]*[.,][0-9]+")


def encode_labels(
    values: npt.ArrayLike | Sequence[Any], classes: int | Sequence[str] | None = None
) -> tuple[npt.NDArray[np.int64], int, tuple[str, ...]]:
    """Return labels as 0..K-1, the number of classes K, and their names (none where labels are numbers).

    A label has a name, which depends on nothing but itself: text without spaces around it, and whole numbers,
    also written as text or as 1.0, in their shortest form. Its place among the classes is the number, where
    the names of all classes are numbers, else that of its name in sorted order. `classes` states K, for
    labels that are numbers, or the names in their order; it is then not read off the data.

    >>> encode_labels(["dog", "cat", "dog"])
    (array([1, 0, 1]), 2, ('cat', 'dog'))
    >>> encode_labels([0, 2, 1], classes=10)
    (array([0, 2, 1]), 10, ())
    """
    array = _one_column(values, "labels")
    _refuse_missing(array, "label")
    stated = _stated(classes)
    if isinstance(stated, tuple):
        return _by_name(_label_names(array), stated), len(stated), stated
    numbers = _whole_numbers(array)
    if numbers is not None:
        return numbers, _count_classes(numbers, stated), ()
    names = _label_names(array)
    if stated is not None:
        row = next(row for row, name in enumerate(names) if not _is_number(name))
        raise DataError(
            f"row {row} (counted from 0) has the label {names[row]!r}, but with the {stated} classes stated "
            f"labels are numbers from 0 to {stated - 1}; state the names of the classes (--classes ill,well)"
        )
    known = sorted_names(set(names))
    return _by_name(names, known), len(known), known


def number_classes(
    values: npt.ArrayLike | Sequence[Any], classes: int | Sequence[str] | None = None
) -> tuple[npt.NDArray[np.int64], npt.NDArray[Any]]:
    """Return labels as 0..K-1, and the K classes as they were written, so that labels can be turned back.

    Classes are as for `encode_labels`, but that numbers need not be counted from 0 where none are stated.

    >>> number_classes([7, -1, 7])
    (array([1, 0, 1]), array([-1,  7]))
    >>> number_classes(["dog", "cat"], classes=["cat", "dog", "owl"])
    (array([1, 0]), array(['cat', 'dog', 'owl'], dtype='<U3'))
    """
    array = _one_column(values, "labels")
    _refuse_missing(array, "label")
    numbers = _whole_numbers(array) if classes is None and len(array) else None
    if numbers is None:
        numbers, count, names = encode_labels(array, classes)
        found = np.array(names) if names else np.arange(count)
        if len(array) and isinstance(array[0], str):
            found = found.astype(str)
        elif array.dtype.kind in "biuf" and all(map(_is_number, names)):
            found = found.astype(np.int64).astype(array.dtype)
        return numbers, found
    _, first, places = np.unique(numbers, return_index=True, return_inverse=True)
    encode_labels(places)  # refuses more classes than there can be
    return places, np.array(array[first].tolist(), dtype=None if array.dtype == object else array.dtype)


def encode_groups(values: npt.ArrayLike | Sequence[Hashable]) -> npt.NDArray[np.int64]:
    """Return the person behind each record as 0..P-1, in the order in which they first occur.

    Persons are named by text, without spaces around it, by whole numbers or by any hashable values; equal
    ones are one person. Decimal numbers are refused: a long identifier has lost digits by then.

    >>> encode_groups(["ann", "bob", "ann"])
    array([0, 1, 0])
    """
    array = _one_column(values, "groups")
    _refuse_missing(array, "person in groups")
    if array.dtype.kind in "fc" or (
        array.dtype == object and any(isinstance(value, (float, np.floating)) for value in array.tolist())
    ):
        raise DataError(
            "groups hold decimal numbers, in which different identifiers of many digits are the same number; "
            "give persons as whole numbers or as text"
        )
    if array.dtype.kind in "biu":
        _, first, places = np.unique(array, return_index=True, return_inverse=True)
        rank = np.empty(len(first), dtype=np.int64)
        rank[np.argsort(first)] = np.arange(len(first))
        return rank[places.reshape(-1)]
    known: dict[Hashable, int] = {}
    keys = (value.strip() if isinstance(value, str) else value for value in array.tolist())
    try:
        return np.array([known.setdefault(key, len(known)) for key in keys], dtype=np.int64)
    except TypeError:
        raise DataError(
            "groups must hold one name or number per record; lists and the like will not do"
        ) from None


def sorted_names(names: set[str] | Sequence[str]) -> tuple[str, ...]:
    """Return names in order; those that are all whole numbers go by their value, so that 10 comes after 9."""
    if all(_is_number(name) for name in names):
        return tuple(sorted(names, key=lambda name: int(_label_name(name))))
    return tuple(sorted(names))


def _stated(classes: int | Sequence[str] | None) -> int | tuple[str, ...] | None:
    """Return the number of classes, or their names, as the caller states them."""
    if classes is None:
        return None
    if isinstance(classes, (int, np.integer)) and not isinstance(classes, bool):
        if classes < 1:
            raise DataError(f"classes must be 1 or more, not {classes}")
        return int(classes)
    if isinstance(classes, (str, bytes)) or not isinstance(classes, Sequence):
        raise DataError(f"classes must be a whole number or a list of names, not {classes!r}")
    names = tuple(str(name) for name in classes)
    if not names or len({_label_name(name) for name in names}) != len(names):
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
    if len(kinds) == 1 and kinds <= {int, float, bool}:
        array = np.asarray(items)
        if kinds != {int} or array.dtype.kind in "iu":  # NumPy turns whole numbers into floats where both
            return array  # very large and negative ones occur
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
    return (isinstance(value, float) and value != value) or _label_name(value) == ""


def _label_names(array: npt.NDArray[Any]) -> list[str]:
    return [_label_name(value) for value in array.tolist()]


def _label_name(value: Any) -> str:
    """Return the name of the class that a label means; it depends on this label alone."""
    text = value.decode("utf-8", errors="replace") if isinstance(value, bytes) else str(value)
    text = text.strip()
    if not _NUMBER.fullmatch(text):
        return text
    return str(int(text.partition(".")[0]))


def _is_number(name: str) -> bool:
    return _NUMBER.fullmatch(name.strip()) is not None


def _whole_numbers(array: npt.NDArray[Any]) -> npt.NDArray[np.int64] | None:
    """Return the labels as numbers; None where they are names."""
    if array.dtype.kind in "biu":
        if array.dtype.kind == "u" and array.size and array.max() > np.iinfo(np.int64).max:
            raise DataError(f"the label {array.max()} is too large")
        return array.astype(np.int64)
    if array.dtype.kind == "f":
        return _whole_floats(array)
    if array.dtype.kind in "OUS":
        items = array.tolist()
        kinds, numeric = set(map(type, items)), (int, float, np.integer, np.floating)
        # a bool among numbers has the name True or False, as it has beside text
        if all(issubclass(kind, numeric) for kind in kinds) and (bool not in kinds or len(kinds) == 1):
            return _whole_floats(np.array(items, dtype=np.float64))
        names = _label_names(array)
        for row, name in enumerate(names):
            if _FRACTION.fullmatch(name):
                raise DataError(
                    f"labels must be whole numbers or names; row {row} (counted from 0) has {name}"
                )
        return np.array([int(name) for name in names]) if all(map(_is_number, names)) else None
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


def _by_name(labels: Sequence[str], names: Sequence[str]) -> npt.NDArray[np.int64]:
    places = {_label_name(name): place for place, name in enumerate(names)}
    try:
        return np.array([places[label] for label in labels], dtype=np.int64)
    except KeyError as error:
        raise DataError(
            f"the label {error.args[0]!r} is not among the {len(names)} classes stated; names of the classes "
            "0, 1, ... are stated by class_names (--class-names)"
        ) from None
