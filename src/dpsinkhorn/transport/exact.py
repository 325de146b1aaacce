"""Unregularised transport values with a certificate.

For any potential g on the columns, L(g) = mean_i min_j (c_ij - g_j) + mean g never exceeds the optimum, and
any plan costs at least it. Both come from POT's network simplex, after equal points were merged; a value is
handed back once the two are within a gap fixed beforehand.
"""

from __future__ import annotations

import math
import warnings

import numpy as np
import numpy.typing as npt
import torch
from ot.lp import emd  # type: ignore[import-untyped]
from torch import Tensor

from dpsinkhorn.transport.clouds import Clouds

__all__ = ["certified_exact_value", "exact_value"]

_Array = npt.NDArray[np.float64]
_PIVOTS = 10**8  # far more than are needed: the simplex ends, whatever rounding does


def certified_exact_value(clouds: Clouds, *, gap: float) -> float:
    """A value v with W - gap <= v <= W, W the exact transport cost, up to rounding; never fails.

    >>> clouds = Clouds.of([0.0, 1.0], [0.0, 2.0], cost_bound=4)
    >>> round(certified_exact_value(clouds, gap=1e-9), 6)
    0.5
    """
    (x, a), (y, b) = _merged(clouds.x), _merged(clouds.y)
    return exact_value(clouds.cost.pairwise(x, y).numpy(), a, b, bound=clouds.setting.bound, gap=gap)


def exact_value(costs: _Array, a: _Array, b: _Array, *, bound: float, gap: float) -> float:
    """The same for costs ``(n, m)`` in [0, bound] and positive weights that sum to one."""
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


def _merged(points: Tensor) -> tuple[Tensor, _Array]:
    """Equal points as one, and the weights of those that are left.

    Transport between them is the same: costs of equal points are equal, and mass of one may go any way.
    """
    # There is one zero, merged or not.
    unique, counts = np.unique(points.numpy() + 0.0, axis=0, return_counts=True)
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


def _above(costs: _Array, plan: _Array, a: _Array, b: _Array, bound: float) -> float:
    """The cost of a feasible plan near this one: marginals are cut to size, the rest costs at most c̄."""
    plan = np.maximum(plan, 0.0)
    plan *= np.minimum(1.0, a / np.maximum(plan.sum(1), 1e-300))[:, None]
    plan *= np.minimum(1.0, b / np.maximum(plan.sum(0), 1e-300))
    # Rows first: no term passes through more than n + m additions.
    return float(np.einsum("ij,ij->i", plan, costs).sum() + bound * max(0.0, 1.0 - plan.sum(1).sum()))


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
