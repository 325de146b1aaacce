"""Names of classes as names of folders. They come from a file that a stranger may have written."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence

_LONGEST = 50  # characters; of four bytes each they stay below the 255 that file systems take
_KEPT = " -_+.,()"
# Windows keeps these for devices, whatever comes after a dot; labels.csv is our own
_RESERVED = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?|labels\.csv", re.IGNORECASE)


def folder_names(class_names: Sequence[str], count: int) -> list[str]:
    """Return a different, safe name of a folder for each of `count` classes: its name, else its number.

    >>> folder_names(["well", "ill/..", ""], 3)
    ['well', 'ill_', '2']
    """
    numbers = [f"{label:0{len(str(max(count - 1, 0)))}d}" for label in range(count)]
    if len(class_names) != count:
        return numbers
    names = [_safe(name) or number for name, number in zip(class_names, numbers, strict=True)]
    often = Counter(_key(name) for name in names)
    names = [f"{name} ({label})" if often[_key(name)] > 1 else name for label, name in enumerate(names)]
    return names if len({_key(name) for name in names}) == count else numbers


def _safe(name: str) -> str:
    """Replace what a file system, a shell or a reader could take for something else."""
    plain = unicodedata.normalize("NFC", name)
    kept = "".join(letter if _is_kept(letter) else "_" for letter in plain)
    kept = kept.lstrip("- .")[:_LONGEST].rstrip(" .")  # a leading dash reads as an option
    return "" if _RESERVED.fullmatch(kept) or not kept.strip("_ .") else kept


def _is_kept(letter: str) -> bool:
    return letter.isalnum() or letter in _KEPT or unicodedata.category(letter).startswith("M")


def _key(name: str) -> str:
    """Return what file systems that ignore case go by."""
    return unicodedata.normalize("NFKC", name).casefold()
