"""Losses against their definitions, and closed-form gradients against finite differences."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import numpy as np
import pytest
import torch
import torch.utils.checkpoint
from torch import Tensor

from dpsinkhorn.ot import (
    L1L2,
    Cityblock,
    ConvergenceWarning,
    Cost,
    Euclidean,
    MatrixProblem,
    Problem,
    SinkhornLoss,
    SquaredEuclidean,
    debiased_loss,
    empirical_loss,
    matrix_loss,
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
@pytest.mark.parametrize("cost", [SquaredEuclidean(), Euclidean(), Cityblock(), L1L2(2.0)], ids=str)
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

    theirs = geomloss.SamplesLoss("sinkhorn", p=1, blur=0.8, scaling=0.9995, backend="tensorized")(x, y)
    assert empirical_loss(x, y, 0.8, cost="euclidean").item() == pytest.approx(2 * theirs.item(), rel=1e-4)

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


def weights_of(n: int, seed: int = 0) -> Tensor:
    return torch.rand(n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + 0.1


class TestSecondDerivatives:
    """Where they are not to be had they never count as zero."""

    LOSSES: ClassVar = {
        "transport": lambda x, y: transport_loss(x, y, 0.1),
        "empirical": lambda x, y: empirical_loss(x, y, 0.1),
        "module": lambda x, y: SinkhornLoss(0.1)(x, y),
    }

    @pytest.mark.parametrize("name", LOSSES)
    def test_by_finite_differences(self, name: str):
        x, y = draw(6).requires_grad_(), draw(5, seed=1)
        assert torch.autograd.gradgradcheck(lambda points: self.LOSSES[name](points, y), x, atol=1e-4)

    @pytest.mark.parametrize("cost", ["euclidean", "l1l2", "cityblock", torch.cdist])
    def test_of_every_cost(self, cost: object):
        x, y = (
            torch.stack([draw(n, seed=k) for k in seeds]).requires_grad_()
            for n, seeds in ((5, (0, 1)), (4, (2, 3)))
        )
        b = torch.tensor([0.1, 0.4, 0.0, 0.5]).double()
        if cost is torch.cdist:
            cost = lambda x, y: (x.unsqueeze(-2) - y.unsqueeze(-3) + 0.1).square().sum(-1)  # noqa: E731

        def loss(x: Tensor, y: Tensor) -> Tensor:
            return transport_loss(x, y, 0.7, cost=cost, b=b, tolerance=1e-12)

        assert torch.autograd.gradgradcheck(loss, (x, y), atol=1e-5)

    def test_what_has_none_says_so(self):
        x, y, a = draw(6).requires_grad_(), draw(5, seed=1), torch.rand(6).double().requires_grad_()
        for loss in (transport_loss(x, y, 0.1, marginals=1.0), transport_loss(x, y, 0.1, a=a)):
            with pytest.raises(NotImplementedError, match=r"^second derivatives are those of balanced"):
                torch.autograd.grad(loss, x, create_graph=True)
        (first,) = torch.autograd.grad(transport_loss(x, y, 0.1), x, create_graph=True)
        (second,) = torch.autograd.grad(first.square().sum(), x, create_graph=True)
        with pytest.raises(NotImplementedError, match="first and second derivatives only"):
            second.sum().backward()

    def test_of_a_cost_matrix(self):
        matrix = torch.rand(2, 5, 4).double().requires_grad_()
        b = torch.tensor([0.1, 0.2, 0.3, 0.4])

        def loss(matrix: Tensor) -> Tensor:
            return matrix_loss(matrix, 0.3, b=b, tolerance=1e-12)

        assert torch.autograd.gradcheck(loss, matrix)
        assert torch.autograd.gradgradcheck(loss, matrix, atol=1e-5)
        (gradient,) = torch.autograd.grad(loss(matrix).sum(), matrix)
        torch.testing.assert_close(gradient, solve(MatrixProblem(matrix, b=b), 0.3).plan)

    def test_by_torch_func(self):
        x, y, many = draw(6), draw(5, seed=1), torch.stack([draw(6, seed=k) for k in range(3)])

        def loss(points: Tensor) -> Tensor:
            return transport_loss(points, y, 1.0)

        grad, vmap, jacrev = torch.func.grad, torch.func.vmap, torch.func.jacrev
        leaf = x.clone().requires_grad_()
        torch.testing.assert_close(grad(loss)(x), *torch.autograd.grad(loss(leaf), leaf))
        torch.testing.assert_close(vmap(loss)(many), torch.stack([loss(points) for points in many]))
        each = torch.stack([grad(loss)(points) for points in many])
        torch.testing.assert_close(vmap(grad(loss))(many), each)
        torch.testing.assert_close(grad(lambda points: vmap(loss)(points).sum())(many), each)
        torch.testing.assert_close(jacrev(grad(loss))(x), torch.autograd.functional.hessian(loss, x))

    @pytest.mark.parametrize("name", LOSSES)
    def test_first_ones_need_nothing_special(self, name: str):
        loss = self.LOSSES[name]
        x, y = draw(6).requires_grad_(), draw(5, seed=1)
        (expected,) = torch.autograd.grad(loss(x, y), x)
        with torch.enable_grad():
            loss(x, y).backward()
        assert x.grad is not None
        assert torch.equal(x.grad, expected)
        value = loss(x, y)
        for times in (2, 3):
            value.backward(retain_graph=True)
            torch.testing.assert_close(x.grad, times * expected)
        torch.testing.assert_close(torch.autograd.functional.jacobian(lambda z: loss(z, y), x), expected)
        again = torch.utils.checkpoint.checkpoint(loss, x, y, use_reentrant=False)
        torch.testing.assert_close(torch.autograd.grad(again, x)[0], expected)

    def test_within_a_network_and_its_hooks(self):
        """As data-parallel training has it: gradients are taken from hooks as they come about."""
        network, y, seen = torch.nn.Linear(3, 3).double(), draw(5, seed=1), []
        hooks = [
            parameter.register_post_accumulate_grad_hook(seen.append) for parameter in network.parameters()
        ]
        SinkhornLoss(0.1)(network(draw(6)), y).backward()
        assert len(seen) == len(hooks)
        assert all(torch.isfinite(parameter.grad).all() for parameter in network.parameters())


class TestWeights:
    @pytest.mark.parametrize("cost", [SquaredEuclidean(), Cityblock()], ids=str)
    @pytest.mark.parametrize("regularization", [0.05, 1.0])
    @pytest.mark.parametrize("shape", [(8, 5), (5, 8)])
    def test_gradients_equal_finite_differences(self, shape, regularization: float, cost: Cost):
        x, y = draw(shape[0]), draw(shape[1], seed=1)
        a, b = weights_of(shape[0]).requires_grad_(), weights_of(shape[1], seed=1).requires_grad_()

        def loss(a: Tensor, b: Tensor) -> Tensor:
            return transport_loss(x, y, regularization, cost=cost, a=a, b=b, tolerance=1e-12)

        gradients = torch.autograd.grad(loss(a, b), (a, b))
        with torch.no_grad():
            numeric = (
                finite_differences(lambda weights: loss(weights, b), a),
                finite_differences(lambda weights: loss(a, weights), b),
            )
        for closed, expected in zip(gradients, numeric, strict=True):
            assert (closed - expected).norm() <= 1e-5 * expected.norm()

    @pytest.mark.parametrize("name", ["empirical", "semi-debiased", "debiased"])
    def test_of_sums_of_terms(self, name: str):
        x, y, b = draw(10), draw(6, seed=1), weights_of(6, seed=1)
        losses: dict[str, Callable[[Tensor], Tensor]] = {
            "empirical": lambda a: empirical_loss(x, y, 0.2, a=a, b=b),
            "semi-debiased": lambda a: semi_debiased_loss(x, y, 0.2, debias=0.25, a=a, b=b),
            "debiased": lambda a: debiased_loss(x, y, x + 1, y, 0.2, a=a, b=b, a_again=a.square(), b_again=b),
        }
        a = weights_of(10).requires_grad_()
        (closed,) = torch.autograd.grad(losses[name](a), a)
        with torch.no_grad():
            numeric = finite_differences(losses[name], a)
        assert (closed - numeric).norm() <= 1e-5 * numeric.norm()

    def test_a_weight_of_zero_has_a_derivative_upwards(self):
        x, y = draw(7), draw(6, seed=1)
        a, b = weights_of(7), weights_of(6, seed=1)
        a[2], b[4] = 0.0, 0.0

        def loss(a: Tensor, b: Tensor) -> Tensor:
            return transport_loss(x, y, 0.3, a=a, b=b, tolerance=1e-12)

        in_a, in_b = torch.autograd.grad(loss(a.requires_grad_(), b.requires_grad_()), (a, b))
        with torch.no_grad():
            step_a, step_b = torch.zeros(7).double(), torch.zeros(6).double()
            step_a[2] = step_b[4] = 1e-6
            up_a = (loss(a + step_a, b) - loss(a, b)) / 1e-6
            up_b = (loss(a, b + step_b) - loss(a, b)) / 1e-6
        torch.testing.assert_close(in_a[2], up_a, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(in_b[4], up_b, rtol=1e-4, atol=1e-5)

    def test_shared_by_a_batch_and_in_a_type_of_their_own(self):
        x, y = torch.stack([draw(6), draw(6, seed=2)]).float(), torch.stack([draw(5, seed=1)] * 2).float()
        shared = weights_of(6).requires_grad_()
        single = shared.detach().clone().requires_grad_()
        scale = torch.tensor([1.0, -2.0])
        (together,) = torch.autograd.grad(transport_loss(x, y, 0.3, a=shared) @ scale, shared)
        alone = [transport_loss(x[k], y[k], 0.3, a=single) * scale[k] for k in range(2)]
        (expected,) = torch.autograd.grad(alone[0] + alone[1], single)
        assert together.dtype == torch.float64
        torch.testing.assert_close(together, expected, rtol=1e-4, atol=1e-5)
        each = shared.detach().expand(2, 6).clone().requires_grad_()
        (apart,) = torch.autograd.grad(transport_loss(x, y, 0.3, a=each) @ scale, each)
        torch.testing.assert_close(apart.sum(0), together)

    def test_are_those_of_their_points_in_every_term(self):
        x, y, x_again, y_again = draw(9), draw(7, seed=1), draw(4, seed=2), draw(5, seed=3)
        a, b, a_again, b_again = (weights_of(len(points)) for points in (x, y, x_again, y_again))

        def w(x: Tensor, y: Tensor, a: Tensor, b: Tensor) -> Tensor:
            return solve(Problem(x, y, a=a, b=b), 0.1).value

        cross = 2 * w(x, y, a, b)
        torch.testing.assert_close(SinkhornLoss(0.1)(x, y, a, b), cross - w(x, x, a, a))
        torch.testing.assert_close(SinkhornLoss(0.1)(x, y, b=b.numpy(), a=a.numpy()), cross - w(x, x, a, a))
        torch.testing.assert_close(
            semi_debiased_loss(x, y, 0.1, debias=0.5, a=a, b=b),
            2 * w(x[:6], y, a[:6], b) - w(x[:6], x[3:], a[:6], a[3:]),
        )
        torch.testing.assert_close(
            debiased_loss(x, y, x_again, y_again, 0.1, a=a, b=b, a_again=a_again, b_again=b_again),
            cross - w(x, x_again, a, a_again) - w(y, y_again, b, b_again),
        )

    def test_that_fit_no_cloud_are_refused(self):
        x, y = draw(6), draw(6, seed=1)
        with pytest.raises(ValueError, match=r"^a and a_again: expected weights of both batches"):
            debiased_loss(x, y, x, y, 0.1, a=weights_of(6))
        with pytest.raises(ValueError, match=r"^b and b_again: expected weights of both batches"):
            debiased_loss(x, y, x, y, 0.1, b_again=weights_of(6))
        for wrong in (weights_of(4), weights_of(8), [1.0] * 6):
            with pytest.raises(ValueError, match=r"^a: expected a tensor of 6 weights"):
                semi_debiased_loss(x, y, 0.1, debias=0.5, a=wrong)  # type: ignore[arg-type]


class TestModuleSettings:
    """What is wrong whatever the points are is refused when the module is made."""

    @pytest.mark.parametrize("name", ["a", "b"])
    def test_weights_go_to_the_call(self, name: str):
        with pytest.raises(TypeError, match=rf"^{name}: weights belong to the points: give them to the call"):
            SinkhornLoss(0.1, **{name: weights_of(3)})

    def test_unknown(self):
        with pytest.raises(TypeError, match=r"^blur: no option of SinkhornLoss; there are tolerance, "):
            SinkhornLoss(0.1, blur=3)

    @pytest.mark.parametrize(
        ("name", "settings"),
        [
            ("regularization", {"regularization": -0.1}),
            ("regularization", {"regularization": float("nan")}),
            ("tolerance", {"tolerance": 0.0}),
            ("max_iterations", {"max_iterations": 0}),
            ("method", {"method": "magic"}),
            ("storage", {"storage": "cloud"}),
        ],
    )
    def test_out_of_range(self, name: str, settings: dict):
        with pytest.raises(ValueError, match=f"^{name}: "):
            SinkhornLoss(**{"regularization": 0.1, **settings})

    def test_good_ones_are_used(self):
        with pytest.warns(ConvergenceWarning, match="tolerance 3.0e-11"):
            SinkhornLoss(0.1, tolerance=3e-11, max_iterations=2)(draw(5), draw(4, seed=1))
        streamed = SinkhornLoss(1.0, method="sinkhorn", storage="streamed")(draw(5), draw(4, seed=1))
        torch.testing.assert_close(streamed, SinkhornLoss(1.0)(draw(5), draw(4, seed=1)))


def test_the_value_of_a_solve_is_detached():
    x, a = draw(5).requires_grad_(), weights_of(5).requires_grad_()
    result = solve(Problem(x, draw(4), a=a), 0.3)
    assert not any(found.requires_grad for found in (result.value, result.f, result.g, result.plan))
