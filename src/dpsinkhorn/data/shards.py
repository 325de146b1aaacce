"""A folder of shards: data of any size, of which only the records that are asked for are ever in memory.

index.json         sizes, classes, range of values, the sum of the images' hashes, and SHA-256 of every file;
                   written last
00000.images.npy   (n, height, width, channels)
00000.labels.npy   (n,), where there are classes
00000.groups.npy   (n,), where persons are named: their numbers in this shard, in order, none in two shards
"""

from __future__ import annotations

import bisect
import dataclasses
import hashlib
import itertools
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from dpsinkhorn.data.arrays import read_npy
from dpsinkhorn.data.dataset import Dataset
from dpsinkhorn.errors import DataError
from dpsinkhorn.files import failing_as, write_new

_INDEX = "index.json"
_FORMAT = "dpsinkhorn shards, version 1"
_BYTES, _LEAST_SHARDS = 2**26, 64  # of images in a shard at most; by default
_AT_ONCE = 2**20  # bytes of a file that are hashed together
_LARGEST = 1e30  # of values
_FEW = 16  # times as many records are in a file of which some are read one by one
_OPEN = 128  # files at a time
_FEW_BYTES = 2**14  # for each of them: in smaller files, as of labels, the disk is asked for all there are


@dataclass(frozen=True)
class _Shard:
    """One entry of the index."""

    number: int
    records: int
    units: int
    digests: dict[str, str]
    """SHA-256 of its files, by what they hold."""


