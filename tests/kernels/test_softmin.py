"""The GPU kernel of a transform beside plain code: on a CUDA device, else in the interpreter."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

from dpsinkhorn.kernels import softmin as fused
from dpsinkhorn.kernels.softmin import LONGEST_ROW, plans, softmin
from dpsinkhorn.mechanisms.batch import Batch
from dpsinkhorn.mechanisms.shared import fixed_plans
from dpsinkhorn.mechanisms.shared.steps import Setting
from dpsinkhorn.ot import L1L2
from dpsinkhorn.privacy import SeededNoise, poisson_sample
from dpsinkhorn.training.records import StoredRecords
from support.barriers import mechanism_of
from support.kernels import (
    DEVICE,
    INTERPRETED,
    compile_for_a_gpu,
    needs_compiler,
    needs_cuda,
    runs_kernels,
)

LOSSES = [{}, {"iterations": 5}, {"marginals": "classes"}, {"marginals": 20.0}, {"marginals": 0.0}]


def problems(rows: int, columns: int) -> list[Tensor]:
    """Costs, a potential, weights and an old potential; some columns, and in a row all, are not there."""
    random = torch.Generator().manual_seed(rows)
    costs = 500 + 100 * torch.rand(2, rows, columns, generator=random)
    costs[0, 1], costs[1, :, 2] = math.inf, math.inf
    potential = 60 * torch.rand(2, columns, generator=random) - 10
    weights = torch.rand(2, columns, generator=random).log()
    weights[0, -1] = -math.inf
    return [each.to(DEVICE) for each in (costs, potential, weights, 550 * torch.ones(2, rows))]


@runs_kernels
@pytest.mark.parametrize("columns", [3, 70, 300])
@pytest.mark.parametrize(
    "options",
    [{}, {"share": 0.5}, {"extra": 0.77}, {"damping": 0.3}, {"penalty": 20.0, "extra": 0.5}],
    ids=str,
)
@pytest.mark.parametrize("epsilon", [0.05, 30.0])
def test_a_transform(columns: int, options: dict[str, float], epsilon: float):
    given = problems(5, columns)
    expected = fixed_plans.softmin(*[each.double() for each in given], epsilon, **options)
    found = softmin(*given, epsilon, **options)
    assert found.dtype == torch.float32
    assert bool(expected.isfinite().all())
    torch.testing.assert_close(found.double(), expected, rtol=1e-6, atol=1e-4)


@runs_kernels
@pytest.mark.parametrize("columns", [7, 70])
@pytest.mark.parametrize("penalty", [None, 20.0])
@pytest.mark.parametrize("averaged", [False, True])
def test_plans(columns: int, penalty: float | None, averaged: bool):
    if averaged and penalty is not None:
        pytest.skip("not used")
    costs, _, weights, _ = problems(5, columns)
    rows = torch.full((2, 5), 0.2, device=DEVICE).log()
    epsilons = [60.0, 60.0, 30.0, 10.0, 3.0, 1.0, 0.3, 0.1, 0.1]
    options = {"averaged": averaged, "extra": 0.77, "penalty": penalty}
    expected = fixed_plans.plans(
        *[each.double() for each in (costs, rows, weights)], epsilons, 0.1, **options
    )
    for found, reference in zip(plans(costs, rows, weights, epsilons, 0.1, **options), expected, strict=True):
        assert bool(reference.any())
        assert bool(reference.isfinite().all())
        torch.testing.assert_close(found.double(), reference, rtol=2e-2, atol=1e-6)


@runs_kernels
@pytest.mark.parametrize("loss", LOSSES, ids=str)
@pytest.mark.parametrize("small", [True, False])
def test_a_whole_step(loss: dict[str, object], small: bool, monkeypatch: pytest.MonkeyPatch):
    """All of it by kernels, beside the same in float64; the second sample is empty."""
    monkeypatch.setattr(fused, "holds", lambda *_: small)
    if INTERPRETED:  # which takes its time
        monkeypatch.setattr(fixed_plans, "_ITERATIONS", 96 if small else 4)
        monkeypatch.setattr(fixed_plans, "_STAGES", 78 if small else 3)
    random, n, steps = torch.Generator().manual_seed(1), 9, 2
    held = StoredRecords(
        (torch.rand(60, 11, generator=random) * 2 - 1).to(DEVICE),
        torch.arange(60).to(DEVICE) // 20,
        torch.float32,
    )
    points = (torch.rand(12, 11, generator=random) * 2 - 1).to(DEVICE)
    labels = torch.tensor([0, 0, 1, 1, 2, 2, 2, 1, 0, 0, 0, 1]).to(DEVICE)
    barrier = mechanism_of(Batch, 1e4, 1.0, L1L2(0.5), 0.05, 1 / 3, 3, 2.0, **loss)
    fixed = barrier.fixed(Setting(n, None, 4.0, held))
    assert fixed is not None
    indices = poisson_sample(steps * 60, 1 / 6, SeededNoise(1), device=held.device)
    inputs, _ = fixed.inputs_of(held.drawn(indices[indices // 60 != 1], steps))
    cells = torch.zeros(n, 11, dtype=torch.int64, device=DEVICE)
    for step in range(steps):
        at = {name: value[step] for name, value in inputs.items()}
        found = []
        for kernels in (True, False):
            fixed._kernels, fixed._small = kernels, False
            found.append(fixed.gradient(points, labels, at, cells))
        torch.testing.assert_close(*found, rtol=2e-3, atol=2e-4)
        assert bool(found[1].any())


@needs_compiler
def test_compile_for_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    kernel = fused.softmin_kernel
    numbers = ("epsilon", "share", "extra", "reach", "damping", "penalty")
    types = dict.fromkeys(kernel.arg_names, "*fp32") | dict.fromkeys(numbers, "fp32")
    for block, warps in ((128, 1), (LONGEST_ROW, 8)):
        sizes = {"ROWS": 50, "COLUMNS": block - 5, "BLOCK": block, "CENTRED": True}
        compile_for_a_gpu(kernel, types, sizes, warps=warps)
    kernel = fused.plans_kernel
    numbers = ("regularization", "share", "extra", "penalty")
    types = dict.fromkeys(kernel.arg_names, "*fp32") | dict.fromkeys(numbers, "fp32") | {"steps": "i32"}
    for averaged, relaxed in ((True, False), (False, True)):
        sizes = {"N": 50, "WIDTH": 128, "ROWS": 64, "COLUMNS": 128, "AVERAGED": averaged, "RELAXED": relaxed}
        compile_for_a_gpu(kernel, types, sizes, warps=8)


@needs_cuda
@pytest.mark.parametrize("loss", LOSSES, ids=str)
@pytest.mark.parametrize("n", [50, 500, 1000])
def test_replays_from_a_graph_with_another_sample(loss: dict[str, object], n: int):
    random = torch.Generator().manual_seed(1)
    held = StoredRecords(
        (torch.rand(4 * n, 784, generator=random) * 2 - 1).to(DEVICE),
        torch.arange(4 * n).to(DEVICE) % 10,
        torch.float32,
    )
    held = StoredRecords(held.points, held.kinds.sort().values, torch.float32)
    barrier = mechanism_of(Batch, 0.5, 1.0, L1L2(), 0.05, 0.4, 10, **loss)
    fixed = barrier.fixed(Setting(n, None, float(n), held))
    assert fixed is not None
    drawn = held.drawn(poisson_sample(12 * n, 0.25, SeededNoise(1), device=held.device), 3)
    inputs, _ = fixed.inputs_of(drawn)
    points = (torch.rand(n + 2 * n // 5, 784, generator=random) * 2 - 1).to(DEVICE)
    labels = (torch.arange(len(points)) % 10).to(DEVICE)
    cells = torch.zeros(n, 784, dtype=torch.int64, device=DEVICE)
    at = {name: value[0].clone() for name, value in inputs.items()}
    fixed.gradient(points, labels, at, cells)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = fixed.gradient(points, labels, at, cells)
    for step in (1, 2, 0):
        for name, value in at.items():
            value.copy_(inputs[name][step])
        graph.replay()
        torch.testing.assert_close(out, fixed.gradient(points, labels, at, cells), rtol=0, atol=0)


def test_bad_input():
    costs, potential, weights, old = (
        torch.zeros(size) for size in ((2, 3, 2049), (2, 2049), (2, 2049), (2, 3))
    )
    with pytest.raises(ValueError, match="2048 long"):
        softmin(costs, potential, weights, old, 1.0)
    with pytest.raises(ValueError, match="too large"):
        plans(costs, old, weights, [1.0], 1.0, averaged=True, extra=0.0, penalty=None)
    with pytest.raises(ValueError, match="contiguous"):
        softmin(torch.zeros(2, 4, 3).mT, torch.zeros(2, 4), torch.zeros(2, 4), old, 1.0)
