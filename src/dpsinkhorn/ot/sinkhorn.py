"""Entropic optimal transport: ``solve`` a problem, get a frozen result."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from dpsinkhorn.ot import native
from dpsinkhorn.ot.ascent import Ascent, History, Method, maximise
from dpsinkhorn.ot.costs import shown
from dpsinkhorn.ot.exact import solve_exact
from dpsinkhorn.ot.native import small
from dpsinkhorn.ot.problem import MatrixProblem, Problem, check_gradient
from dpsinkhorn.ot.semidual import SemiDual

Storage = Literal["auto", "dense", "streamed"]
Marginals: TypeAlias = "tuple[float, float] | float | None"

# More entries than this and "auto" no longer stores the cost matrix on a CPU (512 MB in float32). On a GPU it
# is stored where it takes no more than this part of the memory that is free.
DENSE_LIMIT, _PART_OF_FREE = 2**27, 0.4
# Float32 problems up to this size are solved in float64: it takes no longer, launches dominate. Compiled
# loops have no launches.
_SMALL, _SMALL_COMPILED = 2**16, small.WIDE
# Points of the sample whose solution is where a huge problem starts, if its error is at most that there.
_SAMPLE, _NEAR = 2**16, 0.2
_LARGEST_MASS = 1e100
_ROUNDING = 1e-12  # mass that the network simplex may leave at a forbidden pair
_EPS = 2**-52  # of potentials, which are float64


class ConvergenceWarning(UserWarning):
    """A solve ended before it reached its tolerance."""


@dataclass(frozen=True, eq=False)
class SinkhornResult:
    """Solution of an entropic transport problem. Batched problems give a leading dimension everywhere.

    Attributes:
        f: potential at the points ``x``, ``(n,)``. Potentials are float64 whatever the points are.
        g: potential at the points ``y``, ``(m,)``.
        value: the regularised cost ``<C, P> + λ KL(P | a b^T)``, computed as the dual value
            ``<a, f> + <b, g>``; the losses and their gradients are built on it. Autograd does not follow it,
            or anything else here: use :func:`dpsinkhorn.ot.transport_loss`, or :meth:`gradients`.
        marginal_error: ``|P 1 - a|_1 + |P^T 1 - b|_1``; of relaxed marginals, by how much they are not what
            the potentials ask for, ``a exp(-f / ρ1)`` and ``b exp(-g / ρ2)``, which is so at the optimum, as
            a part of the plan's mass where that is above 1.
        converged: whether ``marginal_error`` reached the tolerance.
        iterations: evaluations of the dual, each of the cost of one Sinkhorn iteration.
        regularization: λ.
        history: how the error fell: evaluations so far, λ of the stage, and the largest error of the batch.
            Sinkhorn's steps in the compiled loops count as one entry. Empty where there was no iteration.
    """

    f: Tensor
    g: Tensor
    value: Tensor
    marginal_error: Tensor
    converged: Tensor
    iterations: int
    regularization: float
    history: History = field(repr=False)
    _dual: SemiDual = field(repr=False)
    _flipped: bool = field(repr=False)
    _exact_plan: Tensor | None = field(repr=False, default=None)

    @cached_property
    def plan(self) -> Tensor:
        """The transport plan, ``(n, m)``, computed and stored when first asked for."""
        blocks = [plan for _, _, plan in self._plan_blocks()]
        plan = torch.cat(blocks, dim=-2).to(self._dtype)
        return plan.mT if self._flipped else plan

    @cached_property
    def value_linear(self) -> Tensor:
        """The transport cost ``<C, P>`` without the entropy, computed when first asked for."""
        parts = [(costs.double() * plan).sum((-1, -2)) for _, costs, plan in self._plan_blocks()]
        return torch.stack(parts).sum(0)

    def gradients(self, *, wrt_x: bool = True, wrt_y: bool = True) -> tuple[Tensor | None, Tensor | None]:
        """Gradients of ``value`` in the points, in closed form: the plan-weighted gradient of the cost.

        Exact at convergence by the envelope theorem. What is not asked for is ``None``.
        """
        problem = self._dual.problem
        if not isinstance(problem, Problem):
            raise ValueError("problem: a cost given by its matrix has no gradient in the points")
        want_rows, want_columns = (wrt_y, wrt_x) if self._flipped else (wrt_x, wrt_y)
        if self._exact_plan is not None:
            plan = self._exact_plan.to(self._dtype)
            found = problem.gradients(plan, wrt_x=want_rows, wrt_y=want_columns)
            return found[::-1] if self._flipped else found
        cost = problem.cost
        parts: list[Tensor] = []
        columns: Tensor | None = None
        for rows, _, plan in self._plan_blocks() if wrt_x or wrt_y else ():
            plan = plan.to(self._dtype)
            x = problem.x[..., rows, :]
            if want_rows:
                parts.append(check_gradient(cost, cost.gradient(x, problem.y, plan), x))
            if want_columns:
                part = check_gradient(cost, cost.gradient_y(x, problem.y, plan), problem.y)
                columns = part if columns is None else columns.add_(part)
        whole = (parts[0] if len(parts) == 1 else torch.cat(parts, dim=-2)) if want_rows else None
        return (columns, whole) if self._flipped else (whole, columns)

    def gradients_in_weights(
        self, *, wrt_a: bool = True, wrt_b: bool = True
    ) -> tuple[Tensor | None, Tensor | None]:
        """Gradients of ``value`` in weights of any sum: of relaxed marginals only.

        Balanced, they are the potentials, whose constant is free: :func:`dpsinkhorn.ot.transport_loss`.
        """
        dual = self._dual
        if not dual.relaxed:
            raise ValueError("marginals: balanced, the gradients in the weights are the potentials f and g")
        of_rows, of_columns = (dual.row_penalty, dual.b), (dual.column_penalty, dual.a)
        of_x, of_y = (of_columns, of_rows) if self._flipped else (of_rows, of_columns)
        in_a = self._in_weights(self.f, *of_x) if wrt_a else None
        return in_a, self._in_weights(self.g, *of_y) if wrt_b else None

    def _in_weights(self, potential: Tensor, penalty: float, others: Tensor) -> Tensor:
        # The derivative of w (ρ (1 - exp(-f / ρ)) + λ Σ b) - λ P 1, with P 1 = w exp(-f / ρ).
        total = others.sum(-1, keepdim=True)
        if penalty == math.inf:
            return potential + self.regularization * (total - 1.0)
        if penalty == 0:
            raise ValueError(
                "marginals: no gradient in the weights of a side that is not held at all (ρ = 0)"
            )
        kept = torch.exp(-potential / penalty)
        return penalty - (penalty + self.regularization) * kept + self.regularization * total

    def _plan_blocks(self) -> Iterator[tuple[slice, Tensor, Tensor]]:
        if self._exact_plan is not None:
            return iter([(slice(0, self._dual.rows), self._dual.all_costs(), self._exact_plan)])
        f, g = (self.g, self.f) if self._flipped else (self.f, self.g)
        return self._dual.plan_blocks(f, g, self.regularization)

    @property
    def _dtype(self) -> torch.dtype:
        return self._dual.problem.points.dtype


def number(name: str, value: object) -> float:
    """A number, or an array of one."""
    try:
        if not isinstance(value, str | bool):
            return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, RuntimeError, OverflowError):
        pass
    raise ValueError(f"{name}: expected a number, got {shown(value)}")


def penalties(marginals: Marginals) -> tuple[float, float] | None:
    """ρ of x and of y, from a pair of them or one for both; None where both are infinite.

    >>> penalties(2.0), penalties((0, math.inf)), penalties(math.inf)
    ((2.0, 2.0), (0.0, inf), None)
    """
    if marginals is None:
        return None
    try:
        pair = (marginals,) if isinstance(marginals, int | float) else tuple(marginals)
        first, second = (number("marginals", each) for each in (pair * 2 if len(pair) == 1 else pair))
    except (TypeError, ValueError):
        first = second = math.nan
    if not (first >= 0 and second >= 0):
        raise ValueError(
            "marginals: expected a pair of numbers from 0 to infinity, how strongly the marginals of x and "
            f"of y are held, got {marginals!r}"
        )
    return None if first == second == math.inf else (first, second)


def check_settings(
    regularization: float,
    *,
    tolerance: float | None = None,
    max_iterations: int = 1000,
    method: Method = "newton",
    storage: Storage = "auto",
    marginals: Marginals = None,
) -> None:
    """Raise ``ValueError`` where :func:`solve` cannot be run with these.

    >>> check_settings(0.1, method="newton")
    """
    if not 0 <= number("regularization", regularization) < math.inf:
        raise ValueError(f"regularization: expected a positive number, or 0, got {regularization}")
    if regularization == 0 and penalties(marginals) is not None:
        raise ValueError("regularization: expected a positive number where marginals are relaxed, got 0")
    if tolerance is not None and not number("tolerance", tolerance) > 0:
        raise ValueError(f"tolerance: expected a positive number, got {tolerance}")
    most = number("max_iterations", max_iterations)
    if not most >= 1 or most % 1:  # infinity has no remainder
        raise ValueError(f"max_iterations: expected an integer from 1 upwards, got {max_iterations}")
    penalties(marginals)
    if method not in ("newton", "sinkhorn"):
        raise ValueError(f"method: expected 'newton' or 'sinkhorn', got {method!r}")
    if storage not in ("auto", "dense", "streamed"):
        raise ValueError(f"storage: expected 'auto', 'dense' or 'streamed', got {storage!r}")


def solve(
    problem: Problem | MatrixProblem,
    regularization: float,
    *,
    tolerance: float | None = None,
    max_iterations: int = 1000,
    method: Method = "newton",
    storage: Storage = "auto",
    marginals: Marginals = None,
    init: SinkhornResult | tuple[Tensor, Tensor] | None = None,
) -> SinkhornResult:
    """Solve entropic optimal transport, ``min <C, P> + λ KL(P | a b^T)`` over plans from ``a`` to ``b``.

    Args:
        problem: the clouds, weights and cost, or a cost matrix.
        regularization: λ, in the units of the cost; 0 is exact transport, by POT's network simplex, which
            needs the whole cost matrix and none of the other settings.
        tolerance: L1 error of the marginals to reach; by default 1e-9 in float64, 1e-6 in float32.
        max_iterations: evaluations of the dual at most, over all stages of ε-scaling.
        method: ``"newton"``, or ``"sinkhorn"`` for the plain iteration (a reference: slow at small λ).
        storage: ``"dense"`` keeps the cost matrix, ``"streamed"`` computes it in blocks whenever it is
            needed, ``"auto"`` streams above ``DENSE_LIMIT`` entries, on a GPU where memory would be short.
        marginals: relax them (unbalanced transport): with ``(ρ1, ρ2)`` the minimum is over all P >= 0 of
            ``<C, P> + λ KL(P | a b^T) + ρ1 KL(P 1 | a) + ρ2 KL(P^T 1 | b)``, KL between masses that may
            differ. ``math.inf`` holds a marginal exactly, 0 asks nothing of it; one number is for both.
            Weights then count as they are given: they are not scaled to sum to one.
        init: a warm start: the result of a problem much like this one, or potentials ``(f, g)``. Where they
            are no use, the solve starts as without them.

    A solve that does not converge says so in its result and warns; it never returns NaN.

    >>> x, y = torch.tensor([[0.0], [1.0]]), torch.tensor([[0.0], [2.0]])
    >>> result = solve(Problem(x, y), regularization=0.01)
    >>> round(result.value_linear.item(), 4), bool(result.converged)
    (0.5, True)
    """
    if not isinstance(problem, Problem | MatrixProblem):
        raise ValueError(f"problem: expected a Problem or a MatrixProblem, got {shown(problem)}")
    check_settings(
        regularization, tolerance=tolerance, max_iterations=max_iterations, method=method, storage=storage,
        marginals=marginals,
    )  # fmt: skip
    relaxed = penalties(marginals)
    if relaxed and not all(bool((torch.as_tensor(mass) < _LARGEST_MASS).all()) for mass in problem.masses):
        raise ValueError(f"weights: of relaxed marginals, their sum may be up to {_LARGEST_MASS:.0e}")
    regularization = float(regularization)
    if isinstance(problem, MatrixProblem) and problem.forbidden is not None:
        settings = {"tolerance": tolerance, "max_iterations": max_iterations, "method": method}
        result = solve(
            problem.fenced(regularization), regularization, storage=storage, marginals=marginals, init=init,
            **settings,  # type: ignore[arg-type]
        )  # fmt: skip
        if float((result.plan * problem.forbidden).sum()) > _ROUNDING:
            raise ValueError("matrix: no plan with these marginals avoids all pairs of infinite cost")
        if result._exact_plan is not None:
            forbidden = problem.forbidden.mT if result._flipped else problem.forbidden
            result = replace(result, _exact_plan=result._exact_plan.masked_fill(forbidden, 0.0))
        return result
    batch, n, m = problem.shape
    size = batch * n * m
    on_cpu = problem.points.device.type == "cpu"
    in_c = on_cpu and native.compiled()
    limit = _SMALL_COMPILED if in_c else _SMALL
    dtype = problem.points.dtype
    tolerance = tolerance_of(tolerance, dtype)
    stored = size <= _dense_limit(problem.points) if storage == "auto" else storage == "dense"
    narrow = in_c and stored and not relaxed and small.narrow(n, m)
    flipped = n < m and not narrow  # the variable lives on the smaller side, where Newton's system is smaller
    dual = SemiDual(
        problem.flipped() if flipped else problem,
        stored=stored,
        work=torch.float64 if narrow or (n * m if on_cpu else size) <= limit else dtype,
        kernel_limit=DENSE_LIMIT // 2 if stored else 0,
        marginals=relaxed[::-1] if relaxed and flipped else relaxed,
        rounding=0.1 * tolerance,
    )
    if regularization == 0:
        return _exact(dual, tolerance, flipped)
    largest = dual.largest
    if not math.isfinite(largest / regularization):
        raise ValueError(f"regularization: {regularization} is too small for costs of up to {largest:.1e}")
    problems = dual.problems()
    start = None if init is None else _start(init, dual, flipped)
    near = {}
    if start is None and not relaxed and dual.costly:
        start, near = _start_of_sample(dual, regularization, tolerance), {"near": _NEAR}
    starts = [start] if start is None or problems[0] is dual else list(start)
    with torch.no_grad():
        ends = [
            maximise(
                each, regularization, tolerance=tolerance, max_iterations=max_iterations, method=method,
                init=first, **near,
            )
            for each, first in zip(problems, starts * (len(problems) // len(starts)), strict=True)
        ]  # fmt: skip
        end = Ascent.stack(ends) if ends[0].f.ndim < dual.a.ndim else ends[0]
    error = end.error
    if (
        not relaxed and largest * _EPS / regularization > 0.01 * tolerance
    ):  # rounding of the potentials shows in the plan
        error = torch.maximum(error, _error_of_plan(dual, end.f, end.g, regularization))
    converged = error <= tolerance
    warn_unless(bool(converged.all()), float(error.max()), tolerance, end.iterations)
    f, g = (end.g, end.f) if flipped else (end.f, end.g)
    return SinkhornResult(
        f, g, end.value, error, converged, end.iterations, regularization, end.history, dual, flipped
    )


def warn_unless(converged: bool, error: float, tolerance: float, iterations: int) -> None:
    """Warn the caller of the function that solves, unless the problem converged."""
    if not converged:
        warnings.warn(
            f"the transport problem did not converge: marginal error {error:.1e} after {iterations} "
            f"iterations, tolerance {tolerance:.1e}; raise max_iterations, regularization or tolerance",
            ConvergenceWarning,
            stacklevel=3,
        )


def _dense_limit(points: Tensor) -> float:
    """How many costs of this type are stored on this device."""
    if points.device.type != "cuda":
        return DENSE_LIMIT
    free, _ = torch.cuda.mem_get_info(points.device)
    free += torch.cuda.memory_reserved(points.device) - torch.cuda.memory_allocated(points.device)
    return _PART_OF_FREE * free / points.element_size()


def _start(init: SinkhornResult | tuple[Tensor, Tensor], dual: SemiDual, flipped: bool) -> Tensor:
    """The potential to start at, on the variable's side."""
    try:
        f, g = (init.f, init.g) if isinstance(init, SinkhornResult) else init
        start = torch.as_tensor(f if flipped else g).detach().to(dual.b)
    except (TypeError, ValueError, RuntimeError):
        raise ValueError("init: expected a SinkhornResult, or potentials (f, g)") from None
    if start.shape != dual.b.shape or not bool(torch.isfinite(start).all()):
        raise ValueError(
            f"init: expected finite potentials of the points' shape {tuple(dual.b.shape)}, got "
            f"{tuple(start.shape)}"
        )
    return start


