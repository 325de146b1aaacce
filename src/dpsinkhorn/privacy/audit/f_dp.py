"""Tighter lower bounds on ε from one release: what guesses show of the whole trade-off curve.

S. Mahloujifar, L. Melis, K. Chaudhuri, *Auditing f-differential privacy in one run*, 2024. The game is that
of `one_run`. If the coin of a canary that was guessed rightly is turned round, that guess becomes a wrong
one, and the number of right guesses falls by one. How much likelier the one may be than the other is what a
curve of (ε, δ) says, so the curve bounds the distribution of that number. Proofs:
docs/proofs/one-run-f-dp.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import stats

from dpsinkhorn.privacy import _pld, _rdp
from dpsinkhorn.privacy.accounting import epsilon as epsilon_of
from dpsinkhorn.privacy.audit import one_run
from dpsinkhorn.privacy.audit.one_run import Guesses, OneRunBound, least_refuted_noise
from dpsinkhorn.privacy.charges import Charge, flatten

GAUSSIAN_NOISE = "Gaussian noise of unknown size"

_HALVINGS = 40


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


def pair_p_value(canaries: int, guesses: int, correct: int, epsilon: float, delta: float) -> float:
    """Bound the chance of so many correct guesses where all that is known is one pair (ε, δ).

    With W binomial, `guesses` trials of probability e^ε / (1 + e^ε), and m canaries,

        P[correct >= v] <= P[W >= v] (1 + m δ max_{1 <= i <= v} P[W < i] / (i P[W = i])).

    >>> round(pair_p_value(100, 100, 60, epsilon=0.0, delta=0.0), 4)  # fair coins
    0.0284
    """
    one_run.check_counts(canaries, guesses, correct)
    one_run.check_pair(epsilon, delta)
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
    one_run.check_counts(canaries, guesses, correct)
    tried = Guesses(guesses, correct)
    if not _impossible(canaries, tried, curve, 1.0):
        return 1.0
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if _impossible(canaries, tried, curve, middle) else (middle, high)
    return high


def f_dp_bound(
    scores: npt.ArrayLike,
    included: npt.ArrayLike,
    *,
    delta: float,
    confidence: float = 0.95,
    guesses: Sequence[int] | None = None,
) -> OneRunBound:
    """The ε that guesses by `scores` exclude, with nothing assumed. Arguments are those of `one_run_bound`.

    >>> rng = np.random.default_rng(0)
    >>> included = rng.random(1000) < 0.5
    >>> found = f_dp_bound(included + rng.normal(size=1000), included, delta=1e-5)
    >>> 0.4 < found.epsilon < 2
    True
    """
    tried = one_run.guess(scores, included, guesses)
    canaries, error = len(np.asarray(scores)), one_run.share_of_error(confidence, tried)

    def excluding(epsilon: float) -> list[Guesses]:
        return [
            each for each in tried if pair_p_value(canaries, each.made, each.correct, epsilon, delta) < error
        ]

    value = _largest(lambda epsilon: bool(excluding(epsilon)))
    shown = (excluding(value) or tried)[0]
    return OneRunBound(value, delta, confidence, canaries, shown.made, shown.correct)


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
    tried = one_run.guess(scores, included, guesses)
    canaries, error = len(np.asarray(scores)), one_run.share_of_error(confidence, tried)

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


def _largest(excluded: Callable[[float], bool]) -> float:
    """Return the largest ε that is excluded, where all below one that is are excluded too; 0 for none."""
    if not excluded(0.0):
        return 0.0
    low, high = 0.0, one_run.LARGEST
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if excluded(middle) else (low, middle)
    return low
