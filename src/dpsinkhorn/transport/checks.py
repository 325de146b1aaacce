"""What is wrong with an argument, in one line, before anything is charged or looked at."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from dpsinkhorn.errors import TransportError
from dpsinkhorn.privacy import SecureNoise
from dpsinkhorn.privacy.noise import NoiseSource

_REGULARIZATION = (1e-4, 1e4)  # over the bound, where float64 and the solver are at ease

_REACH = 2.0**19  # the noise's lattice holds values within 2^20 noise scales


def shown(value: object) -> str:
    """Return a value as an error shows it: one line, short, and no private array.

    >>> shown(0.0), shown("3"), shown(np.zeros(3))
    ('0', "'3'", 'an object of ndarray')
    """
    if isinstance(value, float | np.floating):
        return f"{value:g}"
    if value is None or isinstance(value, bool | int | str | np.integer | np.bool_):
        text = str(value) if isinstance(value, np.generic) else repr(value)
        return text if len(text) <= 60 else f"{text[:57]}..."
    return f"an object of {type(value).__name__}"


def is_number(value: object) -> bool:
    """Return whether it is a real number that float64 can hold; infinity and NaN included, booleans not."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        return False
    try:
        float(value)
    except OverflowError:
        return False
    return True


def positive(**values: Any) -> None:
    """Refuse what is not a positive finite number."""
    for name, value in values.items():
        if not (is_number(value) and value > 0 and math.isfinite(value)):
            raise TransportError(f"{name} must be a positive number, not {shown(value)}")


def fraction(*, zero: bool = False, **values: Any) -> None:
    """Refuse what is not a number below 1 and above 0, or 0 where that is allowed."""
    for name, value in values.items():
        if not (is_number(value) and value < 1 and (value > 0 or (zero and value == 0))):
            within = "from 0 to below 1" if zero else "between 0 and 1"
            raise TransportError(f"{name} must be {within}, not {shown(value)}")


def count(**values: Any) -> None:
    """Refuse what is not a whole number from 1 upwards."""
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
            raise TransportError(f"{name} must be a whole number from 1 upwards, not {shown(value)}")


def flag(**values: Any) -> None:
    """Refuse what is neither True nor False, such as the text "no", which counts as true."""
    for name, value in values.items():
        if not isinstance(value, bool | np.bool_):
            raise TransportError(f"{name} must be True or False, not {shown(value)}")


def choice(choices: tuple[str, ...], **values: Any) -> None:
    """Refuse what is none of the choices."""
    for name, value in values.items():
        if not isinstance(value, str) or value not in choices:
            *first, last = choices
            raise TransportError(f"{name} must be {', '.join(first)} or {last}, not {shown(value)}")


def regularization(value: Any, bound: float) -> None:
    """Refuse what is out of all proportion to the bound."""
    positive(regularization=value)
    least, most = (limit * bound for limit in _REGULARIZATION)
    if not least <= float(value) <= most:
        raise TransportError(
            f"regularization must be from {least:g} to {most:g} at this cost bound, not {value:g}"
        )


def noise_or_secure(noise: NoiseSource | None) -> NoiseSource:
    """Return the source itself, or secure noise where none was given."""
    if noise is None:
        return SecureNoise()
    if isinstance(noise, type) or not isinstance(noise, NoiseSource):
        raise TransportError("noise must be None, for secure noise, or a source such as SeededNoise(0)")
    return noise


def widened(sensitivity: float, *, multiplier: float, largest: float) -> float:
    """The sensitivity, or a larger one if noise of `multiplier` times it could not hold values of `largest`.

    Noise then is two millionths of the largest value: more than ε asks for, and less than anyone can see.

    >>> widened(0.5, multiplier=1.0, largest=1.0)
    0.5
    """
    return max(sensitivity, largest / (_REACH * multiplier))


@contextmanager
def noise_that_fits() -> Iterator[None]:
    """Around a noise scale that is computed while planning: settings beyond the lattice are bad input."""
    try:
        yield
    except ValueError as error:
        raise TransportError(
            f"no noise can be had at this epsilon, cost bound and number of points: {error}"
        ) from error
