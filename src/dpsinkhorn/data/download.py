"""Fetching data sets: over https, checked by SHA-256, complete under their name or not there at all."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import tarfile
import urllib.error
import urllib.parse
import urllib.request
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import IO, TypeAlias

from dpsinkhorn.data.formats import CIFAR_FILES
from dpsinkhorn.data.named import KNOWN, KnownDataset, RemoteFile, advice, data_folder, find_known
from dpsinkhorn.errors import DataError, DownloadError
from dpsinkhorn.files import new_file

BytesProgress: TypeAlias = Callable[[str, int, int], None]  # name of the file, bytes done, bytes altogether

_BLOCK = 1 << 16
_TIMEOUT = 30.0  # seconds without an answer


def get(name: str, folder: Path | None = None, *, progress: BytesProgress | None = None) -> Path:
    """Where the named data set lies, after fetching what is missing. `folder` replaces the data folder.

    A set that is installed, by a package of the system for instance, is not fetched.
    """
    known = KNOWN.get(name)
    if known is None:
        raise DataError(f"there is no data set named {name}; known are {', '.join(KNOWN)}")
    return get_known(known, folder, progress=progress)


def get_known(
    known: KnownDataset, folder: Path | None = None, *, progress: BytesProgress | None = None
) -> Path:
    """As `get`, for a description of a data set."""
    found = find_known(known, folder)
    if found is not None:
        return found
    if not known.files:
        raise DownloadError(f"{known.name} has no automatic source: {advice(known, folder)}")
    target = (data_folder() if folder is None else folder) / known.name
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
        raise DownloadError(f"{error}; {advice(known, folder)}") from error
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
        if _digest(path) != file.sha256:
            raise DownloadError(f"{path} is there but is not the expected file; move it away")
        return path
    problems = []
    for url in file.urls:
        problem = _try(url, file, path, progress)
        if problem is None:
            return path
        problems.append(problem)
    raise DownloadError(f"cannot fetch {file.name}: {'; '.join(problems)}")


def _try(url: str, file: RemoteFile, path: Path, progress: BytesProgress | None) -> str | None:
    """Fetch from one place; what went wrong there, if anything. Trouble with the disk is an OSError."""
    try:
        with new_file(path) as draft, open(draft, "wb") as stream:
            _fetch(url, file, stream, progress)
    except DownloadError as error:
        return str(error)
    return None


def _fetch(url: str, file: RemoteFile, stream: IO[bytes], progress: BytesProgress | None) -> None:
    parts = urllib.parse.urlsplit(url)
    host = parts.hostname or url
    if parts.scheme != "https" and host not in ("localhost", "127.0.0.1", "::1"):
        raise DownloadError(f"{url} is not https")
    digest = hashlib.sha256()
    done = 0
    with _open(url, host) as answer:
        while block := _read(answer, host):
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


def _open(url: str, host: str) -> http.client.HTTPResponse:
    request = urllib.request.Request(url, headers={"User-Agent": "dpsinkhorn"})
    try:
        answer: http.client.HTTPResponse = urllib.request.urlopen(request, timeout=_TIMEOUT)
    except urllib.error.HTTPError as error:
        error.close()
        raise DownloadError(f"{host} answered {error.code} {error.reason}") from None
    except urllib.error.URLError as error:  # no network, no such host, refused, certificate
        reason = getattr(error.reason, "strerror", None) or error.reason
        raise DownloadError(f"{host} cannot be reached ({reason})") from error
    except (OSError, http.client.HTTPException) as error:
        raise DownloadError(f"{host} did not answer ({_reason(error)})") from error
    return answer


def _read(answer: http.client.HTTPResponse, host: str) -> bytes:
    try:
        return answer.read(_BLOCK)
    except (OSError, http.client.HTTPException) as error:
        raise DownloadError(f"{host} broke off ({_reason(error)})") from error


def _unpack_cifar(archive: Path, folder: Path) -> None:
    """The batches of CIFAR-10 and nothing else, whatever the archive holds."""
    wanted = {f"cifar-10-batches-bin/{name}" for names in CIFAR_FILES.values() for name in names}
    try:
        with tarfile.open(archive, "r:gz") as members:
            for member in members:
                content = members.extractfile(member) if member.isreg() and member.name in wanted else None
                if content is None:
                    continue
                target = folder / member.name
                target.parent.mkdir(exist_ok=True)
                with new_file(target) as draft, open(draft, "wb") as stream:
                    while block := content.read(_BLOCK):
                        stream.write(block)
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise DownloadError(f"cannot unpack {archive}: {error}") from error


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def _reason(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
