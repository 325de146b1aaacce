"""`dpsinkhorn data`: which data sets are known, fetching them, and looking at what a source reads as.

Commands that take data share `DataOptions`, which says how these are read.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    ProgressColumn,
    TaskID,
    TimeRemainingColumn,
)
from rich.table import Table

from dpsinkhorn.cli._shared import (
    BadInputError,
    JsonOption,
    bars,
    group,
    parse_names,
    parse_numbers,
    print_json,
    print_table,
    printable,
    takes_options,
    warn,
)

if TYPE_CHECKING:  # the readers load PyTorch, which --help can do without
    from dpsinkhorn.data import Dataset

app = group("Data sets: which are known (list), fetching one (get), what a source reads as (show).")

_DESCRIBED = ("name", "description", "image_shape", "classes", "records", "licence", "homepage")
_SHOWN = 12  # names of columns, kinds of files, classes with few records
_COUNTED = 40  # classes whose records are counted in the table; --json has them all
_FEW = 50  # records of a class, below which noise hides what they have in common


SplitName = Literal["train", "test", "valid"]
FolderOption = Annotated[Path | None, "The data folder, in place of DPSINKHORN_DATA."]


@dataclass(frozen=True)
class DataOptions:
    """How data are read, as it was given."""

    image: Annotated[str | None, "Column or array that holds the images, where not found by name."] = None
    label: Annotated[
        str | None, "Where the labels are: a column, an array of an .npz, a .npy file, a CelebA attribute."
    ] = None
    unlabelled: Annotated[bool, "Leave labels out."] = False
    groups: Annotated[str | None, "Column, array or file that names the person behind each record."] = None
    classes: Annotated[str | None, "The classes: their number, or their names with commas between."] = None
    class_names: Annotated[str | None, "Public names of classes 0, 1, ..., in order: normal,pneumonia."] = (
        None
    )
    size: Annotated[str | None, "Crop and resize images to this: 32, or 32x48 (height x width)."] = None
    channels: Annotated[int | None, "Convert images to grey (1) or colour (3)."] = None
    value_range: Annotated[
        str | None, "Public range of the pixels, where not that of their type: 0,4095."
    ] = None

    @classmethod
    def of(cls, source: Mapping[str, Any]) -> DataOptions:
        """Return the options of a run, which has them in its run.json as `given` wrote them."""
        return cls(**{field.name: source[field.name] for field in fields(cls) if field.name in source})

    def given(self) -> dict[str, Any]:
        """Return the options that were given, by name."""
        return {name: value for name, value in vars(self).items() if value is not None and value is not False}

    def parsed(self) -> dict[str, Any]:
        """Return the options that were given, as `load_dataset` takes them."""
        parsers: dict[str, Callable[[str], Any]] = {
            "classes": parse_classes,
            "class_names": parse_names,
            "size": parse_size,
            "value_range": lambda text: parse_numbers(text, "--value-range", "0,4095"),
        }
        return {
            name: parsers[name](value) if name in parsers else value for name, value in self.given().items()
        }

    def load(self, source: str, *, split: SplitName = "train", quiet: bool) -> Dataset:
        """Read a data set, with a progress bar on stderr while pictures are decoded."""
        from dpsinkhorn.data import load_dataset

        with _bar(BarColumn(), MofNCompleteColumn(), quiet=quiet) as progress:
            pictures = functools.partial(progress, "reading pictures")
            data = load_dataset(source, split=split, progress=pictures, **self.parsed())
        if data.skipped_files:
            warn(printable(data.skipped_sentence()))
        return data

    def parts(self, source: str, *, split: SplitName = "train") -> Iterator[Dataset]:
        """Read a folder of several files one after the other; any other source is one part."""
        from dpsinkhorn.data import load_parts

        for part in load_parts(source, split=split, **self.parsed()):
            if part.skipped_files:
                warn(printable(part.skipped_sentence()))
            yield part


def parse_classes(text: str) -> int | tuple[str, ...]:
    """`10`, or `cat,dog`.

    >>> parse_classes("10"), parse_classes("cat, dog")
    (10, ('cat', 'dog'))
    """
    try:
        return int(text)
    except ValueError:
        return parse_names(text)


def parse_size(text: str) -> tuple[int, int]:
    """`32`, or `32x48`: height and width.

    >>> parse_size("32"), parse_size("32x48")
    ((32, 32), (32, 48))
    """
    try:
        sides = [int(side) for side in text.lower().split("x")]
    except ValueError:
        sides = []
    if len(sides) not in (1, 2):
        raise BadInputError(f"--size must be like 32 or 32x48 (height x width), not {text}")
    return sides[0], sides[-1]


@app.command("list")
@takes_options()
def list_command(folder: FolderOption = None, as_json: JsonOption = False) -> None:
    """The data sets that go by a name: what they are, where they are, their terms.

    Example:

        dpsinkhorn data list
    """
    from dpsinkhorn.data import KNOWN, data_folder, find_known

    base = data_folder() if folder is None else folder
    found = {name: find_known(known, folder) for name, known in KNOWN.items()}
    if as_json:
        sets = [
            {
                **{key: getattr(known, key) for key in _DESCRIBED},
                "installed": found[known.name] is not None,
                "place": None if found[known.name] is None else str(found[known.name]),
                "can_be_fetched": bool(known.files),
            }
            for known in KNOWN.values()
        ]
        print_json({"data_folder": str(base), "data_sets": sets})
        return
    console = Console(highlight=False)
    table = Table(title="Data sets known by name", title_justify="left")
    for heading in ("name", "images", "classes", "train", "test", "terms", "here"):
        table.add_column(heading, no_wrap=heading != "terms")
    for known in KNOWN.values():
        channels, height, width = known.image_shape
        table.add_row(
            known.name,
            f"{height}x{width} {'grey' if channels == 1 else 'colour'}",
            str(known.classes),
            f"{known.records['train']:,}",
            f"{known.records['test']:,}",
            known.licence,
            "no" if found[known.name] is None else "yes",
        )
    console.print(table)
    for name, place in found.items():
        if place is not None:  # below the table, whole: a path that is folded cannot be copied
            print(f"{name} is {'part of scikit-learn' if name == 'digits' else f'in {place}'}")
    print(f"Data folder: {base} (set DPSINKHORN_DATA for another)")
    print("Fetch one that is not here, or learn how to get it: dpsinkhorn data get NAME")


@app.command("get")
@takes_options()
def get_command(
    name: Annotated[str, typer.Argument(help="Name of the data set, see `dpsinkhorn data list`.")],
    folder: FolderOption = None,
    as_json: JsonOption = False,
) -> None:
    """Fetch a data set over https, checked by SHA-256, or say where it is or how to get it.

    Example:

        dpsinkhorn data get mnist
    """
    from dpsinkhorn.data import KNOWN, get

    with _bar(BarColumn(), DownloadColumn(), quiet=as_json) as progress:
        place = get(name, folder, progress=progress)
    known = KNOWN[name]
    if as_json:
        print_json({"name": name, "place": str(place), "licence": known.licence, "homepage": known.homepage})
        return
    where = "is part of scikit-learn" if name == "digits" else f"is in {place}"
    print(f"{name} {where} (terms: {known.licence}; {known.homepage})")
    own_folder = folder is not None and folder in place.parents
    print(f"Use it with --data {place if own_folder else name}")


@app.command("shard")
@takes_options()
def shard_command(
    *,
    source: Annotated[str, typer.Argument(help="A name or a path.")],
    to: Annotated[Path, "The folder of the shards, new or empty."],
    records: Annotated[
        int | None, typer.Option(min=1, help="Of a shard; by default 64 MiB of images, or a 64th of all.")
    ] = None,
    split: Annotated[SplitName, "Which part of the data."] = "train",
    reading: DataOptions,
    as_json: JsonOption = False,
) -> None:
    """Write a source as a folder of shards, which trainings read a little at a time, on one rank or on many.

    A folder of several .parquet, .npy, .npz, .tar, .csv or idx files is read one file at a time. All records
    of a person (--groups) go into one shard; in such a folder each person's must be in one file.

    Examples:

        dpsinkhorn data shard scans.npy --classes 3 --to shards

        dpsinkhorn data shard folder-of-tars --classes ill,well --groups patient --to shards
    """
    from dpsinkhorn.data import write_shards

    written = write_shards(reading.parts(source, split=split), to, records)
    if as_json:
        print_json({"folder": str(to), "shards": len(written.shards), "records": written.records})
        return
    print(f"{written.records:,} records in {len(written.shards):,} shards. Use them with --data {to}")


@app.command("show")
@takes_options()
def show_command(
    *,
    source: Annotated[str, typer.Argument(help="A name or a path.")],
    split: Annotated[SplitName, "Which part of the data."] = "train",
    reading: DataOptions,
    as_json: JsonOption = False,
) -> None:
    """What a source reads as. The counts are those of the private data: for the curator's eyes only.

    Example:

        dpsinkhorn data show digits
    """
    from dpsinkhorn.training.advice import advice_on_range

    data = reading.load(source, split=split, quiet=as_json)
    counts = data.found_counts()
    empty = [k for k, count in enumerate(counts) if count == 0]
    low, high = data.value_range
    found = data.found_range()
    if as_json:
        print_json(
            {
                "name": data.name,
                "records": data.records,
                "units": data.units,
                "unit": "record" if data.groups is None else "person",
                "image_shape": list(data.image_shape),
                "type": str(data.images.dtype),
                "value_range": [low, high],
                "classes": data.classes,
                "class_names": list(data.class_names),
                "class_counts": list(counts),
                "empty_classes": empty,
                "values_found": list(found),
                "unused_columns": list(data.unused_columns),
                "skipped_files": dict(data.skipped_files),
            }
        )
        return
    channel_count, height, width = data.image_shape
    unused = _some(data.unused_columns) or None
    rows = [
        ("records", f"{data.records:,}"),
        ("persons", "not named: each record counts on its own" if data.groups is None else f"{data.units:,}"),
        ("images", f"{height} x {width}, {'grey' if channel_count == 1 else 'colour'}"),
        ("values", f"{data.images.dtype}, {low:g} to {high:g} declared; found {found[0]:g} to {found[1]:g}"),
        ("classes", str(data.classes) if data.classes else "unlabelled"),
        ("class names", _plain(", ".join(data.class_names)) or None),
        ("records per class", _counts(data, range(data.classes), _COUNTED) or None),
        ("classes without a record", ", ".join(str(k) for k in empty) or None),
        ("columns not used", unused and f"{unused} (--label, --groups name them)"),
    ]
    sentences = ["Counts and values found are those of the private data: for the curator's eyes only."]
    if few := [k for k in sorted(range(len(counts)), key=lambda k: counts[k]) if 0 < counts[k] < _FEW]:
        sentences.append(
            f"Classes with few records, fewer than {_FEW}: {_counts(data, few, _SHOWN)}. Images generated of "
            "them will be poor, since privacy hides what only a few records have in common."
        )
    if advice := advice_on_range(data):
        sentences.append(f"{advice[0].upper()}{advice[1:]}.")
    print_table(_plain(data.name), rows, sentences)


def _plain(text: str) -> str:
    """Text of a file, which may hold anything, for a table of rich's."""
    return escape(printable(text))


def _some(names: tuple[str, ...]) -> str:
    more = f" and {len(names) - _SHOWN:,} more" if len(names) > _SHOWN else ""
    return _plain(", ".join(name or "(no name)" for name in names[:_SHOWN])) + more


def _counts(data: Dataset, classes: Sequence[int], shown: int) -> str:
    """Classes, by name or number, with the number of their records."""
    counts, names = data.found_counts(), data.class_names
    some = [f"{names[k] if k < len(names) else k}: {counts[k]:,}" for k in classes[:shown]]
    more = f" and {len(classes) - shown:,} more" if len(classes) > shown else ""
    return _plain(", ".join(some)) + more


@contextmanager
def _bar(*columns: ProgressColumn, quiet: bool) -> Iterator[Callable[[str, int, int], None]]:
    """What to call with a name, what is done of it and how much it is: a bar for each name."""
    with bars(*columns, TimeRemainingColumn(), quiet=quiet) as shown:
        tasks: dict[str, TaskID] = {}

        def progress(name: str, done: int, total: int) -> None:
            if name not in tasks:
                tasks[name] = shown.add_task(name, total=total)
            shown.update(tasks[name], completed=done)

        yield progress