class _Joined:
    """The arrays in several files, one after the other, as one: rows are read when they are asked for.

    Args:
        files: the place of each, how many rows it has, and what is added to its numbers.
        shape: of a row.
    """

    def __init__(self, files: list[tuple[Path, int, int]], shape: tuple[int, ...], dtype: Any) -> None:
        self._files = files
        self.starts: list[int] = [0, *itertools.accumulate(length for _, length, _ in files)]
        self.shape, self.dtype = (self.starts[-1], *shape), np.dtype(dtype)
        # where rows begin in a file, and of what type they are
        self._layouts: dict[int, tuple[int, np.dtype[Any]]] = {}
        self._last: tuple[int, npt.NDArray[Any]] | None = None

    def __len__(self) -> int:
        return self.starts[-1]

    def __getitem__(self, rows: slice | npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        if isinstance(rows, slice) and rows.step in (None, 1):
            start, end, _ = rows.indices(len(self))
            place = bisect.bisect_right(self.starts, start) - 1
            if start < end <= self.starts[place + 1]:
                first = self.starts[place]
                some = np.array(self.file(place)[start - first : end - first], self.dtype)
                if offset := self._files[place][2]:
                    some += offset
                return some
        numbers = np.arange(*rows.indices(len(self))) if isinstance(rows, slice) else np.asarray(rows)
        found = np.empty((len(numbers), *self.shape[1:]), self.dtype)
        places = np.searchsorted(self.starts, numbers, side="right") - 1
        there = np.unique(places).tolist()
        for some in (there[at : at + _OPEN] for at in range(0, len(there), _OPEN)):
            with ExitStack() as files:
                own = [(place, places == place) for place in some]
                # all are asked of the disk before the first is waited for
                reads = [self._asked(place, numbers[here] - self.starts[place], files) for place, here in own]
                for (place, here), read in zip(own, reads, strict=True):
                    found[here] = read()
                    if offset := self._files[place][2]:
                        found[here] += offset
        return found

    def __array__(self, dtype: Any = None, copy: Any = None) -> npt.NDArray[Any]:
        return self[:].astype(dtype or self.dtype, copy=False)

    def _asked(
        self, place: int, rows: npt.NDArray[np.int64], files: ExitStack
    ) -> Callable[[], npt.NDArray[Any]]:
        """Ask the disk for some rows of a file, and return what reads them while `files` are open.

        Where they are few they are read one by one, since a map costs a page for each.
        """
        path, length, _ = self._files[place]
        if len(rows) * _FEW > length:
            return lambda: self.file(place)[rows]
        if place not in self._layouts:
            array = self.file(place)
            assert isinstance(array, np.memmap)  # it has records
            self._layouts[place] = array.offset, array.dtype
        start, dtype = self._layouts[place]
        size = dtype.itemsize * math.prod(self.shape[1:])
        at = (start + rows * size).tolist()
        with failing_as(DataError, f"cannot read {path}"):
            file = files.enter_context(path.open("rb", buffering=0)).fileno()
            if hasattr(os, "posix_fadvise"):
                many = len(at) * _FEW_BYTES > length * size
                for begin, count in [(start, length * size)] if many else [(begin, size) for begin in at]:
                    os.posix_fadvise(file, begin, count, os.POSIX_FADV_WILLNEED)

        def read() -> npt.NDArray[Any]:
            with failing_as(DataError, f"cannot read {path}"):
                found = b"".join([_read_at(file, begin, size) for begin in at])
            if len(found) < len(at) * size:
                raise DataError(f"{path} is shorter than the index says; write the shards again")
            return np.frombuffer(found, dtype).reshape(len(rows), *self.shape[1:])

        return read

    def file(self, place: int) -> npt.NDArray[Any]:
        """Map a file into memory; what was read of it stays there only until another one is mapped."""
        if self._last is not None and self._last[0] == place:
            return self._last[1]
        path, length, _ = self._files[place]
        array = read_npy(path)
        if array.shape != (length, *self.shape[1:]):
            raise DataError(f"{path} is not what the index says; write the shards again")
        self._last = place, array
        return array


@dataclass(frozen=True, eq=False, repr=False)
class ShardedDataset(Dataset):
    """Records in a folder of shards; `read_shards` makes one."""

    folder: Path = Path()
    index: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    shards: tuple[_Shard, ...] = ()

    @property
    def units(self) -> int:
        return sum(shard.units for shard in self.shards)

    def part(self, number: int, of: int) -> tuple[Dataset, int]:
        """Return some whole shards, whose files are found to be those of the index, and their first unit."""
        if of > len(self.shards):
            raise DataError(
                f"{self.folder} has {len(self.shards)} shards for {of} ranks, and each takes whole ones; "
                "write smaller ones (data shard --records)"
            )
        first, end = (len(self.shards) * k // of for k in (number, number + 1))
        for shard in self.shards[first:end]:
            for what, digest in shard.digests.items():
                if _digest(_path(self.folder, shard.number, what)) != digest:
                    raise DataError(
                        f"{_path(self.folder, shard.number, what)} was changed after it was written: its "
                        "SHA-256 is not that of the index; write the shards again"
                    )
        before = sum(shard.units for shard in self.shards[:first])
        return _dataset(self.folder, self.index, self.shards[first:end]), before

    def layout_digest(self) -> str:
        return hashlib.sha256(json.dumps(dict(self.index), sort_keys=True).encode()).hexdigest()

    def content(self) -> int:
        """Return the sum of hashes that the index has: the files of other ranks need not be here."""
        return int(self.index["content"], 16)

    def found_range(self) -> tuple[float, float]:
        low, high = self.index["found_range"]
        return low, high

    def found_counts(self) -> tuple[int, ...]:
        return tuple(self.index["found_counts"])

    def found_classes(self) -> set[int]:
        return {kind for kind, count in enumerate(self.found_counts()) if count}

    def rows_of(self, units: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the rows of all records of some units, unit by unit."""
        if self.groups is None:
            return units
        joined = cast(_Joined, self.groups)
        firsts = [0, *itertools.accumulate(shard.units for shard in self.shards)]
        places = np.searchsorted(firsts, units, side="right") - 1
        rows = [np.empty(0, np.int64)]
        for place in np.unique(places).tolist():
            persons, own = joined.file(place), units[places == place] - firsts[place]
            begins, ends = (np.searchsorted(persons, own, side=side) for side in ("left", "right"))
            rows += [
                np.arange(begin, end) + joined.starts[place] for begin, end in zip(begins, ends, strict=True)
            ]
        return np.concatenate(rows)

    def stretches(self, many: int) -> Iterator[slice]:
        """Rows one after the other, about so many at a time, each person's together."""
        start = 0
        for place, shard in enumerate(self.shards):
            persons = None if self.groups is None else cast(_Joined, self.groups).file(place)
            begin = 0
            while begin < shard.records:
                end = min(begin + many, shard.records)
                if persons is not None and end < shard.records:
                    end = int(np.searchsorted(persons, persons[end]))  # where that person begins
                    if end <= begin:  # one person of more than so many records
                        end = int(np.searchsorted(persons, persons[begin], side="right"))
                yield slice(start + begin, start + end)
                begin = end
            start += shard.records


def is_sharded(folder: Path) -> bool:
    """Whether a folder holds shards."""
    return (folder / _INDEX).is_file()


def read_shards(folder: Path) -> ShardedDataset:
    """Read the index of a folder of shards; records are read when they are asked for."""
    try:
        index = json.loads((folder / _INDEX).read_text(encoding="utf-8"))
        if index["format"] != _FORMAT:
            raise DataError(f"{folder} is of format {str(index['format'])[:40]}, not {_FORMAT}")
        shards = tuple(
            _Shard(number, int(entry["records"]), int(entry["units"]), dict(entry["sha256"]))
            for number, entry in enumerate(index["shards"])
        )
        made = _dataset(folder, index, shards)
        if not made.records or min(min(shard.records, shard.units) for shard in shards) < 1:
            raise ValueError("it has no records")
        made.content()
        low, high = made.value_range
        if not (-_LARGEST <= low < high <= _LARGEST and made.images.dtype in ("u1", "u2", "f4")):
            raise ValueError("range or type of the values make no sense")
        if len(made.image_shape) != 3 or min(made.image_shape) < 1 or made.image_shape[0] not in (1, 3):
            raise ValueError("the shape of the images makes no sense")
        return made
    except DataError:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        reason = " ".join(str(error).split())[:120]
        raise DataError(f"{folder / _INDEX} cannot be read: {reason}; write the shards again") from error


def write_shards(
    data: Dataset | Iterable[Dataset], folder: Path, records: int | None = None
) -> ShardedDataset:
    """Write a data set, or several with a part of the records each, as shards of about so many records.

    Each person is in one of them; of several parts, none may have records of the same person.

    >>> import tempfile
    >>> from dpsinkhorn.data import from_arrays
    >>> data = from_arrays(np.arange(20, dtype=np.uint8).reshape(5, 2, 2), [0, 1, 1, 0, 1])
    >>> place = tempfile.TemporaryDirectory()
    >>> shards = write_shards(data, Path(place.name), records=2)
    >>> len(shards.shards), bool((shards.points([4, 0]) == data.points([4, 0])).all())
    (3, True)
    >>> place.cleanup()
    """
    if records is not None and records < 1:
        raise DataError(f"a shard has 1 record or more, not {records}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise DataError(f"{folder} is not empty; choose another folder")
        index: dict[str, Any] = {}
        for part in [data] if isinstance(data, Dataset) else data:
            _add(part, index, folder, records)
        write_new(folder / _INDEX, json.dumps(index, indent=1).encode())
    except OSError as error:
        raise DataError(f"cannot write {error.filename or folder}: {error.strerror}") from error
    return read_shards(folder)


def _add(part: Dataset, index: dict[str, Any], folder: Path, records: int | None) -> None:
    """Write the shards of one part, and their lines of the index."""
    facts = {
        "shape": list(part.images.shape[1:]),
        "dtype": part.images.dtype.str,
        "value_range": list(part.value_range),
        "classes": part.classes,
        "class_names": list(part.class_names),
        "classes_stated": part.classes_stated,
        "labelled": part.labels is not None,
        "grouped": part.groups is not None,
    }
    low, high = part.found_range()
    counts = np.array(part.found_counts(), np.int64)
    if not index:
        found = {"found_range": [low, high], "found_counts": counts.tolist(), "content": "0"}
        index.update({"format": _FORMAT, "name": part.name, **facts, **found, "shards": []})
    else:
        if part.labels is not None and not part.classes_stated:
            raise DataError(
                "labels are in several files, and each could number its classes otherwise; state them "
                "(--classes 10, or their names)"
            )
        for fact, value in facts.items():
            if index[fact] != value:
                raise DataError(
                    f"{part.name} differs from the files before it: {fact.replace('_', ' ')} {value}, not "
                    f"{index[fact]}; state --classes, --value-range, --size or --channels"
                )
        index["found_range"] = [min(index["found_range"][0], low), max(index["found_range"][1], high)]
        index["found_counts"] = (counts + index["found_counts"]).tolist()
    index["content"] = f"{(int(index['content'], 16) + part.content()) % 2**256:x}"
    size = math.prod(part.images.shape[1:]) * part.images.dtype.itemsize
    many = min(max(1, _BYTES // size), -(-part.records // _LEAST_SHARDS)) if records is None else records
    for rows in _shares(part, many):
        index["shards"].append(_write(part, rows, folder, len(index["shards"])))


def _shares(dataset: Dataset, many: int) -> Iterator[slice | npt.NDArray[np.int64]]:
    """Rows of each shard: with persons, those of whole ones, in their order."""
    if dataset.groups is None:
        yield from (slice(at, at + many) for at in range(0, dataset.records, many))
        return
    order = np.argsort(dataset.groups, kind="stable")
    ends = np.cumsum(np.bincount(dataset.groups))  # of each person
    begin = 0
    while begin < dataset.records:
        end = int(ends[min(int(np.searchsorted(ends, begin + many)), len(ends) - 1)])
        yield order[begin:end]
        begin = end


def _write(
    dataset: Dataset, rows: slice | npt.NDArray[np.int64], folder: Path, number: int
) -> dict[str, Any]:
    values = {"images": np.ascontiguousarray(dataset.images[rows])}
    units = len(values["images"])
    if dataset.labels is not None:
        values["labels"] = dataset.labels[rows].astype(np.min_scalar_type(max(1, dataset.classes - 1)))
    if dataset.groups is not None:
        persons, values["groups"] = np.unique(dataset.groups[rows], return_inverse=True)
        units = len(persons)
    for what, array in values.items():
        np.save(_path(folder, number, what), array, allow_pickle=False)  # without an index it is nothing yet
    digests = {what: _digest(_path(folder, number, what)) for what in values}
    return {"records": len(values["images"]), "units": units, "sha256": digests}


def _dataset(folder: Path, index: Mapping[str, Any], shards: tuple[_Shard, ...]) -> ShardedDataset:
    def joined(what: str, shape: tuple[int, ...], dtype: Any, offsets: list[int] | None = None) -> Any:
        places = [_path(folder, shard.number, what) for shard in shards]
        lengths = [shard.records for shard in shards]
        return _Joined(list(zip(places, lengths, offsets or [0] * len(shards), strict=True)), shape, dtype)

    before = [0, *itertools.accumulate(shard.units for shard in shards)][:-1]
    low, high = index["value_range"]
    return ShardedDataset(
        joined("images", tuple(map(int, index["shape"])), index["dtype"]),
        joined("labels", (), np.int64) if index["labelled"] else None,
        int(index["classes"]),
        (float(low), float(high)),
        joined("groups", (), np.int64, before) if index["grouped"] else None,
        str(index["name"]),
        tuple(map(str, index["class_names"])),
        bool(index["classes_stated"]),
        folder=folder,
        index=index,
        shards=shards,
    )


def _path(folder: Path, number: int, what: str) -> Path:
    return folder / f"{number:05d}.{what}.npy"


def _read_at(file: int, begin: int, size: int) -> bytes:
    if hasattr(os, "pread"):
        return os.pread(file, size, begin)
    os.lseek(file, begin, os.SEEK_SET)  # on Windows
    return os.read(file, size)


def _digest(path: Path) -> str:
    try:
        with open(path, "rb") as file:
            found = hashlib.sha256()
            while part := file.read(_AT_ONCE):
                found.update(part)
            return found.hexdigest()
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}; write the shards again") from error
