"""A checked set of images. Every reader ends in `from_arrays`, so what a `Dataset` holds can be relied on."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from dpsinkhorn.data.labels import encode_groups, encode_labels
from dpsinkhorn.data.pictures import DICOM_HINT
from dpsinkhorn.errors import DataError

Indices: TypeAlias = npt.NDArray[np.integer[Any]] | torch.Tensor | Sequence[int]

# The range of a type is public: it says nothing about the values that a file happens to hold.
_TYPE_RANGE = {np.dtype(np.uint8): (0.0, 255.0), np.dtype(np.uint16): (0.0, 65535.0)}
_FLOAT_RANGE = (0.0, 1.0)
_CHUNK_VALUES = 1 << 20  # values converted or checked at a time, so that a memory map never fills the memory


_MOST_KINDS = 12  # of files, in a sentence
_LARGEST, _LEAST_RANGE = 1e30, 1e-30  # of values, which are computed with in float32


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """Images with their labels and persons, checked; make one with `from_arrays` or `load_dataset`.

    Its printed form shows shapes only, since the content is private.
    """

    images: npt.NDArray[Any]  # (N, H, W, C); uint8, uint16 or float32; may be a read-only memory map
    labels: npt.NDArray[np.int64] | None  # (N,), 0..classes-1
    classes: int  # public number of classes; 0 where unlabelled
    value_range: tuple[float, float]  # public range of the values; maps to [-1, 1]
    groups: npt.NDArray[np.int64] | None  # (N,), 0..persons-1: the person behind each record
    name: str
    class_names: tuple[str, ...] = ()
    classes_stated: bool = False
    """Whether the classes were stated, or are those of folders, and not read off the records' labels: then
    their names may be published, and one of them may have no records."""
    unused_columns: tuple[str, ...] = ()
    """Columns of the table, or arrays of the file, that nothing was read from: labels or persons may be in
    them. For the curator's eyes, not for a release."""
    skipped_files: tuple[tuple[str, int], ...] = ()
    """Kinds of files in a folder of pictures that are none, and how many of each were passed over. For the
    curator's eyes, not for a release."""

    @property
    def public_names(self) -> tuple[str, ...]:
        """Return the names of the classes as far as they may be published; text of private labels may not."""
        return self.class_names if self.classes_stated else ()

    @property
    def records(self) -> int:
        """Return the number of images."""
        return len(self.images)

    @property
    def units(self) -> int:
        """Return what privacy is counted in: persons where there are groups, else records."""
        return self.records if self.groups is None else int(self.groups.max(initial=-1)) + 1

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Shape of an image in a network: (channels, height, width)."""
        _, height, width, channels = self.images.shape
        return channels, height, width

    def part(self, number: int, of: int) -> tuple[Dataset, int]:
        """Return one of so many parts, about as many units in each, and the number of its first unit.

        >>> images = np.zeros((5, 2, 2), np.uint8)
        >>> part, first = from_arrays(images, groups=["a", "b", "a", "c", "c"]).part(1, 2)
        >>> part.records, part.units, first
        (3, 2, 1)
        """
        first, end = (self.units * k // of for k in (number, number + 1))
        if of == 1:
            return self, 0
        rows: Any = slice(first, end)
        persons = None
        if self.groups is not None:
            rows = np.flatnonzero((self.groups >= first) & (self.groups < end))
            persons = self.groups[rows] - first
        labels = None if self.labels is None else self.labels[rows]
        return replace(self, images=self.images[rows], labels=labels, groups=persons), first

    def layout_digest(self) -> str:
        """Return a digest of all of it. Private: it tells whether two processes read the same data.

        >>> images = np.zeros((2, 2, 2))
        >>> data = from_arrays(images, [0, 1])
        >>> data.layout_digest() == from_arrays(images + [[[0]], [[1]]], [0, 1]).layout_digest()
        False
        """
        facts = (self.images.shape, str(self.images.dtype), self.classes, self.value_range, self.class_names)
        found = hashlib.sha256(repr(facts).encode())
        for values in (self.labels, self.groups):
            found.update(b"" if values is None else np.ascontiguousarray(values).data)
        for image in self.images:
            found.update(np.ascontiguousarray(image).data)
        return found.hexdigest()

    def points(self, indices: Indices | slice = slice(None)) -> torch.Tensor:
        """The images as points, float32 (k, C*H*W) in [-1, 1], channels first; only these rows are read.

        >>> data = from_arrays(np.array([[[0, 255]], [[51, 204]]], dtype=np.uint8))
        >>> data.points([1])
        tensor([[-0.6000,  0.6000]])
        """
        rows = range(self.records)[indices] if isinstance(indices, slice) else _row_numbers(indices)
        points = torch.empty((len(rows), math.prod(self.image_shape)), dtype=torch.float32)
        for part in _chunks(*points.shape):
            some = rows[part]
            images = self.images[slice(some.start, some.stop, some.step) if isinstance(some, range) else some]
            values = np.moveaxis(np.asarray(images), 3, 1).reshape(len(images), -1).astype(np.float64)
            points[part] = self.scale_(torch.from_numpy(values))
        return points

    def scale_(self, values: torch.Tensor) -> torch.Tensor:
        """From pixels in the public range, as float64, to numbers in [-1, 1]. They change in place."""
        low, high = self.value_range
        # 2x - (low + high) is exact for whole numbers, so the division is the only rounding. It is by a
        # tensor: by a number PyTorch divides by way of the reciprocal on a GPU, for other bits
        return values.mul_(2).sub_(low + high).div_(values.new_full((), high - low)).clamp_(-1, 1)

    def found_range(self) -> tuple[float, float]:
        """Return the least and the largest value that the images hold. Private: for the curator's eyes only.

        >>> from_arrays(np.array([[[3, 16]]], dtype=np.uint8)).found_range()
        (3.0, 16.0)
        """
        ends = [
            (self.images[part].min(), self.images[part].max())
            for part in _chunks(self.records, math.prod(self.image_shape))
        ]
        return float(min(low for low, _ in ends)), float(max(high for _, high in ends))

    def found_counts(self) -> tuple[int, ...]:
        """How many records each class has; empty where unlabelled. Private: for the curator's eyes only.

        >>> from_arrays(np.zeros((3, 4, 4)), [0, 2, 2]).found_counts()
        (1, 0, 2)
        """
        if self.labels is None:
            return ()
        return tuple(np.bincount(self.labels, minlength=self.classes).tolist())

    def found_classes(self) -> set[int]:
        """Return the labels that occur. Private: for the curator's eyes only."""
        return set() if self.labels is None else set(np.unique(self.labels).tolist())

    def skipped_sentence(self) -> str:
        """Return what to say of files that are no pictures, to the curator.

        >>> from dataclasses import replace
        >>> replace(from_arrays(np.zeros((1, 2, 2))), skipped_files=((".txt", 2),)).skipped_sentence()
        '2 files that are no pictures were skipped in arrays: 2 .txt'
        >>> replace(from_arrays(np.zeros((1, 2, 2))), skipped_files=((".csv", 1),)).skipped_sentence()[-52:]
        'read where the table itself is given, not its folder'
        """
        kinds = dict(self.skipped_files)
        some = ", ".join(f"{count:,} {kind}" for kind, count in self.skipped_files[:_MOST_KINDS])
        more = ", ..." if len(kinds) > _MOST_KINDS else ""
        count = sum(kinds.values())
        files = f"{count:,} files that are no pictures were" if count > 1 else "1 file that is no picture was"
        hint = f". {DICOM_HINT}" if "DICOM" in kinds else ""
        if not {".csv", ".tsv", ".parquet"}.isdisjoint(kinds):
            hint += ". Labels or persons in a table are read where the table itself is given, not its folder"
        return f"{files} skipped in {self.name}: {some}{more}{hint}"

    def digest(self, key: bytes) -> str:
        """A keyed digest of all images at 8 bits, whatever their order, labels and format. Private.

        Only who has the key can compare it with other data.

        >>> images = np.arange(12, dtype=np.uint8).reshape(3, 2, 2)
        >>> same, fewer = from_arrays(images[::-1] / 255, [0, 1, 0]), from_arrays(images[:2])
        >>> from_arrays(images).digest(b"key") == same.digest(b"key") != fewer.digest(b"key")
        True
        """
        whole = f"{self.records} of {self.image_shape}: {self.content()}"
        return hashlib.blake2b(whole.encode(), key=key, digest_size=32).hexdigest()

    def content(self) -> int:
        """Return the sum of hashes of all images at 8 bits, modulo 2^256. Private."""
        low, high = self.value_range
        total = 0
        for part in _chunks(self.records, math.prod(self.image_shape)):
            images = np.asarray(self.images[part])
            if images.dtype != np.uint8 or (low, high) != (0, 255):
                images = np.rint((images.astype(np.float64) - low) * (255 / (high - low))).astype(np.uint8)
            for image in np.ascontiguousarray(images):
                total += int.from_bytes(hashlib.blake2b(image, digest_size=32).digest(), "little")
        return total % 2**256

    def __repr__(self) -> str:
        channels, height, width = self.image_shape
        persons = "" if self.groups is None else f", {self.units:,} persons"
        labels = f"{self.classes} classes" if self.classes else "unlabelled"
        return (
            f"Dataset({self.name!r}: {self.records:,} images of {height} x {width} x {channels}, "
            f"{self.images.dtype}, {labels}{persons})"
        )


