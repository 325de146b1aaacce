"""Transport values with a certificate: how far below the optimum they can be, rounding included.

Entropic: the semi-dual F(g) = mean f + mean g, f the (c, λ)-transform of g, never exceeds the optimum W. It
is concave, its gradient is r = b - Pᵀ1, and some optimal g* spans at most c̄. So for g that spans at most c̄

    W - F(g)  <=  <r, g* - g>  <=  c̄ |r|_1.

`certified_value` iterates until that is below a gap that was fixed beforehand, whatever the data, and hands
back F(g). It shows nothing else: no iterations, no error, no warning. Proof: docs/proofs/direct-cost.md.

Exact: for any potential g on the columns, L(g) = mean_i min_j (c_ij - g_j) + mean g never exceeds the
optimum, and any plan costs at least it. Both come from POT's network simplex, after equal points were merged;
a value is handed back once the two are within the gap.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import warnings

import numpy as np
import numpy.typing as npt
import torch
from ot.lp import emd  # type: ignore[import-untyped]
from torch import Tensor

from dpsinkhorn.ot import ConvergenceWarning, Problem, solve
from dpsinkhorn.transport.clouds import Clouds, Setting

_UNIT = 2.0**-50  # eight units of float64's rounding: room for every constant below
_BLOCK = 2**21  # entries of the cost matrix at a time
_ATTEMPTS = ((1000, 0.5), (20_000, 0.05))  # iterations, and the tolerance as a part of what is needed
_POLISH = 4  # steps of Sinkhorn's after each attempt: each certifies the point that it starts from
_LARGE = 2**24  # pairs from which on the solver works in float32: half the memory; the certificate does not
_MMAP_THRESHOLD = -3  # M_MMAP_THRESHOLD of malloc.h
_LEAST_TOLERANCE = 2e-6  # that float32 reaches

_Array = npt.NDArray[np.float64]
_PIVOTS = 10**8  # far more than are needed: the simplex ends, whatever rounding does


def rounding(setting: Setting, regularization: float, *, bound: float | None = None) -> float:
    """Return by how much float64 can put a computed value off, whatever the data; of costs up to `bound`."""
    terms = setting.n + setting.m + setting.dimension + 32
    return _UNIT * terms * ((setting.bound if bound is None else bound) + regularization)


def rounding_of_gap(setting: Setting, regularization: float) -> float:
    """Return by how much float64 can make a computed gap too small, whatever the data."""
    terms = setting.n + setting.m + setting.dimension + 32
    return _UNIT * terms * setting.bound * (1 + setting.bound / regularization)


def certified_value(problem: Problem, regularization: float, *, bound: float, gap: float) -> float:
    """Return a value v with W - gap <= v <= W, up to `rounding`, for costs in [0, bound]; never fails."""
    potential = torch.zeros(problem.shape[2], dtype=torch.float64)
    attempts = [(problem, *attempt) for attempt in _ATTEMPTS]
    if problem.shape[1] * problem.shape[2] > _LARGE:
        attempts.insert(0, (_in_float32(problem), *_ATTEMPTS[0]))
        _hand_back_freed_blocks()
    for given, iterations, share in attempts:
        tolerance = share * gap / bound
        if given.points.dtype == torch.float32:
            tolerance = max(tolerance, _LEAST_TOLERANCE)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # it would tell of the data
            potential = solve(given, regularization, tolerance=tolerance, max_iterations=iterations).g
        for _ in range(_POLISH):
            value, reached, potential = _step(problem, potential, regularization, bound)
            if reached <= gap:
                return value
    return sinkhorn_until(problem, potential, regularization, bound=bound, gap=gap)


def _in_float32(problem: Problem) -> Problem:
    """Return the problem to start with; coordinates beyond float32 are cut, as the capped costs do."""
    x, y = (points.clamp(-1e15, 1e15).float() for points in (problem.x, problem.y))
    return Problem(x, y, problem.cost)


def _hand_back_freed_blocks() -> None:
    """Have glibc return freed blocks of 2 MB to the system, where it would keep up to 800 MB of them.

    For the whole process, and only a matter of memory: nothing else changes.
    """
    with contextlib.suppress(OSError, AttributeError, TypeError):  # not glibc
        ctypes.CDLL(None).mallopt(_MMAP_THRESHOLD, 1_900_000)


def sinkhorn_until(
    problem: Problem, potential: Tensor, regularization: float, *, bound: float, gap: float
) -> float:
    """Sinkhorn's own iteration until the certificate holds. It converges for every λ, if slowly."""
    while True:
        value, reached, potential = _step(problem, potential, regularization, bound)
        if reached <= gap:
            return value


def evaluate(problem: Problem, potential: Tensor, regularization: float, bound: float) -> tuple[float, float]:
    """F at a potential ``(m,)``, which is first clamped to span at most `bound`, and its certified gap."""
    value, gap, _ = _step(problem, potential, regularization, bound)
    return value, gap