def _start_of_sample(dual: SemiDual, regularization: float, tolerance: float) -> Tensor | None:
    """The potential at all columns that follows from the solution between a few of the points."""
    problem = dual.problem
    assert isinstance(problem, Problem)
    random = torch.Generator().manual_seed(0)
    rows, columns = (
        torch.randperm(size, generator=random)[:_SAMPLE].to(dual.device) for size in (dual.rows, dual.columns)
    )
    a, b = problem.a[rows], problem.b[columns]
    if not (float(a.max()) > 0 and float(b.max()) > 0):
        return None
    sample = Problem(problem.x[rows], problem.y[columns], problem.cost, a, b)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        found = solve(sample, regularization, tolerance=max(tolerance, 1e-3), max_iterations=100)
    return dual.transform(sample, found.f, regularization)


def tolerance_of(tolerance: float | None, dtype: torch.dtype) -> float:
    """The tolerance given, or the default for points of this type."""
    return tolerance if tolerance is not None else 1e-9 if dtype == torch.float64 else 1e-6


def _exact(dual: SemiDual, tolerance: float, flipped: bool) -> SinkhornResult:
    plan, f, g, value, error = solve_exact(dual)
    f, g = (g, f) if flipped else (f, g)
    return SinkhornResult(f, g, value, error, error <= tolerance, 0, 0.0, (), dual, flipped, plan)


def _error_of_plan(dual: SemiDual, f: Tensor, g: Tensor, regularization: float) -> Tensor:
    """L1 error of both marginals of the plan, as these potentials give it."""
    columns, error = torch.zeros_like(dual.b), torch.zeros_like(dual.b[..., 0])
    for rows, _, plan in dual.plan_blocks(f, g, regularization):
        error += (plan.sum(-1).double() - dual.a[..., rows]).abs().sum(-1)
        columns += plan.sum(-2)
    return error + (columns - dual.b).abs().sum(-1)
