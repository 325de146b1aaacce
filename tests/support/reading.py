"""Pairs of data sets that differ by one hostile record, in every format that is read.

A `Format` writes records in its own terms: lines of text, rows of arrays, files. A record is a label, a
person where the format has them, and pixels.
"""

from __future__ import annotations

import io
import json
import shutil
import tarfile
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.random import Generator
from PIL import Image

from dpsinkhorn.data import DataError, Dataset, from_arrays, load_dataset, load_parts, write_shards
from dpsinkhorn.transport import TransportError, read_points
from support.readers import encoded, write_idx

PIXELS = 4
NAMES = ("ill", "well", "worse")
HOSTILE_FIELDS = (
    *("0.5", "0,5", "7.0", "1e300", "-1", "256", "65536", "9" * 20, "9" * 400, "007", "+5", "0x1F", "1_000"),
    *(
        "",
        " ",
        " 7 ",
        "NaN",
        "NA",
        "inf",
        "-inf",
        "null",
        "true",
        "False",
        "2020-01-01",
        "12:30",
        "٣",
        "\x00",
    ),
    *(
        '"7"',
        '"0.5"',
        '"ill"',
        '"',
        '""',
        '"""',
        'a"b',
        '"a',
        'a"',
        '"a,b"',
        '"a;b"',
        '"a\tb"',
        '"a\nb"',
        '"a\rb"',
    ),
    *(
        "ill",
        "well",
        "Ill",
        "ill ",
        "other",
        "1.0",
        "01",
        "-0",
        "1.5",
        "123456789012345678",
        "=1+1",
        "'7'",
        "\ufeff7",
    ),
)


@dataclass(frozen=True)
class Reading:
    """How the records that two data sets share were read: all that training or transport would see."""

    images: bytes
    kind: str
    value_range: tuple[float, float] | None
    labels: tuple[str, ...]
    persons: tuple[int, ...]  # renumbered by their first record

    @classmethod
    def of(cls, found: Dataset | np.ndarray, without: int | None = None) -> Reading:
        """Describe what was read, leaving out the record at a place."""
        count = len(found) if isinstance(found, np.ndarray) else found.records
        kept = [row for row in range(count) if row != without]
        if isinstance(found, np.ndarray):
            return cls(found[kept].tobytes(), str(found.dtype), None, (), ())
        names: tuple[str, ...] = ()
        if found.labels is not None:
            names = tuple(
                found.class_names[k] if found.class_names else str(k) for k in found.labels[kept].tolist()
            )
            if found.classes_stated:
                names += (f"{found.classes} classes",)
        order: dict[int, int] = {}
        groups = () if found.groups is None else found.groups[kept].tolist()
        persons = tuple(order.setdefault(k, len(order)) for k in groups)
        images = np.ascontiguousarray(found.images[kept])
        kind = f"{images.dtype} {images.shape[1:]} {found.points(kept).numpy().tobytes().hex()}"
        return cls(images.tobytes(), kind, found.value_range, names, persons)


class Format(ABC):
    """A format that is read: how records are written in it, and what hostile ones look like."""

    name: str
    options: Sequence[dict[str, Any]] = ({},)

    @abstractmethod
    def record(self, rng: Generator) -> Any:
        """Draw an ordinary record."""

    @abstractmethod
    def hostile(self, rng: Generator) -> Any:
        """Draw a record that is chosen to do harm."""

    @abstractmethod
    def write(self, folder: Path, records: Sequence[Any]) -> Path:
        """Write all records, in a new or an old folder."""

    def place(self, records: Sequence[Any], rng: Generator) -> int:
        """Choose where the hostile record goes."""
        return int(rng.integers(len(records) + 1))

    def found_at(self, records: Sequence[Any], at: int) -> int:  # noqa: ARG002
        """Where the record at a place is read."""
        return at

    def read(self, path: Path, options: dict[str, Any]) -> Dataset | np.ndarray:
        return load_dataset(path, **options)


# ---- text


