"""`private_cost`: how far apart two private data sets are, and under what guarantee we say so.

`offered` plans all methods that can be had at given public settings; `private_cost` takes one of them, and
`measure_tradeoff` measures them all.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Collection, Mapping
from typing import Literal, TypeAlias, get_args

import numpy.typing as npt
from torch import Tensor

from dpsinkhorn.errors import TransportError
from dpsinkhorn.ot import Cost, Euclidean
from dpsinkhorn.privacy.noise import NoiseSource
from dpsinkhorn.transport import checks
from dpsinkhorn.transport.charging import Account, LedgerLike
from dpsinkhorn.transport.clouds import Clouds, PublicSide
from dpsinkhorn.transport.direct import DirectMechanism
from dpsinkhorn.transport.histogram import HistogramMechanism, LinearProgramMechanism
from dpsinkhorn.transport.noisy import NoisySinkhorn
from dpsinkhorn.transport.release import CostMechanism, CostMethod, PrivateCost, Quantity
from dpsinkhorn.transport.sliced import Ball, SlicedMechanism, SmoothedMechanism, require_euclidean

METHODS: tuple[CostMethod, ...] = get_args(CostMethod)
SLICED: tuple[CostMethod, ...] = ("sliced", "smoothed-sliced")
_NEEDS: dict[CostMethod, str] = {
    "histogram": "histogram needs a public support to count on; give support",
    "linear-program": "linear-program needs a public support to count on, and takes no regularization",
    "noisy-sinkhorn": "noisy-sinkhorn needs a delta above 0, a regularization above 0, and gives no "
    "divergence",
    "sliced": "sliced is without regularization, and not debiased: leave both out",
    "smoothed-sliced": "smoothed-sliced needs a delta above 0, and no regularization",
}
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
    if regularization is None and not debiased and method != "noisy-sinkhorn":
        affordable = max(clouds.setting.n, clouds.setting.m) <= _AFFORDABLE
        regularization = 0.0 if affordable or method not in _COMPUTED_ON_ALL_POINTS else None
    value = regularization_of(regularization, clouds.setting.bound)
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
    return dataclasses.replace(plan.estimator(clouds, confidence)(source), reason=reason)


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
) -> dict[CostMethod, CostMechanism]:
    """Plan those of `methods` that can be had. A single one that cannot is a `TransportError`."""
    found: dict[CostMethod, CostMechanism] = {}
    setting, base = clouds.setting, clouds.cost.base
    only = next(iter(methods)) if len(methods) == 1 else None
    if center is not None:
        Ball.of(setting, center)  # checked even where nobody asks for it
    if "direct" in methods:
        found["direct"] = DirectMechanism.plan(
            setting, quantity, regularization=regularization, epsilon=epsilon, gap=gap
        )
    if "noisy-sinkhorn" in methods and delta > 0 and quantity == "entropic":
        # ψ, the algorithm's state, on the public side
        turned = clouds.flipped().setting if setting.public == "x" else setting
        # An ε that is too small for it does not keep the others from being had.
        with contextlib.suppress(*(() if only else (TransportError,))):
            found["noisy-sinkhorn"] = NoisySinkhorn.plan(
                turned, regularization=regularization, epsilon=epsilon, delta=delta
            )
    if support is not None:
        options = {"quantity": quantity, "regularization": regularization}
        bins = HistogramMechanism.plan(clouds, support, epsilon=epsilon, **options)  # type: ignore[arg-type]
        if "histogram" in methods:
            found["histogram"] = bins
        if "linear-program" in methods and quantity == "exact":
            found["linear-program"] = LinearProgramMechanism(bins, confidence)
    if only in SLICED:
        require_euclidean(base)
    if type(base) is Euclidean and not (only and quantity != "exact"):
        if "sliced" in methods:
            found["sliced"] = SlicedMechanism.plan(setting, epsilon=epsilon, center=center)
        if "smoothed-sliced" in methods and delta > 0:
            found["smoothed-sliced"] = SmoothedMechanism.plan(
                setting, epsilon=epsilon, delta=delta, center=center
            )
    if only and only not in found:
        raise TransportError(_NEEDS[only])
    return found


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


def _choose(
    method: Choice, plans: Mapping[CostMethod, CostMechanism], binned: bool
) -> tuple[CostMethod, str]:
    if method != "auto":
        return method, "asked for"
    errors = ", ".join(f"{name} {plan.predicted_error:.3g}" for name, plan in plans.items())
    reason = f"least predicted error of: {errors}"
    if binned:
        reason += "; histogram is left out, as what moving data to the support changes cannot be predicted"
    return taken_by_auto(plans), reason


def taken_by_auto(plans: Mapping[CostMethod, CostMechanism]) -> CostMethod:
    """Return the method of the least predicted error, of those that `auto` compares."""
    return min((name for name in COMPARED if name in plans), key=lambda name: plans[name].predicted_error)
