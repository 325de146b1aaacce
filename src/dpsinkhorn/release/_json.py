"""Strict JSON, for files that a stranger may have written."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from dpsinkhorn.errors import ReleaseError


def to_bytes(value: Mapping[str, Any]) -> bytes:
    return (json.dumps(value, indent=2, allow_nan=False, ensure_ascii=False) + "\n").encode()


def from_bytes(data: bytes, name: str) -> dict[str, Any]:
    """Read a JSON object in UTF-8. Keys that come twice and numbers that are none are refused."""
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
