"""Sliced transport: the mean cost of transport along lines, where sorting is all there is to solve.

Between measures on a line the monotone plan is optimal for |u - v|^p, p >= 1. A sliced cost projects points
on directions, and takes the mean over these (Rabin et al. 2011; Bonneel et al. 2015).
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

DIRECTIONS = 50


def whole_bases(dimension: int, *, least: int = DIRECTIONS, seed: int = 0) -> Tensor:
    """Return at least `least` random directions ``(count, dimension)``, in whole orthonormal bases.

    The squares of a point's projections then sum to count / dimension times its own square: no direction of
    space is seen more than another. On a line there is but one direction.

    >>> theta = whole_bases(3)
    >>> theta.shape, torch.allclose(theta.T @ theta, 17 * torch.eye(3).double())
    (torch.Size([51, 3]), True)
    """
    if dimension == 1:
        return torch.ones(1, 1, dtype=torch.float64)
    rng = np.random.default_rng(seed)
    normal = rng.normal(size=(math.ceil(least / dimension), dimension, dimension))
    return torch.from_numpy(np.linalg.qr(normal).Q.reshape(-1, dimension))


def line_costs(x: Tensor, y: Tensor, power: float = 1.0) -> Tensor:
    """Return the transport cost of |u - v|^power between the columns of x ``(n, k)`` and of y ``(m, k)``.

    >>> line_costs(torch.tensor([[0.0], [1.0]]), torch.tensor([[3.0]]))
    tensor([2.5000])
    """
    n, m = len(x), len(y)
    x, y = x.sort(0).values, y.sort(0).values
    if n == m:
        return (x - y).abs_().pow_(power).mean(0)
    # The plan changes at the multiples of 1/n and of 1/m: whole numbers, in units of 1/(nm).
    ends = np.union1d(np.arange(n + 1) * m, np.arange(m + 1) * n)
    starts, shares = torch.from_numpy(ends[:-1]), torch.from_numpy(np.diff(ends) / (n * m)).to(x)
    return shares @ (x[starts // m] - y[starts // n]).abs_().pow_(power)


def sliced_cost(x: Tensor, y: Tensor, directions: Tensor | None = None, power: float = 1.0) -> float:
    """Return the sliced cost between x ``(n, d)`` and y ``(m, d)``: sliced Wasserstein to its own power.

    `directions` are unit vectors ``(k, d)``, by default those of `whole_bases`.

    >>> sliced_cost(torch.zeros(4, 1), torch.full((3, 1), 2.0), power=2)
    4.0
    """
    theta = (whole_bases(x.shape[1]) if directions is None else directions).to(x)
    return float(line_costs(x @ theta.T, y @ theta.T, power).mean())
