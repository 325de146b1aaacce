"""Samples as files: .npz, .parquet, or a folder of PNG pictures."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from dpsinkhorn.errors import ReleaseError
from dpsinkhorn.files import failing_as, new_file, new_folder, refuse_existing
from dpsinkhorn.release.release import check_images

_ROWS = 4096  # per row group of a parquet file: what a reader has to hold at a time
_PICTURE = re.compile(r"\d{6,}\.png")
_LIST = "labels.csv"
_LONGEST = 50  # characters; of four bytes each they stay below the 255 that file systems take
_KEPT = " -_+.,()"
# Windows keeps these for devices, whatever comes after a dot; labels.csv is our own
_RESERVED = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?|labels\.csv", re.IGNORECASE)


class _Samples(NamedTuple):
    images: NDArray[np.uint8]
    labels: NDArray[np.int64] | None
    class_names: Sequence[str]
    statement: Mapping[str, Any] | None


def write_samples(
    path: str | os.PathLike[str],
    images: NDArray[np.uint8],
    labels: NDArray[np.int64] | None,
    *,
    class_names: Sequence[str] = (),
    statement: Mapping[str, Any] | None = None,
    overwrite: bool = False,
    progress: Callable[[int], object] | None = None,
) -> None:
    """Write images and labels; `path` decides on the form. It is there complete, or not at all.

    | path | what |
    |---|---|
    | `NAME.npz` | arrays `images` and, where there are labels, `labels` |
    | `NAME.parquet` | columns `image`, a struct of `bytes` (PNG) and `path`, and `label`: Hugging Face's |
    | `NAME` | a folder with PNG files in a sub-folder per class and `labels.csv`; or PNG files, unlabelled |

    A sub-folder has the name of its class, as far as that makes a safe name of a folder, else its number.
    `statement`, such as a release's own, goes into a file as JSON: into `.npz` as the array `statement`, a
    text, and into `.parquet` as the schema's metadata under `dpsinkhorn`.

    >>> import tempfile
    >>> images, labels = np.zeros((2, 8, 8), dtype=np.uint8), np.array([0, 1])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_samples(f"{folder}/samples", images, labels)
    ...     print(Path(f"{folder}/samples/labels.csv").read_text())
    file,label
    0/000000.png,0
    1/000001.png,1
    """
    target = check_samples_path(path, overwrite=overwrite)
    images, labels = check_images(images, labels)
    if class_names and labels is not None and labels.max() >= len(class_names):
        raise ReleaseError(f"there are {len(class_names)} class names, but a label {labels.max()}")
    report, samples = progress or (lambda _: None), _Samples(images, labels, class_names, statement)
    with failing_as(ReleaseError, f"cannot write {target}"):
        if target.suffix == ".npz":
            with new_file(target) as draft, open(draft, "wb") as file:
                arrays: dict[str, Any] = {"images": images}
                if labels is not None:
                    arrays["labels"] = labels
                if statement is not None:
                    arrays["statement"] = json.dumps(statement)
                np.savez(file, **arrays)
                report(len(images))
        elif target.suffix == ".parquet":
            with new_file(target) as draft:
                _write_parquet(draft, samples, report)
        else:
            with new_folder(target, ReleaseError, may_replace=_is_ours if overwrite else None) as draft:
                _write_folder(draft, samples, report)


def check_samples_path(path: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
    """Return the path if samples can go there; raise before they are drawn rather than after."""
    target = Path(os.path.abspath(path))
    if target.suffix not in ("", ".npz", ".parquet"):
        raise ReleaseError(f"samples go to a .npz or .parquet file or to a folder, not to {target.name}")
    if not target.parent.is_dir():
        raise ReleaseError(f"the folder {target.parent} does not exist; create it first")
    if target.suffix == "":
        refuse_existing(target, ReleaseError, _is_ours if overwrite else None)
    elif target.is_dir():
        raise ReleaseError(f"{target} is a folder; name a file")
    elif os.path.lexists(target) and not overwrite:
        raise ReleaseError(f"{target} exists already; name another file")
    return target


def _is_ours(folder: Path) -> bool:
    """Say whether a folder looks like one of these, so that replacing it loses nothing else."""
    listed = _listed(folder / _LIST)
    for entry in folder.iterdir():
        if entry.is_symlink():
            return False
        if entry.is_dir():
            # sub-folders have any name: theirs are the pictures that the list names, and no others
            inner = {f"{entry.name}/{picture.name}" for picture in entry.iterdir() if picture.is_file()}
            if not inner <= listed or len(inner) < len(list(entry.iterdir())):
                return False
        elif entry.name != _LIST and not _PICTURE.fullmatch(entry.name):
            return False
    return True


def _listed(path: Path) -> set[str]:
    """Return the pictures that a labels.csv of ours names."""
    try:
        with open(path, newline="", encoding="utf-8") as file:
            rows = list(csv.reader(file))
    except (OSError, UnicodeDecodeError, csv.Error):
        return set()
    if not rows or rows[0] not in (["file", "label"], ["file", "label", "name"]):
        return set()
    names = {row[0] for row in rows[1:] if row}
    return {name for name in names if _PICTURE.fullmatch(name.rpartition("/")[2])}


def _write_parquet(path: Path, samples: _Samples, report: Callable[[int], object]) -> None:
    images, labels, class_names, statement = samples
    import pyarrow as pa  # type: ignore[import-untyped]
    import pyarrow.parquet as pq  # type: ignore[import-untyped]

    # Hugging Face's `datasets` reads this and shows pictures and class names without being told
    features: dict[str, Any] = {"image": {"_type": "Image"}}
    fields = [pa.field("image", pa.struct([("bytes", pa.binary()), ("path", pa.string())]))]
    if labels is not None:
        named = {"names": list(class_names), "_type": "ClassLabel"}
        features["label"] = named if class_names else {"dtype": "int64", "_type": "Value"}
        fields.append(pa.field("label", pa.int64()))
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    if statement is not None:
        metadata["dpsinkhorn"] = json.dumps(statement)
    schema = pa.schema(fields, metadata=metadata)
    # PNG bytes do not compress any further
    with pq.ParquetWriter(path, schema, compression="none") as writer:
        for start in range(0, len(images), _ROWS):
            rows = images[start : start + _ROWS]
            names = [f"{index:06d}.png" for index in range(start, start + len(rows))]
            pictures = [{"bytes": _png(image), "path": name} for image, name in zip(rows, names, strict=True)]
            columns = [pa.array(pictures, type=schema.field("image").type)]
            if labels is not None:
                columns.append(pa.array(labels[start : start + _ROWS]))
            writer.write_table(pa.Table.from_arrays(columns, schema=schema))
            report(len(rows))


def _write_folder(folder: Path, samples: _Samples, report: Callable[[int], object]) -> None:
    images, labels, class_names, _ = samples
    digits = max(6, len(str(len(images) - 1)))
    places = [] if labels is None else folder_names(class_names, len(class_names) or int(labels.max()) + 1)
    rows: list[list[str | int]] = []
    for label in [] if labels is None else np.unique(labels):
        (folder / places[label]).mkdir()
    for index, image in enumerate(images):
        name = f"{index:0{digits}d}.png"
        if labels is not None:
            label = int(labels[index])
            name = f"{places[label]}/{name}"
            rows.append([name, label, *([class_names[label]] if class_names else [])])
        (folder / name).write_bytes(_png(image))
        if (index + 1) % 100 == 0:
            report(100)
    report(len(images) % 100)
    if labels is not None:
        with open(folder / _LIST, "w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(["file", "label", *(["name"] if class_names else [])])
            writer.writerows(rows)


def folder_names(class_names: Sequence[str], count: int) -> list[str]:
    """Return a different, safe name of a folder for each of `count` classes: its name, else its number.

    Names come from a file that a stranger may have written.
    """
    numbers = [f"{label:0{len(str(max(count - 1, 0)))}d}" for label in range(count)]
    if len(class_names) != count:
        return numbers
    names = [_safe(name) or number for name, number in zip(class_names, numbers, strict=True)]
    often = Counter(_key(name) for name in names)
    names = [f"{name} ({label})" if often[_key(name)] > 1 else name for label, name in enumerate(names)]
    return names if len({_key(name) for name in names}) == count else numbers


def _safe(name: str) -> str:
    """Replace what a file system, a shell or a reader could take for something else."""
    plain = unicodedata.normalize("NFC", name)
    kept = "".join(letter if _is_kept(letter) else "_" for letter in plain)
    kept = kept.lstrip("- .")[:_LONGEST].rstrip(" .")  # a leading dash reads as an option
    return "" if _RESERVED.fullmatch(kept) or not kept.strip("_ .") else kept


def _is_kept(letter: str) -> bool:
    return letter.isalnum() or letter in _KEPT or unicodedata.category(letter).startswith("M")


def _key(name: str) -> str:
    """Return what file systems that ignore case go by."""
    return unicodedata.normalize("NFKC", name).casefold()


def _png(image: NDArray[np.uint8]) -> bytes:
    file = io.BytesIO()
    Image.fromarray(image).save(file, format="PNG")
    return file.getvalue()
