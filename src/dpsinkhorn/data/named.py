"""Data sets known by name: what they are, where they lie, and fetching them.

What is fetched comes over https, is checked by SHA-256, and is complete under its name or not there at all.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import importlib.util
import os
import shutil
import sys
import tarfile
import urllib.error
import urllib.parse
import urllib.request
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import IO, Any, TypeAlias

import platformdirs

from dpsinkhorn.data import arrays
from dpsinkhorn.data.folders import is_celeba
from dpsinkhorn.errors import DataError, DownloadError
from dpsinkhorn.files import new_file

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

BytesProgress: TypeAlias = Callable[[str, int, int], None]  # name of the file, bytes done, bytes altogether
_BLOCK = 1 << 16
_TIMEOUT = 30.0  # seconds without an answer


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
    """Return where data sets are kept: DPSINKHORN_DATA, else a folder in the user's cache."""
    stated = os.environ.get("DPSINKHORN_DATA")
    if stated:
        return Path(stated).expanduser()
    return platformdirs.user_cache_path("dpsinkhorn", appauthor=False, opinion=False)


def find_known(known: KnownDataset, folder: Path | None = None, split: str | None = None) -> Path | None:
    """Return where a data set is installed; None where it is not. `digits` is part of scikit-learn."""
    if known.name == "digits":
        package = importlib.util.find_spec("sklearn")
        return None if package is None or package.origin is None else Path(package.origin).parent
    base = data_folder() if folder is None else folder
    candidates = [base / place for place in known.places] + [Path(place) for place in known.system_places]
    return next((path for path in candidates if path.is_dir() and _holds(known, path, split)), None)


def require_known(known: KnownDataset, folder: Path | None = None, split: str | None = None) -> Path:
    """Return where a data set is installed, or one line on how to get it."""
    found = find_known(known, folder, split)
    if found is None:
        base = data_folder() if folder is None else folder
        how = f"run `dpsinkhorn data get {known.name}`" if known.files else known.advice
        raise DataError(
            f"{known.name} is not in {base}; {how}, or set DPSINKHORN_DATA to the folder that has it"
        )
    return found


def _holds(known: KnownDataset, path: Path, split: str | None) -> bool:
    """Return whether a folder holds a split of a data set; None: all that belongs to it."""
    if known.name == "celeba":
        return is_celeba(path)
    splits = list(known.records) if split is None else [split]
    if known.name == "cifar10":
        return all((path / name).is_file() for part in splits for name in arrays.CIFAR_FILES.get(part, ()))
    images = [arrays.find_idx(path, part) for part in splits]
    return all(file is not None and arrays.labels_beside(file) is not None for file in images)


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
"""Data sets that go by a name, with where their files come from."""


def get(name: str, folder: Path | None = None, *, progress: BytesProgress | None = None) -> Path:
    """Where the named data set lies, after fetching what is missing. `folder` replaces the data folder.

    A set that is installed, by a package of the system for instance, is not fetched.
    """
    if name not in KNOWN:
        raise DataError(f"there is no data set named {name}; known are {', '.join(KNOWN)}")
    return get_known(KNOWN[name], folder, progress=progress)


def get_known(
    known: KnownDataset, folder: Path | None = None, *, progress: BytesProgress | None = None
) -> Path:
    """As `get`, for a description of a data set."""
    found = find_known(known, folder)
    if found is not None:
        return found
    target = (data_folder() if folder is None else folder) / known.name
    advice = known.advice.format(folder=target)
    if not known.files:
        raise DownloadError(f"{known.name} has no automatic source: {advice}")
    try:
        target.mkdir(parents=True, exist_ok=True)
        for file in known.files:
            path = download_file(file, target, progress=progress)
            if file.name.endswith(".tar.gz"):
                _unpack_cifar(path, target)
                path.unlink()
    except DownloadError as error:
        with contextlib.suppress(OSError):  # rmdir refuses folders that hold something
            target.rmdir()
            target.parent.rmdir()
        raise DownloadError(f"{error}; {advice}") from error
    except OSError as error:
        raise DownloadError(
            f"cannot write to {target}: {error.strerror or error}; name another folder"
        ) from error
    found = find_known(known, folder)
    if found is None:
        raise DownloadError(f"{target} is not complete after fetching; remove it and try again")
    return found


def download_file(file: RemoteFile, folder: Path, *, progress: BytesProgress | None = None) -> Path:
    """Fetch one file into a folder, unless it is there already. Every place is tried in turn."""
    path = folder / file.name
    if path.exists():
        with path.open("rb") as stream:
            digest = hashlib.sha256()
            while block := stream.read(_BLOCK):
                digest.update(block)
        if digest.hexdigest() != file.sha256:
            raise DownloadError(f"{path} is there but is not the expected file; move it away")
        return path
    problems = []
    for url in file.urls:
        try:
            with new_file(path) as draft, open(draft, "wb") as stream:
                _fetch(url, file, stream, progress)
            return path
        except DownloadError as error:  # noqa: PERF203 - trouble with the disk, an OSError, ends it all
            problems.append(str(error))
    raise DownloadError(f"cannot fetch {file.name}: {'; '.join(problems)}")


def _fetch(url: str, file: RemoteFile, stream: IO[bytes], progress: BytesProgress | None) -> None:
    parts = urllib.parse.urlsplit(url)
    host = parts.hostname or url
    if parts.scheme != "https" and host not in ("localhost", "127.0.0.1", "::1"):
        raise DownloadError(f"{url} is not https")
    digest, done = hashlib.sha256(), 0
    for block in _blocks(url, host):
        done += len(block)
        if done > file.length:
            raise DownloadError(f"{host} sent more than the {file.length} bytes of {file.name}")
        digest.update(block)
        stream.write(block)
        if progress is not None:
            progress(file.name, done, file.length)
    if done < file.length:
        raise DownloadError(f"{host} broke off after {done} of {file.length} bytes")
    if digest.hexdigest() != file.sha256:
        raise DownloadError(f"what {host} sent has the wrong checksum")


def _blocks(url: str, host: str) -> Iterator[bytes]:
    """Yield what a host sends; whatever goes wrong there ends in one line."""
    request = urllib.request.Request(url, headers={"User-Agent": "dpsinkhorn"})
    trouble = "did not answer"
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT) as answer:
            trouble = "broke off"
            while block := answer.read(_BLOCK):
                yield block
    except urllib.error.HTTPError as error:
        error.close()
        raise DownloadError(f"{host} answered {error.code} {error.reason}") from None
    except urllib.error.URLError as error:  # no network, no such host, refused, certificate
        reason = getattr(error.reason, "strerror", None) or error.reason
        raise DownloadError(f"{host} cannot be reached ({reason})") from error
    except (OSError, http.client.HTTPException) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise DownloadError(f"{host} {trouble} ({reason})") from error


def _unpack_cifar(archive: Path, folder: Path) -> None:
    """The batches of CIFAR-10 and nothing else, whatever the archive holds."""
    wanted = {f"cifar-10-batches-bin/{name}" for names in arrays.CIFAR_FILES.values() for name in names}
    try:
        with tarfile.open(archive, "r:gz") as members:
            for member in members:
                content = members.extractfile(member) if member.isreg() and member.name in wanted else None
                if content is None:
                    continue
                target = folder / member.name
                target.parent.mkdir(exist_ok=True)
                with new_file(target) as draft, open(draft, "wb") as stream:
                    shutil.copyfileobj(content, stream)
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise DownloadError(f"cannot unpack {archive}: {error}") from error
