"""Unregularised transport values with a certificate.

For any potential g on the columns, L(g) = mean_i min_j (c_ij - g_j) + mean g never exceeds the optimum, and
any plan costs at least it. A value is handed back once the two are within a gap fixed beforehand. Equal
sizes are an assignment problem; others a linear program that is given its columns as they are needed, after
equal points were merged: where costs tie, its simplex steps would hardly make headway.
"""

from __future__ import annotations

import math
import warnings

import numpy as np
import numpy.typing as npt
import torch
from scipy import optimize, sparse
from torch import Tensor

from dpsinkhorn.ot import ConvergenceWarning, MatrixProblem, solve
from dpsinkhorn.transport.clouds import Clouds

__all__ = ["certified_exact_value", "exact_value"]

_Array = npt.NDArray[np.float64]
_NEAREST = 6  # pairs per row and per column that the linear program starts with
_START = 1e-3  # λ of the entropic solution that names them, in units of the bound
_ROUNDS = 200
_WORTH = 16  # as many times fewer pairs make a program that is quicker than an assignment


def certified_exact_value(clouds: Clouds, *, gap: float) -> float:
    """A value v with W - gap <= v <= W, W the exact transport cost, up to rounding; never fails.

    >>> clouds = Clouds.of([0.0, 1.0], [0.0, 2.0], cost_bound=4)
    >>> round(certified_exact_value(clouds, gap=1e-9), 6)
    0.5
    """
    setting = clouds.setting
    all_x, all_y = clouds.x + 0.0, clouds.y + 0.0  # there is one zero, merged or not
    (x, a), (y, b) = _merged(all_x), _merged(all_y)
    if setting.n == setting.m and len(a) * len(b) * _WORTH > setting.n * setting.m:
        x, y, a = all_x, all_y, np.full(setting.n, 1 / setting.n)
        b = a
    costs = clouds.cost.pairwise(x, y).numpy()
    return exact_value(costs, a, b, bound=setting.bound, gap=gap)


def exact_value(costs: _Array, a: _Array, b: _Array, *, bound: float, gap: float) -> float:
    """The same for costs ``(n, m)`` in [0, bound] and positive weights that sum to one."""
    equal = len(a) == len(b) and np.ptp(a) == np.ptp(b) == 0
    value = _assignment(costs, bound, gap) if equal else _program(costs, a, b, bound, gap)
    return _by_sinkhorn(costs, a, b, bound, gap) if value is None else value


def _merged(points: Tensor) -> tuple[Tensor, _Array]:
    """Equal points as one, and the weights of those that are left.

    Transport between them is the same: costs of equal points are equal, and mass of one may go any way.
    """
    unique, counts = np.unique(points.numpy(), axis=0, return_counts=True)
    return torch.from_numpy(unique), counts / len(points)


def _below(costs: _Array, g: _Array, a: _Array, b: _Array) -> float:
    """A lower bound on the transport cost, from any potential on the columns.

    Transforming it back and forth first raises the bound and makes it span at most the range of the costs,
    so that rounding is that of numbers of this size, however wide a solver's potentials are.
    """
    f = (costs - g).min(1)
    g = (costs - f[:, None]).min(0)
    g = g - (g.max() + g.min()) / 2
    return float(a @ (costs - g).min(1) + b @ g)


def _assignment(costs: _Array, bound: float, gap: float) -> float | None:
    rows, columns = optimize.linear_sum_assignment(costs)
    matched = costs[rows, columns]
    uniform = np.full(len(costs), 1 / len(costs))
    g = np.zeros(len(costs))
    for _ in range(len(costs)):  # Bellman and Ford's shortest paths give potentials of the assignment
        value = _below(costs, g, uniform, uniform)
        if float(matched.mean()) - value <= gap:
            return value
        f = matched - g[columns]
        shorter = np.minimum(g, (costs - f[:, None]).min(0))
        if np.array_equal(shorter, g):
            return None
        g = shorter.clip(shorter.max() - 2 * bound * len(costs))
    return None


