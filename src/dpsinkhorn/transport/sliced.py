"""Sliced transport costs: the mean over public directions of the W_1 between projections.

`SlicedMechanism` releases the cost itself. Points are first moved into a public ball of radius R: replacing
one moves its projections by 2R times `slope` in the mean, slope being 1/√d for whole orthonormal bases, and
the cost by that over n. `SmoothedMechanism` is Gaussian-smoothed sliced Wasserstein (Rakotomamonjy and
Ralaivola 2021): the points are noised, and what is computed from them, along as many directions as one likes,
is a distance of smoothed measures. Proof: docs/proofs/sliced-cost.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy.typing as npt
import torch
from scipy import stats
from torch import Tensor

from dpsinkhorn.errors import TransportError
from dpsinkhorn.ot import Cost, Euclidean, sliced_cost, whole_bases
from dpsinkhorn.privacy import Adjacency, Charge, GaussianMechanism, add_gaussian
from dpsinkhorn.privacy.noise import NoiseSource, gaussian_std
from dpsinkhorn.transport import checks
from dpsinkhorn.transport.certified import rounding
from dpsinkhorn.transport.clouds import (
    Clouds,
    Interval,
    Setting,
    checked_points,
    of_populations,
    root_spread,
    spread,
)
from dpsinkhorn.transport.noisy import gaussian_multiplier
from dpsinkhorn.transport.release import CostMechanism, NumberMechanism

_FARTHEST = 1e100  # as for costs
_ROOT_VARIANCE = 1.6147439  # ∫ √(Φ(1 - Φ)), rounded up: the W_1 of n normal draws to their law is this / √n
_ROOT_TAILS = 1.8438309  # 2 ∫₀^∞ √(1 - Φ), rounded up


@dataclass(frozen=True, eq=False)
class Ball:
    """A public ball, into which points are moved: those outside to the nearest point of its surface."""

    center: Tensor
    radius: float

    @classmethod
    def of(cls, setting: Setting, center: npt.ArrayLike | Tensor | None) -> Ball:
        """Return the ball of radius bound/2 about `center`; without one, of radius bound about the origin."""
        if center is None:
            return cls(torch.zeros(setting.dimension, dtype=torch.float64), setting.bound)
        point = checked_points("center", center).reshape(-1)
        if len(point) != setting.dimension:
            raise TransportError(
                f"center must be a point of the same dimension as the data, {setting.dimension}, not "
                f"{len(point)}"
            )
        return cls(point, setting.bound / 2)

    def moved(self, points: Tensor) -> Tensor:
        """Return the points as they stand to the center, within the radius: a function of each row alone."""
        points = points.clamp(-_FARTHEST, _FARTHEST) - self.center.clamp(-_FARTHEST, _FARTHEST)
        norms = points.square().sum(1, keepdim=True).sqrt()
        return points * (self.radius / norms.clamp(min=self.radius))


@dataclass(frozen=True, eq=False)
class SlicedMechanism(NumberMechanism):
    """The sliced cost with Laplace noise: pure ε-DP, with noise of 2R/(√d n ε)."""

    method = what = "sliced"
    gap = 0.0
    setting: Setting
    ball: Ball
    epsilon: float
    directions: Tensor = field(repr=False)
    slope: float
    rounding: float

    @classmethod
    def plan(
        cls, setting: Setting, *, epsilon: float, center: npt.ArrayLike | Tensor | None = None
    ) -> SlicedMechanism:
        """Fix ball, directions and slope: all of them public."""
        checks.positive(epsilon=epsilon)
        directions, ball = whole_bases(setting.dimension), Ball.of(setting, center)
        off = rounding(setting, 0.0, bound=2 * ball.radius)
        return cls(setting, ball, float(epsilon), directions, slope_of(directions), off)

    @property
    def span(self) -> float:
        """Return how far a point of the ball can be moved, in the mean of its projections."""
        return 2 * self.ball.radius * self.slope

    @property
    def sensitivity(self) -> float:
        exact = self.setting.worst(self.span / self.setting.n, self.span / self.setting.m)
        return self._widened(exact + 2 * self.rounding, largest=2 * self.ball.radius)

    @property
    def predicted_error(self) -> float:
        return min(self.scale, self.span)

    def facts(self) -> dict[str, Any]:
        note = (
            "The mean over public directions of the transport cost between projections: at most the "
            "transport cost itself, of points moved to within the bound."
        )
        return {"quantity": "sliced", "notes": (note,)}

    def of_populations(
        self,
        released: float,
        confidence: float,
        *,
        interval: Callable[[float, float], Interval] | None = None,
    ) -> Interval | None:
        """Return the same for the populations: W_1 of n draws to their law is at most R/√n, in the mean."""
        return of_populations(
            partial(interval or self.interval, released),
            self.setting,
            confidence=confidence,
            span=self.span,
            excess=self.ball.radius * root_spread(self.setting),
        )

    def value(self, clouds: Clouds) -> float:
        return sliced_cost(self.ball.moved(clouds.x), self.ball.moved(clouds.y), self.directions)

    def target(self, clouds: Clouds) -> float:
        return self.value(clouds)


@dataclass(frozen=True, eq=False)
class SmoothedMechanism(CostMechanism):
    """Points with Gaussian noise, once; sliced costs of them are post-processing, along any directions."""

    method = what = "smoothed-sliced"
    setting: Setting
    ball: Ball
    epsilon: float
    delta: float
    multiplier: float
    directions: Tensor = field(repr=False)

    @classmethod
    def plan(
        cls, setting: Setting, *, epsilon: float, delta: float, center: npt.ArrayLike | Tensor | None = None
    ) -> SmoothedMechanism:
        """Fix ball and noise: all of it public."""
        checks.positive(epsilon=epsilon)
        if not (checks.is_number(delta) and 0 < delta < 1):
            raise TransportError(
                f"smoothed-sliced needs a delta between 0 and 1, not {checks.shown(delta)}; 1e-5 is usual"
            )
        epsilon, delta = float(epsilon), float(delta)
        multiplier = gaussian_multiplier(epsilon, delta, 1)
        found = cls(
            setting, Ball.of(setting, center), epsilon, delta, multiplier, whole_bases(setting.dimension)
        )
        with checks.noise_that_fits():
            _ = found.smoothing
        return found

    @property
    def sensitivity(self) -> float:
        """Of all points together, in the Euclidean norm; both of a person's where they are paired."""
        exact = 2 * self.ball.radius * (math.sqrt(2) if self.setting.paired else 1)
        exact *= 1 + 2.0**-50 * (self.setting.dimension + 32)
        return checks.widened(exact, multiplier=self.multiplier, largest=self.ball.radius)

    @property
    def coordinates(self) -> int:
        return (self.setting.n + self.setting.m) * self.setting.dimension

    @property
    def charge(self) -> Charge:
        return GaussianMechanism(self.sensitivity, self.multiplier, Adjacency.REPLACE_ONE).charge()

    @property
    def smoothing(self) -> float:
        """Return s: the measures are smoothed by normals of this standard deviation along each direction."""
        return gaussian_std(self.sensitivity, self.multiplier, self.coordinates)

    @property
    def offset(self) -> float:
        """Return about how far the noise alone lifts the distance of equal data: that of normal draws."""
        return self.smoothing * math.sqrt(2 / math.pi * spread(self.setting)) * _ROOT_VARIANCE

    @property
    def predicted_error(self) -> float:
        """Of the distance of smoothed measures, once `offset` is taken out.

        The factor is a fit to simulated normal data, not a bound.
        """
        return min(0.3 * self.offset / math.sqrt(math.sqrt(self.setting.dimension)), self.ball.radius / 2)

    def facts(self) -> dict[str, Any]:
        """Return quantity and δ, and in notes what the noise is, beside the published one."""
        sizes = (len(self.directions), self.setting.dimension, self.delta)
        bernstein, normal = (
            self.smoothing * published_sensitivity(*sizes, normal=kind) for kind in (False, True)
        )
        noise = (
            f"Noise of standard deviation {self.smoothing:.3g} along each direction, for any number of them. "
            f"As published, for {sizes[0]} directions: {bernstein:.3g}, or {normal:.3g} by a central limit; "
            "neither is a guarantee for directions that are known beforehand."
        )
        smoothed = (
            "The mean distance along lines of measures that are smoothed by normal noise, which brings "
            "them closer. What noise alone adds was taken out of the cost."
        )
        return {"quantity": "smoothed-sliced", "delta": self.delta, "notes": (smoothed, noise)}

    def estimate(self, prepared: Clouds, noise: NoiseSource, confidence: float) -> dict[str, Any]:
        distance = self.distance(*self.release(prepared, noise))
        return {
            "released": distance,
            "cost": self.without_offset(distance),
            "interval": self.interval(distance, confidence),
            "population_interval": self.of_populations(distance, confidence),
        }

    def release(self, clouds: Clouds, noise: NoiseSource) -> tuple[Tensor, Tensor]:
        """Return the noised points x and y, which may be used at will; charge `charge` first."""
        points = torch.cat([self.ball.moved(clouds.x), self.ball.moved(clouds.y)])
        noisy = add_gaussian(
            points, sensitivity=self.sensitivity, noise_multiplier=self.multiplier, noise=noise
        )
        return noisy[: self.setting.n], noisy[self.setting.n :]

    def distance(self, x: Tensor, y: Tensor) -> float:
        """Return the sliced distance of noised points, as published: post-processing."""
        return sliced_cost(x, y, self.directions)

    def without_offset(self, distance: float) -> float:
        """Return the distance less what noise alone adds, as squares: exact for shifts of normal measures."""
        return math.sqrt(max(0.0, distance**2 - self.offset**2))

    def interval(self, distance: float, confidence: float) -> Interval:
        """Return where the distance of the smoothed samples is, with this probability over the noise.

        The mean of `distance` exceeds it by at most `excess`, and `distance` is a Lipschitz function of the
        noise.
        """
        reach = (
            self.smoothing
            * slope_of(self.directions)
            * math.sqrt(2 * spread(self.setting) * math.log(2 / (1 - confidence)))
        )
        return max(0.0, distance - self.excess - reach), max(0.0, distance + reach)

    @property
    def excess(self) -> float:
        """Return a bound on what noise, with the draw of samples or without, adds in the mean."""
        return (self.ball.radius + _ROOT_TAILS * self.smoothing) * root_spread(self.setting)

    def of_populations(self, distance: float, confidence: float) -> Interval | None:
        """Return the same for the smoothed populations; `excess` covers both draws."""
        return of_populations(
            partial(self.interval, distance),
            self.setting,
            confidence=confidence,
            span=2 * self.ball.radius * slope_of(self.directions),
            excess=0.0,
        )

    def target(self, clouds: Clouds) -> float:
        """Return the sliced distance of the smoothed samples. **Private.**"""
        x, y = (self.ball.moved(points) @ self.directions.T for points in (clouds.x, clouds.y))
        return smoothed_cost(x, y, self.smoothing)


