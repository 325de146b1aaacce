"""Maximising the semi-dual: the solver's loop, written once for every way to compute it.

Sinkhorn's iteration is the ascent step ``g += λ log(b / P^T 1)``. It is safe and cheap, but at the
papers' regularizations, where costs are thousands of λ, it needs thousands of steps. The loop
below takes damped Newton steps instead, along a sequence of decreasing λ (ε-scaling), and falls back on
Sinkhorn's step where Newton's fails. Each evaluation costs what one Sinkhorn iteration costs. The loop
itself sees a few numbers per problem; what it does to vectors is behind
:class:`dpsinkhorn.ot.iterate.Iterate`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from dpsinkhorn.ot import exact
from dpsinkhorn.ot.iterate import start
from dpsinkhorn.ot.semidual import SemiDual

Method = Literal["newton", "sinkhorn"]
History: TypeAlias = "tuple[tuple[int, float, float], ...]"
"""Evaluations so far, λ, and the largest error there."""

# ε-scaling: λ starts at a part of the range of the costs and shrinks by a factor; a stage ends when the
# marginal error is below this, or after so many evaluations.
STAGES = _START, _SHRINK, _STAGE_ERROR, _STAGE_ITERATIONS = 0.02, 0.25, 0.002, 50
# Without Sinkhorn's steps on a stored kernel, smaller steps in λ and looser ends take half the passes.
_SHRINK_FUSED, _STAGE_ERROR_FUSED = 0.4, 0.005
# Damping: a Newton step may first move a potential by 20 λ. The limit grows while full steps succeed and
# shrinks when one fails (Newton's model of an exponential is good over a few λ only).
_FIRST_LIMIT, _LEAST_LIMIT, _LIMIT_FACTOR, _BACKTRACK = 20.0, 2.0, 4.0, 0.35
_SUFFICIENT = 1e-4  # Armijo's constant
_NEWTON_ERROR = 0.5  # farther from the marginals than this, Sinkhorn's step does better
# Columns that together weigh less than this part of the error sought are left out of the ascent: they
# cannot matter, and potentials where there is next to no weight would hold back all others.
_NEGLIGIBLE = 1e-3
# Evaluations at the last λ after which the exact solution is tried as a start.
_HEADWAY = 150
FLAT = 1e6  # times the range of the costs: from this λ on the solution is had in closed form
_PATIENCE = 25  # evaluations without progress after which rounding is held to be the limit


@dataclass(frozen=True)
class Ascent:
    """Where the ascent ended: potentials ``(B, n)`` and ``(B, m)``, and each problem's L1 error."""

    f: Tensor
    g: Tensor
    value: Tensor
    error: Tensor
    iterations: int
    history: History = ()

    @staticmethod
    def stack(ends: list[Ascent]) -> Ascent:
        """Ascents of single problems as that of a batch; the longest counts."""
        f, g, value, error = (
            torch.stack([getattr(end, name) for end in ends]) for name in ("f", "g", "value", "error")
        )
        longest = max(ends, key=lambda end: end.iterations)
        return Ascent(f, g, value, error, longest.iterations, longest.history)