def from_arrays(
    images: npt.ArrayLike,
    labels: npt.ArrayLike | Sequence[Any] | None = None,
    *,
    groups: npt.ArrayLike | Sequence[Hashable] | None = None,
    classes: int | Sequence[str] | None = None,
    value_range: tuple[float, float] | None = None,
    name: str = "arrays",
) -> Dataset:
    """Make a data set of arrays in memory (or memory-mapped), all of it checked.

    `images` is (N, H, W) or (N, H, W, C) with C of 1 or 3. The values map to [-1, 1] by `value_range`, by
    default 0..255 for uint8, 0..65535 for uint16, 0..1 for floats; other types need it stated. `labels` are
    whole numbers from 0, or names; `classes` states how many there are, or their names in order. `groups`
    names the person behind each record.

    >>> images = np.zeros((3, 8, 8), dtype=np.uint8)
    >>> from_arrays(images, [0, 1, 1], groups=["ann", "bob", "bob"])
    Dataset('arrays': 3 images of 8 x 8 x 1, uint8, 2 classes, 2 persons)
    """
    array = _four_axes(images)
    array, limits = _checked_values(array, value_range)
    if isinstance(array, np.ndarray) and array.flags.writeable:
        array = array.view()
        array.flags.writeable = False
    count, names, numbers = 0, (), None  # type: tuple[int, tuple[str, ...], npt.NDArray[np.int64] | None]
    if labels is not None:
        numbers, count, names = encode_labels(labels, classes)
        _same_length(numbers, array, "labels")
    elif classes is not None:
        raise DataError(
            "classes are stated but there are no labels; give labels (--label), or leave classes out"
        )
    persons = None
    if groups is not None:
        persons = encode_groups(groups)
        _same_length(persons, array, "groups")
    return Dataset(array, numbers, count, limits, persons, name, names, classes_stated=classes is not None)


