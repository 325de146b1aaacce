"""Transport plans of a step other than the solver's own: stopped early, or kept within classes."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from dpsinkhorn.ot import MatrixProblem, solve

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
