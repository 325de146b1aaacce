"""Checks of single values that a stranger may have written: each returns the value, or raises in one line."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

_LARGEST = sys.float_info.max


def whole(value: Any, name: str, error: type[Exception], *, least: int, most: int) -> int:
    """Return a whole number within bounds."""
    if type(value) is not int or not least <= value <= most:
        raise error(f"{name} must be a whole number from {least} to {most}, not {value!r:.40}")
    return value


def number(
    value: Any, name: str, error: type[Exception], *, least: float = -_LARGEST, most: float = _LARGEST
) -> float:
    """Return a finite number within bounds, as a float."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value <= most:
        what = "finite number" if most == _LARGEST else f"number from {least:g} to {most:g}"
        raise error(f"{name} must be a {what}, not {value!r:.40}")
    return float(value)


def truth(value: Any, name: str, error: type[Exception]) -> bool:
    """Return True or False."""
    if type(value) is not bool:
        raise error(f"{name} must be true or false")
    return value


def choice(value: Any, name: str, error: type[Exception], *, choices: Sequence[str]) -> str:
    """Return one of some names."""
    if not isinstance(value, str) or value not in choices:
        raise error(f"{name} must be one of {', '.join(choices)}")
    return value


def text(value: Any, name: str, error: type[Exception], *, longest: int = 4000) -> str:
    """Return a string that can be printed on one line."""
    if not isinstance(value, str) or not value.isprintable() or len(value) > longest:
        raise error(f"{name} must be one line of at most {longest} printable characters")
    return value


def keys(value: Mapping[str, Any], name: str, error: type[Exception], *, expected: Iterable[str]) -> None:
    """Refuse a mapping that has other keys than these."""
    wanted = set(expected)
    for key in value.keys() - wanted:
        raise error(f"{name} has an unknown entry {str(key)[:40]!r}")
    for key in sorted(wanted - value.keys()):
        raise error(f"{name} has no entry {key!r}")