class TextTable(Format):
    """Lines of pixels with a label and a person, in any dialect."""

    columns = ("label", "groups", *(f"pixel{k}" for k in range(PIXELS)))
    options = (
        {},
        {"classes": NAMES},
        {"value_range": (0, 255)},
        {"value_range": (0, 65535), "size": 3},
        {"unlabelled": True},
    )

    def __init__(self, name: str, suffix: str, separator: str, *, numbered: bool = False) -> None:
        self.name, self._suffix, self._separator, self._numbered = name, suffix, separator, numbered
        if numbered:
            self.options = ({}, {"classes": 10}, {"value_range": (0, 255)})

    def fields(self, rng: Generator) -> list[str]:
        label = str(rng.integers(3)) if self._numbered else NAMES[rng.integers(3)]
        person = str(10**17 + int(rng.integers(4)))
        return [label, person, *map(str, rng.integers(256, size=PIXELS))]

    def record(self, rng: Generator) -> bytes:
        fields = self.fields(rng)
        if rng.random() < 0.2:
            at = rng.integers(len(fields))
            fields[at] = f'"{fields[at]}"'
        return self._separator.join(fields).encode()

    def hostile(self, rng: Generator) -> bytes:
        fields = self.fields(rng)
        for _ in range(rng.integers(1, 3)):
            fields[rng.integers(len(fields))] = str(rng.choice(HOSTILE_FIELDS))
        chance = rng.random()
        if chance < 0.05:
            fields.append("7")
        elif chance < 0.1:
            fields.pop()
        encoding = "utf-8" if rng.random() < 0.9 else "utf-16-le"
        return self._separator.join(fields).encode(encoding) + (b"\xe9" if rng.random() < 0.03 else b"")

    def write(self, folder: Path, records: Sequence[bytes]) -> Path:
        path = folder / f"set{self._suffix}"
        header = self._separator.join(self.columns).encode()
        path.write_bytes(b"\n".join([header, *records, b""]))
        return path


class PointTable(TextTable):
    """The same dialects, read as points for transport."""

    columns = ("age", "income", *(f"x{k}" for k in range(PIXELS)))
    options = ({}, {"columns": ["income", "x1"]})

    def fields(self, rng: Generator) -> list[str]:
        return [f"{value:.6g}" for value in rng.normal(size=len(self.columns))]

    def read(self, path: Path, options: dict[str, Any]) -> np.ndarray:
        return read_points(path, **options)


class PathTable(Format):
    """Lines of paths to pictures, with a label and a person."""

    name = "csv of paths"
    options = ({}, {"classes": NAMES}, {"size": 3}, {"channels": 3})

    def record(self, rng: Generator) -> tuple[str, bytes]:
        label, person = NAMES[rng.integers(3)], 10**17 + int(rng.integers(4))
        return f"{label},{person}", picture(rng)

    def hostile(self, rng: Generator) -> tuple[str, bytes]:
        fields = [NAMES[rng.integers(3)], str(10**17 + int(rng.integers(4)))]
        fields[rng.integers(2)] = str(rng.choice(HOSTILE_FIELDS))
        return ",".join(fields), hostile_picture(rng) if rng.random() < 0.5 else picture(rng)

    def write(self, folder: Path, records: Sequence[tuple[str, bytes]]) -> Path:
        lines = ["path,label,groups"]
        for k, (rest, content) in enumerate(records):
            (folder / f"{k}.png").write_bytes(content)
            lines.append(f"{k}.png,{rest}")
        (folder / "set.csv").write_bytes("\n".join([*lines, ""]).encode())
        return folder / "set.csv"


# ---- typed files


