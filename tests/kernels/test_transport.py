"""The GPU kernels of a training step beside the plain path: on a CUDA device, else in the interpreter."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor

from dpsinkhorn.kernels import _triton_plans, transport
from dpsinkhorn.kernels.launch import AVAILABLE, available
from dpsinkhorn.kernels.transport import Schedule, Step, eq6_gradient, supported
from dpsinkhorn.mechanisms.batch import Batch
from dpsinkhorn.mechanisms.shared.base import Sample
from dpsinkhorn.ot import L1L2, Cityblock, Cost, MatrixProblem, SquaredEuclidean, solve
from dpsinkhorn.ot.costs import PixelCost
from support.barriers import mechanism_of
from support.kernels import (
    DEVICE,
    compile_for_a_gpu,
    needs_compiler,
    needs_cuda,
    runs_kernels,
)

LONG = Schedule(stages=60, iterations=150, relaxation=1.8)
COSTS: dict[str, Cost] = {"both": L1L2(0.5), "squared": SquaredEuclidean(), "cityblock": Cityblock()}


def draw(*shape: int, seed: int) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed)) * 2 - 1


def make_step(
    generated: int, resampled: int, capacity: int, count: int, d: int, classes: int = 0, seed: int = 0
) -> Step:
    """Random clouds with garbage in the unused room."""
    x, y = draw(generated + resampled, d, seed=seed), draw(capacity, d, seed=seed + 1)
    y[count:] = float("nan")
    labels = y_labels = None
    if classes:  # one label too large and one too small: no classes
        of = torch.Generator().manual_seed(seed)
        labels = torch.randint(-1, classes + 1, (len(x),), generator=of).to(DEVICE)
        y_labels = torch.randint(-1, classes + 1, (capacity,), generator=of)
        y_labels[count:] = -(2**40)
        y_labels = y_labels.to(DEVICE)
    number = torch.tensor([count], dtype=torch.int32, device=DEVICE)
    return Step(x.to(DEVICE), labels, y.to(DEVICE), y_labels, number, resampled)


def priced(step: Step, cost: Cost, classes: int = 0, label_weight: float = 15.0) -> Step:
    """The same clouds under this cost."""
    pixels = PixelCost.of(cost)
    assert pixels is not None
    label_cost = pixels.of_difference(label_weight)
    return replace(step, **vars(pixels), classes=classes, label_cost=label_cost)


def plain(step: Step, cost: Cost, regularization: float, classes: int, label_weight: float) -> Tensor:
    """What the barrier computes."""
    debias = step.resampled / step.rows
    barrier = mechanism_of(Batch, 1.0, 1.0, cost, regularization, debias, classes, label_weight)
    count = int(step.count)
    y_labels = None if step.y_labels is None else step.y_labels[:count].cpu()
    labels = None if step.labels is None else step.labels.cpu()
    return barrier._gradient(step.x.cpu(), labels, Sample(step.y[:count].cpu(), y_labels))


def assert_alike(step: Step, kind: str = "both", regularization: float = 0.05, classes: int = 0) -> None:
    step = priced(step, COSTS[kind], classes, label_weight=2.0)
    errors = torch.full((2,), -1.0, device=DEVICE)
    got = eq6_gradient(step, regularization, LONG, errors=errors)
    expected = plain(step, COSTS[kind], regularization, classes, label_weight=2.0)
    assert got.dtype == torch.float32
    assert errors.min() >= 0
    assert errors.max() < 1e-3
    torch.testing.assert_close(got.cpu().double(), expected, rtol=2e-3, atol=2e-4)


@runs_kernels
@pytest.mark.parametrize(("kind", "resampled"), [("both", 0), ("both", 2), ("squared", 7), ("cityblock", 2)])
def test_same_gradient_as_the_sanitizer(kind: str, resampled: int):
    assert_alike(make_step(7, resampled, capacity=12, count=9, d=11), kind)


@runs_kernels
def test_same_gradient_with_labels():
    assert_alike(make_step(9, 4, capacity=16, count=13, d=70, classes=3), classes=3)


@runs_kernels
@pytest.mark.parametrize("count", [1, 70])
def test_same_gradient_for_few_and_many_records(count: int):
    assert_alike(make_step(6, 2, capacity=80, count=count, d=5), regularization=0.3)


@runs_kernels
def test_without_records_there_is_no_cross_term():
    assert_alike(make_step(6, 2, capacity=8, count=0, d=5))


@runs_kernels
def test_more_rows_than_a_narrow_tile():
    assert_alike(make_step(70, 10, capacity=20, count=20, d=3), regularization=0.5)


@runs_kernels
def test_odd_pixels_are_tidied():
    step = make_step(5, 2, capacity=8, count=6, d=9)
    step.x[0, 0], step.x[1, 1], step.x[6, 2] = float("nan"), float("inf"), -7.0
    step.y[0, 3], step.y[1, 4] = float("nan"), float("-inf")
    assert_alike(step, regularization=0.3)


@runs_kernels
def test_unused_room_changes_nothing():
    small = make_step(6, 3, capacity=8, count=8, d=5)
    results = []
    for capacity in (8, 40, 100, 200):
        y = torch.full((capacity, 5), float("inf"), device=DEVICE)
        y[:8] = small.y
        step = Step(small.x, None, y, None, small.count, 3, absolute=1.0)
        results.append(eq6_gradient(step, 0.1))
    for result in results[1:]:
        torch.testing.assert_close(result, results[0], rtol=1e-3, atol=1e-5)


@runs_kernels
@pytest.mark.parametrize("kind", COSTS)
def test_costs(kind: str):
    cost = COSTS[kind]
    step = priced(make_step(10, 3, capacity=20, count=17, d=150), cost)
    out = step.buffer()
    step.costs(out)
    x, y = step.x.cpu().double(), step.y[:17].cpu().double()
    torch.testing.assert_close(out[0, :, :17].cpu().double(), cost.pairwise(x[:10], y), rtol=1e-6, atol=0)
    own = cost.pairwise(x[:10], x[3:])
    torch.testing.assert_close(out[1, :, :10].cpu().double(), own, rtol=1e-6, atol=1e-9)


def digits(generated: int, resampled: int, count: int) -> tuple[Step, Tensor]:
    """Costs between real digits, at the size of the papers', in the kernels' buffer."""
    images, labels = load_digits(return_X_y=True)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    points = (torch.from_numpy(images)[order] / 8 - 1).reshape(-1, 8, 1, 8, 1).expand(-1, 8, 3, 8, 3)
    onehot = torch.nn.functional.one_hot(torch.from_numpy(labels)[order], 10)
    points = torch.cat([points.reshape(-1, 576), 15.0 * onehot], dim=1)
    x, y = points[: generated + resampled], points[generated + resampled :][:count]
    number = torch.tensor([count], dtype=torch.int32, device=DEVICE)
    step = Step(x.float().to(DEVICE), None, y.float().to(DEVICE), None, number, resampled)
    costs = torch.full_like(step.buffer(), float("nan"))
    costs[0, :, :count] = L1L2(1.0).pairwise(x[:generated], y)
    costs[1, :, :generated] = L1L2(1.0).pairwise(x[:generated], x[resampled:])
    return step, costs


def solved(step: Step, costs: Tensor, schedule: Schedule) -> tuple[list[Tensor], Tensor]:
    plans, errors = step.buffer(), torch.empty(2, device=DEVICE)
    step.plans(costs, 0.05, schedule, plans, errors)
    sizes = (int(step.count), step.rows)
    return [plan[:, :size].cpu().double() for plan, size in zip(plans, sizes, strict=True)], errors.cpu()


@runs_kernels
@pytest.mark.parametrize("count", [50, 53, 70])
def test_plans_of_digits_after_few_iterations(count: int):
    step, costs = digits(50, 20, count)
    assert 500 < float(costs[0, :, :count].median()) < 2000
    plans, errors = solved(step, costs, Schedule())
    for plan, error in zip(plans, errors, strict=True):
        torch.testing.assert_close(plan.sum(1), torch.full((50,), 1 / 50).double(), rtol=1e-4, atol=0)
        off = (plan.sum(0) - 1 / plan.shape[1]).abs().sum()
        # a GPU's own reciprocals and exponentials are exact to 2^-22 only, over several rounds
        torch.testing.assert_close(error.double(), off, rtol=1e-3, atol=1e-4)
    assert errors.max() < 0.03
    _, rough = solved(step, costs, Schedule(stages=27, iterations=30, relaxation=1.0))
    assert rough[0] > 5 * errors[0]


@runs_kernels
def test_plans_of_digits_after_many_iterations():
    step, costs = digits(50, 20, 53)
    long = Schedule(stages=300, iterations=800)
    plans, errors = solved(step, costs, long)
    assert errors.max() < 1e-3
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for plan, matrix in zip(plans, costs, strict=True):
            exact = solve(MatrixProblem(matrix[:, : plan.shape[1]].cpu().double()), 0.05).plan
            assert (plan - exact).abs().sum() < 5e-3


@needs_compiler
def test_compile_for_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    sizes = {"N": 50, "CAPACITY": 128, "WIDTH": 128}
    tiles = {"ROWS": 64, "NARROW": 64, "WIDE": 128, "LENGTH": 6}
    pixels = {"D": 784, "RESAMPLED": 20, "SQUARED": True, "PIXELS": 64}
    constants = {
        transport.costs_kernel: {**sizes, **pixels, "CLASSES": 10, "ROWS": 8, "COLUMNS": 8},
        _triton_plans.plans_kernel: {**sizes, **tiles, "LANES": 2, "HOLD": True, "FAST": True},
        transport.gradient_kernel: {**sizes, **pixels, "POINTS": 64},
    }
    integers = {"x_labels": "*i64", "y_labels": "*i64", "count": "*i32"}
    integers |= dict.fromkeys(("falls", "rounds"), "i32")
    numbers = ("l1_weight", "label_cost", "scale", "extra", "ahead")
    types = integers | dict.fromkeys(numbers, "fp32")
    for kernel, values in constants.items():
        compile_for_a_gpu(kernel, dict.fromkeys(kernel.arg_names, "*fp32") | types, values, warps=4)


def hostile_costs() -> dict[str, Tensor]:
    """Matrices (20, 20) that real records do not make."""
    some = draw(20, 20, seed=0).abs() * 1000
    far, infinite = some.clone(), some.clone()
    far[3], far[:, 5] = 1e30, 1e20
    infinite[3], infinite[:, 5] = float("inf"), float("inf")
    return {
        "equal": torch.zeros(20, 20),
        "a permutation": 1e6 * (1 - torch.eye(20)),
        "one for all": some + 1e6 * (torch.arange(20) > 0),
        "huge": some * 1e32,
        "tiny": some * 1e-40,
        "far points": far,
        "infinite": infinite,
        "nan": some * float("nan"),
    }


@runs_kernels
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy's, in the interpreter
@pytest.mark.parametrize(
    "kinds",
    [("equal", "huge"), ("a permutation", "infinite"), ("one for all", "nan"), ("far points", "tiny")],
    ids=" and ".join,
)
@pytest.mark.parametrize("schedule", [Schedule(18, 30), Schedule(6, 18, relaxation=1.95, ahead=1.0)])
def test_plans_of_any_costs_are_bounded(kinds: tuple[str, str], schedule: Schedule):
    step = make_step(20, 0, capacity=20, count=20, d=1)
    costs = torch.stack([hostile_costs()[kind] for kind in kinds]).to(DEVICE)
    for regularization in (1e-29, 0.05, 1e29):
        plans, errors = step.buffer(), torch.empty(2, device=DEVICE)
        step.plans(costs, regularization, schedule, plans, errors)
        assert bool(torch.isfinite(plans).all())
        assert plans.min() >= 0
        assert plans.sum(2).max() <= 1.001 / 20
        for kind, error in zip(kinds, errors, strict=True):
            assert error < 1e-3 or kind not in ("equal", "a permutation")


@needs_cuda
def test_replays_from_a_graph_with_another_count():
    step = priced(make_step(50, 20, capacity=128, count=53, d=784, classes=10), L1L2(1.0), classes=10)
    eq6_gradient(step, 0.05)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = eq6_gradient(step, 0.05)
    for count in (47, 0, 53):
        step.count.fill_(count)
        graph.replay()
        torch.testing.assert_close(out, eq6_gradient(step, 0.05), rtol=0, atol=0)


def test_bad_input():
    x, y, count = torch.rand(6, 3), torch.rand(5, 3), torch.tensor(4)
    for arguments, words in {
        (x, None, torch.rand(5, 2), None, count, 1): "x and y",
        (x.double(), None, y.double(), None, count, 1): "float32",
        (x, None, y, None, torch.tensor(4.0), 1): "count",
        (x, None, y, None, count, 4): "resampled",
        (x, torch.zeros(5, dtype=torch.int64), y, None, count, 1): "labels",
    }.items():
        with pytest.raises(ValueError, match=words):
            Step(*arguments)  # type: ignore[arg-type]
    large = Step(torch.rand(200, 3), None, y, None, count, 1)
    with pytest.raises(ValueError, match="too large"):
        large.plans(large.buffer(), 0.1, Schedule(), large.buffer(), torch.empty(2))
    with pytest.raises(ValueError, match="regularization"):
        eq6_gradient(Step(x, None, y, None, count, 1), 0.0)


def test_where_they_run():
    assert supported(50, 128)
    assert not supported(129, 10)
    assert not supported(10, 257)
    assert not available("cpu")
    assert available("cuda") == AVAILABLE
