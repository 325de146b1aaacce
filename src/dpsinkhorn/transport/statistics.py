"""What a two-sample test compares: statistics of pooled points, for rows of labels that say which are x."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from dpsinkhorn.ot import L1L2, Cityblock, Cost, Euclidean, SquaredEuclidean
from dpsinkhorn.transport.certified import exact_value
from dpsinkhorn.transport.clouds import CappedCost

_BLOCK = 2**21  # entries of a matrix at a time
_WIDTHS = 8.0  # of the kernel within the bound on the distance
_FREQUENCIES = 256
_FARTHEST = 1e100
_UNCAPPED = 1e300  # a capped distance would have no positive definite kernel


def has_kernel(cost: Cost) -> bool:
    """Return whether a positive definite kernel is known for a cost."""
    return type(cost) in (SquaredEuclidean, Euclidean, Cityblock, L1L2)


def kernel(cost: Cost, bound: float) -> Callable[[Tensor, Tensor], Tensor]:
    """Return a positive definite kernel with values in [0, 1], and 1 on the diagonal, for a known cost.

    It is exp(-64 |x - y|² / 2D²) where the bound is one on the Euclidean distance, D, or on its square, D²;
    for the others exp(-8 c / bound).
    """
    uncapped = CappedCost(cost, _UNCAPPED)

    def values(x: Tensor, y: Tensor) -> Tensor:
        costs = uncapped.pairwise(x, y) / bound
        if type(cost) is Euclidean:
            costs = costs.square_()
        gaussian = type(cost) in (Euclidean, SquaredEuclidean)
        return costs.mul_(-(_WIDTHS**2) / 2 if gaussian else -_WIDTHS).exp_()

    return values


def frequencies(cost: Cost, bound: float, dimension: int) -> Tensor:
    """Return draws ``(k, d)`` of the spectral law of `kernel`: the mean of cos ω·(x - y) is near the kernel.

    They are the same in every test: whatever they are, its level holds.
    """
    rng = np.random.default_rng(0)
    shape = (_FREQUENCIES, dimension)
    if type(cost) is Euclidean:
        found = _WIDTHS / bound * rng.normal(size=shape)
    elif type(cost) is SquaredEuclidean:
        found = _WIDTHS / math.sqrt(bound) * rng.normal(size=shape)
    else:
        found = _WIDTHS / bound * getattr(cost, "l1_weight", 1.0) * rng.standard_cauchy(size=shape)
        if type(cost) is L1L2:
            found += math.sqrt(2 * _WIDTHS / bound) * rng.normal(size=shape)
    return torch.from_numpy(found)


def spectral(pool: Tensor, labels: Tensor, omega: Tensor) -> Tensor:
    """Return the root mean square of the difference of characteristic functions, for each row of labels.

    That is the MMD of the kernel mean cos ω·(x - y): its cost grows with the points, not with their pairs.
    """
    weights, squares = _weights(labels), torch.zeros(len(labels), dtype=torch.float64)
    step = max(1, _BLOCK // len(pool))
    for start in range(0, len(omega), step):
        part = omega[start : start + step]
        phases = torch.zeros(len(pool), len(part), dtype=torch.float64)
        for k in range(pool.shape[1]):  # entry by entry: a far point must not change another's rounding
            phases += pool[:, k : k + 1].clamp(-_FARTHEST, _FARTHEST) * part[:, k]
        for wave in (phases.cos(), phases.sin()):
            squares += (weights @ wave).square_().sum(1)
    return squares.div_(len(omega)).sqrt_()


def _weights(labels: Tensor) -> Tensor:
    """Return 1/n for each x and -1/m for each y."""
    n = int(labels[0].sum())
    of_x, of_y = torch.tensor([1 / n, -1 / (labels.shape[1] - n)], dtype=torch.float64)
    return torch.where(labels, of_x, of_y)


def mmd(pool: Tensor, labels: Tensor, k: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Return |mean k(x, .) - mean k(y, .)| in the kernel's norm for each row of labels ``(B + 1, N)``."""
    weights, squares = _weights(labels), torch.zeros(len(labels), dtype=torch.float64)
    rows = max(1, _BLOCK // len(pool))
    for start in range(0, len(pool), rows):
        part = slice(start, start + rows)
        squares += ((weights @ k(pool, pool[part])) * weights[:, part]).sum(1)
    return squares.clamp(min=0.0).sqrt()


def sliced(projections: Tensor, labels: Tensor) -> Tensor:
    """Return the mean W_1 of projections ``(N, k)`` for each row of labels ``(B + 1, N)``: ∫|F - G|."""
    count, n = len(projections), int(labels[0].sum())
    places = torch.arange(1, count, dtype=torch.float64) * n
    totals = torch.zeros(len(labels), dtype=torch.float64)
    rows = max(1, _BLOCK // count)
    for values, order in zip(*(each.T for each in projections.sort(0)), strict=True):
        gaps = values.diff()
        for start in range(0, len(labels), rows):
            part = slice(start, start + rows)
            below = (
                labels[part][:, order].cumsum(1)[:, :-1].double()
            )  # of x: whole numbers, as all to the end
            totals[part] += below.mul_(count).sub_(places).abs_() @ gaps
    return totals / (n * (count - n) * projections.shape[1])


def exact(pool: Tensor, labels: Tensor, cost: CappedCost, gap: float) -> Tensor:
    """Return certified transport costs, one for each row of labels; equal points are merged."""
    unique, places = np.unique(pool.numpy() + 0.0, axis=0, return_inverse=True)
    points, places = torch.from_numpy(unique), places.reshape(-1)
    costs = cost.pairwise(points, points).numpy()
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # whatever a solver has to say would tell of the data
        for row in labels.numpy():
            a, b = (np.bincount(places[side], minlength=len(unique)) / side.sum() for side in (row, ~row))
            block = np.ascontiguousarray(costs[np.ix_(a > 0, b > 0)])
            found.append(exact_value(block, a[a > 0], b[b > 0], bound=cost.bound, gap=gap))
    return torch.tensor(found, dtype=torch.float64)