def maximise(
    dual: SemiDual,
    regularization: float,
    *,
    tolerance: float,
    max_iterations: int,
    method: Method,
    init: Tensor | None = None,
    near: float = _NEWTON_ERROR,
) -> Ascent:
    """Maximise the semi-dual at ``regularization`` until every problem's error is below ``tolerance``.

    From ``init``, a g whose error is at most ``near``, there is no need of greater λ on the way.
    """
    if not dual.relaxed and regularization > FLAT * (dual.highest - dual.lowest):
        f, g, value = dual.flat(regularization)
        return Ascent(f, g, value, dual.evaluate(g, regularization).error, 1)
    climber = _Climber(dual, max_iterations, method)
    shrink, stage_error = _SHRINK, _STAGE_ERROR
    if dual.fused:
        shrink, stage_error = _SHRINK_FUSED, _STAGE_ERROR_FUSED
    stages = schedule(regularization, dual.highest - dual.lowest, shrink)
    if init is not None and climber.stand_near(init, regularization, near):
        stages = stages[-1:]
    for stage in stages[:-1]:
        if climber.iterations < max_iterations - 1:
            climber.climb(stage, stage_error, limit=_STAGE_ITERATIONS)
    light = dual.least_weight <= _NEGLIGIBLE * _STAGE_ERROR / dual.columns
    patience = climber.iterations + _HEADWAY
    for target in targets(tolerance) if light else [tolerance]:
        climber.climb(regularization, target, limit=max(1, patience - climber.iterations))
        if climber.iterations >= min(max_iterations, patience):
            break
    if not climber.arrived(regularization, tolerance):
        vertex = exact.start(dual, regularization) if method == "newton" and not dual.relaxed else None
        if vertex is not None:
            climber.stand_near(vertex, regularization, float(climber.at.error))
        climber.climb(regularization, tolerance)
    at = climber.at
    return Ascent(at.f, at.g, at.value, at.error, climber.iterations, tuple(climber.history))


def schedule(regularization: float, cost_range: float, shrink: float = _SHRINK) -> list[float]:
    """Decreasing regularizations, from a fiftieth of the costs' range to the one asked for.

    >>> schedule(1.0, 1000.0)
    [20.0, 5.0, 1.25, 1.0]
    """
    stages = []
    stage = _START * cost_range
    while stage > regularization:
        stages.append(stage)
        stage *= shrink
    return [*stages, regularization]


def targets(tolerance: float) -> list[float]:
    """Errors to reach one after the other at the last λ: columns of little weight join in gradually.

    >>> targets(1e-6)
    [0.002, 2e-05, 1e-06]
    """
    levels = []
    level = _STAGE_ERROR
    while level > 10 * tolerance:
        levels.append(level)
        level /= 100
    return [*levels, tolerance]


@dataclass(slots=True)
class _Walker:
    """How one problem of the batch gets on at one λ: plain numbers, no tensors."""

    value: float = -math.inf
    error: float = math.inf
    slope: float = 0.0  # of the value, along the direction
    step: float = 1.0  # part of the direction to try
    reach: float = _FIRST_LIMIT  # longest direction allowed, in units of λ
    limited: bool = False  # whether the direction was cut to the reach
    least_error: float = math.inf
    stalled: int = 0

    def judge(self, value: float, error: float, slack: float) -> bool:
        """Take or leave the trial point; ``slack`` is by how much a value may be off by rounding."""
        taken = value >= self.value + _SUFFICIENT * self.step * self.slope - slack
        progress = self.step * self.slope > slack
        if taken:
            progress |= error < 0.9 * self.least_error
            self.value, self.error = value, error
            self.least_error = min(self.least_error, error)
            if self.limited and self.step == 1.0:
                self.reach *= _LIMIT_FACTOR
            self.step = 1.0
        else:
            self.step *= _BACKTRACK
            self.reach = max(self.reach / _LIMIT_FACTOR, _LEAST_LIMIT)
        self.stalled = 0 if progress else self.stalled + 1
        return taken

    def shorten(self, length: float) -> float:
        """Factor that brings a direction of this length (in units of λ) within reach."""
        self.limited = length > self.reach
        return self.reach / length if self.limited else 1.0


