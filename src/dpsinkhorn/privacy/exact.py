"""Exact sampling from a density exp(-phi(x)) on x >= 0, many draws at once.

A draw is a *cell*: the whole number floor(x 2^bits) of a real x of exactly the stated density. It is made
by rejection from a staircase whose probabilities are multiples of 2^-16, so that every choice is made with
whole random bits, except one: accept or reject at a real-valued probability. That comparison is made in
float64 with a margin far wider than float64's error, and where it falls within the margin, it is made again
in decimal arithmetic with as many further random bits as it takes. So no rounding ever decides, and the law
of the cells is exact if the random bits are. The proof is in `docs/proofs/floating-point.md`.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Context, Decimal
from fractions import Fraction
from functools import cache
from typing import Any, Protocol

import torch

_SLOTS = 1 << 16
_STRIPS = 32  # strips per unit of x
_POSITION_BITS = 52  # x is first known to 52 bits after the point: 5 name the strip, 47 the place in it
_OFFSET_BITS = 47
_UNIFORM_BITS = 53
_FARTHEST = 2047  # units: cells of 52 bits after the point fit into 64 bits; what lies beyond is drawn here
_MARGIN = 2.0**-40  # float64 gets the acceptance probability right to better than 2^-45
_CHUNK = 1 << 21  # proposals at a time: enough to keep a GPU busy, some 200 MB of temporaries

Bounds = Callable[[int], tuple[Fraction, Fraction]]


class WordSource(Protocol):
    """Whatever can hand out independent uniform 64-bit words."""

    def words(self, count: int, *, device: torch.device | str = "cpu") -> torch.Tensor:
        """Return `count` uniform words as signed int64."""


@dataclass(frozen=True)
class _Tables:
    strip_of_slot: torch.Tensor  # (65536,) which strip a slot proposes; the last strip is the tail
    surely: torch.Tensor  # (strips + 1,) a 53-bit uniform below this accepts anywhere in the strip
    ratio: torch.Tensor  # (strips + 1,) acceptance is ratio * exp(-phi(x))


class Staircase:
    """Sampler for the density proportional to exp(-phi(x)) on x >= 0.

    Needs: phi(0) = 0, phi increasing, and phi(edge + j) >= phi(edge) + j for j = 1, 2, ... `phi` is called
    with tensors and with fractions. Below `edge` the staircase has 32 steps per unit; above it, whole units
    whose probabilities halve.
    """

    def __init__(self, phi: Callable[[Any], Any], edge: int, *, margin: float = _MARGIN) -> None:
        self._phi = phi
        self._edge = edge
        self._margin = margin
        self._tail = edge * _STRIPS  # the tail's number among the strips
        self._height, self._slots = self._lay_out()
        mass = math.fsum(math.exp(-phi((k + 0.5) / (8 * _STRIPS))) for k in range(edge * 8 * _STRIPS))
        self.acceptance = mass / (8 * _STRIPS) * self._height * _STRIPS / _SLOTS
        self._on_device = cache(self._tables)

    def _lay_out(self) -> tuple[int, list[int]]:
        """The stairs' height A, and how many of the 65,536 slots strip k gets: n_k >= A exp(-phi(k/32))."""

        def slots(height: int) -> list[int]:
            safe = height * (1 + 1e-9)  # so that the float's own error never makes a step too low
            steps = [math.ceil(safe * math.exp(-self._phi(k / _STRIPS))) for k in range(self._tail)]
            return [*steps, math.ceil(safe * 2 * _STRIPS * math.exp(-self._phi(self._edge)))]

        height = bisect_right(range(_SLOTS), _SLOTS, key=lambda a: sum(slots(a))) - 1  # the most that fits
        counts = slots(height)
        counts[-1] += _SLOTS - sum(counts)  # what is over goes to the tail, which only makes it accept less
        return height, counts

    def _tables(self, device: torch.device) -> _Tables:
        counts = self._slots
        strip_of_slot = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
        ratio = [self._height / count for count in counts]
        full = 2.0**_UNIFORM_BITS * (1 - 1e-9)  # rounded down by more than float64 errs
        least = [full * ratio[k] * math.exp(-self._phi((k + 1) / _STRIPS)) for k in range(self._tail)]
        surely = [max(0, math.floor(chance) - 1) for chance in least]
        ratio[-1] *= _STRIPS  # the tail's steps are 32 times as wide
        return _Tables(
            strip_of_slot.to(device),
            torch.tensor([*surely, 0], dtype=torch.int64, device=device),
            torch.tensor(ratio, dtype=torch.float64, device=device),
        )

    def cells(
        self, source: WordSource, count: int, *, bits: int, signed: bool, device: torch.device
    ) -> torch.Tensor:
        """`count` independent cells floor(x 2^bits), x of this density; with `signed`, of its even extension.

        The cell of a negative x is floor too: -1 for x just below 0. int64, shape (count,).
        """
        if not 0 <= bits <= _POSITION_BITS:
            raise ValueError(f"cells have 0 to {_POSITION_BITS} bits after the point, not {bits}")
        done: list[torch.Tensor] = []
        missing = count
        while missing > 0:
            spare = 6 * math.sqrt(missing * (1 - self.acceptance)) + 4
            proposals = min(_CHUNK, math.ceil((missing + spare) / self.acceptance))
            accepted = self._propose(source, proposals, bits, signed, device)[:missing]
            done.append(accepted)
            missing -= len(accepted)
        return torch.cat(done) if done else torch.empty(0, dtype=torch.int64, device=device)

    def _propose(
        self, source: WordSource, proposals: int, bits: int, signed: bool, device: torch.device
    ) -> torch.Tensor:
        """The accepted ones among `proposals` proposals. Two words each: 16 + 1 + 47 bits, and 53 + 11."""
        tables = self._on_device(device)
        words = source.words(2 * proposals, device=device).view(2, proposals)
        first, second = words[0], words[1]
        strip = tables.strip_of_slot[(first >> 48) & (_SLOTS - 1)]
        position = (strip << _OFFSET_BITS) | (first & ((1 << _OFFSET_BITS) - 1))
        uniform = (second >> (64 - _UNIFORM_BITS)) & ((1 << _UNIFORM_BITS) - 1)
        accept = uniform < tables.surely[strip]
        unsure = (~accept).nonzero().squeeze(1)
        if len(unsure):
            accept[unsure], position[unsure] = self._weigh(
                source, strip[unsure], position[unsure], uniform[unsure], tables.ratio
            )
        cells = position >> (_POSITION_BITS - bits)
        if signed:
            negative = (first >> _OFFSET_BITS) & 1
            cells = cells ^ -negative  # ~cell, the floor of the mirrored x, where the sign bit is set
        return cells[accept]

    def _weigh(
        self,
        source: WordSource,
        strip: torch.Tensor,
        position: torch.Tensor,
        uniform: torch.Tensor,
        ratio: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Accept or reject at exp(-phi(x)); proposals in the tail are given their x first."""
        doublings = torch.zeros_like(strip)
        tail = (strip == self._tail).nonzero().squeeze(1)
        if len(tail):
            unit, place = self._tail_places(source, len(tail), strip.device)
            unit.clamp_(max=_FARTHEST - self._edge)
            position[tail] = ((self._edge + unit) << _POSITION_BITS) | place
            doublings[tail] = unit + 1
        x = position.double() * 2.0**-_POSITION_BITS
        chance = ratio[strip] * torch.exp(doublings * math.log(2) - self._phi(x))
        distance = chance - uniform.double() * 2.0**-_UNIFORM_BITS
        accept = distance > 0
        for i in (distance.abs() <= self._margin).nonzero().flatten().tolist():
            case = (int(values[i]) for values in (strip, doublings, position, uniform))
            accept[i] = self._settle(source, *case)
        return accept, position

    def _tail_places(
        self, source: WordSource, count: int, device: torch.device
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Draw which unit above the edge, j with probability 2^-(j+1), and 52 bits of place within it."""
        coins, place = source.words(2 * count, device=device).view(2, count)
        unit = _trailing_zeros(coins)
        for i in (coins == 0).nonzero().flatten().tolist():  # 64 zeros: go on counting
            while (word := source.words(1)).item() == 0:
                unit[i] += 64
            unit[i] += _trailing_zeros(word).to(device)[0]
        return unit, (place >> (64 - _POSITION_BITS)) & ((1 << _POSITION_BITS) - 1)

    def _settle(self, source: WordSource, strip: int, doublings: int, position: int, uniform: int) -> bool:
        """The comparison that float64 left open: is the uniform below ratio * 2^doublings * exp(-phi(x))?"""
        ratio = Fraction(self._height << doublings, self._slots[strip])
        if strip == self._tail:
            ratio *= _STRIPS
        x = _Digits(source, position, _POSITION_BITS)

        def chance(digits: int) -> tuple[Fraction, Fraction]:
            low, high = x.interval(digits)
            least, _ = exp_bounds(self._phi(high), digits)
            _, most = exp_bounds(self._phi(low), digits)
            return ratio * least, ratio * most

        return decide(source, chance, uniform, _UNIFORM_BITS)


def _trailing_zeros(words: torch.Tensor) -> torch.Tensor:
    """Return how many zero bits each word ends in; 64 for 0."""
    lowest = (words & -words).double().abs()  # a power of two, exactly
    return torch.where(words == 0, 64, torch.frexp(lowest).exponent.long() - 1)


class _Digits:
    """A real number of which more and more binary digits are drawn, as they are asked for."""

    def __init__(self, source: WordSource, known: int, bits: int) -> None:
        self._source, self._known, self._bits = source, known, bits

    def interval(self, bits: int) -> tuple[Fraction, Fraction]:
        while self._bits < bits:
            self._known = (self._known << 64) | (int(self._source.words(1).item()) & (2**64 - 1))
            self._bits += 64
        return Fraction(self._known, 1 << self._bits), Fraction(self._known + 1, 1 << self._bits)


def decide(source: WordSource, bounds: Bounds, known: int = 0, bits: int = 0) -> bool:
    """Return whether a uniform real in [0, 1) is below p, where bounds(n) encloses p to about n bits.

    The first `bits` binary digits of the uniform may be given as the whole number `known`. Exact: more digits
    are drawn, and p is computed more closely, until the two are apart. That ends with probability one.
    """
    uniform = _Digits(source, known, bits)
    digits = 128
    while True:
        low, high = uniform.interval(digits)
        p_low, p_high = bounds(digits)
        if high <= p_low:
            return True
        if low >= p_high:
            return False
        digits *= 2


def exp_bounds(x: Fraction, bits: int) -> tuple[Fraction, Fraction]:
    """Return bounds on exp(-x), x >= 0, that are about 2^-bits apart, relatively.

    `Decimal.exp` is correctly rounded; the rest of the slack covers rounding x itself, |x| < 10^10.
    """
    precision = bits * 3 // 10 + 30
    context = Context(prec=precision)
    value = Fraction(context.exp(context.divide(Decimal(-x.numerator), Decimal(x.denominator))))
    slack = Fraction(1, 10 ** (precision - 15))
    return value * (1 - slack), value * (1 + slack)


NORMAL = Staircase(lambda x: x * x / 2, edge=4)
LAPLACE = Staircase(lambda x: x, edge=8)
