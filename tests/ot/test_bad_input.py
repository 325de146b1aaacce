"""Bad input ends in one ``ValueError`` that names the argument."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dpsinkhorn.ot import (
    L1L2,
    MatrixProblem,
    Problem,
    SinkhornLoss,
    SquaredEuclidean,
    empirical_loss,
    native,
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
        ("x", {"x": torch.zeros(4, 2, dtype=torch.float16)}),
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
        ("cost", {"cost": "euclidean"}),
        ("cost", {"cost": SquaredEuclidean}),
        ("cost", {"cost": lambda x, y: x @ y.mT}),
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
        ("regularization", {"regularization": 0.0}),
        ("regularization", {"regularization": -1.0}),
        ("regularization", {"regularization": NAN}),
        ("regularization", {"regularization": INF}),
        ("tolerance", {"tolerance": 0.0}),
        ("max_iterations", {"max_iterations": 0}),
        ("method", {"method": "magic"}),
        ("storage", {"storage": "cloud"}),
    ],
)
def test_solve(name: str, arguments: dict):
    with pytest.raises(ValueError, match=f"^{name}: "):
        solve(Problem(X, Y), **{"regularization": 1.0, **arguments})


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
        call("euclidean")
    assert str(caught.value) == (
        "cost: expected a Cost such as SquaredEuclidean(), Cityblock() or L1L2(), or one of their names "
        "(sqeuclidean, cityblock, l1l2), got 'euclidean'"
    )