def check_every_class(dataset: Dataset) -> None:
    """Refuse a data set where a class has no record, unless the classes were stated.

    Classes that are read off the labels count as public, and that each of them has a record. Where they were
    stated nothing is looked at, and a class without records is trained like any other.

    >>> check_every_class(from_arrays(np.zeros((2, 4, 4)), [0, 2], classes=3))
    >>> check_every_class(from_arrays(np.zeros((2, 4, 4)), [0, 2]))
    Traceback (most recent call last):
    dpsinkhorn.errors.DataError: class 1 has no records; state the classes (--classes 3), or add records
    """
    if dataset.classes_stated or dataset.labels is None:
        return
    occurring = dataset.found_classes()
    empty = [str(k) for k in range(dataset.classes) if k not in occurring]
    if empty:
        more = f" and {len(empty) - 5} more" if len(empty) > 5 else ""
        some = f"classes {', '.join(empty[:5])}{more} have" if len(empty) > 1 else f"class {empty[0]} has"
        raise DataError(f"{some} no records; state the classes (--classes {dataset.classes}), or add records")


def _four_axes(images: npt.ArrayLike) -> npt.NDArray[Any]:
    if hasattr(images, "toarray"):
        raise DataError("sparse images are not read; give a dense array: images.toarray()")
    array = images if isinstance(images, np.ndarray) else _one_array(images)
    if array.dtype == object:
        raise DataError("images differ in size or are no numbers; give one array of numbers")
    if array.ndim == 3:
        array = array[..., np.newaxis]
    if array.ndim == 2:
        raise DataError(
            f"images of shape {array.shape} are rows of a table, and this is for images only, not for "
            "measurements; give rows of pixels a height and a width: np.reshape(images, (-1, height, width))"
        )
    if array.ndim != 4:
        raise DataError(
            f"images must be (N, height, width) or (N, height, width, channels), not of shape {array.shape}; "
            "this is for images only: reshape rows of pixels"
        )
    if len(array) == 0:
        raise DataError("the data set is empty")
    channels = array.shape[3]
    if channels not in (1, 3):
        if array.shape[1] in (1, 3):
            raise DataError(
                f"images of shape {array.shape} seem to have their channels first; they come last: "
                "images.transpose(0, 2, 3, 1)"
            )
        raise DataError(f"images have 1 channel (grey) or 3 (colour), not {channels}; leave the others out")
    if 0 in array.shape:
        raise DataError(f"images of shape {array.shape} have no pixels")
    return array


