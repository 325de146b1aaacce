"""The GPU kernels of the solver beside plain code: on a CUDA device, else in the interpreter."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

from dpsinkhorn.kernels import launch, pairs
from dpsinkhorn.kernels.pairs import Pairs, costs, powers
from dpsinkhorn.ot import L1L2, Problem, SinkhornResult, iterate, newton, sinkhorn, solve
from dpsinkhorn.ot import ascent as loop
from dpsinkhorn.ot import semidual as duals
from support.kernels import (
    DEVICE,
    INTERPRETED,
    compile_for_a_gpu,
    needs_compiler,
    needs_cuda,
    runs_kernels,
)

TYPES = [torch.float32, torch.float64]


def clouds(n: int, m: int, d: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(n)
    x, y = torch.randn(n, d, generator=random), 0.8 * torch.randn(m, d, generator=random) + 0.3
    return x.to(DEVICE, dtype), y.to(DEVICE, dtype)


@pytest.fixture
def fused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels wherever they run, and few programs in the interpreter, which takes its time over each."""
    monkeypatch.setattr(launch, "available", lambda _: True)
    monkeypatch.setattr(loop, "start", iterate.TorchIterate)
    if INTERPRETED:
        monkeypatch.setattr(pairs, "_ROW_TILE", (512, 512))
        monkeypatch.setattr(pairs, "_COLUMN_TILE", (512, 512))


@runs_kernels
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize(("n", "m", "d"), [(70, 53, 3), (20, 530, 5), (33, 1, 1)])
@pytest.mark.parametrize(("squared", "absolute"), [(True, 0.7), (True, 0.0), (False, 1.0)])
def test_costs(dtype: torch.dtype, n: int, m: int, d: int, squared: bool, absolute: float):
    x, y = clouds(n, m, d, dtype)
    difference = x[:, None] - y
    expected = squared * difference.square().sum(-1) + absolute * difference.abs().sum(-1)
    found = costs(x, y, squared=squared, absolute=absolute)
    tolerance = 1e-14 if dtype == torch.float64 else 1e-5
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


@runs_kernels
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("narrow", [False, True])
@pytest.mark.parametrize("of_points", [False, True])
@pytest.mark.parametrize(("n", "m"), [(70, 53), (20, 530)])
def test_powers(dtype: torch.dtype, narrow: bool, of_points: bool, n: int, m: int):
    x, y = clouds(n, m, 3, dtype)
    matrix = costs(x, y, squared=True, absolute=0.7)
    source = Pairs.of_points(x, y, squared=True, absolute=0.7) if of_points else Pairs.stored(matrix)
    random = torch.Generator().manual_seed(m)
    shifted, v, u = (torch.randn(size, generator=random).to(DEVICE).double() for size in (m, m, n))
    shifted = (50 * shifted).index_fill(0, torch.tensor(3, device=DEVICE), -math.inf)  # left out
    found, total = powers(source, shifted, 30.0, dtype, narrow=narrow)
    exponents = shifted - 30 * matrix.double()
    kernel = torch.exp2(exponents - exponents.amax(1, keepdim=True))
    wide = dtype == torch.float64 and not narrow
    close = {"rtol": 1e-12, "atol": 1e-12} if wide else {"rtol": 1e-4, "atol": 1e-4}
    torch.testing.assert_close(found.top, exponents.amax(1), **close)
    torch.testing.assert_close(total, kernel.sum(1), **close)
    torch.testing.assert_close(found.rows(v), kernel @ v, **close)
    torch.testing.assert_close(found.columns(u), u @ kernel, **close)
    torch.testing.assert_close(found.columns(u, square=True), u @ kernel.square(), **close)


