"""Random transport problems of every awkward kind, and references to hold their solutions against."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from scipy import optimize, sparse
from torch import Tensor

import ot as pot
from dpsinkhorn.ot import L1L2, Cityblock, Cost, Problem, SquaredEuclidean

COSTS: tuple[Cost, ...] = (SquaredEuclidean(), L1L2(1.0), Cityblock())


@dataclass(frozen=True)
class Generated:
    """One generated problem: points, weights, cost and regularization."""

    seed: int
    x: Tensor
    y: Tensor
    a: Tensor
    b: Tensor
    cost: Cost
    regularization: float

    def problem(self, dtype: torch.dtype = torch.float64) -> Problem:
        return Problem(self.x.to(dtype), self.y.to(dtype), self.cost, self.a.to(dtype), self.b.to(dtype))


def generate(seed: int) -> Generated:
    """Sizes of 1, rectangles, repeated points, zero and skewed weights, λ in [1e-3, 1e3], costs to 1e4."""
    rng = np.random.default_rng(seed)
    n = int(rng.choice([1, 2, 3, 10, 30, 60]))
    m = int(rng.choice([1, 2, 5, 10, 30, 60])) if rng.random() < 0.6 else n
    d = int(rng.choice([1, 2, 10, 50]))
    scale = float(rng.choice([0.1, 1.0, 10.0]))
    x = rng.normal(size=(n, d)) * scale
    y = rng.normal(size=(m, d)) * scale + rng.normal() * scale * rng.random()
    if rng.random() < 0.2:
        x[rng.integers(0, n, size=n // 2)] = x[0]
    if rng.random() < 0.2:
        y[rng.integers(0, m, size=m // 2)] = y[0]
    if rng.random() < 0.15:
        shared = min(n, m)
        y[:shared] = x[:shared]
    a, b = np.ones(n), np.ones(m)
    if rng.random() < 0.5:
        a = rng.dirichlet(np.full(n, rng.choice([0.2, 1.0, 5.0])))
        b = rng.dirichlet(np.full(m, rng.choice([0.2, 1.0, 5.0])))
    if rng.random() < 0.25:
        if n > 1:
            a[rng.integers(0, n)] = 0
        if m > 1:
            b[rng.integers(0, m)] = 0
    # Numbers that float32 holds exactly, so that one reference serves both types.
    tensors = [torch.tensor(array).float().double() for array in (x, y, a / a.sum(), b / b.sum())]
    return Generated(seed, *tensors, COSTS[seed % len(COSTS)], 10 ** rng.uniform(-3, 3))


@dataclass(frozen=True)
class Reference:
    value: float
    marginal_error: float
    exact: float  # unregularised


def solve_by_pot(
    costs: Tensor,
    a: Tensor,
    b: Tensor,
    regularization: float,
    start: tuple[Tensor, Tensor] | None = None,
    iterations: int = 2000,
) -> Reference:
    """POT's log-domain Sinkhorn in float64, on the points that carry weight, and its exact solver."""
    rows, columns = a > 0, b > 0
    C, a_, b_ = (t.double().numpy() for t in (costs[rows][:, columns], a[rows], b[columns]))
    a_, b_ = a_ / a_.sum(), b_ / b_.sum()
    if start is not None:
        f, g = start[0][rows].numpy(), start[1][columns].numpy()
        start = (f / regularization + np.log(a_), g / regularization + np.log(b_))
    with np.errstate(all="ignore"):  # POT exponentiates its potentials for its log
        plan, log = pot.bregman.sinkhorn_log(
            a_,
            b_,
            C,
            regularization,
            numItermax=iterations,
            stopThr=1e-12,
            log=True,
            warn=False,
            warmstart=start,
        )
    value = regularization * ((log["log_u"] - np.log(a_)) @ a_ + (log["log_v"] - np.log(b_)) @ b_)
    error = np.abs(plan.sum(1) - a_).sum() + np.abs(plan.sum(0) - b_).sum()
    return Reference(float(value), float(error), float(pot.emd2(a_, b_, C)))


def relative_error(value: float, reference: float, costs: Tensor) -> float:
    """Relative to the reference, or to the largest cost where the reference is zero up to rounding."""
    if abs(reference) < 1e-12:
        return abs(value - reference) / max(float(costs.max()), 1.0)
    return abs(value - reference) / abs(reference)


def gaussian_entropic_cost(mean: float, s: float, t: float, regularization: float) -> float:
    """Entropic cost under |x - y|^2 of N(0, s^2) and N(mean, t^2), in closed form (Janati et al. 2020)."""
    half = regularization / 2
    root = math.sqrt(4 * s**2 * t**2 + half**2)
    return mean**2 + s**2 + t**2 - root + half * (1 - math.log(2 * half)) + half * math.log(root + half)


def exact_cost(costs: np.ndarray, a: np.ndarray, b: np.ndarray) -> float:
    """Unregularised transport as the linear program that it is, by HiGHS."""
    n, m = costs.shape
    rows = sparse.kron(sparse.eye_array(n), np.ones((1, m)))
    columns = sparse.kron(np.ones((1, n)), sparse.eye_array(m))
    sums = sparse.vstack([rows, columns]).tocsr()
    # The last equation follows from the others, up to rounding.
    return float(optimize.linprog(costs.ravel(), A_eq=sums[:-1], b_eq=np.concatenate([a, b])[:-1]).fun)
