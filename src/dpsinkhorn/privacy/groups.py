"""ε for someone with several records, where the unit of privacy is one record.

The records are taken away one by one. If a mechanism is (ε_i, δ_i)-DP for one record, for i = 1 to k, then it
is (E, Δ)-DP for k of them, with

    E = ε_1 + ... + ε_k,    Δ = δ_1 + e^{ε_1} δ_2 + e^{ε_1 + ε_2} δ_3 + ...

Every point of the privacy curve will do for every record; the least E with Δ at most δ is searched for. What
the search misses only makes the answer larger. The proof is docs/proofs/group-privacy.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from dpsinkhorn.errors import UnsupportedEventError
from dpsinkhorn.privacy import _pld, _rdp
from dpsinkhorn.privacy.accounting import Accountant, epsilon, pure_epsilon
from dpsinkhorn.privacy.charges import Adjacency, Charge, Event, Part, flatten

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
