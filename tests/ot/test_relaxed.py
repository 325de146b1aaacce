"""Relaxed marginals: beside POT's unbalanced solver, closed forms and finite differences."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import ot as pot
from dpsinkhorn.ot import MatrixProblem, Problem, SinkhornLoss, newton, solve, transport_loss

INF = math.inf


def case(n: int = 9, m: int = 7, seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Two clouds, and weights that sum to 1.5 and 0.8 or so."""
    generator = torch.Generator().manual_seed(seed)
    x, y = (torch.randn(k, 2, generator=generator, dtype=torch.float64) for k in (n, m))
    a, b = (torch.rand(k, generator=generator, dtype=torch.float64) + 0.1 for k in (n, m))
    return x, y, 1.5 * a / a.sum(), 0.8 * b / b.sum()


def kl(p: Tensor, q: Tensor) -> Tensor:
    return (torch.xlogy(p, p / q) - p + q).sum()


def objective(
    P: Tensor, C: Tensor, a: Tensor, b: Tensor, regularization: float, rho: tuple[float, float]
) -> Tensor:
    value = (P * C).sum() + regularization * kl(P, a[:, None] * b)
    for penalty, marginal, weights in ((rho[0], P.sum(1), a), (rho[1], P.sum(0), b)):
        if 0 < penalty < INF:
            value = value + penalty * kl(marginal, weights)
    return value


@pytest.mark.parametrize("shape", [(9, 7), (5, 12), (8, 8)])
@pytest.mark.parametrize("regularization", [0.1, 20.0])
@pytest.mark.parametrize("rho", [(1.0, 1.0), (0.05, 3.0), (40.0, 0.2)])
def test_plan_and_value_beside_pot(shape: tuple[int, int], regularization: float, rho: tuple[float, float]):
    x, y, a, b = case(*shape)
    C = (x[:, None] - y).square().sum(-1)
    result = solve(Problem(x, y, a=a, b=b), regularization, marginals=rho)
    assert result.converged
    theirs = pot.unbalanced.sinkhorn_unbalanced(
        a,
        b,
        C,
        regularization,
        rho,
        method="sinkhorn",
        reg_type="kl",
        numItermax=10_000,
        stopThr=1e-13,
    )
    torch.testing.assert_close(result.plan, theirs, rtol=1e-5, atol=1e-8)
    torch.testing.assert_close(result.value, objective(result.plan, C, a, b, regularization, rho))  # no gap


@pytest.mark.parametrize("rho", [(1.0, INF), (INF, 0.3), (0.0, INF), (INF, 0.0), (0.0, 0.5), (0.0, 0.0)])
@pytest.mark.parametrize("shape", [(9, 7), (5, 12)])
@pytest.mark.parametrize("regularization", [0.02, 1.0])
def test_a_side_that_is_held_or_not_at_all(
    rho: tuple[float, float], shape: tuple[int, int], regularization: float
):
    x, y, a, b = case(*shape)
    C = (x[:, None] - y).square().sum(-1)
    result = solve(Problem(x, y, a=a, b=b), regularization, marginals=rho)
    assert result.converged
    P = result.plan
    for penalty, marginal, weights in ((rho[0], P.sum(1), a), (rho[1], P.sum(0), b)):
        if penalty == INF:
            torch.testing.assert_close(marginal, weights, rtol=0, atol=1e-8)
    torch.testing.assert_close(result.value, objective(P, C, a, b, regularization, rho))
    if rho == (0.0, 0.0):
        torch.testing.assert_close(P, a[:, None] * b * torch.exp(-C / regularization))
    if rho == (INF, 0.0):  # each row by itself
        rows = b * torch.exp(-C / regularization)
        torch.testing.assert_close(P, a[:, None] * rows / rows.sum(1, keepdim=True))


def test_strong_penalties_are_balanced_transport():
    x, y, _, _ = case(30, 20)
    balanced = solve(Problem(x, y), 0.1)
    strong = solve(Problem(x, y), 0.1, marginals=1e7)
    torch.testing.assert_close(strong.value, balanced.value, rtol=1e-6, atol=0)
    torch.testing.assert_close(strong.plan, balanced.plan, rtol=1e-4, atol=1e-9)
    infinite = solve(Problem(x, y), 0.1, marginals=(INF, INF))
    assert torch.equal(infinite.plan, balanced.plan)


@pytest.mark.parametrize("direct", [0, 350])
def test_small_regularizations_batches_and_conjugate_gradients(direct: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(newton, "_DIRECT_COLUMNS", direct)
    sides = [case(40, 30, seed) for seed in range(3)]
    x, y, a, b = (torch.stack(parts) for parts in zip(*sides, strict=True))
    together = solve(Problem(x, y, a=a, b=b), 1e-3, marginals=(0.5, 2.0), tolerance=1e-8)
    assert together.converged.all()
    for k, (x_k, y_k, a_k, b_k) in enumerate(sides):
        C = (x_k[:, None] - y_k).square().sum(-1)
        alone = solve(MatrixProblem(C, a_k, b_k), 1e-3, marginals=(0.5, 2.0), tolerance=1e-8)
        torch.testing.assert_close(together.value[k], alone.value, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("rho", [(1.0, 0.3), (INF, 0.5), (0.2, INF)])
@pytest.mark.parametrize("shape", [(5, 4), (4, 6)])
def test_gradients_by_finite_differences(rho: tuple[float, float], shape: tuple[int, int]):
    inputs = tuple(each.requires_grad_() for each in case(*shape))

    def loss(x: Tensor, y: Tensor, a: Tensor, b: Tensor) -> Tensor:
        return transport_loss(x, y, 0.3, a=a, b=b, marginals=rho, tolerance=1e-12)

    assert torch.autograd.gradcheck(loss, inputs, eps=1e-5, atol=1e-5)


def test_in_float32_and_in_the_loss():
    x, y, a, b = (each.float() for each in case(60, 50))
    precise = solve(Problem(x.double(), y.double(), a=a.double(), b=b.double()), 0.05, marginals=(1.0, 0.1))
    torch.testing.assert_close(
        solve(Problem(x, y, a=a, b=b), 0.05, marginals=(1.0, 0.1)).value, precise.value, rtol=1e-5, atol=0
    )
    points = x.clone().requires_grad_()
    loss = SinkhornLoss(0.05, marginals=(1.0, 0.1))(points, y)
    loss.backward()
    own = transport_loss(x, x, 0.05, marginals=1.0)
    torch.testing.assert_close(loss.detach(), 2 * transport_loss(x, y, 0.05, marginals=(1.0, 0.1)) - own)
    assert points.grad is not None
    assert torch.isfinite(points.grad).all()


@pytest.mark.parametrize("bad", [-1.0, (), (1.0, 2.0, 3.0), "1", (math.nan, 1.0), (None, 1.0)])
def test_bad_marginals_are_named(bad: object):
    with pytest.raises(ValueError, match=r"^marginals: expected a pair"):
        solve(Problem(*case()[:2]), 0.1, marginals=bad)  # type: ignore[arg-type]


def test_masses_beyond_all_bounds_are_named():
    problem = Problem(torch.rand(3, 2), torch.rand(2, 2), a=torch.full((3,), 1e308, dtype=torch.float64))
    with pytest.raises(ValueError, match=r"^weights: "):
        solve(problem, 0.1, marginals=1.0)
    assert solve(problem, 0.1).converged
