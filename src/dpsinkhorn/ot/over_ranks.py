"""One large problem over several devices: each rank has some of the rows, all have the columns.

The semi-dual, its gradient and its second derivatives are sums over rows. So rank 0 climbs as `solve` does,
asks all ranks for what their rows add, and adds that up. What travels is one number for each column: g, a
direction, and the answers. The matrix of costs is not stored; no rank needs more of x than its own rows.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dpsinkhorn.ot.ascent import maximise
from dpsinkhorn.ot.costs import Cost
from dpsinkhorn.ot.problem import Array, Problem
from dpsinkhorn.ot.semidual import Curvature, SemiDual, SemiDualPoint
from dpsinkhorn.ot.sinkhorn import check_settings, solve, tolerance_of, warn_unless
from dpsinkhorn.ranks import SECONDS, Ranks, joined

__all__ = ["RowsResult", "solve_rows"]


@dataclass(frozen=True, eq=False)
class RowsResult:
    """What `solve_rows` found, as one rank has it: its potentials, in float64, and what all ranks share."""

    f: Tensor
    """At this rank's own rows, ``(n,)``."""
    g: Tensor
    """At the columns, ``(m,)``."""
    value: float
    marginal_error: float
    converged: bool
    iterations: int


def solve_rows(
    x: Array,
    y: Array,
    regularization: float,
    *,
    cost: Cost | str | None = None,
    a: Array | None = None,
    b: Array | None = None,
    tolerance: float | None = None,
    max_iterations: int = 1000,
    seconds: float = SECONDS,
) -> RowsResult:
    """Solve one balanced problem whose rows are spread over the ranks; all of them call this.

    Args:
        x: the points of this rank's rows, ``(n, d)``; ranks may have different numbers of them.
        y: the points of all columns, ``(m, d)``, the same on every rank.
        regularization: λ.
        cost: as for `Problem`.
        a: weights of this rank's rows, scaled to sum to one over all ranks; by default all weigh the same.
        b: weights of the columns, none of them 0.
        tolerance: L1 error of the marginals to reach; by default 1e-9 in float64, 1e-6 in float32.
        max_iterations: evaluations of the dual at most.
        seconds: a rank that keeps the others waiting for longer counts as stalled.

    Raises:
        RankLostError: Another rank failed, stalled, or was given other columns.

    >>> x, y = torch.tensor([[0.0], [1.0]]), torch.tensor([[0.0], [2.0]])
    >>> result = solve_rows(x, y, 0.5)  # without a process group it is the only rank
    >>> round(result.value, 4), result.converged
    (0.8375, True)
    """
    with joined(seconds, "the problem is to be solved anew") as ranks, torch.no_grad():
        problem = Problem(x, y, cost, a, b)
        if problem.batched:
            raise ValueError("x: one problem at a time is spread over ranks, not a batch")
        if not float(problem.b.min()) > 0:
            raise ValueError("b: every column needs some weight; leave the others out")
        tolerance = tolerance_of(tolerance, problem.points.dtype)
        check_settings(regularization, tolerance=tolerance, max_iterations=max_iterations)
        if regularization == 0:
            raise ValueError("regularization: expected a positive number, got 0")
        if ranks is None:
            alone = solve(problem, regularization, tolerance=tolerance, max_iterations=max_iterations)
            value, error = float(alone.value), float(alone.marginal_error)
            return RowsResult(alone.f, alone.g, value, error, bool(alone.converged), alone.iterations)
        ranks.device(problem.points.device)
        asked = f"{regularization} {tolerance} {max_iterations} {problem.cost}".encode()
        mass = float(problem.masses[0]) if a is not None else float(len(problem.x))
        dual = _OwnRows(problem, mass, asked, ranks)
        if ranks.rank:
            result = _answer(dual, ranks)
        else:
            end = maximise(
                dual, regularization, tolerance=tolerance, max_iterations=max_iterations, method="newton"
            )
            error = float(end.error)
            found = {
                "g": end.g,
                "regularization": regularization,
                "value": float(end.value),
                "marginal_error": error,
                "converged": error <= tolerance,
                "iterations": end.iterations,
            }
            ranks.ask("solved", found)
            result = _result(dual, found)
        warn_unless(result.converged, result.marginal_error, tolerance, result.iterations)
        return result


