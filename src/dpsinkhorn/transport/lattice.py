"""Noise so small that values would leave its lattice, which is clamped at 2^20 noise scales."""

from __future__ import annotations

__all__ = ["widened"]

_REACH = 2.0**19


def widened(sensitivity: float, *, multiplier: float, largest: float) -> float:
    """The sensitivity, or a larger one if noise of `multiplier` times it could not hold values of `largest`.

    Noise then is two millionths of the largest value: more than ε asks for, and less than anyone can see.

    >>> widened(0.5, multiplier=1.0, largest=1.0)
    0.5
    """
    return max(sensitivity, largest / (_REACH * multiplier))
