"""What GeomLoss's own property tests hold to be true, written anew; test_known_answers.py has more laws."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from dpsinkhorn.ot import MatrixProblem, SinkhornResult, solve

common = settings(max_examples=20, deadline=None)
seeds, sizes, dims = st.integers(0, 10_000), st.integers(1, 10), st.integers(1, 10)
batches = st.integers(0, 2)  # 0: no batch
types = st.sampled_from([torch.float32, torch.float64])


def drawn(seed: int, *shape: int) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def lead(batch: int) -> tuple[int, ...]:
    return (batch,) if batch else ()


def check(found: SinkhornResult, plan: Tensor | None, value: Tensor, dtype: torch.dtype) -> None:
    assert found.converged.all()
    assert found.plan.dtype == dtype
    torch.testing.assert_close(found.value_linear.double(), value, rtol=0, atol=1e-2)
    if plan is not None:
        torch.testing.assert_close(found.plan.double(), plan, rtol=0, atol=1e-2)


@common
@given(seeds, batches, st.floats(1e-2, 10.0), types)
def test_diracs(seed: int, batch: int, regularization: float, dtype: torch.dtype):
    """One point on each side: its cost, all of the mass, and f + g = C, at any λ."""
    C = 200 * drawn(seed, *lead(batch), 1, 1) - 100
    found = solve(MatrixProblem(C.to(dtype)), regularization)
    check(found, torch.ones_like(C), C[..., 0, 0], dtype)
    torch.testing.assert_close(
        (found.f + found.g)[..., 0], C[..., 0, 0].to(dtype).double(), rtol=1e-6, atol=1e-6
    )


@common
@given(seeds, batches, sizes, st.sampled_from([0.0, 1e-4]), types)
def test_permutations_and_random_costs(
    seed: int, batch: int, n: int, regularization: float, dtype: torch.dtype
):
    """Equal weights: the assignment that SciPy finds."""
    C = 2 * drawn(seed, *lead(batch), n, n) - 1
    best = [linear_sum_assignment(each) for each in C.reshape(-1, n, n)]
    value = torch.stack([each[i, j].mean() for each, (i, j) in zip(C.reshape(-1, n, n), best, strict=True)])
    found = solve(MatrixProblem(C.to(dtype)), regularization, tolerance=1e-4)
    check(found, None, value.reshape(lead(batch)), dtype)


@common
@given(seeds, batches, sizes, dims, types)
def test_gradients_of_convex_functions(seed: int, batch: int, n: int, d: int, dtype: torch.dtype):
    """A gradient of a convex function, here of weighted distances to some places, is an optimal map."""
    x, places = torch.full((*lead(batch), n, d), 0.5, dtype=torch.float64), drawn(seed, *lead(batch), n, d)
    x[..., 0] = torch.arange(n) / n
    strength = 0.1 + 1.9 * drawn(seed + 1, *lead(batch), 1, n, 1)
    a = 0.01 + drawn(seed + 2, *lead(batch), n)
    away = x.unsqueeze(-2) - places.unsqueeze(-3)
    y = x + (strength * torch.nn.functional.normalize(away, dim=-1)).sum(-2)
    C = torch.cdist(x, y).square() / 2
    a = a / a.sum(-1, keepdim=True)
    found = solve(MatrixProblem(C.to(dtype), a, a), 1e-3, tolerance=1e-4)
    check(found, torch.diag_embed(a), (a * (x - y).square().sum(-1)).sum(-1) / 2, dtype)


@common
@given(
    seeds, batches, sizes, sizes, st.floats(1e-2, 10.0), st.none() | st.floats(1e-2, 10.0), st.floats(0.1, 10)
)
@example(seed=0, batch=0, n=8, m=8, regularization=0.25, rho=0.0625, unit=3.0)  # masses of 10^11
@example(seed=5, batch=0, n=8, m=8, regularization=0.0625, rho=0.0625, unit=3.0)  # of 10^21
def test_symmetry_and_units(
    seed: int, batch: int, n: int, m: int, regularization: float, rho: float | None, unit: float
):
    """OT(a, b) = OT(b, a), balanced and not; costs, λ and ρ times a number give values times it."""
    C = 20 * drawn(seed, *lead(batch), n, m) - 10
    a, b = 0.1 + drawn(seed + 1, *lead(batch), n), 0.1 + drawn(seed + 2, *lead(batch), m)
    forth = solve(MatrixProblem(C, a, b), regularization, marginals=rho)
    back = solve(MatrixProblem(C.mT, b, a), regularization, marginals=rho)
    scaled = solve(MatrixProblem(unit * C, a, b), unit * regularization, marginals=rho and unit * rho)
    torch.testing.assert_close(forth.plan, back.plan.mT, rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(forth.value, back.value, rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(unit * forth.value, scaled.value, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("sigma", [0.2, 0.5, 1.0])
@pytest.mark.parametrize("gamma", [0.1, 1.0, 10.0])
def test_unbalanced_gaussians(sigma: float, gamma: float):
    """Closed forms of Janati et al. (2020): mean of the plan, value from its mass alone (Eqs. 37 and 39)."""
    grid = torch.linspace(-3, 4, 281, dtype=torch.float64)
    (first, A), (second, B), masses = (0.2, 0.3**2), (0.9, 0.4**2), (1.3, 0.6)
    a, b = (torch.exp(-((grid - mean) ** 2) / (2 * v)) for mean, v in ((first, A), (second, B)))
    a, b = masses[0] * a / a.sum(), masses[1] * b / b.sum()
    found = solve(MatrixProblem((grid[:, None] - grid).square(), a, b), 2 * sigma**2, marginals=gamma)
    assert found.converged
    mass = found.plan.sum()
    expected = gamma * sum(masses) + 2 * sigma**2 * math.prod(masses) - 2 * (sigma**2 + gamma) * mass
    assert float(found.value) == pytest.approx(float(expected), rel=1e-7)
    X = A + B + sigma**2 + gamma / 2
    means = [float((found.plan.sum(1 - side) * grid).sum() / mass) for side in (0, 1)]
    shift = second - first
    np.testing.assert_allclose(means, [first + A / X * shift, second - B / X * shift], atol=2e-3)
