"""The compiled loops beside PyTorch: the same problems, the same answers, step by step and at the end."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from dpsinkhorn.ot import (
    L1L2,
    Cityblock,
    ConvergenceWarning,
    Cost,
    Problem,
    SquaredEuclidean,
    compiled,
    native,
    solve,
    transport_loss,
)
from dpsinkhorn.ot.costs import PixelCost
from dpsinkhorn.ot.iterate import TorchIterate
from dpsinkhorn.ot.native import small
from dpsinkhorn.ot.native.iterates import NativeIterate, ScalingIterate
from dpsinkhorn.ot.semidual import SemiDual
from support.problems import generate

needs_library = pytest.mark.skipif(native.library is None, reason="needs the compiled loops")
COSTS = [L1L2(1.0), L1L2(0.3), Cityblock(), SquaredEuclidean()]


@pytest.fixture(params=[2, 1, 0], ids=["AVX-512", "AVX2", "plain instructions"])
def library(request: pytest.FixtureRequest) -> Iterator[native.Library]:
    """The library, with the CPU's best instructions and without."""
    path = native.find()
    assert path is not None
    yield native.Library(path, request.param)
    native.Library(path)


def draw(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "library", None)


def small_dual(problem: Problem) -> tuple[SemiDual, Tensor]:
    _, n, m = problem.shape
    dual = SemiDual(problem, stored=True, work=torch.float64, kernel_limit=n * m)
    assert dual.small_costs is not None
    return dual, dual.small_costs


@needs_library
@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("first", range(0, 120, 40))
def test_solutions_agree_on_generated_problems(first: int, monkeypatch: pytest.MonkeyPatch):
    for seed in range(first, first + 40):
        case = generate(seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            fast = solve(case.problem(), case.regularization)
            with monkeypatch.context() as patch:
                without(patch)
                slow = solve(case.problem(), case.regularization)
                plan = slow.plan
        errors = [float(found.marginal_error) for found in (fast, slow)]
        assert fast.converged == slow.converged or max(errors) < 3e-9, case  # either side of the tolerance
        scale = max(abs(float(slow.value)), 1e-12)
        assert abs(float(fast.value - slow.value)) <= 1e-10 * scale, case
        if slow.converged:
            torch.testing.assert_close(fast.plan, plan, rtol=0, atol=1e-8)
            potentials = fast.f[:, None] + fast.g, slow.f[:, None] + slow.g
            busy = plan > 1e-4  # elsewhere the potentials need not be unique
            bound = 1e-6 * scale + 2e-5 * case.regularization
            torch.testing.assert_close(*(p[busy] for p in potentials), rtol=1e-8, atol=bound)


@needs_library
@pytest.mark.parametrize("seed", range(60))
def test_each_step_agrees(seed: int, library: native.Library):
    """Sinkhorn's steps, columns left out and back in, then Newton's, from the same point."""
    case = generate(seed)
    dual, costs = small_dual(case.problem())
    size = float(costs.abs().max()) + case.regularization
    fast, slow = NativeIterate(library, dual, costs), TorchIterate(dual)
    for weight in (1e-2 / dual.columns, 1e-9):
        for iterate in (fast, slow):
            iterate.leave_out(weight)
        steps = [0.0]
        for _ in range(4):
            outcomes = [iterate.evaluate(steps, case.regularization) for iterate in (fast, slow)]
            (((value,), (error,)), ((expected_value,), (expected_error,))) = outcomes
            assert value == pytest.approx(expected_value, rel=1e-10, abs=1e-10 * size)
            assert error == pytest.approx(expected_error, rel=1e-8, abs=1e-10)
            torch.testing.assert_close(fast.residual, slow.residual, rtol=1e-8, atol=1e-10)
            slopes = []
            for iterate in (fast, slow):
                iterate.keep([True])
                slopes += iterate.sinkhorn([False])
            torch.testing.assert_close(fast.f, slow.f, rtol=1e-10, atol=1e-10 * size)
            assert slopes[0] == pytest.approx(slopes[1], rel=1e-6, abs=1e-10)
            assert fast.lengths() == pytest.approx(slow.lengths(), rel=1e-6, abs=1e-9)
            for iterate in (fast, slow):
                iterate.turn([0.5 * case.regularization], [True])
            steps = [0.5]
        for iterate in (fast, slow):
            iterate.extend(case.regularization)
        torch.testing.assert_close(fast.g, slow.g, rtol=1e-9, atol=1e-9 * size)

    for iterate in (fast, slow):
        iterate.evaluate([0.0], case.regularization)
    (slope,), (solved,) = fast.newton([1e-6], 0.0)
    (expected_slope,), (expected_solved,) = slow.newton([1e-6], 0.0)
    assert solved == expected_solved
    if solved:
        assert slope == pytest.approx(expected_slope, rel=1e-5, abs=1e-12)
        system = slow._point.curvature.matrix(1e-6)
        left = system @ (fast.proposal - slow.proposal)  # zero up to the rounding of a solution
        bound = 1e-10 * (system.abs() @ slow.proposal.abs()).max() + 1e-12
        assert left.abs().max() <= bound


@needs_library
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(40, 30), (33, 33), (70, 1), (5, 3)])
def test_points_and_systems_agree_in_the_kernel_domain(
    shape: tuple[int, int], dtype: torch.dtype, library: native.Library
):
    """Near the point that the kernel was formed around, far from it, at another λ; and Newton's direction."""
    n, m = shape
    x, y = draw(n, 3, dtype=dtype), draw(m, 3, seed=1, dtype=dtype)
    a, b = draw(n, seed=2).exp(), draw(m, seed=3).exp()
    b[0] = 0 if m > 1 else 1
    dual = SemiDual(Problem(x, y, a=a, b=b), stored=True, work=dtype, kernel_limit=n * m)
    assert dual.stored_costs is not None
    fast, slow = ScalingIterate(library, dual, dual.stored_costs, lambda: slow), TorchIterate(dual)
    slow.leave_out(0.0)
    rounding = 1e-5 if dtype == torch.float32 else 1e-11
    for regularization, size in ((1.0, 0.1), (1.0, 3.0), (1.0, 1e3), (0.1, 0.1), (5.0, 0.0)):
        g = size * draw(m, seed=4)
        for iterate in (fast, slow):
            iterate.stand(g)
        found, expected = (iterate.evaluate([0.0], regularization) for iterate in (fast, slow))
        assert found[0] == pytest.approx(expected[0], rel=rounding, abs=rounding)
        assert found[1] == pytest.approx(expected[1], abs=rounding)
        for iterate in (fast, slow):
            iterate.keep([True])
        torch.testing.assert_close(fast.f, slow.f, rtol=rounding, atol=rounding)
    (slope,), (solved,) = fast.newton([1e-3], 0.0)
    assert solved
    assert slope == pytest.approx(slow.newton([1e-3], 0.0)[0][0], rel=1e-3, abs=1e-9)


