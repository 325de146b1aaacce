"""Unregularised transport by POT's network simplex, and the start that it gives an entropic ascent.

The simplex ends at a plan on a tree (or forest) of pairs. At a λ far below the differences of the costs the
entropic plan is all but this one, and its potentials have ``f_i + g_j = C_ij + λ log(P_ij / a_i b_j)`` on the
tree: from there an ascent has next to nothing left to do. Where weights span many orders of magnitude, as in
histograms with Gaussian tails, no sequence of decreasing λ gets there as fast, if at all.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy import sparse
from torch import Tensor

from dpsinkhorn.ot.semidual import SemiDual

_Array = npt.NDArray[np.float64]
_PIVOTS = 10**8  # far more than are needed
# Pairs up to which an ascent that makes no headway is started again from the exact solution.
_LARGEST_START = 2**20


def simplex(costs: _Array, a: _Array, b: _Array) -> tuple[_Array, _Array, _Array]:
    """An optimal plan ``(n, m)`` and potentials f, g of costs ``(n, m)`` and weights that sum to one."""
    from ot.lp import emd  # type: ignore[import-untyped]  # POT takes its time to import

    scale = float(np.abs(costs).max()) or 1.0  # its tolerance is absolute
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plan, found = emd(a, b, costs / scale, numItermax=_PIVOTS, log=True, check_marginals=False)
    return plan, found["u"] * scale, found["v"] * scale


def solve_exact(dual: SemiDual) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Plan, f, g and value of every problem of the batch, unregularised; potentials are feasible."""
    costs = dual.all_costs().cpu().double()
    batched = costs.ndim == 3
    found = []
    for C, a, b in zip(
        *((each if batched else each[None]).cpu() for each in (costs, dual.a, dual.b)), strict=True
    ):
        plan, _, column_potential = simplex(C.numpy(), a.numpy(), b.numpy())
        f = (C - torch.from_numpy(column_potential)).amin(1)  # transforms: feasible whatever rounding did
        g = (C - f.unsqueeze(-1)).amin(0)
        found.append((torch.from_numpy(plan), f, g, a @ f + b @ g))
    parts = [torch.stack(each).to(dual.device) for each in zip(*found, strict=True)]
    return tuple(parts if batched else [part[0] for part in parts])  # type: ignore[return-value]


def start(dual: SemiDual, regularization: float) -> Tensor | None:
    """A potential g near the optimum at a small λ; None where the exact solution says too little of it.

    With equal weights on both sides a plan is a permutation: it connects nothing but pairs.
    """
    costs = dual.stored_costs
    if costs is None or costs.numel() > _LARGEST_START or (_alike(dual.a) and _alike(dual.b)):
        return None
    C, a, b = costs.double().numpy(), dual.a.numpy(), dual.b.numpy()
    plan, f, g = simplex(C, a, b)
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
