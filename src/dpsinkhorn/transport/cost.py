"""`private_cost`: how far apart two private data sets are, and under what guarantee we say so."""

from __future__ import annotations

import contextlib
import math
from typing import Literal, TypeAlias

import numpy.typing as npt
from scipy import stats
from torch import Tensor

from dpsinkhorn.errors import TransportError
from dpsinkhorn.ot import Cost
from dpsinkhorn.privacy import Adjacency, Charge
from dpsinkhorn.privacy.noise import NoiseSource
from dpsinkhorn.transport import checks
from dpsinkhorn.transport.charging import Account, LedgerLike
from dpsinkhorn.transport.clouds import Clouds, PublicSide
from dpsinkhorn.transport.direct import DirectMechanism
from dpsinkhorn.transport.histogram import HistogramMechanism
from dpsinkhorn.transport.noisy import NoisySinkhorn
from dpsinkhorn.transport.result import Method, PrivateCost, Quantity

Choice: TypeAlias = Literal["auto", "direct", "noisy-sinkhorn", "histogram"]
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
            points of a side. Beyond, and for noisy-sinkhorn and `debiased`, it is a twentieth of the bound.
            Above 0 it is the entropic cost that is estimated, and that the interval covers: larger than the
            transport cost, by up to λ log min(n, m), and not 0 for equal data.
        debiased: the Sinkhorn divergence 2 W(x, y) - W(x, x) - W(y, y) in place of W(x, y).
        method: `auto` takes the one whose error, predicted from public quantities, is least. It never takes
            histogram: what moving data to the support changes cannot be predicted. Ask for it by name.
        public: "x" or "y", where one side is not private.
        paired: one person owns a point of either side; both are then replaced at once.
        support: public points ``(k, d)``, for histogram: data count at the nearest one.
        confidence: of the interval, over the noise.
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
    checks.choice(("auto", "direct", "noisy-sinkhorn", "histogram"), method=method)
    # NumPy's scalars would take the arithmetic down to float32, and JSON does not know them.
    epsilon, delta, confidence, debiased = float(epsilon), float(delta), float(confidence), bool(debiased)
    source = checks.noise_or_secure(noise)
    clouds = Clouds.of(x, y, cost_bound=cost_bound, cost=cost, public=public, paired=paired)
    if regularization is None and not debiased and method != "noisy-sinkhorn":
        regularization = 0.0 if max(clouds.setting.n, clouds.setting.m) <= _AFFORDABLE else None
    value = regularization_of(regularization, clouds.setting.bound)
    quantity = quantity_of(value, debiased)
    account = Account.of(ledger, budget=budget, epsilon=epsilon, delta=delta)

    direct = DirectMechanism.plan(clouds.setting, quantity, regularization=value, epsilon=epsilon, gap=gap)
    predictions: dict[Method, float] = {"direct": direct.predicted_error}
    histogram: HistogramMechanism | None = None
    if support is not None:
        histogram = HistogramMechanism.plan(clouds, support, epsilon=epsilon)
        if method == "histogram":  # what binning changes is not in it: no match for the other predictions
            predictions["histogram"] = histogram.predicted_error(quantity)
    noisy: NoisySinkhorn | None = None
    turned = clouds.flipped() if public == "x" else clouds  # ψ, the algorithm's state, on the public side
    if delta > 0 and quantity == "entropic" and method in ("auto", "noisy-sinkhorn"):
        # An ε that is too small for it does not keep `auto` from the others.
        with contextlib.suppress(*(() if method == "noisy-sinkhorn" else (TransportError,))):
            noisy = NoisySinkhorn.plan(turned.setting, regularization=value, epsilon=epsilon, delta=delta)
            predictions["noisy-sinkhorn"] = noisy.predicted_error
    chosen, reason = _choose(method, predictions)
    if method == "auto" and histogram is not None:
        reason += "; histogram is left out, as what moving data to the support changes cannot be predicted"

    def result(
        released: float, interval: tuple[float, float], charge: Charge, delta: float = 0.0
    ) -> PrivateCost:
        least, most = (-math.inf, math.inf) if debiased else (0.0, clouds.setting.bound)
        low, high = (min(max(end, least), most) for end in interval)
        return PrivateCost(
            cost=min(max(released, least), most),
            released=released,
            interval=(low, high),
            confidence=confidence,
            epsilon=epsilon,
            delta=delta,
            method=chosen,
            quantity=quantity,
            predicted_error=predictions[chosen],
            regularization=value,
            cost_bound=clouds.setting.bound,
            adjacency=Adjacency.REPLACE_ONE.value,
            reason=reason,
            seeded=not source.secure,
            sizes=(clouds.setting.n, clouds.setting.m),
            charge=charge,
        )

    if chosen == "histogram":
        assert histogram is not None
        reach = histogram.reach(quantity, confidence)
        account.spend(histogram.charge, what="histogram", paired=paired)
        weights = histogram.release(clouds, source)
        released = weights.cost(quantity, value)
        predictions["histogram"] = histogram.estimated_error(weights, quantity, value)
        return result(released, (released - reach, released + reach), histogram.charge)
    if chosen == "noisy-sinkhorn":
        assert noisy is not None
        account.spend(noisy.charge, what="noisy-cost", paired=paired)
        found = noisy.release(turned, source)
        # The estimate is a dual value plus normal noise, and a dual value is never above the true cost.
        reach = float(stats.norm.ppf((1 + confidence) / 2)) * found.cost_std
        interval = (found.cost - reach, found.cost + reach + found.shortfall)
        return result(found.cost, interval, noisy.charge, delta)
    account.spend(direct.charge, what="cost", paired=paired)
    released = direct.release(clouds, source)
    return result(released, direct.interval(released, confidence), direct.charge)


def regularization_of(regularization: float | None, bound: float) -> float:
    """Return λ, or the default where it is above 0; 0 is exact transport."""
    if regularization is None:
        return _DEFAULT_REGULARIZATION * bound
    if checks.is_number(regularization) and regularization == 0:
        return 0.0
    checks.regularization(regularization, bound)
    return float(regularization)


def quantity_of(regularization: float, debiased: bool) -> Quantity:
    """Return what is asked for."""
    if debiased:
        if not regularization:
            raise TransportError("the Sinkhorn divergence needs a regularization above 0")
        return "divergence"
    return "entropic" if regularization else "exact"


def _choose(method: Choice, predictions: dict[Method, float]) -> tuple[Method, str]:
    if method != "auto":
        if method not in predictions:
            needs = {
                "histogram": "histogram needs a public support to count on; give support",
                "noisy-sinkhorn": "noisy-sinkhorn needs a delta above 0, a regularization above 0, and gives "
                "no divergence",
            }
            raise TransportError(needs[method])
        return method, "asked for"
    best = min(predictions, key=lambda name: predictions[name])
    errors = ", ".join(f"{name} {error:.3g}" for name, error in predictions.items())
    return best, f"least predicted error of: {errors}"