class TypedRows(Format):
    """What formats of typed arrays share: a record is a label, a person and pixels of the file's type."""

    def __init__(self, name: str, kind: str) -> None:
        self.name, self.kind = name, np.dtype(kind)

    @property
    def options(self) -> Sequence[dict[str, Any]]:  # type: ignore[override]
        return ({}, {"classes": NAMES}, {"value_range": (0, 255)}, {"size": 3, "value_range": (0, 255)})

    def pixels(self, rng: Generator) -> list[Any]:
        if self.kind.kind == "f":
            return rng.random(PIXELS).astype(self.kind).tolist()
        return rng.integers(256, size=PIXELS).tolist()

    def record(self, rng: Generator) -> tuple[str, Any, list[Any]]:
        return NAMES[rng.integers(3)], 10**17 + int(rng.integers(4)), self.pixels(rng)

    def hostile(self, rng: Generator) -> tuple[str, Any, list[Any]]:
        label, person, pixels = self.record(rng)
        if rng.random() < 0.5:
            label = str(rng.choice([field for field in HOSTILE_FIELDS if "\x00" not in field]))
        if rng.random() < 0.5:
            person = int(rng.choice([0, -1, 2**62, 10**18, -(2**62)]))
        if rng.random() < 0.7:
            pixels[rng.integers(PIXELS)] = self.odd_number(rng)
        return label, person, pixels

    def odd_number(self, rng: Generator) -> Any:
        if self.kind.kind == "f":
            return float(rng.choice([np.nan, np.inf, -np.inf, -1.0, 1.0, 2.0, 255.0, 1e30, 1e-30, -0.0]))
        limits = np.iinfo(self.kind)
        return int(rng.choice([limits.min, limits.max, max(limits.min, -1), min(limits.max, 256), 1]))

    def arrays(self, records: Sequence[tuple[str, Any, list[Any]]]) -> dict[str, np.ndarray]:
        images = np.array([pixels for _, _, pixels in records], self.kind).reshape(-1, 2, 2)
        labels = np.array([label for label, _, _ in records])
        return {"images": images, "labels": labels, "groups": np.array([person for _, person, _ in records])}


class Npz(TypedRows):
    def write(self, folder: Path, records: Sequence[Any]) -> Path:
        np.savez(folder / "set.npz", **self.arrays(records))
        return folder / "set.npz"


class Npy(TypedRows):
    def write(self, folder: Path, records: Sequence[Any]) -> Path:
        arrays = self.arrays(records)
        np.save(folder / "set.npy", arrays["images"])
        np.save(folder / "set.labels.npy", arrays["labels"])
        np.save(folder / "set.groups.npy", arrays["groups"])
        return folder / "set.npy"


class Shards(TypedRows):
    """Written from a .npy file, whose options are settled then; records are in the order of their persons."""

    def place(self, records: Sequence[Any], rng: Generator) -> int:  # noqa: ARG002
        return len(records)

    def found_at(self, records: Sequence[Any], at: int) -> int:
        persons = [person for _, person, _ in records]
        return sorted(range(len(records)), key=lambda k: persons.index(persons[k])).index(at)

    def write(self, folder: Path, records: Sequence[Any]) -> Path:
        return Npy.write(self, folder, records)  # type: ignore[arg-type]

    def read(self, path: Path, options: dict[str, Any]) -> Dataset:
        place = path.parent / "shards"
        shutil.rmtree(place, ignore_errors=True)
        write_shards(load_dataset(path, **options), place, records=2)
        return load_dataset(place)


class Parquet(TypedRows):
    """Pixels in columns, or in lists."""

    def __init__(self, name: str, kind: str, *, lists: bool = False) -> None:
        super().__init__(name, kind)
        self._lists = lists

    def write(self, folder: Path, records: Sequence[Any]) -> Path:
        arrays, kind = self.arrays(records), pa.from_numpy_dtype(self.kind)
        flat = arrays["images"].reshape(len(records), -1)
        table: dict[str, Any] = {"label": arrays["labels"].tolist(), "groups": arrays["groups"].tolist()}
        if self._lists:
            table["pixels"] = pa.array(flat.tolist(), pa.list_(kind))
        else:
            table |= {f"pixel{k}": pa.array(flat[:, k], kind) for k in range(PIXELS)}
        pq.write_table(pa.table(table), folder / "set.parquet")
        return folder / "set.parquet"


class ListOfArrays(Format):
    """Images in a list, each with a type of its own, as they come from a decoder."""

    name = "list of arrays"
    options = ({}, {"value_range": (0, 65535)}, {"classes": 3})

    def record(self, rng: Generator) -> tuple[int, np.ndarray]:
        return int(rng.integers(3)), rng.integers(2, size=(2, 2)).astype(np.uint8)

    def hostile(self, rng: Generator) -> tuple[int, np.ndarray]:
        kind = str(rng.choice(["uint8", "uint16", "int64", "float32", "float64", "bool"]))
        shape = (2, 2) if rng.random() < 0.9 else (2, 3)
        return int(rng.integers(3)), rng.integers(2, size=shape).astype(kind)

    def write(self, folder: Path, records: Sequence[Any]) -> Any:  # noqa: ARG002
        return records

    def read(self, path: Any, options: dict[str, Any]) -> Dataset:
        return from_arrays([image for _, image in path], [label for label, _ in path], **options)


