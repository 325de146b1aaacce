"""A lower bound on ε from one release of data in which many records were included by coin flips.

T. Steinke, M. Nasr, M. Jagielski, *Privacy auditing with one (1) training run*, 2023. Each of m canaries is
included with probability 1/2, independently. Whoever audits sees the release and guesses, for some of them,
whether they were in; for the others nothing is said.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import stats

from dpsinkhorn.errors import AuditError

_GRID = 0.1  # steps in which the bound is looked for, then refined
LARGEST = 60.0  # beyond it e^ε / (1 + e^ε) is 1 in float64


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
    check_counts(canaries, guesses, correct)
    check_pair(epsilon, delta)
    chance = 1 / (1 + math.exp(-epsilon))
    value = float(stats.binom.sf(correct - 1, guesses, chance))
    if delta and correct:
        below = np.cumsum(stats.binom.pmf(np.arange(correct - 1, -1, -1), guesses, chance))
        value += 2 * canaries * delta * float((below / np.arange(1, correct + 1)).max())
    return min(value, 1.0)


def one_run_bound(
    scores: npt.ArrayLike,
    included: npt.ArrayLike,
    *,
    delta: float,
    confidence: float = 0.95,
    guesses: Sequence[int] | None = None,
) -> OneRunBound:
    """The ε that guesses by `scores` exclude: half of the guesses are the highest scores, half the lowest.

    Args:
        scores: one per canary; the higher, the more likely it was included.
        included: whether it was.
        guesses: how many guesses to make. Several numbers share the error between them (each is tested at its
            part of 1 - `confidence`); by default all of the canaries, a half, a quarter and so on.

    >>> rng = np.random.default_rng(0)
    >>> included = rng.random(1000) < 0.5
    >>> found = one_run_bound(included + rng.normal(size=1000), included, delta=1e-5)
    >>> 0.4 < found.epsilon < 2
    True
    """
    tried = guess(scores, included, guesses)
    canaries, error = len(np.asarray(scores)), share_of_error(confidence, tried)
    bounds = [_largest_excluded(canaries, each.made, each.correct, delta, error) for each in tried]
    at = int(np.argmax(bounds))
    return OneRunBound(bounds[at], delta, confidence, canaries, tried[at].made, tried[at].correct)


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


def share_of_error(confidence: float, tried: Sequence[Guesses]) -> float:
    """Return the error that each number of guesses is tested at: an equal share of 1 - `confidence`."""
    if not 0 < confidence < 1:
        raise AuditError(f"confidence must be between 0 and 1, not {confidence}")
    return (1 - confidence) / len(tried)


def check_counts(canaries: int, guesses: int, correct: int) -> None:
    """Refuse more correct guesses than guesses, or more guesses than canaries."""
    if not 0 <= correct <= guesses <= canaries:
        raise AuditError(
            f"{correct} correct of {guesses} guesses about {canaries} canaries: more than there are"
        )


def check_pair(epsilon: float, delta: float) -> None:
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


def _largest_excluded(canaries: int, guesses: int, correct: int, delta: float, error: float) -> float:
    """The largest ε such that it, and all below it, have a p-value below `error`.

    "All below it" is what makes the error hold at the true ε, whichever that is, for p-values need not grow
    with ε everywhere once δ comes in.
    """

    def excluded(epsilon: float) -> bool:
        return p_value(canaries, guesses, correct, epsilon, delta) < error

    if not excluded(0.0):
        return 0.0
    low, high = 0.0, _GRID
    while excluded(high):
        low, high = high, high + _GRID
        if high > LARGEST:
            return low
    for _ in range(20):
        middle = (low + high) / 2
        low, high = (middle, high) if excluded(middle) else (low, middle)
    return low


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
