"""The search for the sizes of Gaussian noise that an observation allows."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

_NOISES = np.geomspace(1e-2, 100.0, 1024)  # noise multipliers that are told apart


def least_refuted_noise(allows: Callable[[float], bool]) -> float:
    """Return the least noise multiplier on a grid that is not allowed; infinity where all of them are.

    `allows` is monotone: where it allows some noise, it allows less noise as well. So if the true noise is
    allowed, it lies below what is returned, and its ε is at least as large as that of what is returned.
    """
    few, many = -1, len(_NOISES)  # places on the grid: so little noise is allowed, so much is not
    while many > few + 1:
        middle = (few + many) // 2
        few, many = (middle, many) if allows(float(_NOISES[middle])) else (few, middle)
    return float(_NOISES[many]) if many < len(_NOISES) else math.inf
