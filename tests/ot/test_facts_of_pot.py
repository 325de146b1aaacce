"""What POT's own tests of Sinkhorn, unbalanced and exact transport, batches and barycenters hold to be true.

Each fact is written anew, through the adapter below, and names the tests of POT 0.9.7 that it stands for;
their variants by method, verbosity and backend are one here. docs/solver.md has the count.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

import ot
from dpsinkhorn.ot import (
    ConvergenceWarning,
    MatrixProblem,
    Problem,
    SinkhornResult,
    barycenter,
    matrix_loss,
    solve,
    transport_loss,
)

Array = NDArray[np.float64]
N = 100


def transport(a: Array | None, b: Array | None, M: Any, reg: float, **options: Any) -> SinkhornResult:
    """POT's ``sinkhorn(a, b, M, reg)``, ``emd(a, b, M)`` at 0; several b, as columns, are a batch."""
    if b is not None and b.ndim == 2:
        b = np.ascontiguousarray(b.T)
        M = np.repeat(M[None], len(b), 0)
    return solve(MatrixProblem(M, a, b), reg, **options)


def unbalanced(a: Array, b: Array, M: Array, reg: float, reg_m: Any, reg_type: str = "kl") -> SinkhornResult:
    """POT's ``sinkhorn_unbalanced``: its entropy is ours with λ log(a b^T) in the costs."""
    if reg_type == "entropy":
        M = M + reg * np.log(a[:, None] * b)
    return solve(MatrixProblem(M, a, b), reg, marginals=reg_m)


def clouds(n: int = N, seed: int = 0) -> tuple[Array, Array, Array, Array]:
    """x, its squared distances, equal weights, and three random histograms in columns."""
    rng = np.random.RandomState(seed)
    x = rng.randn(n, 2)
    several = rng.rand(n, 3)
    return x, ot.dist(x, x), ot.unif(n), several / several.sum(0)


def gauss(*means: float, s: float = 10, n: int = N) -> list[Array]:
    return [ot.datasets.make_1D_gauss(n, m=m, s=s) for m in means]


def line(n: int) -> Array:
    return np.arange(n, dtype=float).reshape(-1, 1)


# Sinkhorn: test_bregman.py


@pytest.mark.parametrize("weights", [True, False])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_marginals(weights: bool, dtype: Any):
    """sinkhorn, sinkhorn_empty, sinkhorn(2)_backends, and the variants by type and device."""
    _, M, u, _ = clouds()
    given = u if weights else None
    for array in (M.astype(dtype), torch.from_numpy(M.astype(dtype))):
        found = transport(given, given, array, 1.0)
        torch.testing.assert_close(found.plan.sum(0).numpy(), u.astype(dtype), rtol=0, atol=1e-7)
        torch.testing.assert_close(found.plan.sum(1).numpy(), u.astype(dtype), rtol=0, atol=1e-7)
        torch.testing.assert_close(found.plan.numpy(), ot.sinkhorn(u, u, M, 1.0, stopThr=1e-10).astype(dtype))


@pytest.mark.parametrize(("n", "reg"), [(10, 0.1), (50, 1.0)])
def test_several_targets(n: int, reg: float):
    """sinkhorn_multi_b, sinkhorn(2)_variants_multi_b, sinkhorn_variants_log_multib."""
    _, M, u, b = clouds(n)
    together = transport(u, b, M, reg)
    alone = [transport(u, b[:, k], M, reg) for k in range(3)]
    torch.testing.assert_close(together.value_linear, torch.stack([each.value_linear for each in alone]))
    torch.testing.assert_close(together.plan, torch.stack([each.plan for each in alone]))
    by_pot = ot.sinkhorn2(u, b[:, 1], M, reg, stopThr=1e-12, method="sinkhorn_log")
    assert float(together.value_linear[1]) == pytest.approx(float(by_pot), abs=1e-5)


