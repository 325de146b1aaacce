"""`private_cost`: how far apart two private data sets are, and under what guarantee we say so."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal, TypeAlias

import numpy.typing as npt
from torch import Tensor

from dpsinkhorn.errors import TransportError
from dpsinkhorn.ot import Cost
from dpsinkhorn.privacy import Adjacency
from dpsinkhorn.privacy.noise import NoiseSource
from dpsinkhorn.transport import checks
from dpsinkhorn.transport.charging import Account, LedgerLike
from dpsinkhorn.transport.clouds import Clouds, Interval, PublicSide
from dpsinkhorn.transport.methods import METHODS, Planned, offered
from dpsinkhorn.transport.result import CostMethod, PrivateCost, Quantity

Choice: TypeAlias = Literal["auto", CostMethod]
COMPARED: tuple[CostMethod, ...] = ("direct", "noisy-sinkhorn")  # by `auto`
_COMPUTED_ON_ALL_POINTS = ("auto", "direct")  # whose cost grows with the pairs
_DEFAULT_REGULARIZATION = 0.05  # of the bound, where transport is not exact
_AFFORDABLE = 2000  # points of a side up to which exact transport, the default, takes about a second


def private_cost(
    x: npt.ArrayLike | Tensor,
    y: npt.ArrayLike | Tensor,
    *,
    epsilon: float,
    cost_bound: float,
    delta: float = 0.0,
    cost: Cost | str | None = None,
    regularization: float | None = None,
    debiased: bool = False,
    method: Choice = "auto",
    public: PublicSide | None = None,
    paired: bool = False,
    support: npt.ArrayLike | Tensor | None = None,
    center: npt.ArrayLike | Tensor | None = None,
    confidence: float = 0.95,
    gap: float | None = None,
    ledger: LedgerLike = None,
    budget: float | None = None,
    noise: NoiseSource | None = None,
) -> PrivateCost:
    """Release the transport cost between two data sets under differential privacy.

    Replacing one point of either side, sizes being public, changes the chance of any outcome by a factor of
    at most e^ε (apart from δ, where the method needs one; the direct one does not).

    Args:
        x: points ``(n, d)``, or ``(n,)`` on a line.
        y: points ``(m, d)``.
        epsilon: ε.
        cost_bound: a public bound; the cost of farther pairs is capped at it, and a negative cost counts as
            0. Never read off the data.
        delta: δ, for noisy-sinkhorn; 0 allows pure ε-DP only.
        cost: of a pair: `SquaredEuclidean()`, the default, `Euclidean()`, `Cityblock()`, `L1L2()` of
            `dpsinkhorn.ot`, one of their names ("sqeuclidean", "euclidean", "cityblock", "l1l2"), or a `Cost`
            of your own, whose negative values count as 0.
        regularization: λ in the units of the cost; 0 for exact optimal transport, the default up to 2,000
            points of a side, and of methods that look at counts or lines. Beyond, and for noisy-sinkhorn and
            `debiased`, it is a twentieth of the bound.
            Above 0 it is the entropic cost that is estimated, and that the interval covers: larger than the
            transport cost, by up to λ log min(n, m), and not 0 for equal data.
        debiased: the Sinkhorn divergence 2 W(x, y) - W(x, x) - W(y, y) in place of W(x, y).
        method: `auto` takes direct or noisy-sinkhorn, whichever has the smaller error predicted from public
            quantities. The others are asked for by name: histogram and linear-program give the cost of data
            that were moved to a support, and what that changes cannot be predicted; sliced and
            smoothed-sliced, for cost "euclidean", give the mean distance along lines.
        public: "x" or "y", where one side is not private.
        paired: one person owns a point of either side; both are then replaced at once.
        support: public points ``(k, d)``, for histogram and linear-program: data count at the nearest one.
        center: a public point in the middle of where points can be, for sliced and smoothed-sliced: those
            farther from it than half the bound are moved to that distance. Without one they are moved to
            within the bound of the origin, and there is twice the noise.
        confidence: of the intervals: that of these samples is over the noise, that of the populations over
            noise and samples.
        gap: how near the computed cost must come to the true one, for direct; by default a hundredth of
            the sensitivity, or of the noise where that is less. Iterations go on until it is reached.
        ledger: a file, or an open `Ledger`; charged before anything private is computed.
        budget: ε that a new file allows in all, at this δ; by default this ε.
        noise: by default secure noise. A seeded source marks the result as not for release.

    >>> import numpy as np
    >>> from dpsinkhorn.privacy import SeededNoise
    >>> x, y = np.random.default_rng(0).random((2, 500, 2))
    >>> found = private_cost(x, y + 0.5, epsilon=1, cost_bound=4, noise=SeededNoise(0))
    >>> found.method, found.quantity, found.interval[0] < found.cost < found.interval[1]
    ('direct', 'exact', True)
    """
    checks.positive(epsilon=epsilon)
    checks.fraction(zero=True, delta=delta)
    checks.fraction(confidence=confidence)
    checks.flag(debiased=debiased)
    checks.choice(("auto", *METHODS), method=method)
    # NumPy's scalars would take the arithmetic down to float32, and JSON does not know them.
    epsilon, delta, confidence, debiased = float(epsilon), float(delta), float(confidence), bool(debiased)
    source = checks.noise_or_secure(noise)
    clouds = Clouds.of(x, y, cost_bound=cost_bound, cost=cost, public=public, paired=paired)
    bound = clouds.setting.bound
    if regularization is None and not debiased and method != "noisy-sinkhorn":
        affordable = max(clouds.setting.n, clouds.setting.m) <= _AFFORDABLE
        regularization = 0.0 if affordable or method not in _COMPUTED_ON_ALL_POINTS else None
    value = regularization_of(regularization, bound)
    account = Account.of(ledger, budget=budget, epsilon=epsilon, delta=delta)
    plans = offered(
        clouds,
        quantity_of(value, debiased),
        regularization=value,
        epsilon=epsilon,
        delta=delta,
        confidence=confidence,
        gap=gap,
        support=support,
        center=center,
        methods=COMPARED if method == "auto" else (method,),
    )
    chosen, reason = _choose(method, plans, support is not None)
    plan = plans[chosen]
    account.spend(plan.charge, what=plan.what, paired=paired)
    found = plan.estimate(source)
    least, most = (-math.inf, math.inf) if plan.quantity == "divergence" else (0.0, bound)

    def within(interval: Interval) -> Interval:
        low, high = (min(max(end, least), most) for end in interval)
        return low, high

    return PrivateCost(
        cost=min(max(found.cost, least), most),
        released=found.released,
        interval=within(found.interval),
        population_interval=None if found.population_interval is None else within(found.population_interval),
        confidence=confidence,
        epsilon=epsilon,
        delta=plan.delta,
        method=chosen,
        quantity=plan.quantity,
        predicted_error=plan.predicted_error if found.predicted_error is None else found.predicted_error,
        regularization=value,
        cost_bound=bound,
        adjacency=Adjacency.REPLACE_ONE.value,
        reason=reason,
        seeded=not source.secure,
        sizes=(clouds.setting.n, clouds.setting.m),
        charge=plan.charge,
        remarks=plan.notes,
    )


def regularization_of(regularization: float | None, bound: float) -> float:
    """Return λ, or the default where it is above 0; 0 is exact transport."""
    if regularization is None:
        return _DEFAULT_REGULARIZATION * bound
    if checks.is_number(regularization) and regularization == 0:
        return 0.0
    checks.regularization(regularization, bound)
    return float(regularization)


def quantity_of(regularization: float, debiased: bool) -> Quantity:
    if debiased:
        if not regularization:
            raise TransportError("the Sinkhorn divergence needs a regularization above 0")
        return "divergence"
    return "entropic" if regularization else "exact"


def _choose(method: Choice, plans: Mapping[CostMethod, Planned], binned: bool) -> tuple[CostMethod, str]:
    if method != "auto":
        return method, "asked for"
    errors = ", ".join(f"{name} {plan.predicted_error:.3g}" for name, plan in plans.items())
    reason = f"least predicted error of: {errors}"
    if binned:
        reason += "; histogram is left out, as what moving data to the support changes cannot be predicted"
    return taken_by_auto(plans), reason


def taken_by_auto(plans: Mapping[CostMethod, Planned]) -> CostMethod:
    """Return the method of the least predicted error, of those that `auto` compares."""
    return min((name for name in COMPARED if name in plans), key=lambda name: plans[name].predicted_error)
