"""Costs against their definitions, and their gradients against autograd on the definitions."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass

import pytest
import scipy.stats
import torch
from torch import Tensor

from dpsinkhorn.ot import (
    COST_NAMES,
    L1L2,
    Cityblock,
    Cost,
    Euclidean,
    MatrixProblem,
    Problem,
    SinkhornLoss,
    SquaredEuclidean,
    as_cost,
    native,
    solve,
    transport_loss,
    with_labels,
)
from dpsinkhorn.ot.costs import BUILT_IN, PixelCost


@pytest.fixture(autouse=True, params=[True, False], ids=["compiled", "torch"])
def _with_and_without_compiled_loops(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch):
    if not request.param:
        monkeypatch.setattr(native, "library", None)
        monkeypatch.setenv("DPSINKHORN_NATIVE", "0")  # for programs that a test starts


@dataclass(frozen=True)
class KernelCost(Cost):
    """A user's cost, of value and gradient: the squared distance in a Gaussian kernel's feature space."""

    symmetric = True
    width: float = 2.0

    def pairwise(self, x: Tensor, y: Tensor) -> Tensor:
        return 2 - 2 * torch.exp(-torch.cdist(x, y).square() / (2 * self.width**2))

    def gradient(self, x: Tensor, y: Tensor, plan: Tensor) -> Tensor:
        weights = plan * torch.exp(-torch.cdist(x, y).square() / (2 * self.width**2)) * 2 / self.width**2
        return weights.sum(-1, keepdim=True) * x - weights @ y


@dataclass(frozen=True)
class LazyKernelCost(Cost):
    """The same without a gradient of its own."""

    def pairwise(self, x: Tensor, y: Tensor) -> Tensor:
        return KernelCost().pairwise(x, y)


@dataclass(frozen=True)
class Uphill(Cost):
    """A cost that is not symmetric, without saying so: moving up costs three times what moving down does."""

    def pairwise(self, x: Tensor, y: Tensor) -> Tensor:
        rise = (y.unsqueeze(-3) - x.unsqueeze(-2)).sum(-1)
        return rise.square() * torch.where(rise > 0, 3.0, 1.0)


def by_definition(cost: Cost, x: Tensor, y: Tensor) -> Tensor:
    difference = x.unsqueeze(-2) - y.unsqueeze(-3)
    squared, absolute = difference.square().sum(-1), difference.abs().sum(-1)
    match cost:
        case SquaredEuclidean():
            return squared
        case Euclidean():
            return squared.sqrt()
        case Cityblock():
            return absolute
        case L1L2():
            return squared + cost.l1_weight * absolute
        case _:
            return cost.pairwise(x, y)


BUILT_INS = [SquaredEuclidean(), Euclidean(), Cityblock(), L1L2(3.0), L1L2(0.0)]
ALL = [*BUILT_INS, KernelCost(), LazyKernelCost(), Uphill()]
DTYPES = [torch.float32, torch.float64]


def draw(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


@pytest.mark.parametrize("cost", ALL, ids=str)
@pytest.mark.parametrize("batch", [(), (3,)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_pairwise(cost: Cost, batch: tuple[int, ...], dtype: torch.dtype):
    x, y = draw(*batch, 9, 4, dtype=dtype), draw(*batch, 6, 4, seed=1, dtype=dtype)
    values = cost.pairwise(x, y)
    assert values.dtype == dtype
    torch.testing.assert_close(values, by_definition(cost, x, y))


@pytest.mark.parametrize("cost", ALL, ids=str)
@pytest.mark.parametrize("batch", [(), (3,)])
@pytest.mark.parametrize("sharp", [False, True], ids=["dense plan", "sparse plan"])
def test_gradients(cost: Cost, batch: tuple[int, ...], sharp: bool):
    x, y = draw(*batch, 40, 4).requires_grad_(), draw(*batch, 30, 4, seed=1).requires_grad_()
    plan = torch.softmax(draw(*batch, 40, 30, seed=2) * (300 if sharp else 1), dim=-1) / 40
    expected = torch.autograd.grad((plan * by_definition(cost, x, y)).sum(), (x, y))
    x, y = x.detach(), y.detach()
    torch.testing.assert_close(cost.gradient(x, y, plan), expected[0])
    torch.testing.assert_close(cost.gradient_y(x, y, plan), expected[1])


def test_sign_of_zero_is_zero():
    x = torch.tensor([[1.0, 2.0]])
    for plan_entries in (torch.ones(1, 1), torch.full((1, 1), 0.5)):
        assert torch.equal(Cityblock().gradient(x, x, plan_entries), torch.zeros_like(x))


def test_squared_euclidean_survives_a_large_offset():
    """|x|^2 + |y|^2 - 2<x, y> taken naively in float32 is off by tens here."""
    x, y = draw(20, 3, dtype=torch.float32), draw(20, 3, seed=1, dtype=torch.float32)
    shifted = SquaredEuclidean().pairwise(x + 4096, y + 4096)
    exact = (((x + 4096)[:, None].double() - (y + 4096).double()).square().sum(-1)).float()
    torch.testing.assert_close(shifted, exact, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("cost", BUILT_INS, ids=str)
@pytest.mark.parametrize("batch", [(), (3,)])
def test_float32_gradients_are_those_of_the_points_wherever_they_lie(cost: Cost, batch: tuple[int, ...]):
    """As sum * x - plan @ y, without centring, digits cancel: at 10,000 they are off by a per cent."""
    x = draw(*batch, 40, 3, dtype=torch.float32) + 1e4
    y = draw(*batch, 30, 3, seed=1, dtype=torch.float32) + 1e4
    plan = torch.softmax(draw(*batch, 40, 30, seed=2, dtype=torch.float32), dim=-1) / 40
    exact = cost.gradient(x.double(), y.double(), plan.double()).float()
    torch.testing.assert_close(
        cost.gradient(x, y, plan), exact, rtol=1e-5, atol=1e-6 * float(exact.abs().max())
    )
    exact = cost.gradient_y(x.double(), y.double(), plan.double()).float()
    torch.testing.assert_close(
        cost.gradient_y(x, y, plan), exact, rtol=1e-5, atol=1e-6 * float(exact.abs().max())
    )


class TestEuclidean:
    def test_slope_at_equal_points_is_zero(self):
        x = draw(6, 3)
        equal = torch.eye(6, dtype=torch.float64)
        assert torch.equal(Euclidean().gradient(x, x, equal), torch.zeros_like(x))
        assert torch.equal(Euclidean().gradient_y(x, x, equal), torch.zeros_like(x))
        plan = torch.rand(6, 6, dtype=torch.float64)
        unit = x[:, None] - x
        unit = torch.where(unit == 0, 0, unit / unit.norm(dim=-1, keepdim=True).clamp(min=1e-300))
        torch.testing.assert_close(Euclidean().gradient(x, x, plan), (plan[..., None] * unit).sum(1))

    @pytest.mark.parametrize("apart", [1e-3, 1e-7])
    def test_close_points_far_from_the_origin(self, apart: float):
        """A root of |x|^2 + |y|^2 - 2<x, y> would have no digit left."""
        x = torch.full((1, 2), 1000.0, dtype=torch.float64)
        y = x + torch.tensor([[3 * apart, 4 * apart]], dtype=torch.float64)
        distance = (y - x).norm()
        torch.testing.assert_close(Euclidean().pairwise(x, y)[0, 0], distance, rtol=1e-12, atol=0)
        one = torch.ones(1, 1, dtype=torch.float64)
        torch.testing.assert_close(Euclidean().gradient(x, y, one), (x - y) / distance, rtol=1e-12, atol=0)

    def test_an_entry_depends_on_its_pair_alone(self):
        x, y = draw(40, 300), draw(30, 300, seed=1)
        costs = Euclidean().pairwise(x, y)
        far = torch.cat([y[::3], torch.full((1, 300), 1e8, dtype=torch.float64)])
        assert torch.equal(Euclidean().pairwise(x[5:9], far)[:, :-1], costs[5:9, ::3])

    @pytest.mark.parametrize("shape", [(30, 40), (40, 30), (700, 500)])
    def test_streamed(self, shape: tuple[int, int]):
        x, y = draw(shape[0], 2), draw(shape[1], 2, seed=1)
        dense, streamed = (
            solve(Problem(x, y, "euclidean"), 0.3, storage=storage) for storage in ("dense", "streamed")
        )
        torch.testing.assert_close(dense.value, streamed.value)
        for one, other in zip(dense.gradients(), streamed.gradients(), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-9)

    def test_is_a_distance_on_a_line(self):
        """Without entropy the cost of transport between sorted points on a line is the mean distance."""
        x, y = draw(20, 1), draw(20, 1, seed=1)
        expected = (x.sort(0).values - y.sort(0).values).abs().mean()
        found = solve(Problem(x, y, "euclidean"), 1e-3).value_linear
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)
        assert scipy.stats.wasserstein_distance(x.flatten(), y.flatten()) == pytest.approx(expected.item())


def test_costs_are_never_negative_and_zero_at_equal_points():
    x = draw(50, 100, dtype=torch.float32) * 100
    for cost in BUILT_INS:
        costs = cost.pairwise(x, x)
        assert costs.min() >= 0
        assert costs.diagonal().max() <= 1e-6 * costs.max()


def test_with_labels_is_the_papers_augmentation():
    x, y = draw(6, 3), draw(5, 3, seed=1)
    lx, ly = torch.tensor([0, 1, 2, 0, 1, 2]), torch.tensor([2, 2, 1, 0, 0])
    augmented = L1L2(1.0).pairwise(with_labels(x, lx, 3, 15.0), with_labels(y, ly, 3, 15.0))
    different = (lx[:, None] != ly).double()
    torch.testing.assert_close(augmented, L1L2(1.0).pairwise(x, y) + different * (2 * 15.0**2 + 2 * 15.0))


def test_with_labels_pushes_the_plan_to_equal_classes():
    x, y = draw(12, 3), draw(12, 3, seed=1)
    labels = torch.arange(12) % 3
    plan = solve(Problem(with_labels(x, labels, 3), with_labels(y, labels.flip(0), 3)), 0.05).plan
    assert (plan * (labels[:, None] != labels.flip(0))).sum() < 1e-9


@pytest.mark.parametrize(
    "labels", [torch.tensor([0, 3]), torch.tensor([-1, 0]), torch.tensor([0.0, 1.0]), torch.tensor([0])]
)
def test_with_labels_rejects(labels: Tensor):
    with pytest.raises(ValueError, match="labels"):
        with_labels(torch.zeros(2, 1), labels, classes=3)


def test_a_cost_that_is_not_symmetric_is_solved_from_either_side():
    x, y = draw(7, 2), draw(11, 2, seed=1)  # fewer rows than columns: solved from the other side
    result = solve(Problem(x, y, Uphill()), 0.3)
    costs = Uphill().pairwise(x, y)
    torch.testing.assert_close((result.plan * costs).sum(), result.value_linear)
    torch.testing.assert_close(result.plan, torch.exp((result.f[:, None] + result.g - costs) / 0.3) / 77)
    torch.testing.assert_close(
        result.plan.sum(1), torch.full((7,), 1 / 7, dtype=torch.float64), atol=1e-8, rtol=0
    )


def test_a_cost_is_taken_as_symmetric_only_where_it_says_so():
    """Turned round without transposing, the problem with fewer rows would be another one."""
    assert not Cost.symmetric
    assert all(cost().symmetric for cost in BUILT_IN)
    for shape in ((7, 11), (11, 7)):
        x, y = draw(shape[0], 2), draw(shape[1], 2, seed=1)
        by_points = solve(Problem(x, y, Uphill()), 0.3)
        by_matrix = solve(MatrixProblem(Uphill().pairwise(x, y)), 0.3)
        torch.testing.assert_close(by_points.value, by_matrix.value)
        in_x, in_y = by_points.gradients()
        torch.testing.assert_close(in_x, Uphill().gradient(x, y, by_matrix.plan))
        torch.testing.assert_close(in_y, Uphill().gradient_y(x, y, by_matrix.plan))
        turned = Uphill().pairwise(y, x).mT
        assert (solve(MatrixProblem(turned), 0.3).value - by_matrix.value).abs() > 0.1


def test_no_tensor_of_pairs_times_dimensions_is_built():
    """700 x 700 pairs in 784 dimensions are 1.5 GB in float32; a loss and its gradient stay far below."""
    program = """
