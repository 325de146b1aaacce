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


def simplex(costs: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """An optimal plan ``(n, m)`` and potentials f, g of costs ``(n, m)`` and weights that sum to one."""
    from ot.lp import emd  # type: ignore[import-untyped]  # POT takes its time to import

    least, most = torch.aminmax(costs)
    scale = max(abs(float(least)), abs(float(most))) or 1.0
    scaled = costs / scale  # its tolerance is absolute
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plan, found = emd(
            a.numpy(), b.numpy(), scaled.numpy(), numItermax=_PIVOTS, log=True, check_marginals=False,
            center_dual=False,
        )  # fmt: skip
    g = torch.from_numpy(found["v"]) * scale
    f = torch.sub(costs, g, out=scaled).amin(1)  # transforms: feasible whatever rounding did
    g = torch.sub(costs, f.unsqueeze(-1), out=scaled).amin(0)
    return torch.from_numpy(plan), f, g


def solve_exact(dual: SemiDual) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Plan, f, g and value of every problem of the batch, unregularised; potentials are feasible."""
    parts = [each.cpu() for each in (dual.all_costs().double(), dual.a, dual.b)]
    if dual.a.ndim == 1:
        plan, f, g = simplex(*parts)
    else:
        found = [simplex(*each) for each in zip(*parts, strict=True)]
        plan, f, g = (torch.stack(each) for each in zip(*found, strict=True))
    plan, f, g = (each.to(dual.device) for each in (plan, f, g))
    return plan, f, g, torch.linalg.vecdot(dual.a, f) + torch.linalg.vecdot(dual.b, g)


def start(dual: SemiDual, regularization: float) -> Tensor | None:
    """A potential g near the optimum at a small λ; None where the exact solution says too little of it.

    With equal weights on both sides a plan is a permutation: it connects nothing but pairs.
    """
    costs = dual.stored_costs
    if costs is None or costs.numel() > _LARGEST_START or (_alike(dual.a) and _alike(dual.b)):
        return None
    costs = costs.double()
    plan, f, g, C, a, b = (each.numpy() for each in (*simplex(costs, dual.a, dual.b), costs, dual.a, dual.b))
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
