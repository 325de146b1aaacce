"""Files and folders that are there with all they hold, on disk, or not at all; and locks. On every system."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

_T = TypeVar("_T")
_PATIENCE = 2.0


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
        _sync_path(draft)
        replace(draft, target)
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
        replace(draft, path)
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
    handle = open_handle(path, os.O_WRONLY | os.O_CREAT | (os.O_EXCL if new else os.O_TRUNC), mode)
    try:
        write_all(handle, content)
        sync(handle)
    finally:
        os.close(handle)


def open_handle(path: Path, flags: int, mode: int = 0o666) -> int:
    """Open a file whose bytes are written as they are: on Windows line ends would change otherwise."""
    return os.open(path, flags | getattr(os, "O_BINARY", 0), mode)


def write_all(handle: int, content: bytes) -> None:
    """Write all bytes, in as many parts as the system takes them."""
    while content:
        content = content[os.write(handle, content) :]


def sync(handle: int) -> None:
    """Wait until what was written to a handle is on disk."""
    if sys.platform == "darwin":  # there fsync alone does not reach the disk, and not every disk can do more
        with contextlib.suppress(OSError):
            fcntl.fcntl(handle, fcntl.F_FULLFSYNC)
            return
    os.fsync(handle)


def sync_folder(folder: Path) -> None:
    """Wait until the names in a folder are on disk. Windows has no way to."""
    if sys.platform != "win32":
        _sync_path(folder)


def replace(draft: Path, target: Path) -> None:
    """Give a draft the name of its target, in one step, whether there is a file of that name or not."""
    patiently(lambda: os.replace(draft, target))


def patiently(act: Callable[[], _T]) -> _T:
    """Do what Windows refuses for as long as another process, a virus scanner say, has the file open."""
    end = time.monotonic() + _PATIENCE
    while True:
        try:
            return act()
        except PermissionError:
            if sys.platform != "win32" or time.monotonic() > end:
                raise
        time.sleep(0.01)


def lock(path: Path) -> int | None:
    """Take the lock that a file stands for and return its handle; None where another has it.

    The system drops it when the process ends, however it ends.
    """
    handle = open_handle(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        if sys.platform == "win32":
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        else:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        os.close(handle)
        return None
    except BaseException:
        os.close(handle)
        raise
    return handle


def unlock(handle: int) -> None:
    """Drop a lock. Closing is not enough: a forked child, such as a data loader, has a copy of the handle."""
    if sys.platform == "win32":
        msvcrt.locking(handle, msvcrt.LK_UNLCK, 1)
    else:
        fcntl.flock(handle, fcntl.LOCK_UN)


def umask() -> int:
    """What new files of this process do not allow to others."""
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _sync_path(path: Path) -> None:
    handle = os.open(path, os.O_RDWR if sys.platform == "win32" else os.O_RDONLY)  # there writers alone sync
    try:
        sync(handle)
    finally:
        os.close(handle)


# ---- folders


@contextlib.contextmanager
def new_folder(
    target: Path, error: type[Exception], *, may_replace: Callable[[Path], bool] | None = None
) -> Iterator[Path]:
    """Give a draft beside `target` to write into; it takes the target's name at the end of the block.

    When the block raises, nothing of it remains. An existing folder that is not empty is refused as an
    `error`, unless `may_replace` says yes to it.
    """
    refuse_existing(target, error, may_replace)
    draft = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".partial", dir=target.parent))
    try:
        yield draft
        os.chmod(draft, 0o777 & ~umask())  # mkdtemp keeps others out
        sync_folder(draft)
        _move(draft, target, error, may_replace)
        sync_folder(target.parent)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def refuse_existing(target: Path, error: type[Exception], may_replace: Callable[[Path], bool] | None) -> None:
    """Refuse what is no folder, and a folder with something in it unless it may be replaced."""
    if not os.path.lexists(target):
        return
    if target.is_symlink() or not target.is_dir():
        raise error(f"{target} exists and is not a folder; name another one")
    if any(target.iterdir()) and not (may_replace and may_replace(target)):
        hint = "name another one" if may_replace is None else "it holds other files; name another one"
        raise error(f"the folder {target} exists already; {hint}")


def _move(
    draft: Path, target: Path, error: type[Exception], may_replace: Callable[[Path], bool] | None
) -> None:
    """Give the draft its name. What was there before is deleted last.

    Where names cannot be exchanged it steps aside first: a kill then leaves it whole, in `.NAME.*.old`.
    """
    refuse_existing(target, error, may_replace)
    if target.exists() and any(target.iterdir()) and _exchange(draft, target):
        return  # the draft's name now has what was there before, and whoever made the draft deletes it
    if not target.exists() or not any(target.iterdir()):
        if target.exists():
            target.rmdir()
        patiently(lambda: os.rename(draft, target))
        return
    aside = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".old", dir=target.parent))
    patiently(lambda: os.rename(target, aside / target.name))
    try:
        patiently(lambda: os.rename(draft, target))
    except OSError:
        os.rename(aside / target.name, target)
        raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _exchange(first: Path, second: Path) -> bool:
    """Let two names change places in one step, so that no kill comes in between; False where it cannot be."""
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2  # Linux
    except (OSError, AttributeError, TypeError):
        return False
    here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    return bool(rename(here, os.fsencode(first), here, os.fsencode(second), exchange) == 0)
