"""What all ways to a private transport cost share: what each says of itself, Laplace noise, the result."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, TypeAlias

import torch
from torch import Tensor

from dpsinkhorn.privacy import Adjacency, Charge, LaplaceMechanism, add_laplace
from dpsinkhorn.privacy.noise import NoiseSource, laplace_scale
from dpsinkhorn.transport import checks
from dpsinkhorn.transport.clouds import Clouds, Interval, Setting

CostMethod: TypeAlias = Literal[
    "direct", "noisy-sinkhorn", "histogram", "linear-program", "sliced", "smoothed-sliced"
]
Method: TypeAlias = Literal[CostMethod, "two-stage"]
Quantity: TypeAlias = Literal["entropic", "exact", "divergence"]
Released: TypeAlias = Literal[Quantity, "sliced", "smoothed-sliced", "plan-cost"]


@dataclass(frozen=True)
class PrivateCost:
    """A released transport cost. ε is proved, and every field is private in its sense: safe to show.

    Attributes:
        cost: the estimate, within what is possible at all (0 to the bound, for a transport cost).
        released: the noised value as it left the private data, without bias from that limit.
        interval: contains the true value for these samples (for histogram and linear-program, that of the
            binned data; for two-stage, <c, π̂>) with probability `confidence`, over the noise.
        population_interval: contains the same for the populations, of which rows are independent draws, with
            probability `confidence` over noise and samples; None where none is proved.
        quantity: what is estimated: the transport cost (exact), the entropic cost, the Sinkhorn divergence,
            the mean along lines (sliced, smoothed-sliced), or the <c, π̂> of two-stage (plan-cost).
        predicted_error: mean absolute error to expect, from public quantities alone (for histogram and
            linear-program, from the released histograms); see `notes` for what it leaves out.
        sizes: n and m.
        reason: why this method was taken.
        seeded: made with predictable noise: not for release.
        notes: what cost, interval and predicted error are of, where that is not simply the transport cost.
    """

    cost: float
    released: float
    interval: Interval
    confidence: float
    epsilon: float
    delta: float
    method: Method
    quantity: Released
    predicted_error: float
    regularization: float
    cost_bound: float
    adjacency: str
    reason: str
    seeded: bool
    sizes: tuple[int, int]
    charge: Charge = field(repr=False)
    population_interval: Interval | None = None
    notes: tuple[str, ...] = field(default=(), repr=False)

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values, for users: not what only the curator's own programs need."""
        shown = {k: v for k, v in vars(self).items() if k not in ("released", "sizes", "charge")}
        return {k: list(v) if isinstance(v, tuple) else v for k, v in shown.items()}


