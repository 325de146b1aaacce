"""Unregularised transport by POT's network simplex, and the start that it gives an entropic ascent.

The simplex ends at a plan on a tree (or forest) of pairs. At a λ far below the differences of the costs the
entropic plan is all but this one, and its potentials have ``f_i + g_j = C_ij + λ log(P_ij / a_i b_j)`` on the
tree: from there an ascent has next to nothing left to do. Where weights span many orders of magnitude, as in
histograms with Gaussian tails, no sequence of decreasing λ gets there as fast, if at all.
"""

from __future__ import annotations

import math
import warnings
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from scipy import sparse
from torch import Tensor

from dpsinkhorn.ot import native
from dpsinkhorn.ot.native.small import Small
from dpsinkhorn.ot.problem import Problem, check_range
from dpsinkhorn.ot.semidual import SemiDual

_Array = npt.NDArray[np.float64]
_PIVOTS = 10**8  # far more than are needed
# Pairs up to which an ascent that makes no headway is started again from the exact solution.
_LARGEST_START = 2**20


class Vertex(NamedTuple):
    """An optimal plan ``(n, m)``, feasible potentials, their value, and the L1 error of the plan."""

    plan: Tensor
    f: Tensor
    g: Tensor
    value: Tensor
    error: Tensor


def simplex(costs: Tensor, a: Tensor, b: Tensor, largest: float) -> Vertex:
    """The unregularised solution for costs ``(n, m)`` and weights that sum to one, in float64."""
    scale = largest if largest and not 2**-4 <= largest <= 2**16 else 1.0  # its tolerance is absolute
    plan, g = _plan_and_potential(a, b, costs if scale == 1 else costs / scale)
    g = g if scale == 1 else g * scale
    # Transforms are feasible whatever rounding did.
    if (settled := native.settle(costs, plan, a, b, g)) is not None:
        f, numbers = settled
        return Vertex(plan, f, g, *numbers.unbind())
    f = (costs - g.masked_fill(b <= 0, -math.inf)).amin(1)
    g = (costs - f.unsqueeze(-1)).amin(0)
    error = (plan.sum(1) - a).abs().sum() + (plan.sum(0) - b).abs().sum()
    return Vertex(plan, f, g, a @ f + b @ g, error)


def _plan_and_potential(a: Tensor, b: Tensor, costs: Tensor) -> tuple[Tensor, Tensor]:
    """POT's plan, and its g where b is positive."""
    arrays = [each.contiguous().numpy() for each in (a, b, costs)]
    try:  # what `emd` calls, without its checks, which take half as long as all of 50 x 50 costs
        from ot.lp.emd_wrap import emd_c  # type: ignore[import-untyped]  # POT takes its time to import

        plan, _, _, g, _ = emd_c(*arrays, _PIVOTS, 1)
    except (ImportError, TypeError, ValueError):  # another version
        from ot.lp import emd  # type: ignore[import-untyped]

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            plan, found = emd(*arrays, numItermax=_PIVOTS, log=True, check_marginals=False, center_dual=False)
        g = found["v"]
    return torch.from_numpy(plan), torch.from_numpy(g)


def solve_exact(dual: SemiDual) -> Vertex:
    """The unregularised solution of every problem of the batch."""
    costs = dual.all_costs().double()
    if dual.a.ndim == 1 and costs.is_cpu:
        return simplex(costs, dual.a, dual.b, dual.largest)
    parts = [each.cpu().reshape(-1, *each.shape[dual.a.ndim - 1 :]) for each in (costs, dual.a, dual.b)]
    found = [simplex(C, a, b, float(C.abs().max())) for C, a, b in zip(*parts, strict=True)]
    whole = (torch.stack(each) if dual.a.ndim > 1 else each[0] for each in zip(*found, strict=True))
    return Vertex(*(each.to(dual.device) for each in whole))


def transport(problem: Problem, *, wrt_x: bool, wrt_y: bool) -> Small | None:
    """The solution of a single problem on the CPU, with gradients; None for any other."""
    if problem.batched or not problem.x.is_cpu:
        return None
    costs, dtype = problem.costs.double().contiguous(), problem.x.dtype
    ends = native.value_range(costs) or (float(costs.min()), float(costs.max()))
    largest = max(map(abs, check_range(ends, dtype)))
    plan, f, g, value, _ = simplex(costs, problem.a, problem.b, largest)
    return Small(value, f, g, *problem.gradients(plan.to(dtype), wrt_x=wrt_x, wrt_y=wrt_y))


def start(dual: SemiDual, regularization: float) -> Tensor | None:
    """A potential g near the optimum at a small λ; None where the exact solution says too little of it.

    With equal weights on both sides a plan is a permutation: it connects nothing but pairs.
    """
    costs = dual.stored_costs
    if costs is None or costs.numel() > _LARGEST_START or (_alike(dual.a) and _alike(dual.b)):
        return None
    costs = costs.double()
    found = simplex(costs, dual.a, dual.b, dual.largest)
    plan, f, g, C, a, b = (each.numpy() for each in (*found[:3], costs, dual.a, dual.b))
    rows, columns = np.nonzero(plan)
    lengths = C[rows, columns] + regularization * np.log(plan[rows, columns] / (a[rows] * b[columns]))
    return torch.from_numpy(_along_edges(rows, columns, lengths, f, g))


def _alike(weights: Tensor) -> bool:
    return float(weights.max()) <= 1.001 * float(weights.min())


def _along_edges(rows: Any, columns: Any, lengths: _Array, f: _Array, g: _Array) -> _Array:
    """g with ``f_i + g_j`` = length on all edges of a forest; a tree's constant is that of f and g given."""
    n, size = len(f), len(f) + len(g)
    edges = sparse.csr_array((np.ones(len(rows)), (rows, columns + n)), shape=(size, size))
    edges = edges + edges.T
    length_of = sparse.csr_array((np.arange(1, len(rows) + 1), (rows, columns + n)), shape=(size, size))
    length_of = (length_of + length_of.T).todok()
    values, seen = np.concatenate([f, g]), np.zeros(size, dtype=bool)
    for root in range(size):
        if seen[root]:
            continue
        order, before = sparse.csgraph.breadth_first_order(edges, root, directed=False)
        seen[order] = True
        for node in order[1:]:
            edge = int(length_of[node, before[node]]) - 1
            values[node] = lengths[edge] - values[before[node]]
    return values[n:]