def test_too_few_iterations_warn():
    """convergence_warning, warnings of test_ot.py, and of barycenters."""
    (a, b), M = gauss(30, 40), ot.utils.dist0(N)
    for call in (
        lambda: transport(a, b, M, 1.0, max_iterations=1),
        lambda: barycenter(np.stack([a, b]), M, 1.0, max_iterations=1),
    ):
        with pytest.warns(ConvergenceWarning):
            call()


def test_what_is_not_there_is_refused():
    """not_implemented_method, implemented_methods, unbalanced wrong_method; λ = 0 is exact here."""
    (a, b), M = gauss(30, 40), ot.utils.dist0(N)
    with pytest.raises(ValueError, match="method"):
        transport(a, b, M, 0.01, method="new_method")
    assert float(transport(a, b, M, 0.0).value) == pytest.approx(ot.emd2(a, b, M))


@pytest.mark.parametrize("reg", [1e-5, 1e-2, 1.0])
def test_small_regularization(reg: float):
    """sinkhorn_stabilization: histograms with Gaussian tails, costs of up to 10^4."""
    (a, b), M = gauss(30, 40), ot.utils.dist0(N)
    found = transport(a, b, M, reg, tolerance=1e-7)  # potentials of 10^4 are rounded by 2e-12: 2e-7 λ
    assert found.converged
    assert float(found.value_linear) == pytest.approx(ot.emd2(a, b, M), abs=2 * reg * math.log(N))


def test_stabilized_against_plain():
    """stabilized_vs_sinkhorn_multidim, screenkhorn's marginals."""
    (a,), (b1,), (b2,) = gauss(20, s=5), gauss(60, s=8), gauss(30, s=4)
    M = ot.utils.dist0(N)
    M /= np.median(M)
    b = np.vstack([b1, b2]).T
    found = transport(a, b, M, 0.1)
    for k in range(2):
        expected = ot.sinkhorn(a, b[:, k], M, 0.1, method="sinkhorn_log", stopThr=1e-11, numItermax=20_000)
        torch.testing.assert_close(found.plan[k].numpy(), expected, rtol=0, atol=1e-7)


@pytest.mark.parametrize("reg", [0.0, 1.0])
def test_gradients_of_values(reg: float):
    """sinkhorn2_gradients, emd2_gradients: the plan in the matrix, potentials in weights, scaled alike."""
    x, _, u, _ = clouds()
    y = np.random.RandomState(5).randn(N, 2)
    slopes = []
    for factor in (1.0, 10.0):
        M = torch.from_numpy(ot.dist(x, y)).requires_grad_()
        (factor * matrix_loss(M, reg)).backward()
        points, weights = torch.from_numpy(x), torch.from_numpy(u).requires_grad_()
        points.requires_grad_()
        (factor * transport_loss(points, torch.from_numpy(y), reg, a=weights)).backward()
        assert M.grad is not None
        assert weights.grad is not None
        slopes.append((M.grad, weights.grad))
    found = transport(u, u, ot.dist(x, y), reg)
    torch.testing.assert_close(slopes[0][0], found.plan)
    torch.testing.assert_close(slopes[0][1] - slopes[0][1].mean(), found.f - found.f.mean())
    torch.testing.assert_close(slopes[1], (10 * slopes[0][0], 10 * slopes[0][1]))


@pytest.mark.parametrize("metric", ["sqeuclidean", "euclidean"])
@pytest.mark.parametrize("storage", ["dense", "streamed"])
def test_points_and_matrix(metric: str, storage: Any):
    """empirical_sinkhorn, lazy_empirical_sinkhorn, geomloss_solver: points are their matrix."""
    x = line(10)
    M = ot.dist(x, x, metric=metric)
    lazy = solve(Problem(x, x, metric), 1.0, storage=storage)
    torch.testing.assert_close(lazy.plan, transport(None, None, M, 1.0).plan)
    f, g = (each.numpy() for each in (lazy.f, lazy.g))
    np.testing.assert_allclose(np.exp(f[:, None] + g - M) / 100, lazy.plan.numpy(), atol=1e-10)
    assert float(lazy.value_linear) == pytest.approx(float((lazy.plan.numpy() * M).sum()))
    with pytest.raises(ValueError, match="cost"):
        Problem(x, x, "wrong_metric")


