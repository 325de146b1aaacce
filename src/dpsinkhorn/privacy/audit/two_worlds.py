"""Lower bounds on ε from scores of many releases, of two neighbouring data sets.

If a release is (ε, δ)-differentially private, every event A has P(A | D) <= e^ε P(A | D') + δ, either way
round. So each event whose two probabilities are known to lie within limits shows an ε. The event is "the
score is above (or not above) a threshold"; threshold and side are chosen on the first half of the scores, and
the limits (Clopper and Pearson, exact) come from the second half alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from scipy import optimize, special, stats

from dpsinkhorn.errors import AuditError
from dpsinkhorn.privacy import _pld
from dpsinkhorn.privacy.accounting import epsilon as epsilon_of
from dpsinkhorn.privacy.audit.one_run import least_refuted_noise
from dpsinkhorn.privacy.charges import GaussianMechanism, flatten

Scores = npt.NDArray[np.float64]

_EVERYWHERE = np.linspace(0, 1, 1000)  # quantiles at which thresholds are tried
_INSIDE = np.linspace(0.25, 0.75, 17)  # where a Gaussian's μ is measured best: far outside, chance rules
# of a measured probability: the δ' at which a sampled Gaussian is compared
_SHARES = np.array([0.01, 0.03, 0.1, 0.2, 0.4, 0.6])


@dataclass(frozen=True)
class PairBound:
    """What scores of two data sets show: at `confidence`, ε at `delta` is at least `epsilon`."""

    epsilon: float
    delta: float
    confidence: float
    assumption: str
    """What the bound rests on beside the scores; empty: nothing."""
    threshold: float
    above: bool
    """Whether the event is a score above the threshold, or one that is not."""
    with_record: bool
    """Whether the event is the likelier with the record, or without it."""
    likely: tuple[int, int]
    """In how many of how many releases the event happened, where it is the likelier."""
    unlikely: tuple[int, int]
    """In how many of how many releases it happened, on the other data set."""


def threshold_bound(
    present: npt.ArrayLike, absent: npt.ArrayLike, *, delta: float, confidence: float = 0.95
) -> PairBound:
    """The ε that the best threshold shows. Rests on nothing but that scores are independent repetitions.

    Args:
        present: scores of releases of the data set with the record.
        absent: scores of releases of that without it.

    >>> rng = np.random.default_rng(0)
    >>> found = threshold_bound(rng.normal(1, 1, 20_000), rng.normal(0, 1, 20_000), delta=1e-2)
    >>> 1.3 < found.epsilon < gaussian_epsilon(1.0, 1e-2)
    True
    """

    def shown(low: Scores, high: Scores) -> Scores:
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(low > delta, np.log(np.maximum(low - delta, 1e-300) / high), -math.inf)

    found = _best(present, absent, delta, confidence, shown)
    return found.showing(float(shown(*np.array(found.limits))), "")


def gaussian_bound(
    present: npt.ArrayLike, absent: npt.ArrayLike, *, delta: float, confidence: float = 0.95
) -> PairBound:
    """The ε that the best threshold shows **given a Gaussian trade-off**: far tighter.

    Where the two data sets are as hard to tell apart as N(0, 1) and N(μ, 1), every threshold shows μ, and μ
    gives ε at any δ, however rare the events that it speaks of.

    >>> rng = np.random.default_rng(0)
    >>> found = gaussian_bound(rng.normal(1, 1, 20_000), rng.normal(0, 1, 20_000), delta=1e-5)
    >>> 3.8 < found.epsilon < gaussian_epsilon(1.0, 1e-5)
    True
    """
    found = _best(present, absent, delta, confidence, _distance, _INSIDE)
    mu = max(0.0, float(_distance(*np.array(found.limits))))
    return found.showing(gaussian_epsilon(mu, delta), "Gaussian trade-off")


def sampled_gaussian_bound(
    present: npt.ArrayLike,
    absent: npt.ArrayLike,
    *,
    sampling_rate: float,
    steps: int,
    delta: float,
    confidence: float = 0.95,
) -> PairBound:
    """As `gaussian_bound`, for `steps` steps on Poisson samples, **given Gaussian noise of unknown size**.

    Limits on an event show an ε' at any δ'; the accountant turns each into the largest noise multiplier that
    allows it; the least of them gives ε at `delta`.

    >>> rng = np.random.default_rng(0)
    >>> scores = rng.normal(1, 1, 2000), rng.normal(0, 1, 2000)
    >>> found = sampled_gaussian_bound(*scores, sampling_rate=1.0, steps=1, delta=1e-5)
    >>> found == gaussian_bound(*scores, delta=1e-5)
    True
    """
    if sampling_rate == 1:
        return gaussian_bound(present, absent, delta=delta, confidence=confidence)
    # Which threshold is better depends on how rare the record is in a sample.
    inside = _best(present, absent, delta, confidence, _distance, _INSIDE)
    outside = _best(present, absent, delta, confidence, np.divide)
    found = min(inside, outside, key=lambda each: _noise_of(each.chosen_on, sampling_rate, steps))
    noise = _noise_of(found.limits, sampling_rate, steps)
    value = 0.0
    if math.isfinite(noise):
        value = epsilon_of(GaussianMechanism(1.0, noise).sampled(sampling_rate, steps), delta)
    return found.showing(value, "Gaussian noise on a Poisson sample")


def gaussian_epsilon(mu: float, delta: float) -> float:
    """ε at δ of telling N(μ, 1) from N(0, 1), in closed form (Balle and Wang 2018).

    >>> round(gaussian_epsilon(1.0, 1e-5), 3)
    4.377
    """
    if not mu >= 0 or not 0 < delta < 1:
        raise AuditError(f"mu must not be negative and delta be between 0 and 1, not {mu}, {delta}")

    def excess(epsilon: float) -> float:
        first = special.log_ndtr(mu / 2 - epsilon / mu)
        second = epsilon + special.log_ndtr(-mu / 2 - epsilon / mu)
        return float(first + math.log(max(-math.expm1(min(second - first, 0.0)), 1e-300)) - math.log(delta))

    if mu == 0 or excess(0.0) <= 0:
        return 0.0
    high = 1.0
    while excess(high) > 0:
        high *= 2
    return float(optimize.brentq(excess, 0.0, high, xtol=1e-10))


@dataclass(frozen=True)
class _Found:
    """A threshold with its limits: the probability of its event, from below and, on the other side, above."""

    event: PairBound  # that shows nothing yet
    limits: tuple[float, float]
    chosen_on: tuple[float, float]
    """The same limits on the half that it was chosen on: for choosing among such thresholds."""

    def showing(self, epsilon: float, assumption: str) -> PairBound:
        return replace(self.event, epsilon=max(0.0, epsilon), assumption=assumption)


def _best(
    present: npt.ArrayLike,
    absent: npt.ArrayLike,
    delta: float,
    confidence: float,
    measure: Callable[[Scores, Scores], Scores],
    quantiles: Scores = _EVERYWHERE,
) -> _Found:
    """The threshold, and side of it, where `measure` of the limits is largest on the first halves."""
    worlds = [np.asarray(scores, dtype=float) for scores in (present, absent)]
    for scores in worlds:
        if scores.ndim != 1 or len(scores) < 4:
            raise AuditError(
                f"expected at least 4 scores of each data set in a row, not shape {scores.shape}"
            )
        if not np.isfinite(scores).all():
            raise AuditError("scores must be finite numbers")
    if not 0 < delta < 1 or not 0 < confidence < 1:
        raise AuditError(f"delta and confidence must be between 0 and 1, not {delta} and {confidence}")
    first = [np.sort(scores[: len(scores) // 2]) for scores in worlds]
    second = [scores[len(scores) // 2 :] for scores in worlds]
    candidates = np.unique(np.quantile(np.concatenate(first), quantiles))
    error = (1 - confidence) / 2
    best: tuple[float, float, bool, int, tuple[float, float]] | None = None
    for above in (True, False):
        counts = [np.searchsorted(scores, candidates, side="right") for scores in first]  # not above
        if above:
            counts = [len(scores) - below for scores, below in zip(first, counts, strict=True)]
        for world in (0, 1):  # the one where the event is to be the likelier
            low = _lower(counts[world], len(first[world]), error)
            high = _upper(counts[1 - world], len(first[1 - world]), error)
            values = measure(low, high)
            at = int(np.argmax(values))
            if best is None or values[at] > best[0]:
                limits = float(low[at]), float(high[at])
                best = float(values[at]), float(candidates[at]), above, world, limits
    assert best is not None
    _, threshold, above, world, chosen_on = best
    ordered = second[world], second[1 - world]
    likely, unlikely = [(int(((scores > threshold) == above).sum()), len(scores)) for scores in ordered]
    low = _lower(np.array(likely[0]), likely[1], error)
    high = _upper(np.array(unlikely[0]), unlikely[1], error)
    event = PairBound(0.0, delta, confidence, "", threshold, above, world == 0, likely, unlikely)
    return _Found(event, (float(low), float(high)), chosen_on)


def _lower(counts: npt.NDArray[np.int64], size: int, error: float) -> Scores:
    """Clopper and Pearson: the probability is below it with a chance of at most `error`."""
    limits = stats.beta.ppf(error, np.maximum(counts, 1), size - counts + 1)
    return np.asarray(np.where(counts > 0, limits, 0.0))


def _upper(counts: npt.NDArray[np.int64], size: int, error: float) -> Scores:
    limits = stats.beta.ppf(1 - error, counts + 1, np.maximum(size - counts, 1))
    return np.asarray(np.where(counts < size, limits, 1.0))


def _distance(low: Scores, high: Scores) -> Scores:
    """μ of two normal distributions with these probabilities above a threshold."""
    with np.errstate(invalid="ignore"):
        return np.nan_to_num(special.ndtri(low) - special.ndtri(high), nan=-math.inf)


def _noise_of(limits: tuple[float, float], rate: float, steps: int) -> float:
    """The largest noise multiplier at which an event may have these probabilities; infinite: any.

    At a δ' that is some share of the likelier probability they show an ε', and the accountant says how much
    noise allows for that.
    """
    low, high = limits
    shares = _SHARES[(1 - _SHARES) * low > high]
    shown = [(math.log((1 - share) * low / high), share * low) for share in shares.tolist()]  # ε', δ'
    if not shown:
        return math.inf

    def allows(noise: float) -> bool:
        charge = GaussianMechanism(1.0, noise).sampled(rate, steps)
        least = min(delta for _, delta in shown)
        loss = _pld.composed(flatten(charge.event), least, charge.adjacency, math.inf)
        if loss is None:  # so little noise that no ε is of use
            return True
        with np.errstate(all="ignore"):
            return all(loss.get_delta_for_epsilon(epsilon) >= delta for epsilon, delta in shown)

    return least_refuted_noise(allows)
