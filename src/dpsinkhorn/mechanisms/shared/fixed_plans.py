"""Plans of a step in fixed shapes, in the domain of logarithms: any size, any marginals, nothing on the host.

Both problems of a step go through together: ``costs`` are ``(2, n, width)``, the first of the cross term and
the second of the self term. What is not there, or must not be reached, has an infinite cost or a weight of 0,
and so a part of exactly 0 in every sum.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from dpsinkhorn.mechanisms.shared.plans import annealing

__all__ = ["Held", "Softmin", "softmin", "solve_fixed", "stopped_plans", "uniform", "within_classes"]

Softmin = Callable[..., Tensor]

# How plans converge: so many iterations, of which so many until λ is reached, each update over-relaxed by as
# much as stays stable far from the solution.
_ITERATIONS, _STAGES, _EXTRA = 96, 78, 0.77
_LEAST = 2.0**-24  # shares of a row below that, over its length, are left out: the row's rounding is larger


def softmin(
    costs: Tensor,
    potential: Tensor,
    log_weights: Tensor,
    old: Tensor,
    epsilon: float,
    *,
    share: float = 1.0,
    extra: float = 0.0,
    damping: float = 1.0,
    penalty: float | None = None,
) -> Tensor:
    """From potentials of the columns to those of the rows, ``(2, rows)``.

    The transform is -ε log Σ_j w_j exp((g_j - C_ij) / ε), and 0 in a row without columns, times
    ``damping``. With a ``penalty`` ρ on the columns g is moved by the constant that is best for it first. Of
    the way from ``old`` to there, ``share`` is gone, and ``extra`` of as much as is no longer than 2 ε.
    """
    new = _finite(
        -epsilon * torch.logsumexp((potential[:, None] - costs) / epsilon + log_weights[:, None], 2)
    )
    if penalty is not None:
        new = new - _finite(penalty * torch.logsumexp(log_weights - potential / penalty, 1, keepdim=True))
    move = damping * new - old
    return old + share * move + extra * move.clamp(-2 * epsilon, 2 * epsilon)


def _finite(values: Tensor) -> Tensor:
    return torch.where(values.abs() < math.inf, values, 0.0)


@dataclass(frozen=True, eq=False)
class Held:
    """Both problems, with what their marginals are to be.

    Attributes:
        costs: ``(2, n, width)``.
        log_rows: ``(2, n)``, logarithms of the weights of rows.
        log_columns: ``(2, width)``, of columns.
    """

    costs: Tensor
    log_rows: Tensor
    log_columns: Tensor


def uniform(costs: Tensor, there: Tensor) -> Held:
    """All rows alike, and all columns that are ``there``, ``(2, width)``."""
    n = costs.shape[1]
    columns = torch.where(there, -there.sum(1, keepdim=True).to(costs).log(), -math.inf)
    rows = columns.new_full((2, n), -math.log(n))
    return Held(costs.masked_fill(~there[:, None], math.inf), rows, columns)


def within_classes(costs: Tensor, there: Tensor, labels: Tensor, others: Tensor, classes: int) -> Held:
    """Weights of `plan_within_classes`: ``labels`` ``(n,)`` are of the rows, ``others`` ``(2, width)``."""
    every = torch.arange(classes, device=costs.device)
    kinds = (labels[:, None] == every).to(costs)
    other = ((others[..., None] == every) & there[..., None]).to(costs)
    ours, theirs = kinds.sum(0), other.sum(1)  # (classes,), (2, classes)
    rows = (theirs > 0).to(costs) @ kinds.mT / len(labels)
    columns = (other @ (ours / theirs.clamp(min=1) / len(labels))[..., None])[..., 0]
    same = (kinds @ other.mT) > 0
    return Held(torch.where(same, costs, math.inf), rows.log(), columns.log())


def stopped_plans(
    held: Held, regularization: float, diameter: float, iterations: int, softmin: Softmin = softmin
) -> tuple[Tensor, Tensor]:
    """As `annealed_plans`: both plans of both problems, ``(2, n, width)``."""
    costs, turned = held.costs, held.costs.mT.contiguous()
    a, b = held.log_rows, held.log_columns
    f, g = torch.zeros_like(a), torch.zeros_like(b)
    f, g = softmin(costs, g, b, f, diameter), softmin(turned, f, a, g, diameter)
    for e in annealing(regularization, diameter, iterations):
        f, g = softmin(costs, g, b, f, e, share=0.5), softmin(turned, f, a, g, e, share=0.5)
    columns = _shares(turned, f, a, regularization).mT * torch.exp(b)[:, None]
    return _shares(costs, g, b, regularization) * torch.exp(a)[..., None], columns.contiguous()


def solve_fixed(
    held: Held,
    regularization: float,
    largest: float,
    penalty: float | None = None,
    softmin: Softmin = softmin,
) -> Tensor:
    """Plans ``(2, n, width)`` that keep the rows' weights, and the columns' as far as there is time.

    With a ``penalty`` ρ the columns' weights are held by ρ KL alone. ``largest``, a public number, is a bound
    on costs between two points: the regularization falls from a fiftieth of that.
    """
    costs, turned = held.costs, held.costs.mT.contiguous()
    a, b = held.log_rows, held.log_columns
    f, g = torch.zeros_like(a), torch.zeros_like(b)
    start, extra = max(regularization, largest / 50), 0.0
    for step in range(0 if penalty == 0 else _ITERATIONS):
        e = max(regularization, start * (regularization / start) ** (step / _STAGES))
        f = softmin(costs, g, b, f, e, extra=extra, penalty=penalty)
        damping = 1.0 if penalty is None else penalty / (penalty + e)
        g = softmin(turned, f, a, g, e, extra=extra, damping=damping)
        extra = _EXTRA
    return _shares(costs, g, b, regularization) * torch.exp(a)[..., None]


def _shares(costs: Tensor, potential: Tensor, log_weights: Tensor, regularization: float) -> Tensor:
    """Of every row, what goes to each column; nothing in a row without columns."""
    shares = torch.softmax((potential[:, None] - costs) / regularization + log_weights[:, None], 2)
    return torch.where(shares > _LEAST / costs.shape[2], shares, 0.0)  # NaN is not above
