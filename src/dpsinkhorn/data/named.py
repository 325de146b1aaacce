"""Data sets known by name: what they are, where they lie, and where they can be had."""

from __future__ import annotations

import importlib.util
import os
import sys
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import platformdirs

from dpsinkhorn.data import formats
from dpsinkhorn.data.folders import is_celeba
from dpsinkhorn.data.formats import CIFAR_FILES
from dpsinkhorn.errors import DataError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


@dataclass(frozen=True)
class RemoteFile:
    """A file on the network: places to try in turn, its length in bytes, and its SHA-256."""

    name: str
    urls: tuple[str, ...]
    length: int
    sha256: str


@dataclass(frozen=True)
class KnownDataset:
    """A data set that goes by a name; they are described in known.toml."""

    name: str
    description: str
    image_shape: tuple[int, int, int]  # (C, H, W)
    classes: int
    records: dict[str, int]  # per split
    licence: str
    homepage: str
    files: tuple[RemoteFile, ...] = ()
    places: tuple[str, ...] = ()
    system_places: tuple[str, ...] = ()
    advice: str = ""
    class_names: tuple[str, ...] = ()


def data_folder() -> Path:
    """Where data sets are kept: DPSINKHORN_DATA, else a folder in the user's cache."""
    stated = os.environ.get("DPSINKHORN_DATA")
    if stated:
        return Path(stated).expanduser()
    return platformdirs.user_cache_path("dpsinkhorn", appauthor=False, opinion=False)


def find_known(known: KnownDataset, folder: Path | None = None, split: str | None = None) -> Path | None:
    """Where a data set is installed; None where it is not. `digits` is part of scikit-learn."""
    if known.name == "digits":
        package = importlib.util.find_spec("sklearn")
        return None if package is None or package.origin is None else Path(package.origin).parent
    base = data_folder() if folder is None else folder
    candidates = [base / place for place in known.places] + [Path(place) for place in known.system_places]
    return next((path for path in candidates if path.is_dir() and _holds(known, path, split)), None)


def require_known(known: KnownDataset, folder: Path | None = None, split: str | None = None) -> Path:
    """Where a data set is installed, or one line on how to get it."""
    found = find_known(known, folder, split)
    if found is None:
        base = data_folder() if folder is None else folder
        how = f"run `dpsinkhorn data get {known.name}`" if known.files else known.advice
        raise DataError(
            f"{known.name} is not in {base}; {how}, or set DPSINKHORN_DATA to the folder that has it"
        )
    return found


def advice(known: KnownDataset, folder: Path | None = None) -> str:
    """What to do where a data set cannot be downloaded."""
    base = data_folder() if folder is None else folder
    return known.advice.format(folder=base / known.name)


def _holds(known: KnownDataset, path: Path, split: str | None) -> bool:
    """Whether a folder holds a split of a data set; None: all that belongs to it."""
    if known.name == "celeba":
        return is_celeba(path)
    splits = list(known.records) if split is None else [split]
    if known.name == "cifar10":
        return all((path / name).is_file() for part in splits for name in CIFAR_FILES.get(part, ()))
    images = [formats.find_idx(path, part) for part in splits]
    return all(file is not None and formats.labels_beside(file) is not None for file in images)


def _read_known() -> dict[str, KnownDataset]:
    text = (resources.files("dpsinkhorn.data") / "known.toml").read_text(encoding="utf-8")
    known = {}
    for name, entry in tomllib.loads(text).items():
        urls = entry.pop("urls", ())
        entry["files"] = [
            RemoteFile(file, tuple(f"{url}/{file}" for url in urls), length, sha256)
            for file, (length, sha256) in entry.get("files", {}).items()
        ]
        values: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()
        }
        known[name] = KnownDataset(name, **values)
    return known


KNOWN = _read_known()
