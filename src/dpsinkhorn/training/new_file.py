"""A file that only one of several processes can begin."""

from __future__ import annotations

import errno
import os
from pathlib import Path

__all__ = ["drafts_of", "write_new"]


def write_new(path: Path, content: bytes) -> None:
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
        with open(draft, "xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(draft, path)  # which, unlike a renaming, replaces nothing
        except OSError as error:
            if os.path.lexists(path):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path)) from error
            os.rename(draft, path)  # a file system that has no links
    finally:
        draft.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def drafts_of(path: Path) -> set[Path]:
    """What processes left that were killed while they wrote this file."""
    return set(path.parent.glob(f".{path.name}.*.partial"))
