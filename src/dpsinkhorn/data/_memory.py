"""Refusing what could never fit, by the sizes that a file declares, before any of it is read."""

from __future__ import annotations

import psutil  # type: ignore[import-untyped]

from dpsinkhorn.data.errors import DataError

__all__ = ["check_fits"]


def check_fits(size: int, what: str) -> None:
    """Refuse `what` if its `size` in bytes is more than the memory of this machine."""
    limit = psutil.virtual_memory().total
    if size > limit:
        raise DataError(
            f"{what} would take {size / 2**30:.3g} GiB, more than the {limit / 2**30:.3g} GiB here; "
            "the file may be damaged, else make the images smaller or keep them in an uncompressed .npy file"
        )
