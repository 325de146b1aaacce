"""The direct mechanism: a transport cost to a certified gap, plus Laplace noise. Pure ε-DP.

Replacing one x changes one row of the costs, on which every plan has mass 1/n: the cost moves by at most
c̄/n, by c̄/m for a y, and both are attained. The divergence 2 W(x, y) - W(x, x) - W(y, y) moves by at most four
times that. What is computed may lie below the true value by the gap, which adds to the sensitivity once.
Proof: docs/proofs/direct-cost.md.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import partial
from typing import Any

from dpsinkhorn.transport import checks
from dpsinkhorn.transport.certified import certified_exact_value, certified_value, rounding, rounding_of_gap
from dpsinkhorn.transport.clouds import Clouds, Interval, Setting, of_populations
from dpsinkhorn.transport.release import NumberMechanism, Quantity, notes_of

_GAP = 0.01  # of the sensitivity, or of the noise where that is less: what stopping early may cost


def cost_sensitivity(setting: Setting, quantity: Quantity) -> float:
    """Return how far replacing one point moves the exact value of a transport cost.

    >>> cost_sensitivity(Setting(n=100, m=50, bound=2.0), "entropic")
    0.04
    >>> cost_sensitivity(Setting(n=100, m=50, bound=2.0, public="y"), "divergence")
    0.08
    """
    times = 4 if quantity == "divergence" else 1
    return times * setting.worst(setting.bound / setting.n, setting.bound / setting.m)


@dataclass(frozen=True)
class DirectMechanism(NumberMechanism):
    """What is settled before any point is looked at.

    Attributes:
        gap: how far below the true value the computed one may be, at most.
        rounding: how far float64 may put it off besides.
    """

    method, what = "direct", "cost"
    setting: Setting
    quantity: Quantity
    regularization: float
    epsilon: float
    gap: float
    rounding: float

    @classmethod
    def plan(
        cls,
        setting: Setting,
        quantity: Quantity,
        *,
        regularization: float,
        epsilon: float,
        gap: float | None = None,
    ) -> DirectMechanism:
        """Fix the gap, for the whole quantity: by default a hundredth of the sensitivity or of the noise."""
        checks.positive(epsilon=epsilon)
        checks.choice(("entropic", "exact", "divergence"), quantity=quantity)
        if quantity != "exact":
            checks.regularization(regularization, setting.bound)
        epsilon, regularization = float(epsilon), float(regularization)
        times = 4 if quantity == "divergence" else 1
        largest = max(setting.n, setting.m)  # W(x, x) and W(y, y) have other sizes
        sizes = Setting(largest, largest, setting.bound, dimension=setting.dimension)
        off = times * rounding(sizes, regularization)
        if gap is None:
            gap = _GAP * cost_sensitivity(setting, quantity) / max(1.0, epsilon)
        checks.positive(gap=gap)
        # Never so small that rounding, or a simplex's tolerance, could keep it from being reached.
        reachable = (
            4 * times * rounding_of_gap(sizes, regularization) if regularization else 1e-7 * setting.bound
        )
        gap = max(float(gap), reachable)
        return cls(setting, quantity, regularization, epsilon, gap, off)

    @property
    def sensitivity(self) -> float:
        """Of the value as computed."""
        exact = cost_sensitivity(self.setting, self.quantity) + self.gap + 2 * self.rounding
        return self._widened(exact, largest=2 * self.setting.bound)

    @property
    def predicted_error(self) -> float:
        """Of the cost within 0 to c̄, as it is reported; a divergence is reported as it comes."""
        error = self.scale + self.gap / 2
        return error if self.quantity == "divergence" else min(self.setting.bound, error)

    def interval(self, released: float, confidence: float) -> Interval:
        low, high = super().interval(released, confidence)
        below = self.gap / 2 if self.quantity == "divergence" else 0.0  # there the gaps have both signs
        return low - below, high - below

    def facts(self) -> dict[str, Any]:
        notes = notes_of(self.quantity, self.regularization, self.setting)
        if self.quantity == "exact":
            notes = ("The transport cost of these samples itself, without regularization.",)
        return {"quantity": self.quantity, "regularization": self.regularization, "notes": notes}

    def of_populations(self, released: float, confidence: float) -> Interval | None:
        """Return where the populations' cost is: below what follows from that of the samples, and above 0.

        No lower end above 0 holds for all populations: far apart, n draws of one need meet none of the
        other's, however large n is.
        """
        if self.quantity == "divergence":
            return None
        interval = partial(self.interval, released)
        return of_populations(interval, self.setting, confidence=confidence, span=self.setting.bound)

    def value(self, clouds: Clouds) -> float:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # whatever a solver has to say would tell of the data
            if self.quantity == "exact":
                return certified_exact_value(clouds, gap=self.gap)
            if self.quantity == "entropic":
                return self._entropic(clouds, "xy", self.gap)
            cross, xx, yy = (self._entropic(clouds, sides, self.gap / 4) for sides in ("xy", "xx", "yy"))
            return 2 * cross - xx - yy

    def _entropic(self, clouds: Clouds, sides: str, gap: float) -> float:
        bound, sizes = self.setting.bound, {"x": self.setting.n, "y": self.setting.m}
        setting = Setting(sizes[sides[0]], sizes[sides[1]], bound, dimension=self.setting.dimension)
        target = gap - rounding_of_gap(setting, self.regularization)
        problem = clouds.problem(sides)  # type: ignore[arg-type]
        return certified_value(problem, self.regularization, bound=bound, gap=target)