class CostMechanism(ABC):
    """A way to a private transport cost, settled before any point is looked at."""

    method: ClassVar[Method]
    what: ClassVar[str]
    """It is called in a ledger."""
    epsilon: float

    @property
    @abstractmethod
    def charge(self) -> Charge:
        """What it costs; charge it before anything is released."""

    @property
    @abstractmethod
    def predicted_error(self) -> float:
        """Return the mean absolute error to expect, from public quantities alone."""

    @abstractmethod
    def facts(self) -> dict[str, Any]:
        """Return fields of a result that are settled beforehand, and not the same for all methods."""

    def prepared(self, clouds: Clouds) -> Any:
        """Return what is to be noised, computed once for all releases. **Private.**"""
        return clouds

    @abstractmethod
    def estimate(self, prepared: Any, noise: NoiseSource, confidence: float) -> dict[str, Any]:
        """Release what was prepared: `released` and `interval`, and what else there is to say of it."""

    def estimator(self, clouds: Clouds, confidence: float) -> Callable[[NoiseSource], PrivateCost]:
        """Return what releases the cost of these clouds; charge `charge` first."""
        prepared = self.prepared(clouds)
        return lambda noise: self._found(
            clouds, noise, confidence, **self.estimate(prepared, noise, confidence)
        )

    def target(self, clouds: Clouds) -> float | None:  # noqa: ARG002
        """Return what it estimates, where that is not what was asked for. **Private**: to measure errors."""
        return None

    def _found(
        self,
        clouds: Clouds,
        noise: NoiseSource,
        confidence: float,
        released: float,
        interval: Interval,
        *,
        population_interval: Interval | None = None,
        cost: float | None = None,
        predicted_error: float | None = None,
    ) -> PrivateCost:
        """Return a result, its cost and intervals within what is possible."""
        facts = {"delta": 0.0, "regularization": 0.0, "notes": (), **self.facts()}
        bound, quantity = clouds.setting.bound, facts["quantity"]
        least, most = (-math.inf, math.inf) if quantity == "divergence" else (0.0, bound)
        farthest = math.inf if quantity == "plan-cost" else most  # π̂ is no plan: there is no upper limit

        def within(ends: Interval) -> Interval:
            low, high = (min(max(end, least), farthest) for end in ends)
            return low, high

        return PrivateCost(
            cost=min(max(released if cost is None else cost, least), most),
            released=released,
            interval=within(interval),
            population_interval=None if population_interval is None else within(population_interval),
            confidence=confidence,
            epsilon=self.epsilon,
            method=self.method,
            predicted_error=self.predicted_error if predicted_error is None else predicted_error,
            cost_bound=bound,
            adjacency=Adjacency.REPLACE_ONE.value,
            reason="asked for",
            seeded=not noise.secure,
            sizes=(clouds.setting.n, clouds.setting.m),
            charge=self.charge,
            **facts,
        )


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
    def charge(self) -> Charge:
        """What it costs; charge it before anything is released."""
        multiplier = laplace_multiplier(self.epsilon)
        return LaplaceMechanism(self.sensitivity, multiplier, Adjacency.REPLACE_ONE).charge()

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


class NumberRelease(LaplaceRelease):
    """One number: what is computed lies below the true value by `gap` at most, or `rounding` off."""

    gap: float
    rounding: float

    def noised(self, value: float, noise: NoiseSource) -> float:
        """Return a value with its noise; charge `charge` first."""
        return float(self._noised(torch.tensor(value, dtype=torch.float64), noise))

    def interval(self, released: float, confidence: float) -> Interval:
        """Return where the true value is, with this probability over the noise."""
        reach = self.scale * math.log(1 / (1 - confidence)) + self.rounding
        return released - reach, released + reach + self.gap


class NumberMechanism(NumberRelease, CostMechanism):
    """A cost that leaves the data as one number."""

    @abstractmethod
    def value(self, clouds: Clouds) -> float:
        """Return the value that is noised. **Private**: not for anyone's eyes."""

    @abstractmethod
    def of_populations(self, released: float, confidence: float) -> Interval | None:
        """Return where the populations' value is, over noise and samples; None where nothing is proved."""

    def release(self, clouds: Clouds, noise: NoiseSource) -> float:
        """Return the noised value; charge `charge` first."""
        return self.noised(self.value(clouds), noise)

    def prepared(self, clouds: Clouds) -> float:
        return self.value(clouds)

    def estimate(self, prepared: float, noise: NoiseSource, confidence: float) -> dict[str, Any]:
        released = self.noised(prepared, noise)
        interval, populations = (of(released, confidence) for of in (self.interval, self.of_populations))
        return {"released": released, "interval": interval, "population_interval": populations}


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


def notes_of(quantity: Released, regularization: float, setting: Setting) -> tuple[str, ...]:
    """Return what is to be said of an entropic cost, and of a divergence."""
    at = f"at regularization {regularization:g}"
    most = regularization * math.log(min(setting.n, setting.m))
    if quantity == "entropic" and most > 0:
        return (
            f"An entropic cost, {at}: larger than the transport cost, by up to regularization times "
            f"log min(n, m) = {most:.3g}, and not 0 for equal data; regularization 0 is the exact cost.",
        )
    if quantity == "divergence":
        return (
            f"The Sinkhorn divergence, {at}: 0 for equal data, and near twice the transport cost "
            "where the regularization is small.",
        )
    return ()
