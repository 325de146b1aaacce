"""What the noise's lattice can hold: values within 2^20 noise scales, at scales that suit float64."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

from dpsinkhorn.transport.errors import TransportError

__all__ = ["laplace_multiplier", "noise_that_fits", "widened"]

_REACH = 2.0**19


def widened(sensitivity: float, *, multiplier: float, largest: float) -> float:
    """The sensitivity, or a larger one if noise of `multiplier` times it could not hold values of `largest`.

    Noise then is two millionths of the largest value: more than ε asks for, and less than anyone can see.

    >>> widened(0.5, multiplier=1.0, largest=1.0)
    0.5
    """
    return max(sensitivity, largest / (_REACH * multiplier))


def laplace_multiplier(epsilon: float) -> float:
    """1/ε, rounded up so that its inverse, which accountants charge, does not pass ε as 1/(1/49) does.

    `add_laplace` enlarges its noise by far more than this rounding.

    >>> 1 / (1 / 49) > 49 >= 1 / laplace_multiplier(49)
    True
    """
    multiplier = 1 / epsilon
    while 1 / multiplier > epsilon:
        multiplier = math.nextafter(multiplier, math.inf)
    return multiplier


@contextmanager
def noise_that_fits() -> Iterator[None]:
    """Around a noise scale that is computed while planning: settings beyond the lattice are bad input."""
    try:
        yield
    except ValueError as error:
        raise TransportError(
            f"no noise can be had at this epsilon, cost bound and number of points: {error}"
        ) from error