def close(found: SinkhornResult, expected: SinkhornResult, tolerance: float) -> None:
    assert found._dual.fused
    assert not expected._dual.fused
    assert found.converged
    torch.testing.assert_close(found.value, expected.value.to(DEVICE), rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(found.plan, expected.plan.to(DEVICE), rtol=0, atol=tolerance)


@runs_kernels
@pytest.mark.usefixtures("fused")
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("storage", ["dense", "streamed"])
@pytest.mark.parametrize("marginals", [None, (1.0, math.inf)])
def test_a_solve(
    dtype: torch.dtype,
    storage: sinkhorn.Storage,
    marginals: sinkhorn.Marginals,
    monkeypatch: pytest.MonkeyPatch,
):
    x, y = clouds(110, 100, 3, dtype)
    settings = {"storage": storage, "marginals": marginals}
    found = solve(Problem(x, y, L1L2(0.5)), 0.1, **settings)
    monkeypatch.setattr(launch, "available", lambda _: False)
    close(found, solve(Problem(x.cpu(), y.cpu(), L1L2(0.5)), 0.1, **settings), 1e-5)


@runs_kernels
@pytest.mark.usefixtures("fused")
@pytest.mark.parametrize("of_points", [True, False])
def test_conjugate_gradients_and_a_start_from_a_sample(of_points: bool, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(newton, "_DIRECT_COLUMNS", 10)
    monkeypatch.setattr(newton, "_FALLBACK_COLUMNS", 10)
    monkeypatch.setattr(duals, "_COSTLY", 10**4)
    monkeypatch.setattr(sinkhorn, "_SAMPLE", 150)
    if not of_points:
        monkeypatch.setattr(pairs, "MOST_DIMENSIONS", 0)
    x, y = clouds(200, 180, 3, torch.float32)
    found = solve(Problem(x, y), 0.3, tolerance=1e-4, storage="streamed")
    assert found._dual.costly == of_points
    assert (found.history[0][1] == 0.3) == of_points  # no stages of ε-scaling
    monkeypatch.setattr(launch, "available", lambda _: False)
    close(found, solve(Problem(x.cpu(), y.cpu()), 0.3, tolerance=1e-6), 1e-3)


@needs_compiler
def test_compile_for_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    tl = launch.tl
    wide = dict.fromkeys(("shifted", "scale", "top", "out"), "*fp64")
    others = dict.fromkeys(("n", "m", "chunk"), "i32")
    for d, exponents in ((0, tl.float64), (0, tl.float32), (3, tl.float64), (16, tl.float32)):
        cost = {"D": d, "SQUARED": True, "ABSOLUTE": 0.5 * (d == 16)}
        sizes = {"EXPONENTS": exponents, "WORK": tl.float32, "ROWS": 16, "COLUMNS": 256}
        narrow = {"shifted": "*fp32"} if exponents == tl.float32 else {}
        for fresh in (True, False):
            kernel = pairs.rows_kernel
            types = dict.fromkeys(kernel.arg_names, "*fp32") | wide | others | narrow
            compile_for_a_gpu(kernel, types, cost | sizes | {"FRESH": fresh}, warps=8)
        kernel = pairs.columns_kernel
        types = dict.fromkeys(kernel.arg_names, "*fp32") | wide | {"out": "*fp32"} | others | narrow
        compile_for_a_gpu(kernel, types, cost | sizes | {"SQUARE": d == 3}, warps=8)
    kernel = pairs.costs_kernel
    types = dict.fromkeys(kernel.arg_names, "*fp32") | others
    sizes = {"D": 784, "SQUARED": True, "ABSOLUTE": 1.0, "ROWS": 32, "COLUMNS": 512}
    compile_for_a_gpu(kernel, types, sizes, warps=8)


@needs_cuda
@pytest.mark.parametrize("of", ["sqeuclidean", "l1l2"])
def test_a_larger_one(of: str):
    x, y = clouds(3000, 2500, 50, torch.float32)
    for tolerance in (1e-2, 1e-5):
        found = solve(Problem(x, y, of), 5.0, tolerance=tolerance)
        assert float(found.marginal_error) <= tolerance
        expected = solve(Problem(x.cpu(), y.cpu(), of), 5.0, tolerance=tolerance)
        close(found, expected, tolerance)


def test_bad_input():
    with pytest.raises(ValueError, match="contiguous"):
        Pairs.stored(torch.zeros(3, 4).mT)
