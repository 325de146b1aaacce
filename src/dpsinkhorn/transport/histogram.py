"""For public supports: noisy histograms, released once. All transport between them is post-processing.

Points are counted at the nearest of k public support points. Replacing one point moves two counts by one, so
Laplace noise of scale 2/ε on all counts of both sides is ε-DP (a point of one side only is replaced).
Proof: docs/proofs/histogram-cost.md.

`LinearProgramMechanism` makes a plan of them that never uses mass which is not there. After Muñoz Medina,
Syed, Vassilvitskii and Vitercik (2020): where private data are the right-hand side of a linear program, noise
and a shift make that side smaller, so that what solves the noisy program satisfies the true one. Transport
between counts takes this form once mass may stay where it is, at the price of the largest cost, which changes
no optimum:

    minimise <C, P> + c̄ (1 - |P|)   over P >= 0 with row sums of at most a, and column sums of at most b.

Their noise is truncated, so that no constraint is ever broken, for a δ. Here it is not: pure ε-DP, and no
constraint is broken with the probability of the interval. Proof: docs/proofs/linear-program.md.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy import optimize, stats
from torch import Tensor

from dpsinkhorn.errors import TransportError
from dpsinkhorn.ot import ConvergenceWarning, MatrixProblem, SquaredEuclidean, solve
from dpsinkhorn.privacy import Charge
from dpsinkhorn.privacy.noise import NoiseSource
from dpsinkhorn.transport import checks
from dpsinkhorn.transport.certified import exact_plan, exact_value
from dpsinkhorn.transport.clouds import (
    CappedCost,
    Clouds,
    Interval,
    Setting,
    checked_points,
    of_populations,
    root_spread,
)
from dpsinkhorn.transport.release import CostMechanism, LaplaceRelease, Quantity, notes_of

_Array = npt.NDArray[np.float64]
_REPEATS = 6  # of the noise, to estimate an error
_PART_OF_NOISE = 0.35  # of the cost between copies: a compromise among data that are alike and far apart
_BINNED = (
    "Cost, interval and predicted error are of the data moved to the nearest points of the support: what "
    "that changes is not known, and not in them."
)


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
class HistogramMechanism(LaplaceRelease, CostMechanism):
    """What is settled before any point is looked at: the support, the noise, what is computed of counts."""

    method = what = "histogram"
    setting: Setting
    support: Tensor
    costs: _Array
    epsilon: float
    quantity: Quantity
    regularization: float

    @classmethod
    def plan(
        cls,
        clouds: Clouds,
        support: npt.ArrayLike | Tensor,
        *,
        epsilon: float,
        quantity: Quantity = "exact",
        regularization: float = 0.0,
    ) -> HistogramMechanism:
        """Of `clouds` only the setting and the cost are used."""
        checks.positive(epsilon=epsilon)
        points = checked_points("support", support)
        if points.shape[1] != clouds.setting.dimension:
            raise TransportError(
                f"the support must have the dimension of the points, {clouds.setting.dimension}, "
                f"not {points.shape[1]}"
            )
        costs = clouds.cost.pairwise(points, points).numpy()
        return cls(clouds.setting, points, costs, float(epsilon), quantity, regularization)

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

    @property
    def predicted_error(self) -> float:
        """A bound on the mean absolute error of a cost between the binned data; binning is not in it.

        It holds whatever the data are, and so is far above the error of most; see `estimated_error`.
        """
        k = len(self.support)
        shift = self.scale * (k / 2 + math.sqrt(k / 2))  # bounds the mean of total variation times size
        return self._most * min(1.0, sum(shift / size for _, size in self._sides))

    def estimated_error(self, found: NoisyHistograms) -> float:
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
            before = self._cost(NoisyHistograms(x, y, self.costs))
            after = (NoisyHistograms(noised("x", x), noised("y", y), self.costs) for _ in range(_REPEATS))
            return float(np.mean([abs(self._cost(each) - before) for each in after]))

        both = (found.x + found.y) / 2
        clear = change(standing_out("x", found.x), standing_out("y", found.y))
        return max(clear, _PART_OF_NOISE * change(both, both))

    def _cost(self, histograms: NoisyHistograms) -> float:
        return histograms.cost(self.quantity, self.regularization)

    def reach(self, confidence: float) -> float:
        """Return what the error exceeds with probability 1 - confidence at most."""
        alone = (1 - confidence) / (2 * len(self._sides))  # two signs of the noise on each side
        shift = self.scale * _sum_of_positive_parts(len(self.support), alone)
        return self._most * min(1.0, sum(shift / size for _, size in self._sides))

    def interval(self, released: float, confidence: float) -> Interval:
        """Return where the cost of the binned data is, with this probability over the noise."""
        reach = self.reach(confidence)
        return released - reach, released + reach

    def of_populations(self, released: float, confidence: float) -> Interval | None:
        """Return where the cost of the binned populations is, over noise and samples."""
        if self.quantity == "divergence":
            return None
        return of_populations(
            partial(self.interval, released),
            self.setting,
            confidence=confidence,
            span=self._most,
            excess=self.sampling_excess,
        )

    @property
    def sampling_excess(self) -> float:
        """Return a bound on how far the mean cost of binned samples exceeds that of their populations."""
        return float(self.costs.max()) * math.sqrt(len(self.support)) / 2 * root_spread(self.setting)

    @property
    def _most(self) -> float:
        return float(self.costs.max()) * (4 if self.quantity == "divergence" else 1)

    def facts(self) -> dict[str, Any]:
        notes = (*notes_of(self.quantity, self.regularization, self.setting), _BINNED)
        return {"quantity": self.quantity, "regularization": self.regularization, "notes": notes}

    def estimate(self, prepared: Clouds, noise: NoiseSource, confidence: float) -> dict[str, Any]:
        weights = self.release(prepared, noise)
        released = self._cost(weights)
        return {
            "released": released,
            "interval": self.interval(released, confidence),
            "population_interval": self.of_populations(released, confidence),
            "predicted_error": self.estimated_error(weights),
        }

    def target(self, clouds: Clouds) -> float:
        return self._cost(self.binned(clouds))

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


@dataclass(frozen=True, eq=False)
class FeasiblePlan:
    """Transport of the mass that is there for certain: it may be shown and used at will.

    Attributes:
        mass: from each support point to each, ``(k, k)``.
        unserved: what is left of x and of y.
        value: <C, mass> and the largest cost for what is left: at least the cost of the binned data.
    """

    mass: _Array
    unserved: tuple[float, float]
    value: float


@dataclass(frozen=True, eq=False)
class LinearProgramMechanism(CostMechanism):
    """What is settled before any point is looked at: histograms, and how far they are shifted down."""

    method = what = "linear-program"
    histogram: HistogramMechanism
    confidence: float

    def __post_init__(self) -> None:
        checks.fraction(confidence=self.confidence)

    @property
    def epsilon(self) -> float:  # type: ignore[override]
        return self.histogram.epsilon

    @property
    def charge(self) -> Charge:
        return self.histogram.charge

    @property
    def shift(self) -> float:
        """Return what no count's noise exceeds, with probability `confidence` for all of them."""
        return self.shift_at(self.confidence)

    def shift_at(self, confidence: float) -> float:
        """Return the shift for a probability."""
        count, scale = self.histogram.coordinates, self.histogram.scale
        return scale * (max(0.0, math.log(count / (2 * (1 - confidence)))) + 1e-6)

    @property
    def predicted_error(self) -> float:
        """A bound on the mean error of a cost between the binned data; see `estimated_error`."""
        histogram = self.histogram
        shift = len(histogram.support) * self.shift
        return self._largest * min(1.0, sum(shift / size for _, size in histogram._sides))

    @property
    def _largest(self) -> float:
        return float(self.histogram.costs.max())

    def release(self, clouds: Clouds, noise: NoiseSource) -> dict[str, _Array]:
        """Return the noisy weights of x and of y; charge `charge` first."""
        return self.histogram.noisy_weights(clouds, noise)

    def solve(self, weights: dict[str, _Array], *, confidence: float | None = None) -> FeasiblePlan:
        """Return the best plan that the shifted weights allow: post-processing."""
        shift = self.shift_at(self.confidence if confidence is None else confidence)
        setting = self.histogram.setting
        sizes = {"x": setting.n, "y": setting.m}
        parts = []
        for side, found in weights.items():
            down = 0.0 if side == setting.public else shift / sizes[side]
            sure = np.maximum(found - down, 0.0)
            sure /= max(1.0, sure.sum())
            parts.append(np.append(sure, max(0.0, 1.0 - sure.sum())))
        largest = self._largest
        costs = np.pad(self.histogram.costs, (0, 1), constant_values=largest)
        plan = exact_plan(costs, *parts, bound=max(largest, 1e-300))
        served = plan[:-1, :-1]
        value = float((served * costs[:-1, :-1]).sum() + largest * max(0.0, 1.0 - served.sum()))
        return FeasiblePlan(served, (float(parts[0][-1]), float(parts[1][-1])), value)

    def interval(self, weights: dict[str, _Array], confidence: float) -> Interval:
        """Return where the cost of the binned data is, with this probability over the noise."""
        found = self.solve(weights, confidence=confidence)
        return max(0.0, found.value - self._largest * sum(found.unserved)), found.value

    def of_populations(self, weights: dict[str, _Array], confidence: float) -> Interval | None:
        """Return the same for the binned populations."""
        return of_populations(
            partial(self.interval, weights),
            self.histogram.setting,
            confidence=confidence,
            span=self._largest,
            excess=self.histogram.sampling_excess,
        )

    def estimated_error(self, weights: dict[str, _Array], value: float) -> float:
        """Estimate the error from what was released: the distance to the histograms' own cost."""
        return abs(value - self.histogram.projected(weights).cost("exact", 0.0))

    def facts(self) -> dict[str, Any]:
        note = (
            "An upper bound, with the probability of the interval: of mass that is there for certain, "
            "the rest at the largest cost."
        )
        return {"quantity": "exact", "notes": (note, _BINNED)}

    def estimate(self, prepared: Clouds, noise: NoiseSource, confidence: float) -> dict[str, Any]:
        weights = self.release(prepared, noise)
        value = self.solve(weights).value
        return {
            "released": value,
            "interval": self.interval(weights, confidence),
            "population_interval": self.of_populations(weights, confidence),
            "predicted_error": self.estimated_error(weights, value),
        }

    def target(self, clouds: Clouds) -> float:
        return self.histogram.binned(clouds).cost("exact", 0.0)


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