def test_divergence_and_its_gradients():
    """empirical_sinkhorn_divergence and _gradient: of linear values, self terms count half."""
    a = np.linspace(1, 10, 10) / 55
    x, y = line(10), 2 * line(10)
    parts = [
        (solve(Problem(p, q, None, v, w), 1.0), ot.sinkhorn2(v, w, ot.dist(p, q), 1.0, stopThr=1e-11))
        for p, q, v, w in ((x, y, a, ot.unif(10)), (x, x, a, a), (y, y, ot.unif(10), ot.unif(10)))
    ]
    ours = [float(result.value_linear) for result, _ in parts]
    by_pot = [float(value) for _, value in parts]
    assert ours[0] - (ours[1] + ours[2]) / 2 == pytest.approx(by_pot[0] - (by_pot[1] + by_pot[2]) / 2)
    leaves = [torch.from_numpy(each).requires_grad_() for each in (x, y, a)]
    transport_loss(leaves[0], leaves[1], 1.0, a=leaves[2]).backward()
    assert all(leaf.grad is not None and leaf.grad.abs().sum() > 0 for leaf in leaves)


def test_starts():
    """sinkhorn_warmstart, empirical_ and divergence_warmstart: the same plan from any start."""
    x, y = line(10), line(20)
    M = ot.dist(x, y)
    _, log = ot.emd(ot.unif(10), ot.unif(20), M, log=True)
    exact = torch.from_numpy(log["u"]), torch.from_numpy(log["v"])
    for storage in ("dense", "streamed"):
        for start in (None, exact, (torch.zeros(10), torch.zeros(20))):
            found = solve(Problem(x, y), 1.0, init=start, storage=storage)
            torch.testing.assert_close(found.plan, transport(None, None, M, 1.0).plan, rtol=0, atol=1e-8)


# Exact: test_ot.py


def test_exact():
    """emd_emd2, emd_empty, emd_backends, emd2_backends, types, dual variables of equal clouds."""
    x, M, _, _ = clouds()
    for dtype in (torch.float64, torch.float32):
        found = solve(Problem(torch.from_numpy(x).to(dtype), torch.from_numpy(x).to(dtype)), 0)
        torch.testing.assert_close(found.plan, torch.eye(N, dtype=dtype) / N)
        assert float(found.value) == pytest.approx(0, abs=1e-6)
    assert float(transport(None, None, M, 0).value) == pytest.approx(0, abs=1e-12)


def test_exact_dual_variables():
    """dual_variables, emd2_multi: symmetry, the closed form on the line, and no gap where there is mass."""
    (a,), (b,) = gauss(300, s=5, n=500), gauss(400, s=10, n=600)
    M = np.sqrt(ot.dist(line(500), line(600)))
    found = transport(a, b, M, 0)
    assert float(found.value) == pytest.approx(100, abs=1e-6)
    assert float(transport(b, a, np.ascontiguousarray(M.T), 0).value) == pytest.approx(float(found.value))
    assert float(found.value_linear) == pytest.approx(float(found.value))
    slack = torch.from_numpy(M) - found.f[:, None] - found.g
    assert float(slack.min()) > -1e-8
    assert float(slack[found.plan > 1e-12].abs().max()) < 1e-7
    targets = np.stack(gauss(*range(20, 500, 100), n=500), 1)
    together = transport(a, targets, np.sqrt(ot.dist(line(500), line(500))), 0)
    np.testing.assert_allclose(
        together.value,
        [ot.emd2(a, each, np.sqrt(ot.dist(line(500), line(500)))) for each in targets.T.copy()],
    )