def smoothed_cost(x: Tensor, y: Tensor, smoothing: float, *, points: int = 1000) -> float:
    """Return the mean W_1 of the columns of x and y, each smoothed by a normal: ∫|F - G| on a fine grid."""
    low, high = (float(end) for end in torch.cat([x, y]).aminmax())
    grid = torch.linspace(low - 8 * smoothing, high + 8 * smoothing, points, dtype=torch.float64)
    total = 0.0
    for of_x, of_y in zip(x.T, y.T, strict=True):
        first, second = (
            torch.special.ndtr((grid[:, None] - values) / smoothing).mean(1) for values in (of_x, of_y)
        )
        total += float(torch.trapezoid((first - second).abs(), grid))
    return total / x.shape[1]


def slope_of(directions: Tensor) -> float:
    """Return a bound on the mean of |θ·z| over the directions, for z of length 1: their root mean square.

    >>> round(slope_of(whole_bases(4)), 6)
    0.5
    """
    largest = float(torch.linalg.matrix_norm(directions, 2))
    return largest / math.sqrt(len(directions)) * (1 + 1e-9)


def published_sensitivity(directions: int, dimension: int, delta: float, *, normal: bool = False) -> float:
    """Return the published bound on how far a point that moves by 1 moves its projections, as a vector.

    For directions drawn from the sphere, it holds with probability 1 - δ (Bernstein), or nearly so (`normal`:
    by a central limit). **No guarantee rests on it**: it is over directions that are drawn after the
    data, and for directions that are public beforehand some point moves farther.

    >>> found = [published_sensitivity(50, 784, 1e-5, normal=normal) for normal in (False, True)]
    >>> [round(each, 2) for each in found]
    [2.79, 0.34]
    """
    k, d = directions, dimension
    if normal:
        root = float(stats.norm.isf(delta)) / d * math.sqrt(2 * k * (d - 1) / (d + 2))
        return math.sqrt(k / d + root)
    log = math.log(1 / delta)
    return math.sqrt(k / d + 2 / 3 * log + 2 / d * math.sqrt(k * (d - 1) / (d + 2) * log))


def require_euclidean(cost: Cost) -> None:
    """Refuse costs that have no sliced form here."""
    if type(cost) is not Euclidean:
        raise TransportError(
            "sliced methods are of the Euclidean distance: give cost euclidean, and a bound on the distance"
        )