@needs_library
@pytest.mark.usefixtures("library")
def test_steps_that_leave_the_range_go_on_around_a_new_kernel():
    x, y = draw(30, 2, dtype=torch.float32), draw(20, 2, seed=1, dtype=torch.float32) + 40
    b = torch.logspace(0, -30, 20, dtype=torch.float64)
    found = solve(Problem(x, y, b=b), 2.0)
    assert found.converged
    torch.testing.assert_close(found.value, solve(Problem(x.double(), y.double(), b=b), 2.0).value)


@needs_library
@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("cost", COSTS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "shape", [(1, 1, 1), (3, 5, 2), (9, 6, 17), (2, 7, 300), (5, 4, 1000), (13, 11, 794)]
)
def test_costs_and_gradients_by_definition(cost: Cost, dtype: torch.dtype, shape: tuple[int, int, int]):
    n, m, d = shape
    x, y = draw(n, d, dtype=dtype), draw(m, d, seed=1, dtype=dtype)
    y[: n // 2, : d // 2] = x[: min(m, n // 2), : d // 2]  # differences of zero
    difference = x.double()[:, None] - y.double()
    weights = {"l1": getattr(cost, "l1_weight", 1.0), "l2": 1.0}
    weights["l1"] *= not isinstance(cost, SquaredEuclidean)
    weights["l2"] *= not isinstance(cost, Cityblock)
    expected = weights["l2"] * difference.square().sum(-1) + weights["l1"] * difference.abs().sum(-1)
    rounding = 4 * torch.finfo(dtype).eps
    torch.testing.assert_close(cost.pairwise(x, y).double(), expected, rtol=rounding, atol=0)

    for sharpness in (1, 100):
        plan = torch.softmax(draw(n, m, seed=2, dtype=dtype) * sharpness, -1) / n
        slopes = 2 * weights["l2"] * difference + weights["l1"] * difference.sign()
        expected = (plan.double().unsqueeze(-1) * slopes).sum(1)
        scale = (plan.double().unsqueeze(-1) * slopes.abs()).sum(1).max()
        found = native.gradient(x, y, plan, PixelCost(weights["l2"] > 0, weights["l1"]))
        assert found is not None
        torch.testing.assert_close(found.double(), expected, rtol=0, atol=float(rounding * scale))


@needs_library
@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("d", [3, 40, 300])
@pytest.mark.parametrize("cost", [SquaredEuclidean(), L1L2(2.0)], ids=str)
def test_a_cost_is_that_of_two_points_alone(cost: Cost, dtype: torch.dtype, d: int):
    """To the last bit: private transport relies on it that no other point moves it."""
    x, y = draw(13, d, dtype=dtype), draw(71, d, seed=1, dtype=dtype)
    costs = native.pairwise(x, y, cost.pixels)
    for i, j in ((0, 0), (12, 70), (5, 66), (7, 3)):
        alone = native.pairwise(x[i : i + 1].clone(), y[j : j + 1].clone(), cost.pixels)
        assert alone.item() == costs[i, j].item()


@needs_library
@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("offset", [0.0, 100.0])
@pytest.mark.parametrize(("dtype", "precision"), [(torch.float32, 5e-6), (torch.float64, 1e-11)])
def test_squared_distances_by_a_product(
    offset: float, dtype: torch.dtype, precision: float, monkeypatch: pytest.MonkeyPatch
):
    """Of clouds too large for differences; pairs so near that a product says nothing of them too."""
    for limit in ("_DIRECT_TERMS", "_DIRECT_TERMS_64", "_DIRECT_GRADIENT"):
        monkeypatch.setattr(f"dpsinkhorn.ot.costs.{limit}", 0)
    x, y = (draw(*shape, 40, seed=k, dtype=dtype) + offset for k, shape in enumerate([(90,), (80,)]))
    for row, distance in enumerate([0.3, 0.1, 0.03, 1e-3, 0.0]):
        y[row] = x[row] + distance * draw(40, dtype=dtype)
    cost = SquaredEuclidean()
    exact = (x.double()[:, None] - y.double()).square().sum(-1)
    torch.testing.assert_close(cost.pairwise(x, y).double(), exact, rtol=precision, atol=0)
    plan = torch.softmax(draw(90, 80, seed=3, dtype=dtype), -1) / 90
    expected = (2 * plan.double().unsqueeze(-1) * (x.double()[:, None] - y.double())).sum(1)
    torch.testing.assert_close(
        cost.gradient(x, y, plan).double(), expected, rtol=20 * precision, atol=precision / 50
    )


@needs_library
@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("cost", COSTS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(6, 5, 7, 2), (1, 50, 50, 40), (2, 90, 60, 3)], ids=str)
def test_a_small_problem_in_one_call_is_the_same(
    cost: Cost, dtype: torch.dtype, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
):
    batch, n, m, d = shape
    x, y = draw(batch, n, d, dtype=dtype), draw(batch, m, d, seed=1, dtype=dtype)
    a = draw(batch, n, seed=2, dtype=dtype).abs() + 0.1
    calls = []
    for pairs in (small._PAIRS, 0):
        monkeypatch.setattr(small, "_PAIRS", pairs)
        problem, settings = Problem(x, y, cost, a), {"tolerance": 1e-4, "max_iterations": 100}
        taken = small.transport(problem, 10.0, wrt_x=True, wrt_y=True, **settings)
        assert (taken is not None) == bool(pairs)
        leaves = [each.clone().requires_grad_() for each in (x, y, a)]
        points, others, weights = leaves
        loss = transport_loss(points, others, 10.0, cost=cost, a=weights, **settings)
        calls.append([loss.detach(), *torch.autograd.grad(loss.sum(), leaves)])
    for one, other in zip(*calls, strict=True):
        torch.testing.assert_close(one, other)


