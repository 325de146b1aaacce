"""Files with one record more that a reader may trip over: what a type or a range is read off must be public.

A reader that looks at all records to tell the type of a column, the range of pixels, or which persons are the
same, lets one record change all others before any barrier sees them.
"""

from __future__ import annotations

import csv
import io
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet  # type: ignore[import-untyped]
from PIL import Image

from dpsinkhorn.data import Dataset, load_dataset
from dpsinkhorn.training.auditing.replay import Neighbour

_PIXELS = ("0.5", "", "0,5", "1e300", "nan", "inf", "true", "2024-01-01", '"1"', "-1", "256", "1e0")
_LABELS = ("0.5", "", "true", "word", '"0"', "-1", "1.0", "2024-01-01", "12345678901234567890")
_PERSONS = ("12345678901234567890", "0.5", "", "true", "word", "1e5", "2024-01-01")
_MARKS = {",": "commas", ";": "semicolons", "\t": "tabs"}
_FIRST_ID = 9 * 10**17  # of made-up persons: 18 digits, more than float64 tells apart
_PICTURES = 100  # in a made-up folder


@dataclass(frozen=True)
class FileCase:
    """A data set in a file, and neighbours of it: the same file with one record more."""

    name: str
    read: Callable[[], Dataset]
    neighbours: tuple[Neighbour, ...]


def made_up_cases(data: Dataset, folder: Path) -> Iterator[FileCase]:
    """The data in every format, in black (0) and white (1): whole numbers that might be of several types.

    In one of them labels are words.
    """
    low, high = data.value_range
    images = (data.images > (low + high) / 2).astype(np.uint8)
    ids = None if data.groups is None else data.groups + _FIRST_ID
    numbers = images.reshape(len(images), -1)
    columns: dict[str, npt.NDArray[Any]] = {f"pixel{k}": numbers[:, k] for k in range(numbers.shape[1])}
    # every other class has no record: were labels taken for names, their numbers would change
    columns |= {} if data.labels is None else {"label": 2 * data.labels}
    stated: dict[str, Any] = {} if data.labels is None else {"classes": 2 * data.classes}
    columns |= {} if ids is None else {"groups": ids}
    for suffix, mark in ((".csv", ","), (".csv", ";"), (".tsv", "\t")):
        named, options = columns, stated
        if mark == ";" and data.labels is not None:
            named = {**columns, "label": _words(columns["label"])}
            options = {"classes": _words(np.arange(2 * data.classes)).tolist()}
        rows = zip(*(column.tolist() for column in named.values()), strict=True)
        text = "\n".join(mark.join(map(str, line)) for line in [list(columns), *rows]) + "\n"
        yield _text_case(_Text(text, mark, suffix), folder, options)
    arrays = {"images": images, "labels": data.labels, "groups": ids}
    there = {name: array for name, array in arrays.items() if array is not None}
    yield _npz_case(there, folder, {}, image="images")
    floats = {**there, "images": images.astype(np.float32)}
    yield replace(_npz_case(floats, folder, {}, image="images"), name=".npz of floats")
    yield _npy_case(there, folder, {})
    yield _parquet_case(pa.table(columns), folder, stated)
    if data.groups is None:
        yield _folder_case(_written_pictures(images[:_PICTURES], data.labels, folder / "made"), folder, {})


def own_cases(source: Path, records: int, folder: Path, options: dict[str, Any]) -> Iterator[FileCase]:
    """A user's own file or folder, its first records, and one more; nothing for other formats."""
    suffix = source.suffix.lower()
    if suffix in (".csv", ".tsv"):
        with source.open(encoding="utf-8", newline="") as file:
            text = "".join(line for line, _ in zip(file, range(records + 1), strict=False))
        mark = "\t" if suffix == ".tsv" else max(",;", key=text.partition("\n")[0].count)
        yield _text_case(_Text(text, mark, suffix), folder, options)
    elif suffix == ".parquet":
        yield _parquet_case(pyarrow.parquet.read_table(source).slice(0, records), folder, options)
    elif suffix == ".npz":
        with np.load(source, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
        longest = max(len(array) for array in arrays.values() if array.ndim)
        kept = {
            name: array[:records] for name, array in arrays.items() if array.ndim and len(array) == longest
        }
        image = max(kept, key=lambda name: kept[name].ndim)
        yield _npz_case(kept, folder, options, image=image)
    elif suffix == ".npy":
        files = {"images": source, "labels": options.get("label"), "groups": options.get("groups")}
        arrays = {
            name: np.load(path, mmap_mode="r", allow_pickle=False)[:records]
            for name, path in files.items()
            if path is not None
        }
        yield _npy_case(arrays, folder, options)
    elif source.is_dir() and any(entry.suffix.lower() == ".png" for entry in source.rglob("*")):
        taken = sorted(path for path in source.rglob("*") if path.is_file())[:records]
        for path in taken:
            copy = folder / "made" / path.relative_to(source)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, copy)
        yield _folder_case(folder / "made", folder, options)