import resource, torch
from dpsinkhorn.ot import Cityblock, Euclidean, L1L2, SquaredEuclidean
x, y = torch.rand(700, 784), torch.rand(700, 784)
plan = torch.softmax(torch.rand(700, 700), 1) / 700
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for cost in (SquaredEuclidean(), Euclidean(), Cityblock(), L1L2(1.0)):
    cost.pairwise(x, y)
    cost.gradient(x, y, plan)
    cost.gradient(x, y, torch.eye(700) / 700)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 300_000  # kilobytes


class TestNames:
    X, Y = torch.rand(6, 3), torch.rand(5, 3)

    @pytest.mark.parametrize(
        ("name", "cost"),
        [
            ("sqeuclidean", SquaredEuclidean()),
            ("cityblock", Cityblock()),
            ("l1l2", L1L2(1.0)),
            ("euclidean", Euclidean()),
        ],
    )
    def test_a_name_is_its_cost(self, name, cost):
        assert as_cost(name) == cost
        assert Problem(self.X, self.Y, name).cost == cost
        assert SinkhornLoss(0.1, cost=name).cost == cost
        assert transport_loss(self.X, self.Y, 0.1, cost=name) == transport_loss(
            self.X, self.Y, 0.1, cost=cost
        )

    def test_all_of_them(self):
        assert COST_NAMES == ("sqeuclidean", "cityblock", "l1l2", "euclidean")
        assert as_cost(None) == SquaredEuclidean()
        assert as_cost("l1l2", l1_weight=0.5) == L1L2(0.5)

    def test_a_cost_of_ones_own_is_taken_as_it_is(self):
        class Own(Cost):
            def pairwise(self, x, y):
                return torch.cdist(x, y)

        own = Own()
        assert as_cost(own) is own
        assert Problem(self.X, self.Y, own).cost is own


def test_which_costs_loops_and_kernels_know():
    class Other(SquaredEuclidean):
        """A cost of one's own, which may have another rule."""

    assert PixelCost.of(SquaredEuclidean()) == PixelCost(squared=True, absolute=0.0)
    assert PixelCost.of(Cityblock()) == PixelCost(squared=False, absolute=1.0)
    assert PixelCost.of(L1L2(0.5)) == PixelCost(squared=True, absolute=0.5)
    assert PixelCost.of(Euclidean()) is None
    assert PixelCost.of(Other()) is None


@pytest.mark.parametrize("cost", [SquaredEuclidean(), Cityblock(), L1L2(3.0)], ids=str)
def test_labels_cost_what_their_difference_costs(cost):
    labelled = [with_labels(torch.zeros(1, 2), torch.tensor([kind]), 3, 1.5) for kind in (0, 2)]
    found = float(cost.pairwise(*labelled))
    assert found == 2 * cost.pixels.of_difference(1.5)