@needs_library
@pytest.mark.parametrize("threads", [False, True])
def test_batches_views_and_threads(threads: bool, monkeypatch: pytest.MonkeyPatch):
    if threads:
        monkeypatch.setattr(native, "_THREADED", 0)
    x, y = draw(3, 8, 10).mT, draw(3, 7, 16, seed=1)[..., ::2]  # neither is contiguous
    plan = torch.softmax(draw(3, 7, 10, seed=2), -1).mT
    costs, gradient = L1L2(2.0).pairwise(x, y), L1L2(2.0).gradient(x, y, plan)
    without(monkeypatch)
    torch.testing.assert_close(costs, L1L2(2.0).pairwise(x, y), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(gradient, L1L2(2.0).gradient(x, y, plan), rtol=1e-12, atol=1e-12)


@needs_library
@pytest.mark.usefixtures("library")
def test_powers_of_two_are_as_precise_as_theirs():
    exponents = torch.cat([-torch.linspace(0, 1020, 30_001), -torch.logspace(-300, 0, 301)]).double()
    one = torch.ones(1, dtype=torch.float64)
    uniform = torch.ones(len(exponents), dtype=torch.float64)
    plan = native.plan(
        -exponents[None] * 0.75, one * 0, uniform * 0, one, uniform, 0.75 / torch.log(one * 2).item()
    )
    assert plan is not None
    torch.testing.assert_close(plan[0], torch.exp2(exponents), rtol=3e-13, atol=0)  # exponents are rounded
    assert plan[0, 0] == 1.0


@needs_library
@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("bad", [float("nan"), -float("nan"), float("inf"), -float("inf")])
def test_what_is_not_finite_is_found_wherever_it_is(bad: float, dtype: torch.dtype):
    extremes = [0.0, -0.0, torch.finfo(dtype).max, torch.finfo(dtype).min, torch.finfo(dtype).tiny / 8]
    array = torch.tensor(extremes * 8, dtype=dtype)[:37]
    assert native.finite(array)
    for at in range(len(array)):
        spoilt = array.clone()
        spoilt[at] = bad
        assert not native.finite(spoilt)
        assert native.finite(spoilt[:at])
        assert not any(map(torch.isfinite, map(torch.tensor, native.value_range(spoilt.double()) or ())))


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_transforms_of_torch_still_see_the_costs():
    """Autograd, torch.func.grad and vmap go through PyTorch's operations: the library must decline."""
    cost, x, y = SquaredEuclidean(), draw(4, 3), draw(5, 3, seed=1)

    def total(points: Tensor) -> Tensor:
        return cost.pairwise(points, y).sum()

    expected = cost.gradient(x, y, torch.ones(4, 5, dtype=torch.float64))
    torch.testing.assert_close(torch.func.grad(total)(x), expected)
    tracked = x.clone().requires_grad_()
    total(tracked).backward()
    torch.testing.assert_close(tracked.grad, expected)
    many = torch.func.vmap(lambda points: cost.pairwise(points, y))(torch.stack([x, 2 * x]))
    torch.testing.assert_close(many[1], cost.pairwise(2 * x, y))


def test_without_the_library_all_is_the_same(monkeypatch: pytest.MonkeyPatch):
    x, y = draw(20, 6, dtype=torch.float32), draw(15, 6, seed=1, dtype=torch.float32)
    outcomes = []
    for off in (False, True):
        if off:
            without(monkeypatch)
            assert not compiled()
        points = x.clone().requires_grad_()
        loss = transport_loss(points, y, 0.1, cost=L1L2(1.0))
        loss.backward()
        outcomes.append((loss.detach(), points.grad))
    torch.testing.assert_close(outcomes[0], outcomes[1], rtol=1e-5, atol=1e-6)


def test_the_environment_switches_it_off():
    program = """
import torch
from dpsinkhorn.ot import Problem, compiled, solve
assert not compiled()
assert solve(Problem(torch.rand(5, 2), torch.rand(4, 2)), 0.1).converged
"""
    environment = {**os.environ, "DPSINKHORN_NATIVE": "0"}
    subprocess.run([sys.executable, "-c", program], env=environment, check=True)


@needs_library
def test_a_library_of_another_version_is_left_alone(monkeypatch: pytest.MonkeyPatch):
    assert native._load() is not None
    monkeypatch.setattr(native, "_VERSION", native._VERSION + 1)
    assert native._load() is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("n", "m"), [(1, 9), (3, 40), (10, 500), (32, 300)])
def test_few_points_beside_many(dtype: torch.dtype, n: int, m: int):
    """They stay rows in the compiled call; values, potentials and gradients are the same from either side."""
    random = torch.Generator().manual_seed(n)
    x, y = (torch.rand(size, 3, generator=random).to(dtype).requires_grad_() for size in (n, m))
    forth, back = transport_loss(x, y, 0.1), transport_loss(y, x, 0.1)
    slopes = [torch.autograd.grad(value, (x, y)) for value in (forth, back)]
    expected = solve(Problem(x.detach(), y.detach()), 0.1)
    close = {"rtol": 1e-4, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 1e-7, "atol": 1e-9}
    torch.testing.assert_close(forth.detach().double(), expected.value, **close)
    torch.testing.assert_close(*slopes, **close)
    torch.testing.assert_close(slopes[0], expected.gradients(), **close)
