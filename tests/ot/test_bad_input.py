"""Bad input ends in one ``ValueError`` that names the argument."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dpsinkhorn.ot import (
    L1L2,
    Cost,
    MatrixProblem,
    Problem,
    SinkhornLoss,
    SquaredEuclidean,
    empirical_loss,
    native,
    semi_debiased_loss,
    solve,
    transport_loss,
)


@pytest.fixture(autouse=True, params=[True, False], ids=["compiled", "torch"])
def _with_and_without_compiled_loops(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch):
    if not request.param:
        monkeypatch.setattr(native, "library", None)


NAN, INF = float("nan"), float("inf")
X, Y = torch.rand(4, 2), torch.rand(5, 2)


def with_entry(points: torch.Tensor, value: float) -> torch.Tensor:
    points = points.clone()
    points[1, 1] = value
    return points


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("x", {"x": with_entry(X, NAN)}),
        ("y", {"y": with_entry(Y, INF)}),
        ("x", {"x": torch.empty(0, 2)}),
        ("y", {"y": torch.empty(0, 2)}),
        ("x", {"x": torch.empty(4, 0), "y": torch.empty(5, 0)}),
        ("x", {"x": torch.rand(4)}),
        ("x", {"x": torch.rand(2, 2, 2, 2)}),
        ("x", {"x": [[0.0, 1.0]]}),
        ("x", {"x": torch.zeros(4, 2, dtype=torch.int64)}),
        ("x", {"x": torch.zeros(4, 2, dtype=torch.complex64)}),
        ("x and y", {"y": torch.rand(5, 3)}),
        ("x and y", {"y": torch.rand(5, 2, dtype=torch.float64)}),
        ("x and y", {"y": torch.rand(3, 5, 2)}),
        ("x and y", {"x": torch.rand(2, 4, 2), "y": torch.rand(3, 5, 2)}),
        ("a", {"a": torch.tensor([1.0, -1.0, 1.0, 1.0])}),
        ("a", {"a": torch.zeros(4)}),
        ("b", {"b": torch.zeros(5)}),
        ("b", {"b": torch.tensor([1.0, NAN, 1.0, 1.0, 1.0])}),
        ("b", {"b": torch.ones(4)}),
        ("a", {"a": [1.0, 1.0, 1.0, 1.0]}),
        ("x", {"x": np.zeros((4, 2), dtype=np.int64)}),
        ("x", {"x": np.array([["a", "b"]])}),
        ("x", {"x": np.zeros((4, 2), dtype=np.longdouble)}),
        ("x and y", {"x": np.zeros((4, 2))}),
        ("a", {"a": np.ones(5)}),
        ("x", {"x": torch.rand(0, 4, 2), "y": torch.rand(0, 5, 2)}),
        ("x", {"x": X.to_sparse()}),
        ("x", {"x": X.to("meta"), "y": Y.to("meta")}),
        ("x", {"x": np.ma.masked_array(X.numpy(), mask=X.numpy() < 0.5), "y": Y.numpy()}),
        ("a", {"a": np.ma.masked_array(np.ones(4), mask=[True, False, False, False])}),
        ("a", {"a": torch.ones(4).to_sparse()}),
        ("a", {"a": torch.ones(4, dtype=torch.complex64)}),
        ("cost", {"cost": "chebyshev"}),
        ("cost", {"cost": SquaredEuclidean}),
        ("cost", {"cost": L1L2(-1.0)}),
        ("cost", {"cost": L1L2("1")}),  # type: ignore[arg-type]
    ],
)
def test_problem(name: str, arguments: dict):
    with pytest.raises(ValueError, match=rf"^{name}: "):
        Problem(**{"x": X, "y": Y, **arguments})


@pytest.mark.parametrize(
    "matrix", [torch.empty(0, 3), torch.tensor([[NAN]]), torch.rand(3), torch.ones(2, 2).int()]
)
def test_matrix(matrix: torch.Tensor):
    with pytest.raises(ValueError, match=r"^matrix: "):
        MatrixProblem(matrix)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("regularization", {"regularization": 0.0, "marginals": 1.0}),
        ("regularization", {"regularization": -1.0}),
        ("regularization", {"regularization": NAN}),
        ("regularization", {"regularization": INF}),
        ("regularization", {"regularization": None}),
        ("regularization", {"regularization": "0.1"}),
        ("regularization", {"regularization": torch.tensor([0.1, 0.2])}),
        ("max_iterations", {"max_iterations": None}),
        ("tolerance", {"tolerance": "small"}),
        ("tolerance", {"tolerance": 0.0}),
        ("max_iterations", {"max_iterations": 0}),
        ("max_iterations", {"max_iterations": 2.5}),
        ("method", {"method": "magic"}),
        ("storage", {"storage": "cloud"}),
    ],
)
def test_solve(name: str, arguments: dict):
    with pytest.raises(ValueError, match=f"^{name}: "):
        solve(Problem(X, Y), **{"regularization": 1.0, **arguments})


def test_points_in_place_of_a_problem_are_named():
    with pytest.raises(ValueError, match=r"^problem: expected a Problem .*Tensor$"):
        solve(X, 0.1)  # type: ignore[arg-type]


def test_the_order_of_geomloss_is_named():
    weights = torch.ones(4), torch.ones(5)
    with pytest.raises(ValueError, match=r"^x: expected points, .* GeomLoss has loss\(a, x, b, y\)$"):
        SinkhornLoss(0.1)(weights[0], X, weights[1], Y)
    for loss in (transport_loss, empirical_loss, semi_debiased_loss):
        for order in ((weights[0], X, weights[1], Y), (X, Y, *weights)):
            for rest in ({}, {"regularization": 0.1}):
                with pytest.raises(TypeError, match=rf"^{loss.__name__}: expected \(x, y, reg.* a=, b=.*$"):
                    loss(*order, **rest)  # type: ignore[call-arg]


def test_costs_that_overflow_are_named():
    with pytest.raises(ValueError, match=r"^cost: .*float64"):
        solve(Problem(X * 1e30, -Y * 1e30), 1.0)


def test_losses_check_too():
    with pytest.raises(ValueError, match=r"^y: "):
        transport_loss(X, with_entry(Y, NAN), 1.0, cost=L1L2())


def test_a_regularization_that_underflows_beside_the_costs_is_named():
    with pytest.raises(ValueError, match=r"^regularization: .* too small"):
        solve(Problem(X.double() * 1e10, Y.double()), 1e-300)


@pytest.mark.parametrize(
    "call",
    [
        lambda cost: Problem(X, Y, cost),
        lambda cost: transport_loss(X, Y, 1.0, cost=cost),
        lambda cost: empirical_loss(X, Y, 1.0, cost=cost),
        lambda cost: SinkhornLoss(1.0, cost=cost),
    ],
)
def test_an_unknown_cost_is_named_with_the_known_ones(call):
    with pytest.raises(ValueError, match=r"^cost: ") as caught:
        call("chebyshev")
    assert str(caught.value) == (
        "cost: expected a Cost such as SquaredEuclidean(), Cityblock() or L1L2(), or one of their names "
        "(sqeuclidean, cityblock, l1l2, euclidean), got 'chebyshev'"
    )


class Mean(Cost):
    def pairwise(self, x, y):
        return torch.cdist(x, y).mean(-1)


class Transposed(Cost):
    def pairwise(self, x, y):
        return torch.cdist(x, y).mT


class Column(Cost):
    """Broadcasts where a matrix is filled by blocks."""

    def pairwise(self, x, y):
        return torch.cdist(x, y)[..., :1]


class Rounded(Cost):
    def pairwise(self, x, y):
        return torch.cdist(x, y).int()


class Half(Cost):
    def pairwise(self, x, y):
        return torch.cdist(x, y).half()


class Elsewhere(Cost):
    def pairwise(self, x, y):
        return torch.cdist(x, y).to("meta")


class AsArray(Cost):
    def pairwise(self, x, y):
        return torch.cdist(x, y).numpy()


class WrongWhenStreamed(Cost):
    def pairwise(self, x, y):
        return torch.cdist(x, y)

    def against(self, y):
        return lambda x: self.pairwise(x, y).mean(-1, keepdim=True)


class TestWhatPairwiseReturns:
    """Read by compiled loops as n * m numbers: of another shape it is read beyond its end."""

    @pytest.mark.parametrize("storage", ["dense", "streamed"])
    @pytest.mark.parametrize("symmetric", [True, False])
    @pytest.mark.parametrize("shape", [(512, 511), (150, 200), (200, 150)])
    @pytest.mark.parametrize("cost", [Mean, Transposed, Column, Rounded, Half, Elsewhere, AsArray])
    def test_is_checked(self, cost, shape, symmetric, storage):
        x, y = (torch.rand(count, 2, dtype=torch.float64) for count in shape)
        own = cost()
        own.symmetric = symmetric
        with pytest.raises(ValueError, match=rf"^cost: pairwise of {cost.__name__} must return [^\n]*$"):
            solve(Problem(x, y, own), 0.1, storage=storage)

    def test_the_words(self):
        with pytest.raises(ValueError, match=r"^cost: ") as caught:
            solve(Problem(X, Y, Mean()), 0.1)
        assert str(caught.value) == (
            "cost: pairwise of Mean must return a tensor of shape (4, 5), torch.float32 on cpu, "
            "for x of (4, 2) and y of (5, 2); got (4,), torch.float32 on cpu"
        )

    def test_of_batches(self):
        with pytest.raises(ValueError, match=r"^cost: pairwise of Mean .* \(3, 6, 5\), "):
            solve(Problem(torch.rand(3, 6, 2), torch.rand(3, 5, 2), Mean()), 0.1)

    def test_of_blocks(self):
        """Rows come through `against` where there is more than one block of them."""
        x = torch.rand(600, 2)
        with pytest.raises(ValueError, match=r"^cost: pairwise of WrongWhenStreamed "):
            solve(Problem(x, x, WrongWhenStreamed()), 0.1)

    def test_for_a_gradient_by_autograd(self):
        with pytest.raises(ValueError, match=r"^cost: pairwise of Column "):
            Column().gradient(X, Y, torch.rand(4, 5))

    def test_more_digits_than_the_points_have_are_welcome(self):
        class Exact(Cost):
            def pairwise(self, x, y):
                return torch.cdist(x.double(), y.double())

        x, y = torch.rand(300, 2), torch.rand(280, 2)
        for storage in ("dense", "streamed"):
            value = solve(Problem(x, y, Exact()), 0.1, storage=storage).value
            expected = solve(Problem(x.double(), y.double(), Exact()), 0.1).value
            torch.testing.assert_close(value, expected, rtol=1e-5, atol=0)

    def test_a_cost_with_parameters_of_its_own_is_solved(self):
        scale = torch.tensor(2.0, requires_grad=True)

        class Learnt(Cost):
            def pairwise(self, x, y):
                return torch.cdist(x, y) * scale

        result = solve(Problem(X, Y, Learnt()), 0.1)
        assert not any(found.requires_grad for found in (result.value, result.plan, result.value_linear))


def test_a_gradient_of_another_shape_is_named():
    class Flat(Cost):
        def pairwise(self, x, y):
            return torch.cdist(x, y)

        def gradient(self, x, _y, _plan):
            return torch.zeros(1, x.shape[-1], dtype=x.dtype)

    with pytest.raises(ValueError, match=r"^cost: a gradient of Flat must be of the points' shape \(4, 2\)"):
        solve(Problem(X, Y, Flat()), 0.1).gradients()


def test_a_gradient_that_is_not_finite_is_named():
    class Root(Cost):
        def pairwise(self, x, y):
            return (x.unsqueeze(-2) - y.unsqueeze(-3)).square().sum(-1).sqrt()

    loss = transport_loss(X.clone().requires_grad_(), Y, 0.1, cost=Root())
    assert torch.isfinite(loss)
    with pytest.raises(ValueError, match=r"^cost: the gradient of Root is not finite; .*sqrt at 0[^\n]*$"):
        transport_loss(X.clone().requires_grad_(), X, 0.1, cost=Root())