def _program(costs: _Array, a: _Array, b: _Array, bound: float, gap: float) -> float | None:
    n, m = costs.shape
    active = _first_pairs(costs, a, b, bound)
    scale = float(max(n, m))  # the solver's tolerances are absolute: weights of about one suit them
    for _ in range(_ROUNDS):
        i, j = np.nonzero(active)
        k = np.arange(len(i))
        ones = np.ones(len(i))
        sums = sparse.vstack(
            [sparse.csr_array((ones, (i, k)), (n, len(k))), sparse.csr_array((ones, (j, k)), (m, len(k)))]
        )
        found = optimize.linprog(  # type: ignore[call-overload]  # its stubs know no sparse arrays
            costs[i, j],
            A_eq=sums,
            b_eq=scale * np.concatenate([a, b]),
            method="highs",
            options={"primal_feasibility_tolerance": 1e-9, "dual_feasibility_tolerance": 1e-9},
        )
        if found.x is None:
            return None
        f, g = np.split(np.asarray(found.eqlin.marginals, dtype=np.float64), [n])
        value = _below(costs, g, a, b)
        if _above(costs, i, j, found.x / scale, a, b, bound) - value <= gap:
            return value
        reduced = costs - f[:, None] - g
        added = _nearest(np.where(active, np.inf, reduced), 3) & (reduced < 0) & ~active
        if not added.any():
            return None
        active |= added
    return None


def _first_pairs(costs: _Array, a: _Array, b: _Array, bound: float) -> npt.NDArray[np.bool_]:
    """Pairs that an entropic solution is likely to use, and a staircase that makes the program feasible."""
    C, first, second = (torch.from_numpy(array) for array in (costs, a, b))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # it would tell of the data
        start = solve(MatrixProblem(C, first, second), _START * bound, tolerance=1e-3)
    active = _nearest(costs - start.f.numpy()[:, None] - start.g.numpy(), _NEAREST)
    ends = np.union1d(np.cumsum(a), np.cumsum(b))  # where mass laid end to end passes to the next point
    middles = (np.concatenate([[0.0], ends[:-1]]) + ends) / 2
    i, j = (np.searchsorted(np.cumsum(w), middles).clip(0, len(w) - 1) for w in (a, b))
    active[i, j] = True
    return active


def _nearest(costs: _Array, count: int) -> npt.NDArray[np.bool_]:
    """The `count` least entries of each row and of each column."""
    active = np.zeros(costs.shape, dtype=bool)
    for axis in (0, 1):
        k = min(count, costs.shape[axis])
        np.put_along_axis(active, np.argpartition(costs, k - 1, axis).take(range(k), axis), True, axis)
    return active


def _above(
    costs: _Array,
    i: npt.NDArray[np.intp],
    j: npt.NDArray[np.intp],
    plan: _Array,
    a: _Array,
    b: _Array,
    bound: float,
) -> float:
    """The cost of a feasible plan near this one: marginals are cut to size, the rest costs at most c̄."""
    plan = np.maximum(plan, 0.0)
    for index, weights in ((i, a), (j, b)):
        sums = np.bincount(index, plan, len(weights))
        plan = plan * np.minimum(1.0, weights / np.maximum(sums, 1e-300))[index]
    return float(plan @ costs[i, j] + bound * max(0.0, 1.0 - plan.sum()))


def _by_sinkhorn(costs: _Array, a: _Array, b: _Array, bound: float, gap: float) -> float:
    """The last resort: Sinkhorn's iteration at a λ so small that its plan is optimal to within the gap."""
    C, log_a, log_b = torch.from_numpy(costs), torch.from_numpy(a).log(), torch.from_numpy(b).log()
    regularization = gap / (4 * math.log(max(*costs.shape, 3)))
    g = torch.zeros(len(b), dtype=torch.float64)
    pairs = np.indices(costs.shape).reshape(2, -1)
    while True:
        f = -regularization * ((g - C) / regularization + log_b).logsumexp(1)
        plan = ((f[:, None] + g - C) / regularization + log_a[:, None] + log_b).exp().numpy()
        value = _below(costs, g.numpy(), a, b)
        if _above(costs, pairs[0], pairs[1], plan.ravel(), a, b, bound) - value <= gap:
            return value
        g = -regularization * ((f[:, None] - C) / regularization + log_a[:, None]).logsumexp(0)
