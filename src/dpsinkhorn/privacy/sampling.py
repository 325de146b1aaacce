"""Poisson sampling: every record is taken with probability exactly q, independently of all others.

Only the taken records cost anything: the gaps between them are drawn, not one coin per record.
"""

from __future__ import annotations

import math
from decimal import Context, Decimal
from fractions import Fraction

import torch

from dpsinkhorn.privacy.exact import LAPLACE, Bounds, WordSource, decide, exp_bounds
from dpsinkhorn.privacy.noise import ObservedNoise

_BITS = 50  # the exponential variables are known to 50 bits after the point, at first
_RELATIVE = 2.0**-46  # more than float64's relative error in (cell 2^-50) / rate
_CHUNK = 1 << 20
_MAX_RECORDS = 1 << 40  # so that no sum of gaps in a chunk passes 2^62


def poisson_sample(
    records: int, rate: float, noise: WordSource, *, device: torch.device | str = "cpu"
) -> torch.Tensor:
    """Draw the indices of a Poisson sample of `records` records, in increasing order: int64, shape (size,).

    Each index is in the sample with probability exactly `rate` (the float64 as it stands), independently.
    Time and memory go with the size of the sample, about `records` * `rate`, not with `records`. An empty
    sample is an ordinary outcome. Where a person has several records, sample persons, and take all of their
    records.

    The gap before the next taken record is floor(E / lambda), with E exponential and lambda = -log(1 -
    rate). E is sampled exactly, and where float64 cannot tell the whole number, decimal arithmetic and
    further bits of E do; so there is no bias from rounding at all. Proof:
    `docs/proofs/poisson-sampling.md`.

    >>> from dpsinkhorn.privacy.noise import SeededNoise
    >>> sample = poisson_sample(100_000_000, 1e-6, SeededNoise(3))
    >>> len(sample), bool((sample.diff() > 0).all())
    (85, True)
    """
    if not 0 <= records <= _MAX_RECORDS:
        raise ValueError(f"records must be between 0 and 2^40, not {records}")
    if not 0 <= rate <= 1:
        raise ValueError(f"the sampling rate must be between 0 and 1, not {rate}")
    taken = _drawn(records, float(rate), noise, torch.device(device))
    return noise.sample(records, float(rate), taken) if isinstance(noise, ObservedNoise) else taken


def _drawn(records: int, rate: float, noise: WordSource, target: torch.device) -> torch.Tensor:
    if rate == 1:
        return torch.arange(records, device=target)
    taken: list[torch.Tensor] = []
    last = -1
    while rate > 0 and last < records - 1:
        mean = (records - 1 - last) * rate
        count = min(_CHUNK, math.ceil(mean + 5 * math.sqrt(mean) + 5))
        gaps = _gaps(noise, count, rate, limit=records, device=target)
        indices = last + (gaps + 1).cumsum(0)
        last = int(indices[-1])
        taken.append(indices[indices < records] if last >= records else indices)
    return torch.cat(taken) if taken else torch.empty(0, dtype=torch.int64, device=target)


def _gaps(noise: WordSource, count: int, rate: float, *, limit: int, device: torch.device) -> torch.Tensor:
    """Make `count` independent draws of min(G, limit), G geometric: P(G >= k) = (1 - rate)^k."""
    cells = LAPLACE.cells(noise, count, bits=_BITS, signed=False, device=device)
    step = min(2.0**-_BITS / -math.log1p(-rate), 2.0**900)  # a cell, in records; the cap keeps 0 * step at 0
    gap = cells.double() * step
    error = gap * _RELATIVE + step * (1 + _RELATIVE)  # of float64, and the width of a cell
    low, high = (gap - error).floor_(), (gap + error).floor_()
    whole = low.clamp_(0, limit)
    open_cases = (whole != high.clamp_(0, limit)).nonzero().flatten().tolist()
    gaps = whole.long()
    for i in open_cases:
        gaps[i] = min(_exact_gap(int(cells[i]), rate, noise), limit)
    return gaps


def _exact_gap(cell: int, rate: float, noise: WordSource) -> int:
    """floor(E / lambda) for an exponential E in [cell, cell + 1) 2^-50; draws the digits of E that it takes.

    The binary digits of an exponential variable are independent: that of weight w is 1 with probability
    1 / (1 + e^w).
    """
    bits = _BITS
    while True:
        low, high = _log_bounds(rate, bits + 64)  # of lambda
        least = math.floor(Fraction(cell, 1 << bits) / high)
        most = math.floor(Fraction(cell + 1, 1 << bits) / low)
        if least == most:
            return least
        bits += 1
        cell = 2 * cell + decide(noise, _digit_chance(bits))


def _digit_chance(bits: int) -> Bounds:
    """Return 1 / (1 + e^w) with w = 2^-bits."""

    def bounds(digits: int) -> tuple[Fraction, Fraction]:
        low, high = exp_bounds(Fraction(1, 1 << bits), digits)  # of e^-w
        return low / (1 + low), high / (1 + high)

    return bounds


def _log_bounds(rate: float, bits: int) -> tuple[Fraction, Fraction]:
    """Return bounds on lambda = -log(1 - rate) that are about 2^-bits apart, relatively."""
    exact = Decimal(rate)
    precision = bits * 3 // 10 + 30 - min(0, exact.adjusted())  # 1 - rate loses the leading zeros of the rate
    context = Context(prec=precision)
    value = -Fraction(context.ln(context.subtract(Decimal(1), exact)))  # ln is correctly rounded
    slack = Fraction(1, 10 ** (bits * 3 // 10 + 10))
    return value * (1 - slack), value * (1 + slack)