def _one_array(images: Any) -> npt.NDArray[Any]:
    """Return images as one array. In a list every image has a type of its own, and all must have the same.

    NumPy would find a type that holds them all: one image of 16 bits would change the range of all others.
    """
    try:
        if not hasattr(images, "__array__"):
            kinds = dict.fromkeys(np.asarray(image).dtype for image in images)
            if len(kinds) > 1:
                raise DataError(
                    f"images differ in type ({', '.join(map(str, kinds))}); make one array of one type"
                )
        return np.asarray(images)
    except DataError:
        raise
    except (TypeError, ValueError):
        raise DataError("images differ in size; make them all the same height and width") from None


def _checked_values(
    array: npt.NDArray[Any], value_range: tuple[float, float] | None
) -> tuple[npt.NDArray[Any], tuple[float, float]]:
    """Return the images as uint8, uint16 or float32, and their public range, which holds all their values."""
    dtype = array.dtype.newbyteorder("=")
    stated = None if value_range is None else _range(value_range)
    if dtype in _TYPE_RANGE:
        own = _TYPE_RANGE[dtype]
        limits = stated or own
        if limits[0] > own[0] or limits[1] < own[1]:  # the type's own range needs no look at the values
            _check_inside(array, limits)
        return array.astype(dtype, copy=False), limits
    if dtype.kind == "f":
        limits = stated or _FLOAT_RANGE
        _check_inside(array, limits)
        return array.astype(np.float32, copy=False), limits
    if dtype.kind == "b":
        return array.astype(np.uint8), stated or (0.0, 1.0)
    if dtype.kind not in "iu":
        raise DataError(f"images of type {dtype} are no numbers; give uint8, uint16 or floats")
    if stated is None:
        raise DataError(
            f"images of type {dtype} have no usual range of values; state value_range (--value-range 0,255)"
        )
    _check_inside(array, stated)
    if stated[0] < 0 or stated[1] > 65535:
        return array.astype(np.float32), stated
    return array.astype(np.uint8 if stated[1] <= 255 else np.uint16), stated


def _range(value_range: tuple[float, float]) -> tuple[float, float]:
    try:
        low, high = (float(value) for value in value_range)
    except (TypeError, ValueError):
        raise DataError(
            f"value_range must be two numbers, the lowest and the highest, not {value_range!r}"
        ) from None
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise DataError(f"value_range must be two finite numbers, the lower one first, not {value_range!r}")
    if max(-low, high) > _LARGEST or high - low < _LEAST_RANGE:
        raise DataError(
            f"value_range must be within {_LARGEST:g} and at least {_LEAST_RANGE:g} wide, not {value_range!r}"
        )
    return low, high


def _check_inside(array: npt.NDArray[Any], limits: tuple[float, float]) -> None:
    low, high = limits
    for part in _chunks(len(array), math.prod(array.shape[1:])):
        values = np.asarray(array[part])
        smallest, largest = values.min(), values.max()  # NaN, if there is any
        if low <= smallest and largest <= high:
            continue
        bad = ~((values >= low) & (values <= high))
        row, value = int(np.argwhere(bad)[0, 0]), values[bad][0]
        if not np.isfinite(value):
            raise DataError(
                f"image {part.start + row} (counted from 0) holds {value}; NaN and inf are no pixels: "
                "mend or leave it out"
            )
        raise DataError(
            f"image {part.start + row} (counted from 0) holds {value:g}, outside of the range {low:g} to "
            f"{high:g}; state the public value_range of the data (--value-range 0,16 and the like)"
        )


def _chunks(count: int, width: int) -> Iterator[slice]:
    step = max(1, _CHUNK_VALUES // max(1, width))
    return (slice(start, min(start + step, count)) for start in range(0, count, step))


def _row_numbers(indices: Indices) -> npt.NDArray[np.int64]:
    rows = indices.detach().cpu().numpy() if isinstance(indices, torch.Tensor) else np.asarray(indices)
    if rows.ndim != 1 or (rows.size and rows.dtype.kind not in "iu"):
        raise DataError("indices must be a list of whole numbers")
    return rows.astype(np.int64, copy=False)


def _same_length(values: npt.NDArray[np.int64], images: npt.NDArray[Any], what: str) -> None:
    if len(values) != len(images):
        raise DataError(f"there are {len(images)} images but {len(values)} {what}; give one for each image")
