"""Files that are there with all of their content, on disk, or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def failing_as(error: type[Exception], what: str, hint: str = "") -> Iterator[None]:
    """Raise what goes wrong with a file as an `error` of one line: `what` cannot be done, and why."""
    try:
        yield
    except OSError as reason:
        raise error(f"{what}: {reason.strerror or reason}{hint}") from reason


@contextlib.contextmanager
def new_file(target: Path) -> Iterator[Path]:
    """A draft beside `target` to write into; it takes the target's name at the end of the block.

    A file of that name is replaced in one step. When the block raises, nothing of the draft remains.
    """
    handle, name = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".partial", dir=target.parent)
    os.close(handle)
    draft = Path(name)
    try:
        yield draft
        os.chmod(draft, 0o666 & ~umask())  # mkstemp keeps others out
        _sync(draft)
        os.replace(draft, target)
        sync_folder(target.parent)
    finally:
        draft.unlink(missing_ok=True)


def replace_file(path: Path, content: bytes) -> None:
    """The file is there with all of its content, or as it was before.

    For a file with one writer at a time, since all of them use one name for the draft: what a killed one
    left is written over by the next.
    """
    draft = path.with_name(path.name + ".partial")
    try:
        write_synced(draft, content)
        os.replace(draft, path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def write_new(path: Path, content: bytes, *, mode: int = 0o666) -> None:
    """Write a file that is not there yet: whole or not at all. Of several processes at once one succeeds.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_new(Path(folder) / "run.json", b"{}")
    ...     write_new(Path(folder) / "run.json", b"{}")
    Traceback (most recent call last):
    FileExistsError: ...

    Raises:
        FileExistsError: The file is there, and is left as it is.
    """
    draft = path.with_name(f".{path.name}.{os.urandom(4).hex()}.partial")
    try:
        write_synced(draft, content, new=True, mode=mode)
        try:
            os.link(draft, path)  # which, unlike a renaming, replaces nothing
        except OSError as error:
            if os.path.lexists(path):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path)) from error
            os.rename(draft, path)  # a file system that has no links
    finally:
        draft.unlink(missing_ok=True)
    sync_folder(path.parent)


def drafts_of(path: Path) -> set[Path]:
    """What processes left that were killed while they wrote this file."""
    return set(path.parent.glob(f".{path.name}.*.partial"))


def write_synced(path: Path, content: bytes, *, new: bool = False, mode: int = 0o666) -> None:
    """Write and wait until it is on disk; with `new`, refuse a file that is there. `mode` is a new file's."""
    with open(path, "xb" if new else "wb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Wait until the names in a folder are on disk."""
    if os.name == "posix":  # elsewhere folders cannot be opened
        _sync(folder)


def umask() -> int:
    """What new files of this process do not allow to others."""
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