# ---- text


@dataclass(frozen=True)
class _Text:
    text: str
    mark: str
    suffix: str

    @property
    def fields(self) -> list[str]:
        """Of the last line, which stands as a pattern of one more."""
        return next(csv.reader([self.text.rstrip("\n").rpartition("\n")[2]], delimiter=self.mark))

    @property
    def header(self) -> list[str]:
        return next(csv.reader(io.StringIO(self.text), delimiter=self.mark))


def _text_case(table: _Text, folder: Path, options: dict[str, Any]) -> FileCase:
    def read(line: str) -> Dataset:
        path = folder / f"table{table.suffix}"
        end = "" if table.text.endswith("\n") else "\n"
        path.write_text(table.text + (end + line + "\n" if line else ""), encoding="utf-8")
        return load_dataset(path, **options)

    lines = ((f"a line more, with {words}", line) for words, line in _hostile_lines(table, options))
    return _case(f"{table.suffix} with {_MARKS[table.mark]}", read, "", lines)


def _hostile_lines(table: _Text, options: dict[str, Any]) -> Iterator[tuple[str, str]]:
    header, fields = table.header, table.fields
    usual = {"label": ("label", "class"), "groups": ("groups",)}
    places = {
        what: next((header.index(name) for name in (options.get(what), *names) if name in header), None)
        for what, names in usual.items()
    }
    person = places["groups"]
    if person is not None:
        fields[person] = _another(fields[person], table.text)
    others = [place for place in range(len(header)) if place not in places.values()]
    yield "nothing unusual", table.mark.join(fields)
    tokens = [(others[0], _PIXELS), (others[-1], _PIXELS[:1]), (places["label"], _LABELS), (person, _PERSONS)]
    for place, hostile in tokens:
        if place is None:
            continue
        for token in hostile if table.mark == "," else hostile[:3]:
            line = [*fields[:place], token, *fields[place + 1 :]]
            yield f"{token or 'nothing'} as {header[place] or place}", table.mark.join(line)
    yield "a field too few", table.mark.join(fields[:-1])
    yield "a field too many", table.mark.join([*fields, "1"])
    yield "a quote that does not end", '"' + table.mark.join(fields)
    yield "a letter that is no text", table.mark.join([*fields[:-1], fields[-1] + "\0"])