def _step(
    problem: Problem, potential: Tensor, regularization: float, bound: float
) -> tuple[float, float, Tensor]:
    """Value and gap at a potential, and the potential after one iteration of Sinkhorn's."""
    _, n, m = problem.shape
    middle = (potential.max() + potential.min()) / 2
    g = (potential - middle).clamp_(-bound / 2, bound / 2)
    f = torch.empty(n, dtype=torch.float64)
    columns = torch.zeros(m, dtype=torch.float64)  # n m times the column marginal
    rows = max(1, _BLOCK // m)
    for at in range(0, n, rows):
        part = slice(at, min(at + rows, n))
        exponents = problem.block(part).double().neg().add_(g).div_(regularization)
        total = exponents.logsumexp(1)
        f[part] = -regularization * (total - math.log(m))
        columns += exponents.sub_(total.unsqueeze(1)).exp_().sum(0)
    marginal = columns / n
    value = float(f.mean() + g.mean())
    gap = bound * float((1 / m - marginal).abs().sum())
    return value, gap, g - regularization * torch.log((marginal * m).clamp_(min=1e-300))


def certified_exact_value(clouds: Clouds, *, gap: float) -> float:
    """Return a value v with W - gap <= v <= W, W the exact transport cost, up to rounding; never fails."""
    (x, a), (y, b) = _merged(clouds.x), _merged(clouds.y)
    return exact_value(clouds.cost.pairwise(x, y).numpy(), a, b, bound=clouds.setting.bound, gap=gap)


def exact_value(costs: _Array, a: _Array, b: _Array, *, bound: float, gap: float) -> float:
    """Return the same for costs ``(n, m)`` in [0, bound] and positive weights that sum to one."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it would tell of the data
        scaled = costs / bound  # the solver's tolerance is absolute
        plan, found = emd(
            a, b, scaled, numItermax=_PIVOTS, log=True, center_dual=False, check_marginals=False
        )
    value = _below(costs, found["v"] * bound, a, b)
    if _above(costs, plan, a, b, bound) - value <= gap:
        return value
    return _by_sinkhorn(costs, a, b, bound, gap)


def exact_plan(costs: _Array, a: _Array, b: _Array, *, bound: float) -> _Array:
    """Return a plan of the least cost within the weights: for public numbers, without a certificate."""
    rows, columns = a > 0, b > 0
    found = emd(
        a[rows] / a.sum(),
        b[columns] / b.sum(),
        np.ascontiguousarray(costs[np.ix_(rows, columns)] / bound),
        numItermax=_PIVOTS,
        center_dual=False,
    )
    plan = np.zeros_like(costs)
    plan[np.ix_(rows, columns)] = _cut(found, a[rows], b[columns])
    return plan


def _merged(points: Tensor) -> tuple[Tensor, _Array]:
    """Equal points as one, and the weights of those that are left.

    Transport between them is the same: costs of equal points are equal, and mass of one may go any way.
    """
    # There is one zero, merged or not.
    unique, counts = np.unique(points.numpy() + 0.0, axis=0, return_counts=True)
    return torch.from_numpy(unique), counts / len(points)


def _below(costs: _Array, g: _Array, a: _Array, b: _Array) -> float:
    """Return a lower bound on the transport cost, from any potential on the columns.

    Transforming it back and forth first raises the bound and makes it span at most the range of the costs,
    so that rounding is that of numbers of this size, however wide a solver's potentials are.
    """
    f = (costs - g).min(1)
    g = (costs - f[:, None]).min(0)
    g = g - (g.max() + g.min()) / 2
    return float(a @ (costs - g).min(1) + b @ g)


def _above(costs: _Array, plan: _Array, a: _Array, b: _Array, bound: float) -> float:
    """The cost of a feasible plan near this one: marginals are cut to size, the rest costs at most c̄."""
    plan = _cut(plan, a, b)
    # Rows first: no term passes through more than n + m additions.
    return float(np.einsum("ij,ij->i", plan, costs).sum() + bound * max(0.0, 1.0 - plan.sum(1).sum()))


def _cut(plan: _Array, a: _Array, b: _Array) -> _Array:
    """Return the plan without what is negative, or beyond the weights."""
    plan = np.maximum(plan, 0.0)
    plan *= np.minimum(1.0, a / np.maximum(plan.sum(1), 1e-300))[:, None]
    plan *= np.minimum(1.0, b / np.maximum(plan.sum(0), 1e-300))
    return plan


def _by_sinkhorn(costs: _Array, a: _Array, b: _Array, bound: float, gap: float) -> float:
    """The last resort: Sinkhorn's iteration at a λ so small that its plan is optimal to within the gap."""
    C, log_a, log_b = torch.from_numpy(costs), torch.from_numpy(a).log(), torch.from_numpy(b).log()
    regularization = gap / (4 * math.log(max(*costs.shape, 3)))
    g = torch.zeros(len(b), dtype=torch.float64)
    while True:
        f = -regularization * ((g - C) / regularization + log_b).logsumexp(1)
        plan = ((f[:, None] + g - C) / regularization + log_a[:, None] + log_b).exp().numpy()
        value = _below(costs, g.numpy(), a, b)
        if _above(costs, plan, a, b, bound) - value <= gap:
            return value
        g = -regularization * ((f[:, None] - C) / regularization + log_a[:, None]).logsumexp(0)
