"""A small disk of one's own: a tmpfs in a mount namespace that no other process sees. Linux."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

_NEW_USER, _NEW_MOUNTS = 0x10000000, 0x00020000
_READ_ONLY, _REMOUNT, _PRIVATE, _RECURSIVE = 1, 32, 1 << 18, 1 << 14


class NoDiskError(Exception):
    """This system gives nobody a disk."""


def mount(place: Path, size: int) -> None:
    """In a process of one thread: put an empty disk of `size` bytes at `place`, until the process ends."""
    user, group = os.getuid(), os.getgid()
    _call("unshare", _NEW_USER | _NEW_MOUNTS)
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"0 {user} 1")
    Path("/proc/self/gid_map").write_text(f"0 {group} 1")
    _call("mount", b"none", b"/", None, _RECURSIVE | _PRIVATE, None)
    _call("mount", b"tmpfs", os.fsencode(place), b"tmpfs", 0, f"size={size}".encode())


def set_read_only(place: Path, yes: bool) -> None:
    """As when a disk fails, and the system lets nobody write to it any more."""
    _call("mount", b"tmpfs", os.fsencode(place), b"tmpfs", _REMOUNT | _READ_ONLY * yes, None)


def _call(name: str, *arguments: object) -> None:
    try:
        function = getattr(ctypes.CDLL(None, use_errno=True), name)
    except (AttributeError, OSError, TypeError) as error:
        raise NoDiskError(f"this system has no {name}") from error
    if function(*arguments) != 0:
        raise NoDiskError(f"{name}: {os.strerror(ctypes.get_errno())}")