class _OwnRows(SemiDual):
    """The dual of one rank's rows, with the weights that they have among all; at rank 0 that of all rows."""

    def __init__(self, problem: Problem, mass: float, asked: bytes, ranks: Ranks) -> None:
        super().__init__(problem, stored=False, work=problem.points.dtype, kernel_limit=0)
        self._ranks, self._leads = ranks, ranks.rank == 0
        same = hashlib.sha256(asked)
        for part in (problem.y, problem.b):
            same.update(part.cpu().numpy().tobytes())
        words = ranks.words(same.hexdigest())
        ends = ranks.gathered([torch.tensor([[self.lowest, self.highest]], dtype=torch.float64)])[0]
        total = ranks.added_up(torch.tensor([mass], dtype=torch.float64))
        if self._leads:
            if len(set(words)) > 1:
                other = next(rank for rank, word in enumerate(words) if word != words[0])
                raise ValueError(f"y, b and settings: those of rank {other} are not those of rank 0")
            ranks.ask("mass", {"mass": float(total)})
            self.lowest, self.highest = float(ends[:, 0].min()), float(ends[:, 1].max())
        else:
            total = ranks.asked(self.device)[1]["mass"]
        self.a = self.a * (mass / float(total))

    def leave_out(self, weight: float) -> None:
        """Leave no column out: those who have the other rows would have to know."""

    def part(self, g: Tensor, regularization: float) -> tuple[SemiDualPoint, tuple[Tensor, Tensor]]:
        """Return the dual of the rows here, and what they add to all: their part of P^T 1, and <a, f>."""
        point = super().evaluate(g, regularization)
        return point, (point.marginal, torch.linalg.vecdot(self.a, point.f).view(1))

    def evaluate(self, g: Tensor, regularization: float) -> SemiDualPoint:
        """At rank 0: ``F`` and its gradient, over the rows of all ranks."""
        self._ranks.ask("evaluate", {"g": g, "regularization": regularization})
        own, part = self.part(g, regularization)
        marginal, moved = self._ranks.added_up(part)
        residual = self.b - marginal
        value, error = moved[0] + torch.linalg.vecdot(self.b, g), torch.linalg.vector_norm(residual, 1)
        curvature = _CurvatureOfAll(**{**vars(own.curvature), "column_marginal": marginal})
        return SemiDualPoint(g, own.f, value, marginal, self.b, residual, error, curvature)

    def flat(self, regularization: float) -> tuple[Tensor, Tensor, Tensor]:
        """Refuse a λ of which the closed form would need all costs."""
        raise ValueError(
            f"regularization: {regularization} is so far above all costs that the plan is a bᵀ; lower it"
        )


class _CurvatureOfAll(Curvature):
    """At rank 0: the curvature over the rows of all ranks."""

    whole = False

    def matrix(self, ridge: Tensor | float = 0.0) -> Tensor:
        matrix = self._added_up("matrix")
        matrix.diagonal().add_(self.column_marginal * (1.0 + ridge))
        return matrix

    def diagonal(self) -> Tensor:
        return self._added_up("diagonal") + self.column_marginal

    def times(self, v: Tensor) -> Tensor:
        return self._added_up("times", v=v) + self.column_marginal * v

    def _added_up(self, question: str, **values: Tensor) -> Tensor:
        assert isinstance(self.dual, _OwnRows)
        ranks = self.dual._ranks
        ranks.ask(question, values)
        found: Tensor = ranks.added_up(getattr(_without_columns(self), question)(**values))
        return found


def _without_columns(curvature: Curvature) -> Curvature:
    """What the rows of one rank add: without the diagonal of all."""
    fields = {**vars(curvature), "column_marginal": torch.zeros_like(curvature.column_marginal)}
    return Curvature(**fields)


def _answer(dual: _OwnRows, ranks: Ranks) -> RowsResult:
    """At another rank: say what the rows here add, until rank 0 has solved the problem."""
    curvature: Curvature | None = None
    while True:
        question, values = ranks.asked(dual.device)
        if question == "solved":
            return _result(dual, values)
        if question == "evaluate":
            point, part = dual.part(**values)
            curvature = _without_columns(point.curvature)
            ranks.added_up(part)
        else:
            ranks.added_up(getattr(curvature, question)(**values))


def _result(dual: _OwnRows, found: dict[str, Any]) -> RowsResult:
    values = dict(found)
    g, regularization = values.pop("g"), values.pop("regularization")
    point, _ = dual.part(g, regularization)
    return RowsResult(point.f, g, **values)
