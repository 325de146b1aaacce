"""Losses against their definitions, and closed-form gradients against finite differences."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from dpsinkhorn.ot import (
    L1L2,
    Cityblock,
    Cost,
    MatrixProblem,
    Problem,
    SinkhornLoss,
    SquaredEuclidean,
    debiased_loss,
    empirical_loss,
    semi_debiased_loss,
    solve,
    transport_loss,
    with_labels,
)
from dpsinkhorn.ot.divergence import count_resampled, split_generated

LOSSES: dict[str, Callable[[Tensor, Tensor, float, Cost], Tensor]] = {
    "transport": lambda x, y, r, c: transport_loss(x, y, r, cost=c),
    "empirical": lambda x, y, r, c: empirical_loss(x, y, r, cost=c),
    "debiased": lambda x, y, r, c: debiased_loss(x[:7], y[:5], x[7:14], y[5:], r, cost=c),
    "semi-debiased 0": lambda x, y, r, c: semi_debiased_loss(x, y, r, debias=0.0, cost=c),
    "semi-debiased 0.4": lambda x, y, r, c: semi_debiased_loss(x, y, r, debias=0.4, cost=c),
    "semi-debiased 1": lambda x, y, r, c: semi_debiased_loss(x, y, r, debias=1.0, cost=c),
}


def draw(n: int, d: int = 3, seed: int = 0) -> Tensor:
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def finite_differences(function: Callable[[Tensor], Tensor], at: Tensor, step: float = 1e-4) -> Tensor:
    """Central differences of fourth order."""
    gradient = torch.zeros_like(at)
    for index in range(at.numel()):
        unit = torch.zeros_like(at).view(-1)
        unit[index] = step
        unit = unit.view_as(at)
        near = function(at + unit) - function(at - unit)
        far = function(at + 2 * unit) - function(at - 2 * unit)
        gradient.view(-1)[index] = (8 * near - far) / (12 * step)
    return gradient


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("cost", [SquaredEuclidean(), Cityblock(), L1L2(2.0)], ids=str)
@pytest.mark.parametrize("regularization", [0.05, 1.0, 20.0])
def test_gradients_equal_finite_differences(name: str, cost: Cost, regularization: float):
    loss = LOSSES[name]
    x, y = draw(14).requires_grad_(), draw(10, seed=1).requires_grad_()
    gradients = torch.autograd.grad(loss(x, y, regularization, cost), (x, y))
    with torch.no_grad():
        numeric_x = finite_differences(lambda points: loss(points, y, regularization, cost), x)
        numeric_y = finite_differences(lambda points: loss(x, points, regularization, cost), y)
    for closed, numeric in zip(gradients, (numeric_x, numeric_y), strict=True):
        assert (closed - numeric).norm() <= 1e-5 * numeric.norm()


def test_empirical_loss_is_zero_at_equal_clouds_and_has_no_gradient_there():
    x = draw(9).requires_grad_()
    loss = empirical_loss(x, x.detach(), 0.3)
    loss.backward()
    assert abs(loss.item()) < 1e-9
    assert x.grad is not None
    assert x.grad.norm() < 1e-6


def test_fractions_zero_and_one_are_equations_4_and_5():
    x, y = draw(12), draw(8, seed=1)
    own_y = transport_loss(y, y, 0.2)
    torch.testing.assert_close(semi_debiased_loss(x, y, 0.2, debias=0.0) - own_y, empirical_loss(x, y, 0.2))
    y_again = draw(8, seed=2)
    own_y = transport_loss(y, y_again, 0.2)
    debiased = debiased_loss(x[:6], y, x[6:], y_again, 0.2)
    torch.testing.assert_close(semi_debiased_loss(x, y, 0.2, debias=1.0) - own_y, debiased)


def test_semi_debiased_gradient_row_by_row():
    """Row i < n: 2 ∇₁W(A, Y) - ∇₁W(A, B) - [i >= n'] ∇₂W(A, B); row i >= n: -∇₂W(A, B)."""
    n, extra = 10, 4
    x, y = draw(14).requires_grad_(), draw(9, seed=1)
    semi_debiased_loss(x, y, 0.2, debias=0.4).backward()
    points = x.detach()
    cross, _ = solve(Problem(points[:n], y), 0.2).gradients()
    first, second = solve(Problem(points[:n], points[extra : n + extra]), 0.2).gradients()
    assert cross is not None
    expected = torch.zeros_like(points)
    expected[:n] += 2 * cross - first
    expected[extra:] -= second
    torch.testing.assert_close(x.grad, expected)


def test_weights_and_batches():
    x, y = (
        torch.stack([draw(6), draw(6, seed=2)]).requires_grad_(),
        torch.stack([draw(5, seed=1), draw(5, seed=3)]),
    )
    a, b = torch.rand(6, dtype=torch.float64), torch.rand(5, dtype=torch.float64)
    together = empirical_loss(x, y, 0.3, a=a, b=b)
    assert together.shape == (2,)
    alone = torch.stack([empirical_loss(x[k], y[k], 0.3, a=a, b=b) for k in range(2)])
    torch.testing.assert_close(together, alone, rtol=1e-7, atol=1e-9)
    weights = torch.tensor([1.0, -2.0], dtype=torch.float64)
    (grad_together,) = torch.autograd.grad(together @ weights, x)
    (grad_alone,) = torch.autograd.grad(alone @ weights, x)
    torch.testing.assert_close(grad_together, grad_alone, rtol=1e-5, atol=1e-7)


def test_streamed_loss_and_gradient_equal_the_dense_ones():
    x, y = draw(30).requires_grad_(), draw(40, seed=1)
    losses = [transport_loss(x, y, 0.1, cost=L1L2(1.0), storage=storage) for storage in ("dense", "streamed")]
    gradients = [torch.autograd.grad(loss, x)[0] for loss in losses]
    torch.testing.assert_close(*losses)
    torch.testing.assert_close(*gradients)


def test_only_what_requires_it_gets_a_gradient():
    x, y = draw(5).requires_grad_(), draw(5, seed=1)
    loss = transport_loss(x, y, 0.3)
    loss.backward()
    assert y.grad is None
    assert transport_loss(x.detach(), y, 0.3).requires_grad is False


def test_module_trains_a_generator_towards_the_data():
    """A cloud moved by the loss alone lands on the data; labels keep the classes apart."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(40) % 2
    data = torch.randn(40, 2, generator=generator) * 0.1 + labels[:, None] * 4.0
    points = torch.randn(40, 2, generator=generator).requires_grad_()
    loss = SinkhornLoss(regularization=0.05, debias=0.0)
    optimizer = torch.optim.SGD([points], lr=5.0)
    for _ in range(60):
        optimizer.zero_grad()
        loss(with_labels(points, labels, 2), with_labels(data, labels, 2)).backward()
        optimizer.step()
    for label in range(2):
        assert (points[labels == label].mean(0) - data[labels == label].mean(0)).norm() < 0.05
    assert (points.std(0) - data.std(0)).norm() < 0.1
    assert "debias=0.0" in repr(loss)


@pytest.mark.parametrize("debias", [0.0, 0.2, 0.29, 0.4, 0.5, 1.0])
def test_split_inverts_the_count(debias: float):
    for generated in range(1, 300):
        total = generated + count_resampled(generated, debias)
        assert split_generated(total, debias) == (generated, total - generated)


def test_a_number_of_points_that_cannot_be_split_is_explained():
    with pytest.raises(ValueError, match=r"x: 7 generated points cannot be split with debias 1.0; give 8"):
        semi_debiased_loss(draw(7), draw(5), 0.1, debias=1.0)
    with pytest.raises(ValueError, match="debias"):
        SinkhornLoss(0.1, debias=1.5)


def test_float32_loss_has_the_points_type():
    x, y = draw(5).float().requires_grad_(), draw(5, seed=1).float()
    loss = transport_loss(x, y, 0.3)
    loss.backward()
    assert loss.dtype == torch.float32
    assert x.grad is not None
    assert x.grad.dtype == torch.float32


def test_the_docstring_of_the_module_about_other_libraries():
    """SinkhornLoss at debias 0, GeomLoss's divergence and POT's <C, P>, as its docstring relates them."""
    import ot as pot

    geomloss = pytest.importorskip("geomloss")
    x, y, regularization = draw(12).requires_grad_(), draw(9, seed=1) + 1, 0.8
    theirs = geomloss.SamplesLoss(
        "sinkhorn", p=2, blur=(regularization / 2) ** 0.5, scaling=0.9995, backend="tensorized"
    )(x, y)
    (their_gradient,) = torch.autograd.grad(4 * theirs, x)
    both = empirical_loss(x, y, regularization).item()
    assert both == pytest.approx(4 * theirs.item(), rel=1e-4)
    alone = SinkhornLoss(regularization)(x, y)
    assert alone.item() == pytest.approx(both + transport_loss(y, y, regularization).item(), rel=1e-9)
    (gradient,) = torch.autograd.grad(alone, x)
    # Theirs stops after a fixed number of steps, closer to the solution the nearer `scaling` is to 1.
    assert float((gradient - their_gradient).abs().max()) < 3e-3 * float(gradient.abs().max())

    found = solve(Problem(x, y), regularization)
    costs = SquaredEuclidean().pairwise(x.detach(), y).numpy()
    linear = pot.sinkhorn2([], [], costs, regularization, stopThr=1e-12, numItermax=10_000)
    assert float(found.value_linear) == pytest.approx(float(linear), rel=1e-7)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_numpy_arrays_are_points_of_their_own_type(dtype: str):
    x, y, a = draw(6).numpy().astype(dtype), draw(5, seed=1).numpy().astype(dtype), np.arange(1.0, 7.0)
    expected = solve(Problem(torch.from_numpy(x), torch.from_numpy(y), a=torch.from_numpy(a)), 0.5)
    problem = Problem(x, y, a=a)
    assert problem.x.dtype == getattr(torch, dtype)
    assert float(solve(problem, 0.5).value) == float(expected.value)
    loss = transport_loss(x, y, 0.5, a=a)
    assert (loss.dtype, float(loss)) == (problem.x.dtype, pytest.approx(float(expected.value)))
    turned = Problem(x[::-1], y.astype(f">{np.dtype(dtype).str[1:]}"), a=a[::-1])  # strides and byte order
    assert float(solve(turned, 0.5).value) == pytest.approx(float(expected.value), rel=1e-6)
    costs = SquaredEuclidean().pairwise(problem.x, problem.y).numpy()
    assert float(solve(MatrixProblem(costs, a), 0.5).value) == pytest.approx(float(expected.value), rel=1e-6)


def test_a_problem_keeps_its_points_when_the_array_changes():
    x, y = draw(4).numpy(), draw(4, seed=1).numpy()
    x.flags.writeable = False
    problem = Problem(x, y)
    before = float(solve(problem, 0.5).value)
    y[:] = 9.0
    assert float(solve(problem, 0.5).value) == before