class Idx(Format):
    """Bytes of images, and bytes of labels."""

    name = "idx"
    options = ({}, {"classes": 10}, {"size": 3})

    def record(self, rng: Generator) -> tuple[int, np.ndarray]:
        return int(rng.integers(3)), rng.integers(256, size=(2, 2)).astype(np.uint8)

    def hostile(self, rng: Generator) -> tuple[int, np.ndarray]:
        return int(rng.choice([0, 9, 10, 128, 255])), np.full((2, 2), rng.choice([0, 1, 255]), np.uint8)

    def write(self, folder: Path, records: Sequence[tuple[int, np.ndarray]]) -> Path:
        write_idx(folder / "train-images-idx3-ubyte", np.stack([image for _, image in records]))
        labels = np.array([label for label, _ in records], np.uint8)
        write_idx(folder / "train-labels-idx1-ubyte", labels)
        return folder / "train-images-idx3-ubyte"


# ---- pictures


def picture(rng: Generator) -> bytes:
    return encoded(rng.integers(256, size=(4, 4, 1)).astype(np.uint8))


def hostile_picture(rng: Generator) -> bytes:
    """A picture of another size, mode, depth or format, turned by its EXIF data, or none at all."""
    grey = Image.fromarray(rng.integers(256, size=(4, 4)).astype(np.uint8))
    stream = io.BytesIO()
    match int(rng.integers(10)):
        case 0:
            grey.resize((5, 4)).save(stream, "PNG")
        case 1:
            grey.convert("RGB").save(stream, "PNG")
        case 2:
            Image.fromarray(rng.integers(65536, size=(4, 4)).astype(np.uint16)).save(stream, "PNG")
        case 3:
            grey.convert("1").save(stream, "PNG")
        case 4:
            grey.convert("P").save(stream, "PNG")
        case 5:
            grey.save(stream, "JPEG")
        case 6:
            exif = Image.Exif()
            exif[0x0112] = int(rng.integers(1, 9))
            grey.save(stream, "PNG", exif=exif)
        case 7:
            grey.convert("LA").save(stream, "PNG")
        case 8:
            grey.save(stream, "PNG")
            return stream.getvalue()[: int(rng.integers(60))]
        case _:
            grey.save(stream, "GIF", save_all=True, append_images=[grey.rotate(90)])
    return stream.getvalue()


class PictureFolder(Format):
    """A file each, in a folder per class."""

    name = "folder of pictures"
    options = ({}, {"size": 3}, {"channels": 3})

    def record(self, rng: Generator) -> tuple[str, bytes]:
        return NAMES[rng.integers(3)], picture(rng)

    def hostile(self, rng: Generator) -> tuple[str, bytes]:
        return NAMES[rng.integers(3)], hostile_picture(rng)

    def write(self, folder: Path, records: Sequence[tuple[str, bytes]]) -> Path:
        place = folder / "set"
        shutil.rmtree(place, ignore_errors=True)
        for name in NAMES:  # folders are public, also an empty one
            (place / name).mkdir(parents=True)
        for k, (name, content) in enumerate(records):
            (place / name / f"{k:03d}.png").write_bytes(content)
        return place

    def place(self, records: Sequence[Any], rng: Generator) -> int:  # noqa: ARG002
        return len(records)

    def found_at(self, records: Sequence[Any], at: int) -> int:
        """In order of their folders, the extra one last in its own."""
        return sorted(range(len(records)), key=lambda k: records[k][0]).index(at)

    def read(self, path: Path, options: dict[str, Any]) -> Dataset:
        return load_dataset(path, **options)


class Tar(Format):
    """WebDataset: a picture, its class and its person follow each other."""

    name = "tar"
    options = (
        {"groups": "person"},
        {"groups": "person", "classes": NAMES},
        {"size": 3},
        {"unlabelled": True},
    )

    def record(self, rng: Generator) -> tuple[str, str, bytes]:
        return NAMES[rng.integers(3)], f"p{rng.integers(4)}", picture(rng)

    def hostile(self, rng: Generator) -> tuple[str, str, bytes]:
        label, person, content = self.record(rng)
        if rng.random() < 0.5:
            label = str(rng.choice(HOSTILE_FIELDS))
        if rng.random() < 0.5:
            person = str(rng.choice(HOSTILE_FIELDS))
        return label, person, hostile_picture(rng) if rng.random() < 0.5 else content

    def write(self, folder: Path, records: Sequence[tuple[str, str, bytes]]) -> Path:
        with tarfile.open(folder / "set.tar", "w") as archive:
            for k, (label, person, content) in enumerate(records):
                about = json.dumps({"person": person}).encode()
                for ending, data in (("png", content), ("cls", label.encode()), ("json", about)):
                    member = tarfile.TarInfo(f"{k:03d}.{ending}")
                    member.size = len(data)
                    archive.addfile(member, io.BytesIO(data))
        return folder / "set.tar"


