"""`dpsinkhorn data`: which data sets are known, fetching them, and looking at what a source reads as."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, DownloadColumn
from rich.table import Table

from dpsinkhorn.cli._shared import (
    DataOptions,
    JsonOption,
    SplitName,
    bar_of_each,
    group,
    print_json,
    print_table,
    printable,
    takes_options,
)

if TYPE_CHECKING:  # the readers load PyTorch, which --help can do without
    from dpsinkhorn.data import Dataset

app = group("Data sets: which are known (list), fetching one (get), what a source reads as (show).")

_DESCRIBED = ("name", "description", "image_shape", "classes", "records", "licence", "homepage")
_SHOWN = 12  # names of columns, kinds of files, classes with few records
_COUNTED = 40  # classes whose records are counted in the table; --json has them all
_FEW = 50  # records of a class, below which noise hides what they have in common

FolderOption = Annotated[Path | None, "The data folder, in place of DPSINKHORN_DATA."]


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

    with bar_of_each(BarColumn(), DownloadColumn(), quiet=as_json) as progress:
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
