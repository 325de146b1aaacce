"""Relaxed marginals, plans within classes, plans stopped early: beside references, and behind the barrier."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from dpsinkhorn.mechanisms.batch import Batch
from dpsinkhorn.mechanisms.image import Image
from dpsinkhorn.mechanisms.none import NoPrivacy
from dpsinkhorn.mechanisms.shared.base import Sample
from dpsinkhorn.mechanisms.shared.fixed_plans import annealed_plans, plan_within_classes
from dpsinkhorn.ot import L1L2, MatrixProblem, SquaredEuclidean, solve, transport_loss, with_labels
from dpsinkhorn.report import write_report
from dpsinkhorn.training import facts_of, make_plan
from support.barriers import mechanism_of
from support.runs import DATA, finished, tiny_recipe
from support.sanitizer_oracles import digits, neighbours, pair_costs

LOSSES = [{"marginals": 0.0}, {"marginals": 20.0}, {"marginals": "classes"}, {"iterations": 13}]
EVERY = pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: str(*loss.values()))
EXACT = {"tolerance": 1e-10, "max_iterations": 5000}


def clouds(n: int, m: int, d: int = 3, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x, y = (torch.randn(k, d, generator=generator, dtype=torch.float64) for k in (n, m))
    return torch.tanh(x), torch.tanh(y)


def stopped_loss(x: Tensor, y: Tensor, e: float, diameter: float, iterations: int) -> Tensor:
    """<a, f> + <b, g> after annealing; only the last transforms are differentiated, in their own points."""

    def softmin(points: Tensor, others: Tensor, potential: Tensor, e: float) -> Tensor:
        costs = pair_costs(SquaredEuclidean(), points, others.detach())
        weights = torch.full((len(others),), 1 / len(others), dtype=torch.float64).log()
        return -e * torch.logsumexp(weights + (potential - costs) / e, 1)

    schedule = [diameter, diameter]
    while schedule[-1] / 2 > e:
        schedule.append(schedule[-1] / 2)
    schedule = [*schedule, *[e] * iterations][:iterations]
    f, g = softmin(x, y, torch.zeros(len(y)), diameter), softmin(y, x, torch.zeros(len(x)), diameter)
    for each in schedule:
        f, g = (f + softmin(x, y, g, each)) / 2, (g + softmin(y, x, f, each)) / 2
    return softmin(x, y, g.detach(), e).mean() + softmin(y, x, f.detach(), e).mean()


@pytest.mark.parametrize("iterations", [1, 8, 30])
def test_annealed_plans_beside_autograd(iterations: int):
    x, y = (each.requires_grad_() for each in clouds(7, 5))
    expected = torch.autograd.grad(stopped_loss(x, y, 0.05, 3.5, iterations), [x, y])
    cost = SquaredEuclidean()
    with torch.no_grad():
        rows, columns = annealed_plans(cost.pairwise(x, y), 0.05, 3.5, iterations)
        torch.testing.assert_close(cost.gradient(x, y, rows), expected[0])
        torch.testing.assert_close(cost.gradient_y(x, y, columns), expected[1])


def test_many_iterations_converge():
    costs = SquaredEuclidean().pairwise(*clouds(7, 7))
    rows, columns = annealed_plans(costs, 0.5, 3.5, 500)
    for plan in (rows, columns):
        torch.testing.assert_close(plan, solve(MatrixProblem(costs), 0.5).plan, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("regularization", [0.05, 5.0, 500.0])
def test_plans_within_classes_are_those_of_each_class(regularization: float):
    x, y = clouds(8, 9)
    kinds, other = torch.tensor([0, 0, 0, 1, 1, 3, 3, 1]), torch.tensor([1, 0, 0, 1, 2, 0, -1, 9, 1])
    costs = SquaredEuclidean().pairwise(x, y)
    expected = torch.zeros(8, 9, dtype=torch.float64)
    for kind in (0, 1):
        rows, columns = (kinds == kind).nonzero(), (other == kind).nonzero()[:, 0]
        part = solve(MatrixProblem(costs[rows, columns]), regularization).plan
        expected[rows, columns] = part * len(rows) / 8
    onehot = [each[:, None] == torch.arange(4) for each in (kinds, other)]
    found = plan_within_classes(costs, *onehot, regularization, tolerance=1e-10)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-10)


@pytest.mark.parametrize("marginals", [0.0, 3.0, 200.0, "classes"])
def test_gradients_beside_finite_differences(marginals):
    """Of 2 W(A, Y) - W(A, B), both relaxed alike; within classes a sum over them."""
    n, extra, classes = 5, 2, 2
    x, y = clouds(n + extra, 4)
    labels, kinds = torch.tensor([0, 1, 0, 1, 1, 0, 1]), torch.tensor([0, 1, 1, 0])
    barrier = mechanism_of(
        NoPrivacy, 1.0, 1.0, L1L2(), 2.0, extra / n, classes, 1.5, marginals=marginals, **EXACT
    )

    def value(x: Tensor, y: Tensor, x_kinds: Tensor, y_kinds: Tensor) -> float:
        if marginals != "classes":
            x, y = with_labels(x, x_kinds, classes, 1.5), with_labels(y, y_kinds, classes, 1.5)
            return float(transport_loss(x, y, 2.0, cost=L1L2(), marginals=(math.inf, marginals)))
        return sum(
            float((x_kinds == k).sum())
            / len(x)
            * float(transport_loss(x[x_kinds == k], y[y_kinds == k], 2.0, cost=L1L2()))
            for k in range(classes)
        )

    def loss(x: Tensor) -> float:
        second = slice(extra, n + extra)
        return 2 * value(x[:n], y, labels[:n], kinds) - value(x[:n], x[second], labels[:n], labels[second])

    gradient, step = barrier._gradient(x, labels, Sample(y, kinds)), 1e-5
    for row, column in ((0, 0), (3, 1), (6, 2)):
        moved = torch.zeros_like(x)
        moved[row, column] = step
        slope = (loss(x + moved) - loss(x - moved)) / (2 * step)
        assert float(gradient[row, column]) == pytest.approx(slope, rel=1e-4, abs=1e-6)


@EVERY
@pytest.mark.parametrize("kind", ["batch", "image"])
class TestBehindTheBarrier:
    def barrier(self, kind: str, loss: dict[str, object], n: int = 20) -> Batch | Image:
        options = {"debias": 0.4, "classes": 10, "max_iterations": 200, **loss}
        if kind == "batch":
            return mechanism_of(Batch, 0.5, 1.3, L1L2(), 0.05, **options)
        return mechanism_of(Image, 0.5, 1.3, L1L2(), 0.05, **options, rows=n)

    def images(self) -> tuple[Tensor, Tensor]:
        values = 8 * torch.randn(28, 64, generator=torch.Generator().manual_seed(3)) - 3
        return torch.tanh(values), torch.cat([torch.arange(20) % 10, torch.arange(8) % 10])

    def test_neighbours_move_by_no_more_than_the_sensitivity(self, kind: str, loss: dict[str, object]):
        barrier, (images, labels) = self.barrier(kind, loss), self.images()
        moves = []
        for name, before, after in neighbours(images, labels):
            if name != "one more of a thousand":
                first, second = (barrier.clipped(images, labels, each) for each in (before, after))
                assert bool(torch.isfinite(second).all()), name
                moves.append(float((first - second).norm()) / barrier.mechanism.sensitivity)
        assert 0.1 < max(moves) <= 1 + 1e-14

    def test_rows_without_noise_and_empty_samples_show_nothing(self, kind: str, loss: dict[str, object]):
        """Records of no class, none at all and many leave the same bits in the resampled rows."""
        barrier, (images, labels) = self.barrier(kind, loss), self.images()
        points, kinds = digits()
        samples = [
            Sample(points[:0], kinds[:0]),
            Sample(points[:3], torch.tensor([-1, 10, 99])),
            Sample(points[:60], kinds[:60]),
        ]
        nothing, unknown, many = (barrier._gradient(images, labels, sample) for sample in samples)
        assert torch.equal(nothing[20:], unknown[20:])
        assert torch.equal(nothing[20:], many[20:])
        assert bool(nothing[20:].any())
        assert torch.equal(nothing, unknown) is (loss == {"marginals": "classes"})
        assert not torch.equal(nothing[:20], many[:20])


@EVERY
@pytest.mark.parametrize("kind", ["batch", "parameter", "none"])
def test_a_run_from_start_to_release(kind: str, loss: dict[str, object], tmp_path):
    plan = make_plan(tiny_recipe(kind, steps=3, loss=loss), facts_of(DATA), accountant="rdp", seed=1)
    run = finished(tmp_path / "run", plan, DATA)
    page = write_report(run.folder).report.read_text(encoding="utf-8")
    assert plan.recipe.loss.transport.replace("'", "&#39;") in page
