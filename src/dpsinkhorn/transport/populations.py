"""From an interval for these samples to one for the populations that they were drawn from.

Rows are independent draws, x of P and y of Q. A transport cost is jointly convex in its measures, so that
E W(samples) >= W(P, Q); and it moves by range/n where a row is replaced, so that it is within
range √((1/n + 1/m) log(1/β) / 2) of its mean with probability 1 - β on either side (McDiarmid). How far the
mean lies above the populations' value needs more: `excess`. Proof: docs/proofs/populations.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from dpsinkhorn.transport.clouds import Setting

Interval = tuple[float, float]


def of_populations(
    interval: Callable[[float], Interval],
    setting: Setting,
    *,
    confidence: float,
    span: float,
    excess: float = math.inf,
) -> Interval | None:
    """Return an interval for the populations: half of what may go wrong is the noise, half the samples.

    `interval` is that of the samples at a confidence, `span` n times what a replaced row moves, and `excess`
    bounds E W(samples) - W(P, Q); where nothing does, the lower end is 0. None where rows are not independent
    draws: one side is public, or they are pairs.
    """
    if setting.public is not None or setting.paired:
        return None
    low, high = interval((1 + confidence) / 2)
    reach = span * math.sqrt(spread(setting) * math.log(4 / (1 - confidence)) / 2)
    return max(0.0, low - excess - reach), max(0.0, high + reach)


def spread(setting: Setting) -> float:
    """Return 1/n + 1/m."""
    return 1 / setting.n + 1 / setting.m


def root_spread(setting: Setting) -> float:
    """Return 1/√n + 1/√m."""
    return 1 / math.sqrt(setting.n) + 1 / math.sqrt(setting.m)
