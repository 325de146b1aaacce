"""Strict JSON, and checks of single values, for files that a stranger may have written."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any

from dpsinkhorn.release.errors import ReleaseError

_LONGEST_TEXT = 4000


def to_bytes(value: Mapping[str, Any]) -> bytes:
    return (json.dumps(value, indent=2, allow_nan=False, ensure_ascii=False) + "\n").encode()


def from_bytes(data: bytes, name: str) -> dict[str, Any]:
    """A JSON object in UTF-8. Keys that come twice and numbers that are none are refused."""
    try:
        value = json.loads(data.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        raise ReleaseError(f"{name} is damaged: not valid JSON; get the release again") from None
    if not isinstance(value, dict):
        raise ReleaseError(f"{name} is damaged: not a JSON object; get the release again")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise ValueError("a key comes twice")
    return value


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def check_keys(value: Mapping[str, Any], expected: Iterable[str], name: str) -> None:
    wanted = set(expected)
    for key in value.keys() - wanted:
        raise ReleaseError(f"{name} has an unknown entry {str(key)[:40]!r}")
    for key in sorted(wanted - value.keys()):
        raise ReleaseError(f"{name} has no entry {key!r}")


def check_text(value: Any, what: str, longest: int = _LONGEST_TEXT) -> str:
    """A string that can be printed on one line."""
    if not isinstance(value, str) or not value.isprintable() or len(value) > longest:
        raise ReleaseError(f"{what} must be one line of at most {longest} printable characters")
    return value


def check_bool(value: Any, what: str) -> bool:
    if type(value) is not bool:
        raise ReleaseError(f"{what} must be true or false")
    return value


def check_number(value: Any, what: str) -> float:
    """A finite number."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ReleaseError(f"{what} must be a number")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise ReleaseError(f"{what} must be a finite number")
    return number
