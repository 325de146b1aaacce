"""For public supports: noisy histograms, released once. All transport between them is post-processing.

Points are counted at the nearest of k public support points. Replacing one point moves two counts by one, so
Laplace noise of scale 2/ε on all counts of both sides is ε-DP (a point of one side only is replaced).
Proof: docs/proofs/histogram-cost.md.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from scipy import optimize, stats
from torch import Tensor

from dpsinkhorn.errors import TransportError
from dpsinkhorn.ot import ConvergenceWarning, MatrixProblem, SquaredEuclidean, solve
from dpsinkhorn.privacy.noise import NoiseSource
from dpsinkhorn.transport import checks
from dpsinkhorn.transport.certified import exact_value
from dpsinkhorn.transport.clouds import (
    CappedCost,
    Clouds,
    Interval,
    Setting,
    checked_points,
    of_populations,
    root_spread,
)
from dpsinkhorn.transport.laplace import LaplaceRelease
from dpsinkhorn.transport.result import Quantity

_Array = npt.NDArray[np.float64]
_REPEATS = 6  # of the noise, to estimate an error
_PART_OF_NOISE = 0.35  # of the cost between copies: a compromise among data that are alike and far apart


@dataclass(frozen=True, eq=False)
class NoisyHistograms:
    """Weights of x and of y on the support, ``(k,)`` each, that may be shown and used at will."""

    x: _Array
    y: _Array
    costs: _Array

    def cost(self, quantity: Quantity, regularization: float) -> float:
        """Transport between the histograms: post-processing."""
        if quantity == "divergence":
            cross, xx, yy = (
                self._transport(a, b, regularization)
                for a, b in ((self.x, self.y), (self.x, self.x), (self.y, self.y))
            )
            return 2 * cross - xx - yy
        return self._transport(self.x, self.y, regularization)

    def _transport(self, a: _Array, b: _Array, regularization: float) -> float:
        rows, columns = a > 0, b > 0
        costs, a, b = self.costs[np.ix_(rows, columns)], a[rows], b[columns]
        bound = max(float(self.costs.max()), 1e-300)
        if not regularization:
            return exact_value(costs, a, b, bound=bound, gap=1e-6 * bound)
        problem = MatrixProblem(torch.from_numpy(costs), torch.from_numpy(a), torch.from_numpy(b))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            return float(solve(problem, regularization, tolerance=1e-7).value)


@dataclass(frozen=True, eq=False)
class HistogramMechanism(LaplaceRelease):
    """What is settled before any point is looked at: the support, the noise, the error to expect."""

    setting: Setting
    support: Tensor
    costs: _Array
    epsilon: float

    @classmethod
    def plan(cls, clouds: Clouds, support: npt.ArrayLike | Tensor, *, epsilon: float) -> HistogramMechanism:
        """Of `clouds` only the setting and the cost are used."""
        checks.positive(epsilon=epsilon)
        points = checked_points("support", support)
        if points.shape[1] != clouds.setting.dimension:
            raise TransportError(
                f"the support must have the dimension of the points, {clouds.setting.dimension}, "
                f"not {points.shape[1]}"
            )
        return cls(clouds.setting, points, clouds.cost.pairwise(points, points).numpy(), float(epsilon))

    @property
    def sensitivity(self) -> float:
        """Of all counts together, in the sum of absolute differences."""
        largest = float(max(self.setting.n, self.setting.m))
        return self._widened(self.setting.worst(2.0, 2.0), largest=largest)

    @property
    def _sides(self) -> tuple[tuple[str, int], ...]:
        """Return the private sides and their sizes."""
        sides = (("x", self.setting.n), ("y", self.setting.m))
        return tuple(side for side in sides if side[0] != self.setting.public)

    @property
    def coordinates(self) -> int:
        """All counts of the private sides."""
        return len(self._sides) * len(self.support)

    def predicted_error(self, quantity: Quantity) -> float:
        """A bound on the mean absolute error of a cost between the binned data; binning is not in it.

        It holds whatever the data are, and so is far above the error of most; see `estimated_error`.
        """
        k = len(self.support)
        shift = self.scale * (k / 2 + math.sqrt(k / 2))  # bounds the mean of total variation times size
        return self._times(quantity) * min(1.0, sum(shift / size for _, size in self._sides))

    def estimated_error(self, found: NoisyHistograms, quantity: Quantity, regularization: float) -> float:
        """Estimate the mean absolute error of a cost, from the released histograms: post-processing.

        What stands out of the noise is noised again, and the mean change of the cost is taken; or, if that is
        more, a third of the cost that noise alone puts between two copies of the histograms' mean. Nothing
        public could tell: at the same public numbers the errors of different data are up to a factor of 50
        apart.
        """
        rng = np.random.default_rng(0)
        sizes = dict(self._sides)

        def noised(side: str, weights: _Array) -> _Array:
            if side not in sizes:
                return weights
            more = rng.laplace(scale=self.scale, size=len(weights)) / sizes[side]
            return project_to_simplex(weights + more)

        def standing_out(side: str, weights: _Array) -> _Array:
            kept = (
                np.where(weights > 2 * self.scale / sizes[side], weights, 0.0) if side in sizes else weights
            )
            return kept / kept.sum() if kept.any() else weights

        def change(x: _Array, y: _Array) -> float:
            before = NoisyHistograms(x, y, self.costs).cost(quantity, regularization)
            after = (NoisyHistograms(noised("x", x), noised("y", y), self.costs) for _ in range(_REPEATS))
            return float(np.mean([abs(each.cost(quantity, regularization) - before) for each in after]))

        both = (found.x + found.y) / 2
        clear = change(standing_out("x", found.x), standing_out("y", found.y))
        return max(clear, _PART_OF_NOISE * change(both, both))

    def reach(self, quantity: Quantity, confidence: float) -> float:
        """Return what the error exceeds with probability 1 - confidence at most."""
        alone = (1 - confidence) / (2 * len(self._sides))  # two signs of the noise on each side
        shift = self.scale * _sum_of_positive_parts(len(self.support), alone)
        return self._times(quantity) * min(1.0, sum(shift / size for _, size in self._sides))

    def of_populations(self, released: float, quantity: Quantity, confidence: float) -> Interval | None:
        """Return where the cost of the binned populations is, over noise and samples."""
        if quantity == "divergence":
            return None
        return of_populations(
            lambda at: (released - self.reach(quantity, at), released + self.reach(quantity, at)),
            self.setting,
            confidence=confidence,
            span=self._times(quantity),
            excess=self.sampling_excess,
        )

    @property
    def sampling_excess(self) -> float:
        """Return a bound on how far the mean cost of binned samples exceeds that of their populations."""
        return float(self.costs.max()) * math.sqrt(len(self.support)) / 2 * root_spread(self.setting)

    def _times(self, quantity: Quantity) -> float:
        return float(self.costs.max()) * (4 if quantity == "divergence" else 1)

    def release(self, clouds: Clouds, noise: NoiseSource) -> NoisyHistograms:
        """Return the noisy histograms; charge `charge` first."""
        return self.projected(self.noisy_weights(clouds, noise))

    def noisy_weights(self, clouds: Clouds, noise: NoiseSource) -> dict[str, _Array]:
        """Return the noisy counts over the sizes, which need be no weights; charge `charge` first."""
        counts = {"x": self._counts(clouds.x), "y": self._counts(clouds.y)}
        for side, _ in self._sides:
            counts[side] = self._noised(counts[side], noise)
        return {"x": counts["x"].numpy() / self.setting.n, "y": counts["y"].numpy() / self.setting.m}

    def projected(self, weights: dict[str, _Array]) -> NoisyHistograms:
        """Return the histograms nearest to noisy weights: post-processing."""
        return NoisyHistograms(project_to_simplex(weights["x"]), project_to_simplex(weights["y"]), self.costs)

    def binned(self, clouds: Clouds) -> NoisyHistograms:
        """Return the histograms without noise. **Private.**"""
        x, y = self._counts(clouds.x).numpy(), self._counts(clouds.y).numpy()
        return NoisyHistograms(x / self.setting.n, y / self.setting.m, self.costs)

    def _counts(self, points: Tensor) -> Tensor:
        far = CappedCost(SquaredEuclidean(), 1e300)  # pair by pair, so that no point moves another's bin
        nearest = [far.pairwise(part, self.support).argmin(1) for part in torch.split(points, 4096)]
        return torch.bincount(torch.cat(nearest), minlength=len(self.support)).double()


def project_to_simplex(values: _Array) -> _Array:
    """Return the nearest weights that are not negative and sum to one."""
    ordered = np.sort(values)[::-1]
    excess = (np.cumsum(ordered) - 1) / np.arange(1, len(values) + 1)
    level = excess[np.nonzero(ordered > excess)[0][-1]]
    weights = np.maximum(values - level, 0.0)
    return np.asarray(weights / weights.sum())


def _sum_of_positive_parts(count: int, chance: float) -> float:
    """Return what the sum of the positive parts of `count` Laplace(1) draws exceeds with this chance."""
    positive = np.arange(1, count + 1)  # how many of them are positive: each gives an exponential draw
    weights = stats.binom.pmf(positive, count, 0.5)

    def excess(q: float) -> float:
        return float(weights @ stats.gamma.sf(q, positive)) - chance

    if excess(0.0) <= 0:
        return 0.0
    high = 2.0 * count + 2 * math.log(1 / chance) + 10
    return float(optimize.brentq(excess, 0.0, high)) * (1 + 1e-9)