class Parts(Parquet):
    """A folder of parquet files, one for each person, written as shards."""

    options = (
        {"unlabelled": True},
        {"classes": NAMES},
        {"classes": NAMES, "size": 3, "value_range": (0, 255)},
    )  # type: ignore[assignment]

    def place(self, records: Sequence[Any], rng: Generator) -> int:  # noqa: ARG002
        return len(records)

    def found_at(self, records: Sequence[Any], at: int) -> int:
        return Shards.found_at(self, records, at)  # type: ignore[arg-type]

    def write(self, folder: Path, records: Sequence[Any]) -> Path:
        place = folder / "parts"
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        persons = list(dict.fromkeys(person for _, person, _ in records))
        for number, person in enumerate(persons):
            own = [record for record in records if record[1] == person]
            super().write(folder, own).rename(place / f"{number:03d}.parquet")
        return place

    def read(self, path: Path, options: dict[str, Any]) -> Dataset:
        place = path.parent / "shards"
        shutil.rmtree(place, ignore_errors=True)
        return write_shards(load_parts(path, **options), place, records=2)


FORMATS: tuple[Format, ...] = (
    TextTable("csv", ".csv", ","),
    TextTable("csv, numbered classes", ".csv", ",", numbered=True),
    TextTable("csv with semicolons", ".csv", ";"),
    TextTable("tsv", ".tsv", "\t"),
    PathTable(),
    Parquet("parquet of bytes", "uint8"),
    Parts("folder of parquet", "uint8"),
    Parquet("parquet of whole numbers", "int64"),
    Parquet("parquet of floats", "float64"),
    Parquet("parquet of lists", "uint8", lists=True),
    Npz("npz of bytes", "uint8"),
    Npz("npz of floats", "float32"),
    Npy("npy", "uint8"),
    Shards("shards", "uint8"),
    Shards("shards of floats", "float32"),
    ListOfArrays(),
    Idx(),
    PictureFolder(),
    Tar(),
    PointTable("points, csv", ".csv", ","),
    PointTable("points, csv with semicolons", ".csv", ";"),
    PointTable("points, tsv", ".tsv", "\t"),
)


@dataclass
class Tally:
    """What came of the pairs that were tried."""

    pairs: int = 0
    refused: int = 0
    violations: tuple[str, ...] = ()


def try_pairs(form: Format, folder: Path, pairs: int, seed: int) -> Tally:
    """Read data sets with and without one hostile record, and compare the readings of all other records."""
    rng, tally = np.random.default_rng(seed), Tally()
    while tally.pairs < pairs:
        records = [form.record(rng) for _ in range(int(rng.integers(4, 9)))]
        options = form.options[rng.integers(len(form.options))]
        alone = Reading.of(form.read(form.write(folder, records), options))
        for _ in range(10):
            extra = form.hostile(rng)
            at = form.place(records, rng)
            tally.pairs += 1
            try:
                both = form.read(form.write(folder, [*records[:at], extra, *records[at:]]), options)
            except (DataError, TransportError):
                tally.refused += 1
                continue
            problem = _compared(form, alone, both, records, extra, at)
            if problem and len(tally.violations) < 10:
                tally.violations += (f"{form.name}, {options}, {extra!r}: {problem}",)
    return tally


def _compared(form: Format, alone: Reading, both: Any, records: Sequence[Any], extra: Any, at: int) -> str:
    count = len(both) if isinstance(both, np.ndarray) else both.records
    if count != len(records) + 1:
        return f"{count} records of {len(records) + 1}"
    every = [*records[:at], extra, *records[at:]]
    return (
        ""
        if Reading.of(both, without=form.found_at(every, at)) == alone
        else "the other records are read in another way"
    )
