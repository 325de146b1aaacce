"""The contract of ``solve``: the same for every way to store the cost and every method."""

from __future__ import annotations

import dataclasses
import warnings
from typing import ClassVar

import pytest
import torch

from dpsinkhorn.ot import (
    L1L2,
    ConvergenceWarning,
    MatrixProblem,
    Problem,
    SquaredEuclidean,
    native,
    newton,
    semidual,
    solve,
)


def clouds(n: int, m: int, d: int = 5, seed: int = 0, dtype: torch.dtype = torch.float64):
    generator = torch.Generator().manual_seed(seed)
    draw = [torch.randn(size, d, generator=generator, dtype=dtype) for size in (n, m)]
    return draw[0], draw[1]


def images(n: int, seed: int) -> torch.Tensor:
    """Points in the papers' regime: many dimensions, so that costs are in the hundreds."""
    x = torch.rand(n, 784, generator=torch.Generator().manual_seed(seed))
    return x.pow(4) * 2 - 1


class SolveContract:
    """What any configuration of the solver must satisfy."""

    options: ClassVar[dict[str, str]]

    @pytest.mark.parametrize(("n", "m"), [(20, 20), (30, 12), (12, 30), (1, 5), (5, 1)])
    @pytest.mark.parametrize("regularization", [0.3, 30.0])
    def test_optimality(self, n: int, m: int, regularization: float):
        x, y = clouds(n, m)
        result = solve(Problem(x, y), regularization, tolerance=1e-9, max_iterations=20_000, **self.options)
        costs = (x[:, None] - y).square().sum(-1)
        plan = torch.exp((result.f[:, None] + result.g - costs) / regularization) / (n * m)
        torch.testing.assert_close(result.plan, plan)
        torch.testing.assert_close(
            plan.sum(1), torch.full((n,), 1 / n, dtype=torch.float64), rtol=0, atol=1e-9
        )
        torch.testing.assert_close(
            plan.sum(0), torch.full((m,), 1 / m, dtype=torch.float64), rtol=0, atol=1e-9
        )
        error = (plan.sum(0) - 1 / m).abs().sum() + (plan.sum(1) - 1 / n).abs().sum()
        assert float(result.marginal_error) == pytest.approx(float(error), abs=1e-12)
        torch.testing.assert_close(result.value_linear, (plan * costs).sum())
        entropy = (plan * torch.log(plan * n * m)).sum()
        torch.testing.assert_close(result.value, result.value_linear + regularization * entropy)
        assert result.converged

    def test_batch_is_as_many_single_problems(self):
        pairs = [clouds(9, 7, seed=seed) for seed in range(4)]
        x, y = (
            torch.stack(side) * torch.tensor([0.1, 1, 3, 10]).double()[:, None, None]
            for side in zip(*pairs, strict=True)
        )
        weights = torch.rand(4, 9, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        options: ClassVar = {"tolerance": 1e-8, "max_iterations": 20_000, **self.options}
        together = solve(Problem(x, y, a=weights), 0.5, **options)
        assert together.converged.shape == (4,)
        assert together.converged.all()
        for k in range(4):
            alone = solve(Problem(x[k], y[k], a=weights[k]), 0.5, **options)
            torch.testing.assert_close(together.value[k], alone.value, rtol=1e-7, atol=1e-9)
            torch.testing.assert_close(together.plan[k], alone.plan, rtol=1e-4, atol=1e-7)
            torch.testing.assert_close(together.value_linear[k], alone.value_linear, rtol=1e-5, atol=1e-7)


class TestDenseNewton(SolveContract):
    options: ClassVar = {"storage": "dense", "method": "newton"}


class TestStreamedNewton(SolveContract):
    options: ClassVar = {"storage": "streamed", "method": "newton"}


class TestDenseSinkhorn(SolveContract):
    options: ClassVar = {"storage": "dense", "method": "sinkhorn"}


class TestStreamedSinkhorn(SolveContract):
    options: ClassVar = {"storage": "streamed", "method": "sinkhorn"}


class TestWithoutCompiledLoops(SolveContract):
    """The path of batches, of GPUs, and of machines without a compiler, on single problems."""

    options: ClassVar = {"storage": "dense", "method": "newton"}

    @pytest.fixture(autouse=True)
    def _no_library(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(native, "library", None)


class TestConjugateGradients(SolveContract):
    """The path of large problems, on small ones."""

    options: ClassVar = {"storage": "dense", "method": "newton"}

    @pytest.fixture(autouse=True)
    def _no_direct_solves(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(newton, "_DIRECT_COLUMNS", 0)


class TestManyBlocks(SolveContract):
    """The path of costs that do not fit a block, on small ones."""

    options: ClassVar = {"storage": "streamed", "method": "newton"}

    @pytest.fixture(autouse=True)
    def _small_blocks(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(semidual, "_BLOCK_CPU", 64)
        monkeypatch.setattr(semidual, "_BLOCK_CPU_STREAMED", 64)


@pytest.mark.parametrize("storage", ["dense", "streamed"])
def test_float32_at_the_papers_regime(storage: str):
    """300 x 260 float32 points, costs in the hundreds, λ = 0.05: beyond what float32 potentials resolve."""
    x, y = images(300, 0), images(260, 1)
    result = solve(Problem(x, y, L1L2(1.0)), 0.05, tolerance=1e-5, storage=storage)
    exact = solve(Problem(x.double(), y.double(), L1L2(1.0)), 0.05)
    assert result.converged
    assert exact.value > 100
    torch.testing.assert_close(result.value, exact.value, rtol=1e-5, atol=0)
    assert result.plan.dtype == torch.float32
    torch.testing.assert_close(result.plan.sum(0), torch.full((260,), 1 / 260), rtol=1e-3, atol=1e-6)


def test_conjugate_gradients_at_the_papers_regime(monkeypatch: pytest.MonkeyPatch):
    x, y = images(200, 0), images(150, 1)
    direct = solve(Problem(x, y, L1L2(1.0)), 0.05, tolerance=1e-3)
    monkeypatch.setattr(newton, "_DIRECT_COLUMNS", 0)
    iterative = solve(Problem(x, y, L1L2(1.0)), 0.05, tolerance=1e-3)
    assert iterative.converged
    torch.testing.assert_close(iterative.value, direct.value, rtol=1e-5, atol=0)


def test_newton_needs_few_iterations_where_sinkhorn_needs_thousands():
    x, y = images(50, 0), images(40, 1)
    newton = solve(Problem(x, y), 0.05)
    assert newton.converged
    assert newton.iterations < 150
    with pytest.warns(ConvergenceWarning):
        plain = solve(Problem(x, y), 0.05, method="sinkhorn", max_iterations=2000)
    assert plain.marginal_error > 1e-4


def test_matrix_problem_equals_points():
    x, y = clouds(14, 17)
    points = solve(Problem(x, y), 0.2)
    matrix = solve(MatrixProblem(SquaredEuclidean().pairwise(x, y)), 0.2)
    torch.testing.assert_close(points.value, matrix.value)
    torch.testing.assert_close(points.plan, matrix.plan, rtol=1e-6, atol=1e-10)
    with pytest.raises(ValueError, match="no gradient"):
        matrix.gradients()


@pytest.mark.parametrize("regularization", [1.0, 0.03])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_few_points_beside_many_are_the_same_from_either_side(regularization: float, dtype: torch.dtype):
    """The variable is on the many points in the one, on the few in the other; some weigh nothing."""
    x, y = clouds(6, 300, d=300, dtype=dtype)
    b = torch.rand(300, generator=torch.Generator().manual_seed(1)) ** 4
    b[::7] = 0.0
    exact = (x.double()[:, None] - y.double()).square().sum(-1)
    costs = SquaredEuclidean().pairwise(x, y).double()
    torch.testing.assert_close(costs, exact, rtol=1e-6 if dtype == torch.float32 else 1e-13, atol=0)
    few, many = Problem(x, y, b=b), Problem(y, x, a=b)
    found, other = (solve(each, regularization, tolerance=1e-7) for each in (few, many))
    assert bool(found.converged)
    assert bool(other.converged)
    torch.testing.assert_close(found.plan, other.plan.mT, rtol=1e-4, atol=1e-7)
    for one, two in zip(found.gradients(), reversed(other.gradients()), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-5)


def test_negative_costs_are_allowed():
    costs = torch.randn(8, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    shifted = solve(MatrixProblem(costs + 7), 0.1).value
    torch.testing.assert_close(solve(MatrixProblem(costs), 0.1).value, shifted - 7)


def test_result_is_frozen():
    result = solve(Problem(*clouds(3, 3)), 1.0)
    with pytest.raises(dataclasses.FrozenInstanceError):
        result.iterations = 0  # type: ignore[misc]


def test_a_solve_that_does_not_converge_says_so_once():
    x, y = images(60, 0), images(60, 1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = solve(Problem(x, y), 1e-3, max_iterations=3)
    assert not result.converged
    assert result.iterations == 3
    assert [w.category for w in caught] == [ConvergenceWarning]
    assert "did not converge" in str(caught[0].message)
    assert torch.isfinite(result.value)
    assert torch.isfinite(result.plan).all()


def test_the_cap_holds_where_light_columns_join_late():
    x, y = images(60, 0), images(60, 1)
    weights = torch.logspace(0, -12, 60, dtype=torch.float64)
    with pytest.warns(ConvergenceWarning):
        result = solve(Problem(x, y, b=weights), 1e-3, max_iterations=5)
    assert result.iterations == 5


def test_unreachable_tolerance_ends_early_instead_of_running_to_the_cap():
    x, y = images(400, 0), images(400, 1)
    with pytest.warns(ConvergenceWarning):
        result = solve(Problem(x, y), 0.05, tolerance=1e-15)
    assert not result.converged
    assert result.iterations < 500
    assert result.marginal_error < 1e-5


def test_extreme_scales_stay_finite():
    x, y = clouds(20, 15)
    for scale, regularization in [(1e-12, 1e-30), (1e6, 1e-3), (1e-6, 1e3), (1e8, 1e20)]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            result = solve(Problem(scale * x, scale * y), regularization)
        assert torch.isfinite(result.value)
        assert torch.isfinite(result.plan).all()


def test_two_solves_are_the_same_to_the_bit():
    x, y = images(120, 0), images(120, 1)
    first, second = solve(Problem(x, y, L1L2(1.0)), 0.05), solve(Problem(x, y, L1L2(1.0)), 0.05)
    assert torch.equal(first.f, second.f)
    assert torch.equal(first.g, second.g)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("storage", ["dense", "streamed"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_cuda_agrees_with_cpu(storage: str, dtype: torch.dtype):
    x, y = images(300, 0).to(dtype), images(260, 1).to(dtype)
    on_cpu = solve(Problem(x, y, L1L2(1.0)), 0.05, tolerance=1e-4, storage=storage)
    on_gpu = solve(Problem(x.cuda(), y.cuda(), L1L2(1.0)), 0.05, tolerance=1e-4, storage=storage)
    assert on_gpu.converged
    torch.testing.assert_close(on_gpu.value.cpu(), on_cpu.value, rtol=1e-5, atol=0)
    for here, there in zip(on_cpu.gradients(), on_gpu.gradients(), strict=True):
        torch.testing.assert_close(there.cpu(), here, rtol=1e-2, atol=1e-4)
