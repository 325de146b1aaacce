"""ε of an event or a charge, by three accountants; for someone of several records; what a budget allows.

| accountant | what it computes |
|---|---|
| `pld` | privacy loss distributions, composed numerically from above; the tightest, the default |
| `rdp` | Rényi DP with the conversion of Canonne, Kamath and Steinke (2020) |
| `rdp-classic` | Rényi DP with the papers' own conversion, ε + log(1/δ)/(α - 1), for reproduction |

All three are valid upper bounds. `published_epsilon` is not: it repeats the papers' count for `image`.

**Several records.** The unit of privacy is one record, and someone's records are taken away one by one. If
a mechanism is (ε_i, δ_i)-DP for one record, for i = 1 to k, then it is (E, Δ)-DP for k of them, with

    E = ε_1 + ... + ε_k,    Δ = δ_1 + e^{ε_1} δ_2 + e^{ε_1 + ε_2} δ_3 + ...

Every point of the privacy curve will do for every record; the least E with Δ at most δ is searched for.
What the search misses only makes the answer larger. The proof is docs/proofs/group-privacy.md.

**A budget.** Every search for noise, steps or sampling rate keeps one end that is known to meet the budget,
and returns that end: what is returned has been checked, whatever the shape of ε in between.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

import dp_accounting as dp  # type: ignore[import-untyped]
import numpy as np
from numpy.typing import NDArray

from dpsinkhorn.errors import CalibrationError, MixedAdjacencyError, UnsupportedEventError
from dpsinkhorn.privacy import _pld, _rdp
from dpsinkhorn.privacy.charges import (
    Adjacency,
    Charge,
    CriticMechanism,
    Event,
    ImageMechanism,
    Part,
    flatten,
    parts_of,
)

Accountant: TypeAlias = Literal["pld", "rdp", "rdp-classic"]
"""The name of an accountant."""
ACCOUNTANTS: tuple[Accountant, ...] = get_args(Accountant)
"""Privacy loss distributions; Rényi differential privacy; the same, converted as in the papers."""


def epsilon(
    event: Event | Charge, delta: float, accountant: Accountant = "pld", *, adjacency: Adjacency | None = None
) -> float:
    """The ε for which the event is (ε, δ)-differentially private; an upper bound, infinite if there is none.

    Args:
        event: A charge, which knows its adjacency, or a bare dp-accounting event. A sample of one without
            replacement stands for one of K disjoint parts of the records, drawn in secret; its noise is over
            how far apart any two of the values are, with or without a record (docs/proofs/gs-wgan.md).
        delta: δ, from 0 (pure differential privacy) to below 1.
        accountant: `pld`, `rdp` or `rdp-classic`.
        adjacency: Of a bare event; add-or-remove-one unless given. With a charge it must be the charge's.

    Raises:
        UnsupportedEventError: The accountant has no proved bound for the event.
        MixedAdjacencyError: `adjacency` is not that of the charge.

    >>> from dpsinkhorn.privacy import RecordMechanism
    >>> training = RecordMechanism(clip=1.0, noise_multiplier=2.0).sampled(0.1, steps=1000)
    >>> round(epsilon(training, delta=1e-5), 1)
    8.3
    """
    if isinstance(event, Charge):
        if adjacency not in (None, event.adjacency):
            raise MixedAdjacencyError(f"this charge is under {event.adjacency.value}; convert it first")
        event, adjacency = event.event, event.adjacency
    adjacency = adjacency or Adjacency.ADD_OR_REMOVE_ONE
    if accountant not in ACCOUNTANTS:
        raise ValueError(f"accountant must be one of {', '.join(ACCOUNTANTS)}, not {accountant}")
    if not 0 <= delta < 1:
        raise ValueError(f"delta must be from 0 to below 1, not {delta}")
    parts = flatten(event)
    _validate(parts)
    if accountant == "pld":
        return _tightest(parts, delta, adjacency)
    rdp = _rdp.curve(parts, adjacency)  # before the pure bound, so that unknown events raise at every δ
    if delta == 0:
        return pure_epsilon(parts)
    convert = _rdp.improved if accountant == "rdp" else _rdp.classic
    return min(convert(rdp, delta), pure_epsilon(parts))


def published_epsilon(mechanism: ImageMechanism, sampling_rate: float, steps: int, delta: float) -> float:
    """**Not a valid guarantee.** ε as papers count it for per-image clipping: DP-Sinkhorn's, and GS-WGAN's.

    It composes rows x steps separately subsampled queries with the classic conversion. The rows of a step
    share one sample, so that this is too small: docs/proofs/image-published-epsilon.md has two data sets that
    can be told apart far better. For comparison with published figures only.

    >>> mechanism = ImageMechanism(clip=0.5, row_noise_multiplier=1.5, rows=50)
    >>> round(published_epsilon(mechanism, 1 / 1200, steps=160_000, delta=1e-5), 1)
    10.0
    """
    uses = mechanism.rows * steps
    if isinstance(mechanism, CriticMechanism):
        parts = parts_of(sampling_rate)
        rdp = _rdp.gaussian_without_replacement(parts, mechanism.row_noise_multiplier)
        return _rdp.classic(uses * rdp, delta)
    row = dp.PoissonSampledDpEvent(sampling_rate, dp.GaussianDpEvent(mechanism.row_noise_multiplier))
    return epsilon(dp.SelfComposedDpEvent(row, uses), delta, "rdp-classic")


def _tightest(parts: tuple[Part, ...], delta: float, adjacency: Adjacency) -> float:
    """Return the least of PLD, RDP and pure bounds: all three are valid, so that it is."""
    try:
        bound = _rdp.improved(_rdp.curve(parts, adjacency), delta) if delta > 0 else math.inf
    except UnsupportedEventError:
        bound = math.inf  # RDP knows fewer events; PLD decides whether this one is known at all
    return _pld.epsilon(parts, delta, adjacency, min(bound, pure_epsilon(parts)))


def pure_epsilon(parts: tuple[Part, ...]) -> float:
    """Return ε at δ = 0: Laplace mechanisms add up, sampled or not; anything else has none."""
    total = 0.0
    for part in parts:
        event = part.event
        if isinstance(event, dp.PoissonSampledDpEvent):
            event = event.event  # without the sampling: an upper bound
        if not isinstance(event, dp.LaplaceDpEvent):
            return math.inf
        total += part.count / event.noise_multiplier
    return total


def _validate(parts: tuple[Part, ...]) -> None:
    """Noise multipliers and rates that dp-accounting would accept in silence, or stumble over."""
    for part in parts:
        event = part.event
        if isinstance(event, dp.PoissonSampledDpEvent):
            if not 0 < event.sampling_probability <= 1:
                raise ValueError(f"a sampling rate must be above 0 and at most 1: {event!r}")
            event = event.event
        if isinstance(event, dp.SampledWithoutReplacementDpEvent):
            if event.sample_size != 1:
                raise UnsupportedEventError(
                    f"there is no proved bound for more than one of some parts: {event!r}"
                )
            if not event.source_dataset_size >= 1:
                raise ValueError(f"expected one of 1 or more parts: {event!r}")
            event = event.event
        # beyond these limits squares leave the range of float64; no noise at all is NonPrivateDpEvent
        if isinstance(event, dp.GaussianDpEvent | dp.LaplaceDpEvent) and not (
            1e-100 <= event.noise_multiplier <= 1e100
        ):
            raise ValueError(f"a noise multiplier must be positive, from 1e-100 to 1e100: {event!r}")


# ---- someone with several records


_MARGIN = 1e-9  # of log δ: more than the rounding of the sums
_LOWEST, _HIGHEST = 1e-6, 1e6  # ε that is worth looking at
_SUM = 1 + 1e-12  # rounding of a sum of ε
_POINTS = 2000  # of the search
_LARGEST_CHAIN = 50  # records that get a point of the curve each; more share one point

Curve = Callable[[NDArray[np.float64]], NDArray[np.float64]]
"""log δ at some ascending ε, at which one record is protected."""


def group_epsilon(
    event: Event | Charge,
    delta: float,
    size: int,
    accountant: Accountant = "pld",
    *,
    adjacency: Adjacency | None = None,
) -> float:
    """Return ε at the same δ for someone with `size` records; an upper bound, infinite where none is proved.

    Under add-or-remove-one all of them are added or removed, under replace-one all of them are replaced.

    Args:
        event: A charge, which knows its adjacency, or a bare dp-accounting event.
        delta: δ, from 0 to below 1.
        size: Records of one person, at most; 1 gives `epsilon` itself.
        accountant: `pld`, `rdp` or `rdp-classic`.
        adjacency: Of a bare event, as for `epsilon`.

    >>> from dpsinkhorn.privacy import RecordMechanism
    >>> training = RecordMechanism(clip=1.0, noise_multiplier=2.0).sampled(0.1, steps=100)
    >>> [round(group_epsilon(training, 1e-5, size), 1) for size in (1, 2, 3)]
    [2.3, 5.2, 8.6]
    """
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise ValueError(f"size must be a whole number from 1 upwards, not {size}")
    single = epsilon(event, delta, accountant, adjacency=adjacency)  # checks its arguments, too
    if size == 1 or not math.isfinite(single):
        return single
    charge = event if isinstance(event, Charge) else Charge(event, adjacency or Adjacency.ADD_OR_REMOVE_ONE)
    parts = flatten(charge.event)
    pure = size * pure_epsilon(parts)
    if delta == 0 or pure == 0:
        return pure
    lowest = max(single, _LOWEST)  # every δ_i is at most δ, hence every ε_i at least that of one record
    curve = _curve(parts, charge.adjacency, accountant, lowest)
    return min(_least(curve, math.log(delta) - _MARGIN, size, lowest), pure)


def _curve(parts: tuple[Part, ...], adjacency: Adjacency, accountant: Accountant, lowest: float) -> Curve:
    """Return the least δ at ε, from `lowest` on, that any proof at hand gives."""
    classic = accountant == "rdp-classic"
    try:
        rdp = _rdp.curve(parts, adjacency)
    except UnsupportedEventError:  # the accountant pld knows more events
        rdp = np.full_like(_rdp.ORDERS, np.inf)

    def bound_at(delta: float) -> float:
        return min(_rdp.improved(rdp, delta) if np.isfinite(rdp).any() else math.inf, pure_epsilon(parts))

    points = deltas = np.empty(0)
    if accountant == "pld":
        points, deltas = _pld.profile(parts, adjacency, lowest, bound_at)

    def log_delta(epsilons: NDArray[np.float64]) -> NDArray[np.float64]:
        found = _rdp.log_delta(rdp, epsilons, classic=classic)
        return np.minimum(found, np.log(_chord(epsilons, points, deltas))) if len(points) else found

    return log_delta


def _chord(
    epsilons: NDArray[np.float64], points: NDArray[np.float64], deltas: NDArray[np.float64]
) -> NDArray[np.float64]:
    """δ between points of the curve. It is convex in e^ε, so that its chords lie above it; and it falls."""
    right = np.clip(np.searchsorted(points, epsilons), 1, len(points) - 1)
    low, high = points[right - 1], points[right]
    inside = np.clip(epsilons, low, high)
    share = np.where(inside >= high, 1.0, np.expm1(inside - low) / np.expm1(high - low))
    values = deltas[right - 1] + share * (deltas[right] - deltas[right - 1])
    return np.where(epsilons < points[0], 1.0, np.maximum(values, deltas[-1]))


def _least(curve: Curve, target: float, size: int, lowest: float) -> float:
    """Return the least ε for so many records that was found, with log δ at most `target`."""
    shared = _shared(curve, target, size, lowest)
    if size > _LARGEST_CHAIN:
        return size * shared
    # records far from the shared point, where there is one, would not help; elsewhere, take all of the curve
    scan = np.geomspace(lowest, max(_HIGHEST, 2 * lowest), _POINTS)
    top = 2 * shared - lowest if math.isfinite(shared) else float(scan[np.argmin(curve(scan))])
    if not lowest < top < math.inf:
        return size * shared
    steps = np.linspace(lowest, top, _POINTS // size + 2)
    return min(_chain(steps, curve(steps), size, target), size * shared)


def _shared(curve: Curve, target: float, size: int, lowest: float) -> float:
    """Return the least ε' such that (ε', δ') at every one of the records does."""
    low, high = lowest, max(_HIGHEST, 2 * lowest)
    for points in (np.geomspace(low, high, _POINTS), None, None):
        grid = np.linspace(low, high, _POINTS // 10) if points is None else points
        # e^{kε} - 1 over e^ε - 1, in logarithms
        sums = size * grid + np.log1p(-np.exp(-size * grid)) - grid - np.log1p(-np.exp(-grid))
        enough = curve(grid) + sums <= target
        if not enough.any():
            return math.inf
        first = int(np.argmax(enough))
        low, high = float(grid[max(first - 1, 0)]), float(grid[first])
    return high


def _chain(epsilons: NDArray[np.float64], logs: NDArray[np.float64], size: int, target: float) -> float:
    """Put every record at a point of its own, from an even grid: by dynamic programming over their sum."""
    step = float(epsilons[1] - epsilons[0])
    total = logs
    for _ in range(size - 1):
        longer = np.full(len(total) + len(logs) - 1, np.inf)
        for index, (spent, log_delta) in enumerate(zip(epsilons, logs, strict=True)):
            part = longer[index : index + len(total)]
            np.minimum(part, np.logaddexp(log_delta, spent + total), out=part)
        total = longer
    enough = total <= target
    if not enough.any():
        return math.inf
    return (size * float(epsilons[0]) + int(np.argmax(enough)) * step) * _SUM


# ---- what a budget allows


_TOLERANCE = 1e-4  # relative
_spent = epsilon  # where the budget is called epsilon


@dataclass(frozen=True)
class Calibration:
    """Settings that meet a budget, and what they really cost."""

    epsilon: float
    delta: float
    noise_multiplier: float  # noise / sensitivity of one row, as the papers have it
    sampling_rate: float
    steps: int
    rows: int
    accountant: Accountant
    charge: Charge

    @property
    def effective_noise_multiplier(self) -> float:
        """Noise / sensitivity of the whole release of a step."""
        return self.noise_multiplier / math.sqrt(self.rows)


def sampled_gaussian(noise_multiplier: float, sampling_rate: float, steps: int, rows: int = 1) -> Charge:
    """`steps` Gaussian releases of `rows` separately clipped rows each, on fresh Poisson samples."""
    return ImageMechanism(1.0, noise_multiplier, rows).sampled(sampling_rate, steps)


def calibrate(
    epsilon: float,
    delta: float,
    *,
    noise_multiplier: float | None = None,
    sampling_rate: float | None = None,
    steps: int | None = None,
    rows: int = 1,
    accountant: Accountant = "pld",
    charged: Callable[[float, float, int], Charge] | None = None,
) -> Calibration:
    """Solve for the one of `noise_multiplier`, `sampling_rate` and `steps` that is left out.

    The least noise, the most steps or the highest rate whose ε is at most `epsilon`, to one part in ten
    thousand. `rows` above one is the barrier `image`, whose noise multiplier is per row. `charged` says what
    noise multiplier, rate and steps cost where they are not those of `sampled_gaussian`.

    Raises:
        CalibrationError: Nothing meets the budget.

    >>> found = calibrate(10, 1e-5, sampling_rate=0.1, steps=1000)
    >>> round(found.noise_multiplier, 2), found.epsilon <= 10
    (1.75, True)
    """
    if not (epsilon > 0 and math.isfinite(epsilon)):
        raise ValueError(f"epsilon must be a positive number, not {epsilon}")
    if not 0 < delta < 1:
        raise ValueError(f"delta must be between 0 and 1, not {delta}")
    if sum(value is None for value in (noise_multiplier, sampling_rate, steps)) != 1:
        raise ValueError(
            "give exactly two of noise_multiplier, sampling_rate and steps; the third is solved for"
        )

    def charge_of(noise: float, rate: float, count: int) -> Charge:
        return charged(noise, rate, count) if charged else sampled_gaussian(noise, rate, count, rows)

    def cost(x: float, by: Accountant) -> float:
        # x is what costs more the larger it is: inverse noise, rate, or steps
        noise = 1 / x if noise_multiplier is None else noise_multiplier
        rate = x if sampling_rate is None else sampling_rate
        count = round(x) if steps is None else steps
        return _spent(charge_of(noise, rate, count), delta, by)

    search = _Search(cost, epsilon, least=1 if steps is None else 1e-9, whole=steps is None)
    if noise_multiplier is None:
        noise_multiplier = 1 / search.run(accountant, start=1.0, most=1e4)
    elif sampling_rate is None:
        sampling_rate = search.run(accountant, start=0.1, most=1.0)
    else:
        steps = round(search.run(accountant, start=1000, most=10**10))
    assert sampling_rate is not None
    assert steps is not None
    charge = charge_of(noise_multiplier, sampling_rate, steps)
    return Calibration(
        epsilon=_spent(charge, delta, accountant),
        delta=delta,
        noise_multiplier=noise_multiplier,
        sampling_rate=sampling_rate,
        steps=steps,
        rows=rows,
        accountant=accountant,
        charge=charge,
    )


@dataclass(frozen=True)
class _Search:
    """The largest x with cost(x) <= budget, to `_TOLERANCE`, where cost grows with x."""

    cost: Callable[[float, Accountant], float]
    budget: float
    least: float
    whole: bool

    def run(self, accountant: Accountant, *, start: float, most: float) -> float:
        if accountant == "pld":
            # RDP takes milliseconds and is never below PLD: its answer meets the budget and is near the best
            try:
                start = self.run("rdp", start=start, most=most)
            except CalibrationError:
                start = self.least
            return self._from(start, 1.2, most, accountant)
        return self._from(start, 4.0, most, accountant)

    def _from(self, start: float, stride: float, most: float, accountant: Accountant) -> float:
        """Bracket the answer from `start`, widening the stride as long as it fails, then close in."""
        x, at_x = start, self._excess(start, accountant)
        if at_x <= 0:
            while at_x <= 0:
                low, at_low = x, at_x
                if low >= most:
                    return most
                x = min(self._rounded(math.ceil(low * stride) if self.whole else low * stride), most)
                at_x = self._excess(x, accountant)
                stride *= stride
            return self._close_in((low, at_low), (x, at_x), accountant)
        while at_x > 0:
            high, at_high = x, at_x
            if high <= self.least:
                raise CalibrationError(
                    f"even the cheapest setting costs more than epsilon {self.budget:g}; allow a larger "
                    "epsilon, or raise the noise multiplier, or lower the sampling rate or the steps"
                )
            x = max(self._rounded(high / stride), self.least)
            at_x = self._excess(x, accountant)
            stride *= stride
        return self._close_in((x, at_x), (high, at_high), accountant)

    def _close_in(self, low: tuple[float, float], high: tuple[float, float], accountant: Accountant) -> float:
        """Regula falsi on logarithms with the Illinois weighting; `low` always meets the budget."""
        (a, at_a), (b, at_b) = low, high
        met_before: bool | None = None
        while b - a > (max(1.0, _TOLERANCE * a) if self.whole else _TOLERANCE * a):
            share = at_a / (at_a - at_b) if math.isfinite(at_a) and math.isfinite(at_b) else 0.5
            # never so near an end that the interval hardly shrinks
            margin = 0.45 * _TOLERANCE / math.log(b / a)
            share = min(max(share, margin), 1 - margin)
            x = a * (b / a) ** share
            if self.whole:
                x = min(max(self._rounded(x), a + 1), b - 1)
            at_x = self._excess(x, accountant)
            meets = at_x <= 0
            if meets:
                a, at_a = x, at_x
                at_b = at_b / 2 if met_before is True else at_b
            else:
                b, at_b = x, at_x
                at_a = at_a / 2 if met_before is False else at_a
            met_before = meets
        return a

    def _rounded(self, x: float) -> float:
        return float(round(x)) if self.whole else x

    def _excess(self, x: float, accountant: Accountant) -> float:
        """Return the logarithm of cost / budget: nearly straight in log x."""
        found = self.cost(x, accountant)
        return math.log(found / self.budget) if found > 0 else -math.inf
