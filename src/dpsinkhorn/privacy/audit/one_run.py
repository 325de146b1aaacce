"""Lower bounds on ε from one release of data in which many records were included by coin flips.

Each of m canaries is included with probability 1/2, independently. Whoever audits sees the release and
guesses, for some of them, whether they were in; for the others nothing is said.

- T. Steinke, M. Nasr, M. Jagielski, *Privacy auditing with one (1) training run*, 2023.
- S. Mahloujifar, L. Melis, K. Chaudhuri, *Auditing f-differential privacy in one run*, 2024: tighter. If the
  coin of a canary that was guessed rightly is turned round, that guess becomes a wrong one, and the number of
  right guesses falls by one. How much likelier the one may be than the other is what a curve of (ε, δ) says,
  so the curve bounds the distribution of that number. Proofs: docs/proofs/one-run-f-dp.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import stats

from dpsinkhorn.errors import AuditError
from dpsinkhorn.privacy import _pld, _rdp
from dpsinkhorn.privacy.accounting import epsilon as epsilon_of
from dpsinkhorn.privacy.charges import Charge, flatten

GAUSSIAN_NOISE = "Gaussian noise of unknown size"

_GRID = 0.1  # steps in which a bound is looked for, then refined
_LARGEST = 60.0  # beyond it e^ε / (1 + e^ε) is 1 in float64
_HALVINGS = 40


@dataclass(frozen=True)
class OneRunBound:
    """What guesses about one release show: at `confidence`, ε at `delta` is at least `epsilon`."""

    epsilon: float
    delta: float
    confidence: float
    canaries: int
    guesses: int
    """How many canaries were guessed at; for the others nothing was said."""
    correct: int
    assumption: str = ""
    """What the bound rests on beside the guesses; empty: nothing."""


@dataclass(frozen=True)
class Guesses:
    """How many canaries were guessed at, and how many of the guesses are right."""

    made: int
    correct: int


@dataclass(frozen=True, eq=False)
class TradeOff:
    """A curve of guarantees: the release is (`epsilons[i]`, `deltas[i]`)-differentially private for every i.

    An event that has probability y on one data set then has at least `least(y)` on a neighbouring one.
    """

    epsilons: npt.NDArray[np.float64]
    deltas: npt.NDArray[np.float64]

    @classmethod
    def of(cls, charge: Charge) -> TradeOff:
        """Return the curve that the accountant proves for a charge; an empty one where it has none."""
        parts = flatten(charge.event)
        rdp = _rdp.curve(parts, charge.adjacency)
        return cls(*_pld.profile(parts, charge.adjacency, 0.0, lambda delta: _rdp.improved(rdp, delta)))

    def least(self, probability: float) -> float:
        """Return the least probability that a neighbour can give to an event of this one.

        P <= δ + e^ε Q, and the same of the complement: 1 - Q <= δ + e^ε (1 - P).

        >>> TradeOff(np.array([0.0]), np.array([0.1])).least(0.5)
        0.4
        """
        if not len(self.epsilons):
            return 0.0
        with np.errstate(all="ignore"):
            rare = (probability - self.deltas) * np.exp(-self.epsilons)
            common = 1 - self.deltas - np.exp(self.epsilons) * (1 - probability)
        return max(0.0, float(rare.max()), float(common.max()))


def p_value(canaries: int, guesses: int, correct: int, epsilon: float, delta: float) -> float:
    """How likely so many correct guesses are, at most, if the release is (ε, δ)-differentially private.

    Theorem 5.2 of the paper, for guesses of full weight. Let W be binomial, `guesses` trials of probability
    e^ε / (1 + e^ε), as if every canary were protected by randomised response. Then

        P[correct >= v] <= P[W >= v] + 2 m δ max_{1 <= i <= v} P[v - i <= W < v] / i

    with m = `canaries`, whatever the guesses are, as long as they are a function of the release.

    >>> round(p_value(100, 100, 60, epsilon=0.0, delta=0.0), 4)  # fair coins
    0.0284
    >>> p_value(100, 100, 60, epsilon=0.5, delta=0.0) > 0.6
    True
    """
    _check_counts(canaries, guesses, correct)
    _check_pair(epsilon, delta)
    chance = 1 / (1 + math.exp(-epsilon))
    value = float(stats.binom.sf(correct - 1, guesses, chance))
    if delta and correct:
        below = np.cumsum(stats.binom.pmf(np.arange(correct - 1, -1, -1), guesses, chance))
        value += 2 * canaries * delta * float((below / np.arange(1, correct + 1)).max())
    return min(value, 1.0)


def pair_p_value(canaries: int, guesses: int, correct: int, epsilon: float, delta: float) -> float:
    """Bound the chance of so many correct guesses where all that is known is one pair (ε, δ).

    With W binomial, `guesses` trials of probability e^ε / (1 + e^ε), and m canaries,

        P[correct >= v] <= P[W >= v] (1 + m δ max_{1 <= i <= v} P[W < i] / (i P[W = i])).

    >>> round(pair_p_value(100, 100, 60, epsilon=0.0, delta=0.0), 4)  # fair coins
    0.0284
    """
    _check_counts(canaries, guesses, correct)
    _check_pair(epsilon, delta)
    if not correct:
        return 1.0
    response = stats.binom(guesses, 1 / (1 + math.exp(-epsilon)))
    value = float(response.sf(correct - 1))
    if delta:
        at = np.arange(1, correct + 1)
        with np.errstate(all="ignore"):
            ratios = np.exp(response.logcdf(at - 1) - response.logpmf(at)) / at
        value *= 1 + canaries * delta * float(np.nan_to_num(ratios, nan=math.inf).max())
    return min(value, 1.0)


def curve_p_value(canaries: int, guesses: int, correct: int, curve: TradeOff) -> float:
    """Bound the chance of so many correct guesses if the release has this trade-off curve.

    >>> curve = TradeOff(np.array([0.0, 1.0]), np.array([0.2, 1e-3]))
    >>> curve_p_value(100, 50, 40, curve) < curve_p_value(100, 50, 35, curve)
    True
    """
    _check_counts(canaries, guesses, correct)
    tried = Guesses(guesses, correct)
    if not _impossible(canaries, tried, curve, 1.0):
        return 1.0
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if _impossible(canaries, tried, curve, middle) else (middle, high)
    return high


def one_run_bound(
    scores: npt.ArrayLike,
    included: npt.ArrayLike,
    *,
    delta: float,
    confidence: float = 0.95,
    guesses: Sequence[int] | None = None,
    p_value_of: Callable[[int, int, int, float, float], float] = p_value,
) -> OneRunBound:
    """The ε that guesses by `scores` exclude: half of the guesses are the highest scores, half the lowest.

    It is the largest ε such that it, and all below it, have a p-value that is too small. "All below it" is
    what makes the error hold at the true ε, whichever that is, for p-values need not grow with ε everywhere
    once δ comes in.

    Args:
        scores: one per canary; the higher, the more likely it was included.
        included: whether it was.
        guesses: how many guesses to make. Several numbers share the error between them (each is tested at its
            part of 1 - `confidence`); by default all of the canaries, a half, a quarter and so on.
        p_value_of: canaries, guesses, correct ones, ε and δ.

    >>> rng = np.random.default_rng(0)
    >>> included = rng.random(1000) < 0.5
    >>> found = one_run_bound(included + rng.normal(size=1000), included, delta=1e-5)
    >>> 0.4 < found.epsilon < 2
    True
    """
    tried = guess(scores, included, guesses)
    canaries, error = len(np.asarray(scores)), _share_of_error(confidence, tried)

    def largest(each: Guesses) -> float:
        def excluded(epsilon: float) -> bool:
            return p_value_of(canaries, each.made, each.correct, epsilon, delta) < error

        if not excluded(0.0):
            return 0.0
        low, high = 0.0, _GRID
        while excluded(high):
            low, high = high, high + _GRID
            if high > _LARGEST:
                return low
        for _ in range(20):
            middle = (low + high) / 2
            low, high = (middle, high) if excluded(middle) else (low, middle)
        return low

    bounds = [largest(each) for each in tried]
    at = int(np.argmax(bounds))
    return OneRunBound(bounds[at], delta, confidence, canaries, tried[at].made, tried[at].correct)


def f_dp_bound(
    scores: npt.ArrayLike, included: npt.ArrayLike, *, delta: float, **options: Any
) -> OneRunBound:
    """As `one_run_bound`, by `pair_p_value`: tighter, with nothing more assumed."""
    return one_run_bound(scores, included, delta=delta, p_value_of=pair_p_value, **options)


def f_dp_gaussian_bound(
    scores: npt.ArrayLike,
    included: npt.ArrayLike,
    *,
    charge_at: Callable[[float], Charge],
    delta: float,
    confidence: float = 0.95,
    guesses: Sequence[int] | None = None,
) -> OneRunBound:
    """The ε that guesses by `scores` exclude, **given Gaussian noise of unknown size**: far tighter.

    Args:
        charge_at: what a release with this noise multiplier costs. The least noise whose curve the guesses
            refute gives ε at `delta`.

    >>> from dpsinkhorn.privacy import GaussianMechanism
    >>> rng = np.random.default_rng(0)
    >>> included = rng.random(1000) < 0.5
    >>> scores = 2 * included + rng.normal(size=1000)
    >>> found = f_dp_gaussian_bound(
    ...     scores, included, charge_at=lambda noise: GaussianMechanism(1.0, noise).charge(), delta=1e-5)
    >>> f_dp_bound(scores, included, delta=1e-5).epsilon < found.epsilon < 9.97  # of noise multiplier 1/2
    True
    """
    tried = guess(scores, included, guesses)
    canaries, error = len(np.asarray(scores)), _share_of_error(confidence, tried)

    def refuting(noise: float) -> list[Guesses]:
        curve = TradeOff.of(charge_at(noise))
        return [each for each in tried if _impossible(canaries, each, curve, error)]

    noise = least_refuted_noise(lambda noise: not refuting(noise))
    found = math.isfinite(noise)
    value = epsilon_of(charge_at(noise), delta) if found else 0.0
    shown = refuting(noise)[0] if found else tried[0]
    return OneRunBound(value, delta, confidence, canaries, shown.made, shown.correct, GAUSSIAN_NOISE)


def _impossible(canaries: int, tried: Guesses, curve: TradeOff, chance: float) -> bool:
    """Whether so many correct guesses cannot have a probability of `chance` under this curve.

    `right` and `wrong` are the shares of canaries that are guessed rightly, and wrongly, while at least i
    guesses are right. What is wrong at i must be as likely as the curve says for what is right at i + 1, so
    that probability has to lie below `correct` too: the least that does. More than 1 of it is impossible.
    """
    made, correct = tried.made, tried.correct
    right, wrong, total = chance * correct / canaries, chance * (made - correct) / canaries, chance
    for i in range(correct - 1, -1, -1):
        needed = curve.least(right)
        if needed <= wrong:  # and so for all that is below
            return False
        added = (needed - wrong) * canaries / (made - i)
        right, wrong, total = right + added * i / canaries, needed, total + added
        if total > 1:
            return True
    return False


def guess(
    scores: npt.ArrayLike, included: npt.ArrayLike, numbers: Sequence[int] | None = None
) -> tuple[Guesses, ...]:
    """Guess that the highest scores are in and the lowest are not, in each of some `numbers` of guesses.

    >>> guess([3.0, -1.0, 0.5, -2.0], [True, False, False, True], [2, 4])
    (Guesses(made=2, correct=1), Guesses(made=4, correct=2))
    """
    values, truth = np.asarray(scores, dtype=float), np.asarray(included, dtype=bool)
    count = len(values) if values.ndim else 0
    if values.ndim != 1 or truth.shape != values.shape or count < 2:
        raise AuditError(f"expected a score and a truth for each of 2 or more canaries, not {values.shape}")
    if not np.isfinite(values).all():
        raise AuditError("scores must be finite numbers")
    wanted = tuple(numbers) if numbers is not None else _halves(count)
    if not wanted or not all(2 <= each <= count for each in wanted):
        raise AuditError(f"numbers of guesses must be from 2 to the {count} canaries, not {wanted}")
    order = np.argsort(values, kind="stable")
    found = []
    for each in wanted:
        high = each // 2
        right = truth[order[count - high :]].sum() + (~truth[order[: each - high]]).sum()
        found.append(Guesses(each, int(right)))
    return tuple(found)


def _share_of_error(confidence: float, tried: Sequence[Guesses]) -> float:
    """Return the error that each number of guesses is tested at: an equal share of 1 - `confidence`."""
    if not 0 < confidence < 1:
        raise AuditError(f"confidence must be between 0 and 1, not {confidence}")
    return (1 - confidence) / len(tried)


def _check_counts(canaries: int, guesses: int, correct: int) -> None:
    """Refuse more correct guesses than guesses, or more guesses than canaries."""
    if not 0 <= correct <= guesses <= canaries:
        raise AuditError(
            f"{correct} correct of {guesses} guesses about {canaries} canaries: more than there are"
        )


def _check_pair(epsilon: float, delta: float) -> None:
    """Refuse what is no ε or no δ."""
    if not epsilon >= 0 or not 0 <= delta < 1:
        raise AuditError(
            f"epsilon must not be negative and delta be from 0 to below 1, not {epsilon}, {delta}"
        )


def _halves(count: int) -> tuple[int, ...]:
    """All, a half, a quarter, ... as long as there are enough to show anything."""
    sizes = [count]
    while sizes[-1] // 2 >= 16 and len(sizes) < 6:
        sizes.append(sizes[-1] // 2)
    return tuple(sizes)


_NOISES = np.geomspace(1e-2, 100.0, 1024)  # noise multipliers that are told apart


def least_refuted_noise(allows: Callable[[float], bool]) -> float:
    """Return the least noise multiplier on a grid that is not allowed; infinity where all of them are.

    `allows` is monotone: where it allows some noise, it allows less noise as well. So if the true noise is
    allowed, it lies below what is returned, and its ε is at least as large as that of what is returned.
    """
    few, many = -1, len(_NOISES)  # places on the grid: so little noise is allowed, so much is not
    while many > few + 1:
        middle = (few + many) // 2
        few, many = (middle, many) if allows(float(_NOISES[middle])) else (few, middle)
    return float(_NOISES[many]) if many < len(_NOISES) else math.inf
