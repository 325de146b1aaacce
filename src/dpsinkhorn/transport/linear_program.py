"""The private linear program: a plan between binned data that never uses mass which is not there.

After Muñoz Medina, Syed, Vassilvitskii and Vitercik (2020): where private data are the right-hand side of a
linear program, noise and a shift make that side smaller, so that what solves the noisy program satisfies the
true one. Transport between counts on a public support takes this form once mass may stay where it is, at the
price of the largest cost, which changes no optimum:

    minimise <C, P> + c̄ (1 - |P|)   over P >= 0 with row sums of at most a, and column sums of at most b.

Their noise is truncated, so that no constraint is ever broken, for a δ. Here it is not: pure ε-DP, and no
constraint is broken with the probability of the interval. Proof: docs/proofs/linear-program.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpsinkhorn.privacy import Charge
from dpsinkhorn.privacy.noise import NoiseSource
from dpsinkhorn.transport import checks
from dpsinkhorn.transport.certified import exact_plan
from dpsinkhorn.transport.clouds import Clouds, Interval, of_populations
from dpsinkhorn.transport.histogram import HistogramMechanism

_Array = npt.NDArray[np.float64]


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
class LinearProgramMechanism:
    """What is settled before any point is looked at: histograms, and how far they are shifted down."""

    histogram: HistogramMechanism
    confidence: float

    def __post_init__(self) -> None:
        checks.fraction(confidence=self.confidence)

    @property
    def charge(self) -> Charge:
        """That of the histograms: all else is post-processing."""
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
        k, setting = len(self.histogram.support), self.histogram.setting
        sizes = [size for side, size in (("x", setting.n), ("y", setting.m)) if side != setting.public]
        return self._largest * min(1.0, sum(k * self.shift / size for size in sizes))

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
        setting = self.histogram.setting
        return of_populations(
            lambda at: self.interval(weights, at),
            setting,
            confidence=confidence,
            span=self._largest,
            excess=self.histogram.sampling_excess,
        )

    def estimated_error(self, weights: dict[str, _Array], value: float) -> float:
        """Estimate the error from what was released: the distance to the histograms' own cost."""
        return abs(value - self.histogram.projected(weights).cost("exact", 0.0))
