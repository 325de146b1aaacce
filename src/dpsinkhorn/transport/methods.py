"""Every way to a private transport cost, settled before any point is looked at: its charge and its error.

`offered` plans all methods that can be had at given public settings; `private_cost` takes one of them, and
`measure_tradeoff` measures them all.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import cache
from typing import get_args

import numpy.typing as npt
from scipy import stats
from torch import Tensor

from dpsinkhorn.errors import TransportError
from dpsinkhorn.ot import Euclidean
from dpsinkhorn.privacy import Charge
from dpsinkhorn.privacy.noise import NoiseSource
from dpsinkhorn.transport.clouds import Clouds, Interval
from dpsinkhorn.transport.direct import DirectMechanism
from dpsinkhorn.transport.histogram import HistogramMechanism
from dpsinkhorn.transport.linear_program import LinearProgramMechanism
from dpsinkhorn.transport.noisy import NoisySinkhorn
from dpsinkhorn.transport.result import CostMethod, Quantity, Released
from dpsinkhorn.transport.sliced import Ball, SlicedMechanism, SmoothedMechanism, require_euclidean

_NEEDS: dict[CostMethod, str] = {
    "histogram": "histogram needs a public support to count on; give support",
    "linear-program": "linear-program needs a public support to count on, and takes no regularization",
    "noisy-sinkhorn": "noisy-sinkhorn needs a delta above 0, a regularization above 0, and gives no "
    "divergence",
    "sliced": "sliced is without regularization, and not debiased: leave both out",
    "smoothed-sliced": "smoothed-sliced needs a delta above 0, and no regularization",
}
METHODS: tuple[CostMethod, ...] = get_args(CostMethod)
SLICED: tuple[CostMethod, ...] = ("sliced", "smoothed-sliced")


@dataclass(frozen=True)
class Estimate:
    """What a release says. `predicted_error`, where it tells of its own error more than public numbers do."""

    cost: float
    released: float
    interval: Interval
    population_interval: Interval | None
    predicted_error: float | None = None


@dataclass(frozen=True, eq=False)
class Planned:
    """A method at given settings. `estimate` looks at the data: charge `charge` first.

    Attributes:
        what: it is called in a ledger.
        target: what it estimates, without noise. **Private**: for measuring errors.
    """

    what: str
    quantity: Released
    charge: Charge = field(repr=False)
    predicted_error: float
    estimate: Callable[[NoiseSource], Estimate]
    target: Callable[[], float]
    delta: float = 0.0
    notes: tuple[str, ...] = ()


def offered(
    clouds: Clouds,
    quantity: Quantity,
    *,
    regularization: float,
    epsilon: float,
    delta: float,
    confidence: float = 0.95,
    gap: float | None = None,
    support: npt.ArrayLike | Tensor | None = None,
    center: npt.ArrayLike | Tensor | None = None,
    methods: Collection[CostMethod] = METHODS,
) -> dict[CostMethod, Planned]:
    """Plan those of `methods` that can be had. A single one that cannot is a `TransportError`."""
    found: dict[CostMethod, Planned] = {}
    setting = clouds.setting
    only = next(iter(methods)) if len(methods) == 1 else None
    if center is not None:
        Ball.of(setting, center)  # checked even where nobody asks for it
    exact = cache(
        lambda: DirectMechanism.plan(setting, quantity, regularization=regularization, epsilon=1.0).value(
            clouds
        )
    )

    if "direct" in methods:
        direct = DirectMechanism.plan(
            setting, quantity, regularization=regularization, epsilon=epsilon, gap=gap
        )
        found["direct"] = _direct(direct, clouds, confidence, exact)
    if "noisy-sinkhorn" in methods and delta > 0 and quantity == "entropic":
        # An ε that is too small for it does not keep the others from being had.
        with contextlib.suppress(*(() if only else (TransportError,))):
            # ψ, the algorithm's state, on the public side
            turned = clouds.flipped() if setting.public == "x" else clouds
            noisy = NoisySinkhorn.plan(
                turned.setting, regularization=regularization, epsilon=epsilon, delta=delta
            )
            found["noisy-sinkhorn"] = _noisy(noisy, turned, confidence, exact)
    if support is not None:
        bins = HistogramMechanism.plan(clouds, support, epsilon=epsilon)
        if "histogram" in methods:
            found["histogram"] = _histogram(bins, clouds, quantity, regularization, confidence)
        if "linear-program" in methods and quantity == "exact":
            found["linear-program"] = _linear_program(
                LinearProgramMechanism(bins, confidence), clouds, confidence
            )
    if only in SLICED:
        require_euclidean(clouds.cost.base)
    if type(clouds.cost.base) is Euclidean and not (only and quantity != "exact"):
        if "sliced" in methods:
            sliced = SlicedMechanism.plan(setting, epsilon=epsilon, center=center)
            found["sliced"] = _sliced(sliced, clouds, confidence)
        if "smoothed-sliced" in methods and delta > 0:
            smoothed = SmoothedMechanism.plan(setting, epsilon=epsilon, delta=delta, center=center)
            found["smoothed-sliced"] = _smoothed(smoothed, clouds, confidence)
    if only and only not in found:
        raise TransportError(_NEEDS[only])
    return found


def _direct(plan: DirectMechanism, clouds: Clouds, confidence: float, exact: Callable[[], float]) -> Planned:
    value = cache(lambda: plan.value(clouds))

    def estimate(noise: NoiseSource) -> Estimate:
        released = plan.noised(value(), noise)
        interval = plan.interval(released, confidence)
        return Estimate(released, released, interval, plan.of_populations(released, confidence))

    return Planned("cost", plan.quantity, plan.charge, plan.predicted_error, estimate, exact)


def _noisy(plan: NoisySinkhorn, clouds: Clouds, confidence: float, exact: Callable[[], float]) -> Planned:
    def estimate(noise: NoiseSource) -> Estimate:
        found = plan.release(clouds, noise)
        # The estimate is a dual value plus normal noise, and a dual value is never above the true cost.
        reach = float(stats.norm.ppf((1 + confidence) / 2)) * found.cost_std
        interval = (found.cost - reach, found.cost + reach + found.shortfall)
        return Estimate(found.cost, found.cost, interval, None)

    return Planned(
        "noisy-cost", "entropic", plan.charge, plan.predicted_error, estimate, exact, delta=plan.delta
    )


def _histogram(
    plan: HistogramMechanism, clouds: Clouds, quantity: Quantity, regularization: float, confidence: float
) -> Planned:
    def estimate(noise: NoiseSource) -> Estimate:
        weights = plan.release(clouds, noise)
        released = weights.cost(quantity, regularization)
        reach = plan.reach(quantity, confidence)
        return Estimate(
            released,
            released,
            (released - reach, released + reach),
            plan.of_populations(released, quantity, confidence),
            plan.estimated_error(weights, quantity, regularization),
        )

    def target() -> float:
        return plan.binned(clouds).cost(quantity, regularization)

    return Planned("histogram", quantity, plan.charge, plan.predicted_error(quantity), estimate, target)


def _linear_program(plan: LinearProgramMechanism, clouds: Clouds, confidence: float) -> Planned:
    def estimate(noise: NoiseSource) -> Estimate:
        weights = plan.release(clouds, noise)
        value = plan.solve(weights).value
        return Estimate(
            value,
            value,
            plan.interval(weights, confidence),
            plan.of_populations(weights, confidence),
            plan.estimated_error(weights, value),
        )

    def target() -> float:
        return plan.histogram.binned(clouds).cost("exact", 0.0)

    return Planned("linear-program", "exact", plan.charge, plan.predicted_error, estimate, target)


def _sliced(plan: SlicedMechanism, clouds: Clouds, confidence: float) -> Planned:
    value = cache(lambda: plan.value(clouds))

    def estimate(noise: NoiseSource) -> Estimate:
        released = plan.noised(value(), noise)
        interval = plan.interval(released, confidence)
        return Estimate(released, released, interval, plan.of_populations(released, confidence))

    return Planned("sliced", "sliced", plan.charge, plan.predicted_error, estimate, value)


def _smoothed(plan: SmoothedMechanism, clouds: Clouds, confidence: float) -> Planned:
    def estimate(noise: NoiseSource) -> Estimate:
        distance = plan.distance(*plan.release(clouds, noise))
        return Estimate(
            plan.without_offset(distance),
            distance,
            plan.interval(distance, confidence),
            plan.of_populations(distance, confidence),
        )

    return Planned(
        "smoothed-sliced",
        "smoothed-sliced",
        plan.charge,
        plan.predicted_error,
        estimate,
        cache(lambda: plan.value(clouds)),
        delta=plan.delta,
        notes=(plan.note,),
    )