def test_mismatches():
    """emd_dimension_and_mass_mismatch: shapes are refused; balanced masses are scaled here, not refused."""
    _, M, _, _ = clouds()
    with pytest.raises(ValueError, match="shape"):
        transport(ot.unif(N + 1), ot.unif(N + 1), M, 0)


@pytest.mark.parametrize(("rows", "columns"), [(100, 100), (100, 150)])
def test_pairs_that_are_not_there(rows: int, columns: int):
    """emd(2)_sparse_vs_dense, emd2_sparse(_vs_dense)_gradients: a sparse cost has forbidden pairs."""
    rng = np.random.RandomState(43)
    M, mask = rng.rand(rows, columns), np.zeros((rows, columns), dtype=bool)
    for k in range(rows):
        mask[k, rng.choice(columns, 2, replace=False)] = True
    for k in range(columns):
        mask[rng.choice(rows, 2, replace=False), k] = True
    dense = ot.emd2(ot.unif(rows), ot.unif(columns), M + 1e8 * ~mask)
    found = transport(None, None, np.where(mask, M, math.inf), 0)
    assert float((found.plan * torch.from_numpy(M)).sum()) == pytest.approx(dense, rel=1e-6)
    assert found.plan[torch.from_numpy(~mask)].sum() == 0
    C = torch.from_numpy(np.where(mask, M, math.inf)).requires_grad_()
    (gradient,) = torch.autograd.grad(matrix_loss(C, 0), C)
    torch.testing.assert_close(gradient, found.plan)


# Unbalanced: unbalanced/test_sinkhorn.py and test_mm.py


@pytest.mark.filterwarnings("ignore:If reg_type")
@pytest.mark.parametrize("reg_type", ["kl", "entropy"])
def test_unbalanced_fixed_point(reg_type: str):
    """unbalanced_convergence, _marginals, _reference_measure, _warmstart, sinkhorn_unbalanced2."""
    _, M, a, _ = clouds(seed=42)
    b = 1.5 * a
    found = unbalanced(a, b, M, 1.0, 1.0, reg_type)
    expected = ot.unbalanced.sinkhorn_unbalanced(
        a, b, M, 1.0, 1.0, reg_type=reg_type, stopThr=1e-13, numItermax=10_000
    )
    np.testing.assert_allclose(found.plan, expected, atol=1e-9)
    assert float(found.plan.sum(0).sub(torch.from_numpy(b)).abs().sum()) > 0.1


@pytest.mark.parametrize("pair", [(1.0, 1.0), (1.0, math.inf), (math.inf, 1.0), (math.inf, math.inf)])
@pytest.mark.parametrize("form", [tuple, list, np.array])
def test_relaxation_parameters(pair: tuple[float, float], form: Any):
    """unbalanced_relaxation_parameters and _pair; inf keeps a marginal."""
    _, M, a, several = clouds(seed=50)
    b = several[:, 0]
    found = unbalanced(a, b, M, 1.0, form(pair))
    expected = ot.unbalanced.sinkhorn_unbalanced(
        a, b, M, 1.0, pair, reg_type="kl", stopThr=1e-13, numItermax=9000
    )
    np.testing.assert_allclose(found.plan, expected, atol=1e-8)
    for marginal, weights, rho in zip((found.plan.sum(1), found.plan.sum(0)), (a, b), pair, strict=True):
        assert (float(marginal.sub(torch.from_numpy(weights)).abs().sum()) < 1e-7) == (rho == math.inf)
    if pair[0] == pair[1]:
        for one in (pair[0], [pair[0]], torch.tensor(pair[:1])):
            torch.testing.assert_close(unbalanced(a, b, M, 1.0, one).plan, found.plan)


def test_unbalanced_against_several():
    """unbalanced_multiple_inputs, stabilized_vs_sinkhorn."""
    (a,), (b1,), (b2,) = gauss(20, s=5), gauss(60, s=8), gauss(30, s=4)
    M = ot.utils.dist0(N)
    M /= np.median(M)
    for b in (b1, b2):
        expected = ot.unbalanced.sinkhorn_unbalanced(a, b, M, 1.0, 1.0, reg_type="kl", stopThr=1e-13)
        np.testing.assert_allclose(unbalanced(a, b, M, 1.0, 1.0).plan, expected, atol=1e-8)


