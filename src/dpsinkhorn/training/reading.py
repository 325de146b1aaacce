"""Settings from JSON or TOML, checked against the annotations of the dataclass that they are for."""

from __future__ import annotations

import dataclasses
import numbers
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any

from dpsinkhorn.errors import TrainingError


def read_value(kind: Any, value: Any, where: str) -> Any:
    """`value` as an instance of the annotated type `kind`; whole numbers may stand for floats."""
    origin = typing.get_origin(kind)
    if dataclasses.is_dataclass(kind):
        if not isinstance(value, Mapping):
            raise TrainingError(f"{where} must be a table of settings, not {value!r}")
        hints = typing.get_type_hints(kind)
        known = {item.name for item in dataclasses.fields(kind)}
        if unknown := sorted(set(value) - known):
            raise TrainingError(f"{where} has no setting {unknown[0]!r}; it has {', '.join(sorted(known))}")
        entries = {name: read_value(hints[name], item, f"{where}.{name}") for name, item in value.items()}
        try:
            return kind(**entries)  # type: ignore[operator]
        except TypeError as error:
            raise TrainingError(f"{where} lacks a setting: {error}") from error
        except ValueError as error:
            raise TrainingError(str(error)) from error
    if origin in (typing.Union, types.UnionType):
        if value is None:
            return None
        kinds = [part for part in typing.get_args(kind) if part is not type(None)]
        return read_value(kinds[0 if isinstance(value, str) else -1], value, where)  # a name, or a number
    if origin is tuple:
        parts = typing.get_args(kind)
        if parts[1:] == (...,) and isinstance(value, Sequence):
            parts = parts[:1] * len(value)
        if isinstance(value, str) or not isinstance(value, Sequence) or len(value) != len(parts):
            raise TrainingError(f"{where} must be a list of {len(parts)}, not {value!r}")
        return tuple(read_value(part, item, where) for part, item in zip(parts, value, strict=True))
    if origin is typing.Literal:  # checked by the dataclass
        return value
    if origin is not None:
        if not isinstance(value, Mapping):
            raise TrainingError(f"{where} must be a table of settings, not {value!r}")
        return dict(value)
    return _read_plain(kind, value, where)


def _read_plain(kind: type, value: Any, where: str) -> Any:
    """A number, text or truth value; NumPy's numbers become Python's, which JSON knows."""
    fits = isinstance(value, kind)
    if kind is int:
        fits = isinstance(value, numbers.Integral)
    elif kind is float:
        fits = isinstance(value, numbers.Real)
    if not fits or isinstance(value, bool) is not (kind is bool):
        raise TrainingError(f"{where} must be {kind.__name__}, not {value!r}")
    return kind(value)