def _words(labels: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
    return np.array([f"kind {chr(ord('a') + label % 26)}{label}" for label in labels.tolist()])


def _another(person: str, text: str) -> str:
    """A name that the table does not have yet, of the same kind."""
    digits = person.isascii() and person.isdigit()
    while person in text:
        person = str(int(person) + 1) if digits else person + "x"
    return person


# ---- arrays


def _npz_case(arrays: dict[str, Any], folder: Path, options: dict[str, Any], image: str) -> FileCase:
    persons = options.get("groups") or "groups"

    def read(more: dict[str, Any]) -> Dataset:
        path = folder / "arrays.npz"
        np.savez(path, **_longer(arrays, more))
        return load_dataset(path, **options)

    return _case(".npz", read, {}, _hostile_rows(arrays, image, persons))


def _npy_case(arrays: dict[str, Any], folder: Path, options: dict[str, Any]) -> FileCase:
    options = {name: value for name, value in options.items() if name not in ("label", "groups")}

    def read(more: dict[str, Any]) -> Dataset:
        stated = dict(options)
        for name, array in _longer(arrays, more).items():
            np.save(folder / f"{name}.npy", array)
            if name != "images":
                stated["label" if name == "labels" else name] = str(folder / f"{name}.npy")
        return load_dataset(folder / "images.npy", **stated)

    return _case(".npy", read, {}, _hostile_rows(arrays, "images", "groups"))


def _longer(arrays: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    """With one row more, of the array's own type, which is the file's and not a record's."""
    return {
        name: np.concatenate([array, np.asarray(more[name]).astype(array.dtype)]) if more else array
        for name, array in arrays.items()
    }


def _hostile_rows(arrays: dict[str, Any], image: str, persons: str) -> Iterator[tuple[str, dict[str, Any]]]:
    plain = {name: np.array(array[-1:]) for name, array in arrays.items()}
    if persons in plain:
        plain[persons] = np.full_like(plain[persons], _nobody_yet(arrays[persons]))
    for name, array in plain.items():
        for value in _extremes(array.dtype):
            what = "pixels" if name == image else name
            yield f"a row more, with {value} as {what}", {**plain, name: np.full_like(array, value)}


def _nobody_yet(persons: npt.NDArray[Any]) -> Any:
    """A name, of the type of the others, that none of them has."""
    return persons.max() + 1 if persons.dtype.kind in "iuf" else "~" * max(1, persons.dtype.itemsize // 4)


def _extremes(kind: np.dtype[Any]) -> Sequence[Any]:
    if kind.kind in "iu":
        return (np.iinfo(kind).min, np.iinfo(kind).max)
    if kind.kind == "f":
        return (0.5, np.nan, np.inf, np.finfo(kind).max, -1.0)
    return ("", "0") if kind.kind == "U" else ()


def _parquet_case(table: Any, folder: Path, options: dict[str, Any]) -> FileCase:
    last = table.slice(table.num_rows - 1).to_pylist()[0]
    persons = options.get("groups") or "groups"
    if persons in last:
        last[persons] = _plain(_nobody_yet(np.array(table[persons].to_pylist())))

    def read(changed: dict[str, Any] | None) -> Dataset:
        more = [] if changed is None else [{**last, **changed}]
        longer = pa.concat_tables([table, pa.Table.from_pylist(more, schema=table.schema)])
        pyarrow.parquet.write_table(longer, folder / "table.parquet")
        return load_dataset(folder / "table.parquet", **options)

    def hostile() -> Iterator[tuple[str, dict[str, Any]]]:
        names = table.schema.names
        for field in map(table.schema.field, dict.fromkeys([names[0], *names[-2:]])):
            values: list[Any] = [None]
            if pa.types.is_integer(field.type) or pa.types.is_floating(field.type):
                values += _extremes(np.dtype(field.type.to_pandas_dtype()))
            for value in values:
                yield f"a row more, with {value} as {field.name}", {field.name: _plain(value)}

    return _case(".parquet", read, None, hostile())


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


# ---- pictures


def _written_pictures(
    images: npt.NDArray[np.uint8], labels: npt.NDArray[np.int64] | None, folder: Path
) -> Path:
    for k, image in enumerate(images):
        place = folder if labels is None else folder / str(labels[k])
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image[..., 0] if image.shape[-1] == 1 else image).save(place / f"{k:06d}.png")
    return folder


def _folder_case(pictures: Path, folder: Path, options: dict[str, Any]) -> FileCase:
    """Copies of a folder of pictures, with one more: it is the last one, by its name and its class."""
    last = sorted(path for path in pictures.rglob("*.png"))[-1]
    with Image.open(last) as pattern:
        size = pattern.size

    def read(file: tuple[Path, Callable[[Path], object]] | None) -> Dataset:
        copy = folder / "pictures"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(pictures, copy)
        if file is not None:
            place, write = file
            (copy / place).parent.mkdir(exist_ok=True)
            write(copy / place)
        return load_dataset(copy, **options)

    beside = last.relative_to(pictures).with_name("zzz.png")
    files: dict[str, tuple[Path, Callable[[Path], object]]] = {
        "white": (beside, Image.new("L", size, 255).save),
        "of 16 bits": (beside, Image.new("I;16", size, 65535).save),
        "of one bit": (beside, Image.new("1", size, 1).save),
        "in colour": (beside, Image.new("RGB", size, (255, 0, 0)).save),
        "with a palette": (beside, Image.new("P", size, 1).save),
        "of another size": (beside, Image.new("L", (size[0] + 1, size[1]), 255).save),
        "cut short": (beside, lambda path: path.write_bytes(last.read_bytes()[:40])),
        "of no picture": (beside.with_suffix(".txt"), lambda path: path.write_text("no picture")),
        "in a class of its own": (Path("zzz") / "zzz.png", Image.new("L", size, 255).save),
    }
    return _case("pictures", read, None, ((f"a file more, {words}", file) for words, file in files.items()))


def _case(
    name: str, read: Callable[[Any], Dataset], nothing: Any, more: Iterable[tuple[str, Any]]
) -> FileCase:
    """The file with nothing more, and with each of these."""
    neighbours = (Neighbour(f"{name}: {words}", partial(read, each)) for words, each in more)
    return FileCase(name, partial(read, nothing), tuple(neighbours))