def test_strong_relaxation_is_balanced():
    """mm_convergence by KL: a strong penalty keeps the marginals, and gives the balanced plan."""
    x, _, u, _ = clouds(seed=42)
    M = ot.dist(x, np.random.RandomState(75).randn(N, 2))
    M /= M.max()
    found = unbalanced(u, u, M, 1e-2, 1e4)
    np.testing.assert_allclose(found.plan.sum(1), u, atol=1e-4)
    torch.testing.assert_close(found.plan, transport(u, u, M, 1e-2).plan, rtol=0, atol=1e-5)


# Batches: batch/test_solve_batch.py and test_linear.py


@pytest.mark.parametrize("metric", ["sqeuclidean", "euclidean", "cityblock"])
def test_a_batch_is_its_problems(metric: str):
    """solve_batch, linear_solver_batch, test_all: plan and value of each, of matrices and of points."""
    rng = np.random.RandomState(0)
    M, X = rng.rand(4, 16, 16), rng.rand(4, 16, 2)
    together = transport(None, None, M, 0.1)
    of_points = solve(Problem(X, X, metric), 0.1)
    for k in range(4):
        alone = transport(None, None, M[k], 0.1)
        torch.testing.assert_close(together.plan[k], alone.plan, rtol=0, atol=1e-8)
        torch.testing.assert_close(together.value_linear[k], alone.value_linear)
        single = solve(Problem(X[k], X[k], metric), 0.1)
        torch.testing.assert_close(of_points.value_linear[k], single.value_linear)


# Barycenters: test_bregman.py and test_ot.py


@pytest.mark.parametrize("case", ["two", "asymmetric", "diracs"])
def test_barycenters(case: str):
    """barycenter, barycenter_assymetric_cost, barycenter_stabilization, lp_barycenter (in the limit)."""
    A, M, reg = np.stack(gauss(30, 40)), ot.utils.dist0(N), 1e-2
    if case == "asymmetric":
        A, M = np.stack(gauss(30, n=20)), np.random.RandomState(42).randn(20, 20) ** 2
    if case == "diracs":
        A, M, reg = np.array([[1.0, 0, 0], [0, 0, 1.0]]), np.array([[0, 1.0, 4], [1, 0, 1], [4, 1, 0]]), 0.05
    M = M / M.max()
    found: Tensor = barycenter(A, M, reg)
    assert float(found.sum()) == pytest.approx(1, abs=1e-7)
    expected = ot.bregman.barycenter(A.T, M, reg, method="sinkhorn_log", stopThr=1e-10, numItermax=20_000)
    np.testing.assert_allclose(found, expected, atol=1e-6)
    if case == "diracs":
        np.testing.assert_allclose(found, [0, 1, 0], atol=2e-2)


@pytest.mark.parametrize("shape", [(8, 8), (2, 3)])
def test_barycenters_of_images(shape: tuple[int, int]):
    """wasserstein_bary_2d, convolutional_barycenter_non_square: on the grid of the pixels."""
    images = np.random.RandomState(42).rand(2, *shape) if shape[0] == shape[1] else np.ones((2, *shape))
    images /= images.sum((1, 2), keepdims=True)
    places = np.stack(np.meshgrid(*(np.linspace(0, 1, size) for size in shape), indexing="ij"), -1)
    M = ot.dist(places.reshape(-1, 2), places.reshape(-1, 2))
    found = barycenter(images.reshape(2, -1), M, 1e-2).reshape(shape)
    expected = ot.bregman.convolutional_barycenter2d(
        images, 1e-2, method="sinkhorn_log", stopThr=1e-10, numItermax=20_000
    )
    np.testing.assert_allclose(found, expected, atol=1e-5)
