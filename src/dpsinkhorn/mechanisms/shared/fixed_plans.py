"""Transport plans of a step other than the solver's own: stopped early, within classes, in fixed shapes.

In fixed shapes, that is in the domain of logarithms, any size, any marginals, nothing on the host, both
problems of a step go through together: ``costs`` are ``(2, n, width)``, the first of the cross term and the
second of the self term. What is not there, or must not be reached, has an infinite cost or a weight of 0, and
so a part of exactly 0 in every sum.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from dpsinkhorn.ot import MatrixProblem, solve

Softmin: TypeAlias = Callable[..., Tensor]
Solver: TypeAlias = Callable[..., tuple[Tensor, Tensor]]

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


class ProblemPair(NamedTuple):
    """Both problems, with what their marginals are to be."""

    costs: Tensor  # (2, n, width)
    log_rows: Tensor  # (2, n), logarithms of the weights of rows
    log_columns: Tensor  # (2, width), of columns


def uniform(costs: Tensor, there: Tensor) -> ProblemPair:
    """All rows alike, and all columns that are ``there``, ``(2, width)``."""
    n = costs.shape[1]
    columns = torch.where(there, -there.sum(1, keepdim=True).to(costs).log(), -math.inf)
    rows = columns.new_full((2, n), -math.log(n))
    return ProblemPair(costs.masked_fill(~there[:, None], math.inf), rows, columns)


def within_classes(costs: Tensor, there: Tensor, labels: Tensor, others: Tensor, classes: int) -> ProblemPair:
    """Weights of `plan_within_classes`: ``labels`` ``(n,)`` are of the rows, ``others`` ``(2, width)``."""
    every = torch.arange(classes, device=costs.device)
    kinds = (labels[:, None] == every).to(costs)
    other = ((others[..., None] == every) & there[..., None]).to(costs)
    ours, theirs = kinds.sum(0), other.sum(1)  # (classes,), (2, classes)
    rows = (theirs > 0).to(costs) @ kinds.mT / len(labels)
    columns = (other @ (ours / theirs.clamp(min=1) / len(labels))[..., None])[..., 0]
    same = (kinds @ other.mT) > 0
    return ProblemPair(torch.where(same, costs, math.inf), rows.log(), columns.log())


def plans(
    costs: Tensor,
    log_rows: Tensor,
    log_columns: Tensor,
    epsilons: Sequence[float],
    regularization: float,
    *,
    averaged: bool,
    extra: float,
    penalty: float | None,
    softmin: Softmin = softmin,
) -> tuple[Tensor, Tensor]:
    """Plans ``(2, n, width)`` after an iteration for each ε: of the rows' weights, and of the columns'.

    Either both potentials are averaged with their transforms at a time, or they are transformed in turn,
    over-relaxed by ``extra``. The first time they are transformed alone. The second plan is the first unless
    potentials were averaged: else both are one plan, as far as they converged.
    """
    f, g = torch.zeros_like(log_rows), torch.zeros_like(log_columns)
    turned = costs.mT.contiguous()
    for step, e in enumerate(epsilons):
        move = {} if not step else {"share": 0.5} if averaged else {"extra": extra}
        before, f = f, softmin(costs, g, log_columns, f, e, penalty=penalty, **move)
        damping = 1.0 if penalty is None else penalty / (penalty + e)
        g = softmin(turned, before if averaged else f, log_rows, g, e, damping=damping, **move)
    rows = _shares(costs, g, log_columns, regularization) * torch.exp(log_rows)[..., None]
    if not averaged:
        return rows, rows
    columns = _shares(costs.mT, f, log_rows, regularization).mT * torch.exp(log_columns)[:, None]
    return rows, columns.contiguous()


def stopped_plans(
    pair: ProblemPair, regularization: float, diameter: float, iterations: int, solver: Solver = plans
) -> tuple[Tensor, Tensor]:
    """As `annealed_plans`: both plans of both problems, ``(2, n, width)``."""
    epsilons = [diameter, *annealing(regularization, diameter, iterations)]
    return solver(*pair, epsilons, regularization, averaged=True, extra=0.0, penalty=None)


def solve_fixed(
    pair: ProblemPair,
    regularization: float,
    largest: float,
    penalty: float | None = None,
    solver: Solver = plans,
) -> tuple[Tensor, Tensor]:
    """A plan ``(2, n, width)``, twice: of the rows' weights, and the columns' as far as there is time.

    With a ``penalty`` ρ the columns' weights are held by ρ KL alone. ``largest``, a public number, is a bound
    on costs between two points: the regularization falls from a fiftieth of that.
    """
    start = max(regularization, largest / 50)
    fall = (regularization / start) ** (1 / _STAGES)
    steps = _ITERATIONS if penalty != 0 else 0  # all potentials stay 0
    epsilons = [max(regularization, start * fall**step) for step in range(steps)]
    return solver(*pair, epsilons, regularization, averaged=False, extra=_EXTRA, penalty=penalty)


def _shares(costs: Tensor, potential: Tensor, log_weights: Tensor, regularization: float) -> Tensor:
    """Of every row, what goes to each column; nothing in a row without columns."""
    shares = torch.softmax((potential[:, None] - costs) / regularization + log_weights[:, None], 2)
    return torch.where(shares > _LEAST / costs.shape[2], shares, 0.0)  # NaN is not above


_APART = 40.0  # in units of λ: what leaks from class to class is below e^-40


def annealing(regularization: float, diameter: float, iterations: int) -> list[float]:
    """Return ε of every iteration: from the diameter to λ by halves, and λ from there on.

    >>> annealing(0.5, 4.0, 6)
    [4.0, 4.0, 2.0, 1.0, 0.5, 0.5]
    """
    return [max(regularization, diameter * 0.5 ** max(0, step - 1)) for step in range(iterations)]


def annealed_plans(
    costs: Tensor, regularization: float, diameter: float, iterations: int
) -> tuple[Tensor, Tensor]:
    """Plans ``(n, m)`` of uniform weights after so many of Sinkhorn's iterations, **not converged**.

    The iteration that the papers' authors used (Feydy et al., 2019, with p = 1 and a scaling of 1/2): both
    potentials are averaged with their transforms, while ε goes from ``diameter`` to λ by halves; then both
    are transformed once more. The rows of the first plan have the right sums, and so have the columns of the
    second: with them weighted, gradients of the cost are those of ``<a, f>`` in x and of ``<b, g>`` in y.

    >>> rows, columns = annealed_plans(torch.tensor([[0.0, 1.0], [1.0, 0.0]]), 0.1, 2.0, 8)
    >>> rows.sum(1), columns.sum(0)
    (tensor([0.5000, 0.5000]), tensor([0.5000, 0.5000]))
    """
    n, m = costs.shape

    def rows(g: Tensor, e: float) -> Tensor:
        return -e * torch.logsumexp((g - costs) / e - math.log(m), 1)

    def columns(f: Tensor, e: float) -> Tensor:
        return -e * torch.logsumexp((f[:, None] - costs) / e - math.log(n), 0)

    f, g = rows(costs.new_zeros(m), diameter), columns(costs.new_zeros(n), diameter)
    for e in annealing(regularization, diameter, iterations):
        f, g = (f + rows(g, e)) / 2, (g + columns(f, e)) / 2
    return (
        torch.softmax((g - costs) / regularization, 1) / n,
        torch.softmax((f[:, None] - costs) / regularization, 0) / m,
    )


def plan_within_classes(
    costs: Tensor, kinds: Tensor, other: Tensor, regularization: float, **options: Any
) -> Tensor:
    """The plan ``(n, m)`` that moves nothing from class to class; every row that has a partner weighs 1/n.

    ``kinds`` ``(n, classes)`` and ``other`` ``(m, classes)`` say of which class rows and columns are. Columns
    share what the rows of their class weigh; a row without a column of its class, and the reverse, has
    nothing. ``options`` are those of `solve`.

    >>> kinds, other = torch.eye(2).bool(), torch.tensor([[1, 0], [1, 0], [0, 0]]).bool()
    >>> plan_within_classes(torch.zeros(2, 3), kinds, other, 0.1)
    tensor([[0.2500, 0.2500, 0.0000],
            [0.0000, 0.0000, 0.0000]])
    """
    kinds, other = kinds.to(costs), other.to(costs)
    ours, theirs = kinds.sum(0), other.sum(0)
    shares = ours * (theirs > 0) / len(kinds)  # of each class
    mass = shares.sum()
    if not mass:
        return torch.zeros_like(costs)
    a, b = kinds @ (shares / ours.clamp(min=1)), other @ (shares / theirs.clamp(min=1))
    apart = (costs.max() - costs.min() + _APART * regularization) * (1 - kinds @ other.mT)
    problem = MatrixProblem(costs + apart, a, b)
    return mass * solve(problem, regularization, **options).plan