class _Climber:
    """The state of the ascent: where each problem of the batch stands."""

    def __init__(self, dual: SemiDual, max_iterations: int, method: Method) -> None:
        self.dual, self.max_iterations, self.method = dual, max_iterations, method
        self.at = start(dual)
        self.iterations = 0
        self.history: list[tuple[int, float, float]] = []
        self.least_ridge = 1e-12 if dual.work == torch.float64 else 1e-6
        self.ridge = [self.least_ridge] * dual.batch
        self.largest = dual.largest
        self.eps = torch.finfo(dual.work).eps

    def arrived(self, regularization: float, tolerance: float) -> bool:
        """Whether there is nothing left to gain: all errors are small, or the cap is reached."""
        rounding = 10 * 2**-52 * self.largest / regularization
        return self.iterations >= self.max_iterations or float(self.at.error.max()) <= max(
            tolerance, rounding
        )

    def stand_near(self, g: Tensor, regularization: float, error: float) -> bool:
        """Go to ``g`` if its error is no greater than that."""
        here = self.at.g
        self.at.leave_out(0.0)
        self.at.stand(g)
        _, errors = self.at.evaluate([0.0] * self.dual.batch, regularization)
        self.iterations += 1
        near = max(errors) <= error
        if not near:
            self.at.stand(here)
        return near

    def climb(self, regularization: float, target: float, limit: int | None = None) -> None:
        """Ascend at one λ from the present ``g`` until all errors are at most ``target``."""
        end = self.max_iterations if limit is None else min(self.max_iterations - 1, self.iterations + limit)
        walkers = [_Walker() for _ in range(self.dual.batch)]
        patience = _PATIENCE if self.method == "newton" else self.max_iterations
        self.at.leave_out(_NEGLIGIBLE * target / self.dual.columns)
        steps = [0.0] * self.dual.batch  # the first trial is where we stand
        begun = self.at.scale(regularization, target, end - self.iterations) if self.method == "newton" else 0
        self.iterations += begun
        while True:
            if begun:
                values, errors, begun = [float(self.at.value)], [float(self.at.error)], 0
            else:
                values, errors = self.at.evaluate(steps, regularization)
                self.iterations += 1
            self.history.append((self.iterations, regularization, max(errors)))
            taken = [
                walker.judge(value, error, self._rounding(value, regularization))
                for walker, value, error in zip(walkers, values, errors, strict=True)
            ]
            self.at.keep(taken)
            if self.iterations >= end or all(w.error <= target or w.stalled >= patience for w in walkers):
                self.at.extend(regularization)
                return
            if any(taken):
                self._turn(regularization, walkers, taken)
            steps = [walker.step for walker in walkers]

    def _rounding(self, value: float, regularization: float) -> float:
        # a relaxed value is made of powers, which are off by what their exponents are rounded by
        powers = max(1.0, self.largest / regularization) if self.dual.relaxed else 1.0
        return 2**-50 * (powers * abs(value) + self.largest) + 2 * self.eps * regularization

    def _turn(self, regularization: float, walkers: list[_Walker], taken: list[bool]) -> None:
        """Turn to Newton's direction where it can be had and ascends, else to Sinkhorn's."""
        slopes: list[float] = []
        usable = [walker.error <= _NEWTON_ERROR and self.method == "newton" for walker in walkers]
        if any(usable):
            slopes, usable = self._newton(walkers, usable)
        if not all(usable):
            slopes = self.at.sinkhorn(usable)
        factors = [regularization] * len(walkers)
        for k, length in enumerate(self.at.lengths()):
            if taken[k]:
                factors[k] *= walkers[k].shorten(length if usable[k] else 0.0)
                walkers[k].slope = factors[k] * slopes[k]
        self.at.turn(factors, taken)

    def _newton(self, walkers: list[_Walker], near: list[bool]) -> tuple[list[float], list[bool]]:
        """Slopes of Newton's direction, and for which problems of the batch it is one to take."""
        accuracy = math.sqrt(max(walker.error for walker in walkers))
        found = self.at.newton(self.ridge, accuracy)
        while not isinstance(found, tuple):
            self.at = found
            found = self.at.newton(self.ridge, accuracy)
        slopes, solved = found
        ascends = [done and 0 < slope < math.inf for done, slope in zip(solved, slopes, strict=True)]
        for k, good in enumerate(ascends):
            self.ridge[k] = max(self.ridge[k] / 4, self.least_ridge) if good else self.ridge[k] * 100
        return slopes, [good and close for good, close in zip(ascends, near, strict=True)]
