"""Find the noise, the number of steps or the sampling rate that a budget allows.

Every search keeps one end that is known to meet the budget and returns that end, so that what is returned
has been checked, whatever the shape of ε in between.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from dpsinkhorn.errors import CalibrationError
from dpsinkhorn.privacy.accounting import Accountant
from dpsinkhorn.privacy.accounting import epsilon as spent
from dpsinkhorn.privacy.charges import Charge
from dpsinkhorn.privacy.mechanisms import ImageMechanism

_TOLERANCE = 1e-4  # relative


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
        return spent(charge_of(noise, rate, count), delta, by)

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
        epsilon=spent(charge, delta, accountant),
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
