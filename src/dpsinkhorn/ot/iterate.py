"""Where an ascent stands: its vectors, and all that is done to them.

The loop in :mod:`dpsinkhorn.ot.ascent` decides by a few numbers per problem; the vectors are behind an
:class:`Iterate`. PyTorch's is below, for everything; two in C are for a single problem on a CPU.
"""

from __future__ import annotations

import math
from typing import Protocol, TypeAlias

import torch
from torch import Tensor

from dpsinkhorn.ot import native, newton
from dpsinkhorn.ot.native.iterates import NativeIterate, ScalingIterate
from dpsinkhorn.ot.newton import column, numbers, solve_curvature
from dpsinkhorn.ot.semidual import SemiDual

Direction: TypeAlias = tuple[list[float], list[bool]]
"""Slopes of a direction that was proposed, and for which problems it could be solved for."""


class Iterate(Protocol):
    """The point kept, a trial point, a direction and a proposal for a new one. Lists are per problem."""

    def leave_out(self, weight: float) -> None:
        """Leave columns of at most this weight out of what follows."""

    def stand(self, g: Tensor) -> None:
        """Make ``g`` the point kept."""

    def scale(self, regularization: float, target: float, limit: int) -> int:
        """Take Sinkhorn's steps, at most so many, while they get on fast; how many were taken."""

    def evaluate(self, steps: list[float], regularization: float) -> tuple[list[float], list[float]]:
        """Values and errors at the trial point: so much of the direction away from the point kept."""

    def keep(self, taken: list[bool]) -> None:
        """Make the trial point the one kept."""

    def newton(self, ridge: list[float], accuracy: float) -> Direction | Iterate:
        """Propose Newton's direction at the trial point, in units of λ.

        Where that takes too long, return the iterate to go on with, which stands there too.
        """

    def sinkhorn(self, spare: list[bool]) -> list[float]:
        """Propose Sinkhorn's step, in units of λ, but for the problems to spare: slopes."""

    def lengths(self) -> list[float]:
        """Greatest entries of the proposal."""

    def turn(self, factors: list[float], taken: list[bool]) -> None:
        """Make the proposal, times factors, the direction."""

    def extend(self, regularization: float) -> None:
        """Give columns that were left out the potential that follows from the others'."""

    @property
    def f(self) -> Tensor: ...
    @property
    def g(self) -> Tensor: ...
    @property
    def value(self) -> Tensor: ...
    @property
    def error(self) -> Tensor: ...


def start(dual: SemiDual) -> Iterate:
    """The iterate at g = 0, compiled where there is such a one for the problem."""
    costs = dual.stored_costs
    if native.library is not None and costs is not None and costs.dtype == dual.work and not dual.relaxed:
        return ScalingIterate(native.library, dual, costs, lambda: start_precise(dual))
    return TorchIterate(dual)


def start_precise(dual: SemiDual) -> Iterate:
    """The iterate at g = 0 that forms every power anew, for a λ that is small beside the costs."""
    costs = dual.small_costs
    direct = dual.columns <= newton._DIRECT_COLUMNS
    if native.library is not None and costs is not None and direct:
        return NativeIterate(native.library, dual, costs)
    return TorchIterate(dual)


class TorchIterate:
    """Vectors as tensors: any device, any size, batches."""

    def __init__(self, dual: SemiDual) -> None:
        self.dual = dual
        self.g = self._direction = torch.zeros_like(dual.b)
        self.f = torch.zeros_like(dual.a)
        self.value = self.error = dual.a.new_empty(dual.a.shape[:-1])

    def leave_out(self, weight: float) -> None:
        self.dual.leave_out(weight)

    def stand(self, g: Tensor) -> None:
        self.g = g

    def scale(self, regularization: float, target: float, limit: int) -> int:  # noqa: ARG002
        return 0

    def evaluate(self, steps: list[float], regularization: float) -> tuple[list[float], list[float]]:
        trial = self.g
        if any(steps):
            direction = self._direction
            trial = self.g + (direction if min(steps) == 1.0 else direction * column(steps, direction))
        self._point, self._part = (
            self.dual.evaluate(trial, regularization),
            self.dual.column_part(regularization),
        )
        return numbers(self._point.value), numbers(self._point.error)

    def keep(self, taken: list[bool]) -> None:
        point = self._point
        if all(taken):
            self.g, self.f, self.value, self.error = point.g, point.f, point.value, point.error
        elif any(taken):
            mask = _mask(taken, point.g)  # only a batch can be taken in part
            self.g, self.f = torch.where(mask, point.g, self.g), torch.where(mask, point.f, self.f)
            self.value = torch.where(mask[:, 0], point.value, self.value)
            self.error = torch.where(mask[:, 0], point.error, self.error)

    def newton(self, ridge: list[float], accuracy: float) -> Direction:
        point = self._point
        direction, solved = solve_curvature(point.curvature, point.residual, ridge, accuracy)
        if not self.dual.relaxed:  # a constant makes no difference
            direction = direction - torch.linalg.vecdot(self.dual.b, direction).unsqueeze(-1)
        if self.dual.left_out is not None:
            direction.masked_fill_(self.dual.left_out, 0.0)
        self.proposal = direction
        return numbers(torch.linalg.vecdot(point.residual, direction)), solved

    def sinkhorn(self, spare: list[bool]) -> list[float]:
        floor = torch.finfo(self.dual.work).tiny
        ratio = self._point.target / self._point.marginal.clamp(min=floor)
        direction = ratio.clamp_(min=floor).log_().mul_(self._part)
        if self.dual.left_out is not None:
            direction.masked_fill_(self.dual.left_out, 0.0)
        if any(spare):
            direction = torch.where(_mask(spare, direction), self.proposal, direction)
        self.proposal = direction
        return numbers(torch.linalg.vecdot(self._point.residual, direction))

    def lengths(self) -> list[float]:
        return numbers(torch.linalg.vector_norm(self.proposal, math.inf, -1))

    def turn(self, factors: list[float], taken: list[bool]) -> None:
        fresh = self.proposal.mul_(column(factors, self.proposal))
        self._direction = fresh if all(taken) else torch.where(_mask(taken, fresh), fresh, self._direction)

    def extend(self, regularization: float) -> None:
        self.g = self.dual.extend(self.f, self.g, regularization)

    @property
    def residual(self) -> Tensor:
        """``b - P^T 1`` at the point last evaluated."""
        return self._point.residual


def _mask(flags: list[bool], like: Tensor) -> Tensor:
    """Flags per problem, to choose between ``(B, m)`` tensors."""
    mask = torch.tensor(flags, device=like.device)
    return mask[0] if len(flags) == 1 else mask.unsqueeze(-1)
