"""Releases with Laplace noise: what they cost, and the noise, both from ε and a sensitivity."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

from torch import Tensor

from dpsinkhorn.privacy import Adjacency, Charge, LaplaceMechanism, add_laplace
from dpsinkhorn.privacy.noise import NoiseSource, laplace_scale
from dpsinkhorn.transport import checks


class LaplaceRelease(ABC):
    """One number, or several together, that leave the data with Laplace noise: ε-DP, replacing a point."""

    epsilon: float

    def __post_init__(self) -> None:
        with checks.noise_that_fits():
            _ = self.scale

    @property
    @abstractmethod
    def sensitivity(self) -> float:
        """How far a replaced point moves all that is noised, in the sum of absolute differences."""

    @property
    def coordinates(self) -> int:
        """How many numbers are noised together."""
        return 1

    @property
    def mechanism(self) -> LaplaceMechanism:
        return LaplaceMechanism(self.sensitivity, laplace_multiplier(self.epsilon), Adjacency.REPLACE_ONE)

    @property
    def charge(self) -> Charge:
        """What it costs; charge it before anything is released."""
        return self.mechanism.charge()

    @property
    def scale(self) -> float:
        """Of the Laplace noise, which is also its mean absolute value."""
        return laplace_scale(self.sensitivity, self.epsilon, self.coordinates)

    def _widened(self, sensitivity: float, *, largest: float) -> float:
        """The sensitivity, or a larger one where the noise's lattice could not hold values of `largest`."""
        return checks.widened(sensitivity, multiplier=laplace_multiplier(self.epsilon), largest=largest)

    def _noised(self, values: Tensor, noise: NoiseSource) -> Tensor:
        return add_laplace(
            values,
            sensitivity=self.sensitivity,
            epsilon=self.epsilon,
            noise=noise,
            coordinates=self.coordinates,
        )


def laplace_multiplier(epsilon: float) -> float:
    """Return 1/ε, rounded up so that its inverse, which accountants charge, does not pass ε as 1/(1/49) does.

    `add_laplace` enlarges its noise by far more than this rounding.

    >>> 1 / (1 / 49) > 49 >= 1 / laplace_multiplier(49)
    True
    """
    multiplier = 1 / epsilon
    while 1 / multiplier > epsilon:
        multiplier = math.nextafter(multiplier, math.inf)
    return multiplier
