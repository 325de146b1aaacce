"""Windows in miniature, on Linux: what its files and locks refuse, as far as the package can notice it."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dpsinkhorn import files

_BINARY = 0x8000
_POSIX_ONLY = ("O_NOFOLLOW", "O_NONBLOCK", "O_DIRECTORY", "O_CLOEXEC")


def behave_like_windows(patch: pytest.MonkeyPatch) -> None:
    """Let this process, and what it forks, meet files as on Windows.

    - There is `msvcrt`, and no `fcntl`. A region is locked for one handle, until that handle is closed.
    - A file that any handle or mapping of this process holds cannot be renamed, replaced or removed, nor can
      a folder around it. A renaming replaces nothing.
    - Folders cannot be opened; a handle for reading cannot be synced.
    - Without `O_BINARY`, what is written gets other line ends.
    """
    fcntl, real = files.fcntl, {name: getattr(os, name) for name in ("open", "write", "fsync", "unlink")}
    moves = {name: getattr(os, name) for name in ("rename", "replace")}
    texts: set[int] = set()

    def locking(handle: int, mode: int, _length: int) -> None:
        try:
            fcntl.flock(handle, fcntl.LOCK_UN if mode == 0 else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise PermissionError(errno.EACCES, "Permission denied") from None

    def opened(path: Any, flags: int, mode: int = 0o777, **more: Any) -> int:
        if os.path.isdir(path):
            raise PermissionError(errno.EACCES, "Permission denied", os.fspath(path))
        handle: int = real["open"](path, flags & ~_BINARY, mode, **more)
        (texts.discard if flags & _BINARY else texts.add)(handle)
        return handle

    def write(handle: int, data: bytes) -> int:
        if handle not in texts:
            return int(real["write"](handle, data))
        real["write"](handle, bytes(data).replace(b"\n", b"\r\n"))
        return len(data)

    def fsync(handle: int) -> None:
        if fcntl.fcntl(handle, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
            raise OSError(errno.EBADF, "Bad file descriptor")
        real["fsync"](handle)

    def unlink(path: Any, **more: Any) -> None:
        _refuse_held(path)
        real["unlink"](path, **more)

    def rename(source: Any, target: Any) -> None:
        if os.path.lexists(target):
            raise FileExistsError(errno.EEXIST, "File exists", os.fspath(source))
        _refuse_held(source)
        moves["rename"](source, target)

    def replace(source: Any, target: Any) -> None:
        if os.path.isdir(target):
            raise PermissionError(errno.EACCES, "Permission denied", os.fspath(target))
        _refuse_held(source, target)
        moves["replace"](source, target)

    patch.delattr(files, "fcntl")
    patch.setattr(files, "msvcrt", SimpleNamespace(locking=locking, LK_NBLCK=2, LK_UNLCK=0), raising=False)
    patch.setattr(files, "sys", SimpleNamespace(platform="win32"))
    patch.setattr(shutil, "_use_fd_functions", False)
    patch.setattr(os, "O_BINARY", _BINARY, raising=False)
    for name in _POSIX_ONLY:
        patch.delattr(os, name)
    for stand_in in (opened, write, fsync, unlink, rename, replace):
        patch.setattr(os, "open" if stand_in is opened else stand_in.__name__, stand_in)


def _refuse_held(*paths: Any) -> None:
    """Refuse files that this process has open or mapped, and folders with one."""
    held = {os.path.realpath(handle.path) for handle in os.scandir("/proc/self/fd")}
    mapped = Path("/proc/self/maps").read_text()  # slow: once for all paths
    for own in map(os.path.abspath, paths):
        if own in mapped:
            held |= {line.split(maxsplit=5)[-1] for line in mapped.splitlines()}
        if any(name == own or name.startswith(own + os.sep) for name in held):
            raise PermissionError(errno.EACCES, "The process cannot access the file", own)
