"""The Sinkhorn mechanisms in fixed shapes: the gradients of one by one, and nothing of absent records."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from dpsinkhorn.mechanisms.batch import Batch
from dpsinkhorn.mechanisms.image import Image
from dpsinkhorn.mechanisms.none import NoPrivacy
from dpsinkhorn.mechanisms.shared import fixed_plans as plans
from dpsinkhorn.mechanisms.shared.base import Sample
from dpsinkhorn.mechanisms.shared.fixed_plans import annealed_plans, plan_within_classes
from dpsinkhorn.mechanisms.shared.sinkhorn import FixedRows
from dpsinkhorn.mechanisms.shared.steps import Setting
from dpsinkhorn.ot import L1L2, Cityblock, Cost, MatrixProblem, SquaredEuclidean, solve
from dpsinkhorn.privacy import SeededNoise, poisson_sample
from dpsinkhorn.privacy.noise import normal_cells
from dpsinkhorn.training.records import StoredRecords
from support.barriers import mechanism_of
from support.sanitizer_oracles import digits

N, EXTRA, CLASSES, PIXELS, STEPS = 20, 8, 10, 64, 3
# Each with how far it may be off, relative to its norm: what is stopped early is the same to rounding.
LOSSES = {
    "balanced": ({}, 0.05),
    "13": ({"iterations": 13}, 1e-9),
    "classes": ({"marginals": "classes"}, 0.01),
    "rho 100": ({"marginals": 100.0}, 0.02),
    "rho 1": ({"marginals": 1.0}, 1e-4),
    "rho 0": ({"marginals": 0.0}, 1e-9),
}
EVERY = pytest.mark.parametrize("loss", LOSSES)


def held_digits() -> StoredRecords:
    points, labels = digits()
    kinds, order = labels[:300].sort(stable=True)
    return StoredRecords(points[:300][order].float(), kinds, torch.float32)


def images() -> tuple[Tensor, Tensor]:
    """Late in training: digits that are not quite records."""
    points, labels = digits()
    random = torch.Generator().manual_seed(3)
    chosen = 300 + torch.randperm(400, generator=random)[: N + EXTRA]
    labels = torch.cat([labels[chosen[:N]], labels[chosen[:EXTRA]]])
    noise = torch.randn(N + EXTRA, PIXELS, generator=random)
    return torch.tanh(points[chosen].float() + 0.3 * noise), labels


def drawn(held: StoredRecords, steps: int = STEPS):
    """Poisson samples, of which the second is empty."""
    indices = poisson_sample(steps * held.count, N / held.count, SeededNoise(1))
    return held.drawn(indices[indices // held.count != 1], steps)


def barrier_of(
    kind: str, loss: str, cost: Cost | None = None, noise: float = 1.3
) -> Batch | Image | NoPrivacy:
    options = {"debias": EXTRA / N, "classes": CLASSES, **LOSSES[loss][0]}
    cost = cost or L1L2()
    if kind == "none":
        return mechanism_of(NoPrivacy, 1.0, 1.0, cost, 0.05, **options)
    if kind == "batch":
        return mechanism_of(Batch, 0.5, noise, cost, 0.05, **options)
    return mechanism_of(Image, 0.5, noise, cost, 0.05, **options, rows=N)


def made(barrier: Batch | Image | NoPrivacy, held: StoredRecords) -> FixedRows:
    fixed = barrier.fixed(Setting(N, None, float(N), held))
    assert fixed is not None
    return fixed


@EVERY
@pytest.mark.parametrize("cost", [L1L2(), SquaredEuclidean(), Cityblock()], ids=["mixed", "l2", "l1"])
@pytest.mark.parametrize("kind", ["batch", "image", "none"])
def test_the_same_gradient_as_one_by_one(kind: str, cost: Cost, loss: str):
    barrier, held, (points, labels) = barrier_of(kind, loss, cost), held_digits(), images()
    fixed, some = made(barrier, held), drawn(held)
    inputs, fits = fixed.inputs_of(some)
    assert fits.all()
    for step in range(STEPS):
        rows = some.rows[some.step == step]
        assert (len(rows) == 0) == (step == 1)
        cells = normal_cells(SeededNoise(step), (N, PIXELS))
        sample = Sample(held.read(rows), held.kinds[rows])
        expected = barrier._released(barrier._gradient(points, labels, sample), cells=cells)
        quiet = barrier._released(barrier._gradient(points, labels, sample), cells=torch.zeros_like(cells))
        at = {name: value[step] for name, value in inputs.items()}
        found = fixed.gradient(points, labels, at, cells if kind != "none" else None)
        assert float((found - expected).norm()) <= LOSSES[loss][1] * float(quiet.norm())


@EVERY
def test_records_that_were_not_drawn_have_no_say(loss: str):
    """Whatever lies where there is room, the result has the same bits; so do rows that see no record."""
    barrier, held, (points, labels) = barrier_of("image", loss), held_digits(), images()
    some = drawn(held)
    others = torch.ones(held.count, dtype=torch.bool)
    others[some.rows] = False
    spoilt = held.points.clone()
    spoilt[others] = float("nan")
    released = []
    for records in (held, StoredRecords(spoilt, held.kinds, torch.float32)):
        fixed = made(barrier, records)
        inputs, _ = fixed.inputs_of(some)
        for step in range(STEPS):
            at = {name: value[step] for name, value in inputs.items()}
            at["kinds"] = torch.where(torch.arange(len(at["kinds"])) < at["count"], at["kinds"], 7)
            zeros = torch.zeros(N, PIXELS, dtype=torch.int64)
            released.append(fixed.gradient(points, labels, at, zeros))
    assert all(torch.equal(*pair) for pair in zip(released[:STEPS], released[STEPS:], strict=True))
    assert all(torch.equal(released[0][N:], other[N:]) for other in released)
    assert not torch.equal(released[0][:N], released[1][:N])
    alone = StoredRecords(spoilt.fill_(float("nan")), held.kinds, torch.float32)
    again = made(barrier, alone)
    inputs, _ = again.inputs_of(some)
    assert torch.equal(
        again.gradient(points, labels, {k: v[1] for k, v in inputs.items()}, zeros), released[1]
    )


@EVERY
@pytest.mark.parametrize("kind", ["batch", "image"])
def test_neighbours_move_by_no_more_than_the_sensitivity(kind: str, loss: str):
    """One record more or less, near and far, among many and alone."""
    barrier, (points, labels) = barrier_of(kind, loss), images()
    held = held_digits()
    held.points[7], held.points[8] = 1.0, -points[0]
    fixed = made(barrier, held)
    zeros = torch.zeros(N, PIXELS, dtype=torch.int64)
    random, moves = torch.Generator().manual_seed(0), []
    for size in (0, 1, 19):
        for record in (7, 8, 200):
            rest = torch.randperm(300, generator=random)[:size]
            rest = rest[rest != record].sort().values
            both = torch.cat([rest, torch.tensor([record])]).sort().values
            sums = []
            for rows in (rest, both):
                inputs, fits = fixed.inputs_of(held.drawn(rows, 1))
                assert fits.all()
                at = {name: value[0] for name, value in inputs.items()}
                sums.append(fixed.gradient(points, labels, at, zeros)[:N])
            moves.append(float((sums[0] - sums[1]).norm()))
    bound = barrier.mechanism.sensitivity
    lattice = 2.0**-30 * bound * 1.3 * (N * PIXELS) ** 0.5  # what the lattice of the noise adds
    assert 0.1 * bound < max(moves) <= bound + lattice


@EVERY
def test_an_empty_sample_has_the_stated_noise(loss: str):
    barrier, held, (points, labels) = barrier_of("batch", loss), held_digits(), images()
    fixed = made(barrier, held)
    inputs, _ = fixed.inputs_of(held.drawn(torch.empty(0, dtype=torch.int64), 1))
    at = {name: value[0] for name, value in inputs.items()}
    cells = normal_cells(SeededNoise(4), (20, N, PIXELS))
    quiet = fixed.gradient(points, labels, at, torch.zeros_like(cells[0]))[:N]
    noise = torch.stack([fixed.gradient(points, labels, at, each)[:N] - quiet for each in cells])
    stated = 1.3 * 2 * 0.5
    assert abs(float(noise.std()) / stated - 1) < 5 / math.sqrt(2 * noise.numel())


def test_a_sample_for_which_there_is_no_room():
    held = held_digits()
    fixed = made(barrier_of("image", "13"), held)
    _, fits = fixed.inputs_of(held.drawn(torch.cat([torch.arange(64), 300 + torch.arange(65)]), 2))
    assert fits.tolist() == [True, False]


@pytest.mark.parametrize("loss", ["13", "classes", "rho 100"])
def test_any_pixels_and_labels(loss: str):
    """NaN, infinities and labels that are no class are as harmless as one by one."""
    barrier, held, (points, labels) = barrier_of("none", loss), held_digits(), images()
    points[0, :3], points[1] = torch.tensor([float("nan"), float("inf"), -7.0]), float("-inf")
    held.points[5] = float("nan")
    held.kinds[[4, 6]] = torch.tensor([-1, 99])
    some = held.drawn(torch.arange(0, 60, 2), 1)
    fixed = made(barrier, held)
    inputs, _ = fixed.inputs_of(some)
    found = fixed.gradient(points, labels, {name: value[0] for name, value in inputs.items()}, None)
    expected = barrier._gradient(points, labels, Sample(held.read(some.rows), held.kinds[some.rows]))
    assert float((found - expected).norm()) <= LOSSES[loss][1] * float(expected.norm())


def test_sizes_without_fixed_shapes():
    held = held_digits()
    assert barrier_of("batch", "13").fixed(Setting(1000, None, 1000.0, held)) is not None
    assert barrier_of("batch", "13").fixed(Setting(N, None, 2000.0, held)) is None
    assert barrier_of("image", "13").fixed(Setting(N + 1, None, 20.0, held)) is None


# ---- plans


def padded(costs: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """Two problems of the same costs, with garbage in the room; which columns are there."""
    room = torch.full((2, len(costs), width), float("nan"), dtype=costs.dtype)
    room[..., : costs.shape[1]] = costs
    return room, torch.arange(width).expand(2, width) < costs.shape[1]


def digit_costs() -> tuple[Tensor, Tensor, Tensor]:
    points, labels = images()
    records, kinds = digits()
    costs = L1L2().pairwise(points[:N].double(), records[:23].double())
    return costs, labels[:N], kinds[:23].clone()


@pytest.mark.parametrize("width", [23, 64])
def test_stopped_plans(width: int):
    costs, _, _ = digit_costs()
    found = plans.stopped_plans(plans.uniform(*padded(costs, width)), 0.05, 65.0, 13)
    for plan, expected in zip(found, annealed_plans(costs, 0.05, 65.0, 13), strict=True):
        for each in plan:
            torch.testing.assert_close(each[:, :23], expected, rtol=1e-9, atol=1e-9)
            assert not each[:, 23:].any()


@pytest.mark.parametrize("penalty", [None, 300.0, 10.0, 0.0])
def test_plans_that_converge(penalty: float | None):
    costs, _, _ = digit_costs()
    found, _ = plans.solve_fixed(plans.uniform(*padded(costs, 32)), 0.5, 384.0, penalty)
    held = None if penalty is None else (math.inf, penalty)
    expected = solve(MatrixProblem(costs), 0.5, tolerance=1e-9, max_iterations=5000, marginals=held).plan
    for plan in found:
        assert float((plan[:, :23] - expected).abs().sum()) < 0.01
        assert not plan[:, 23:].any()


def test_plans_within_classes():
    costs, labels, kinds = digit_costs()
    kinds[3] = -1
    room, there = padded(costs, 32)
    others = torch.full((2, 32), 4)
    others[:, :23] = kinds
    held = plans.within_classes(room, there, labels, others, CLASSES)
    found, _ = plans.solve_fixed(held, 0.5, 384.0)
    onehot = [each[:, None] == torch.arange(CLASSES) for each in (labels, kinds)]
    expected = plan_within_classes(costs, *onehot, 0.5, tolerance=1e-9)
    for plan in found:
        assert float((plan[:, :23] - expected).abs().sum()) < 0.01
        assert not (plan[:, :23] * (labels[:, None] != kinds)).any()


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_plans_of_any_costs_are_bounded(scale: float):
    costs = digit_costs()[0].float() * scale
    held = plans.uniform(*padded(costs, 32))
    for plan in (*plans.solve_fixed(held, 0.05, 384.0), *plans.stopped_plans(held, 0.05, 65.0, 13)):
        assert bool(plan.isfinite().all())
        assert plan.min() >= 0
        assert plan.sum() <= 2.001
