"""Refusing what could never fit, by the sizes that a file declares, before any of it is read."""

from __future__ import annotations

import os

from dpsinkhorn.data.errors import DataError

__all__ = ["check_fits"]

_FALLBACK = 64 << 30  # where the system does not tell how much memory it has


def check_fits(size: int, what: str) -> None:
    """Refuse `what` if its `size` in bytes is more than the memory of this machine."""
    limit = _memory()
    if size > limit:
        raise DataError(
            f"{what} would take {size / 2**30:.3g} GiB, more than the {limit / 2**30:.3g} GiB here; "
            "the file may be damaged, else make the images smaller or keep them in an uncompressed .npy file"
        )


def _memory() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return _FALLBACK
