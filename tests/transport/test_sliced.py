"""Sliced transport costs: sensitivity, noise, audit, intervals, and the published bound."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import integrate, stats

from dpsinkhorn.ot import sliced_cost, whole_bases
from dpsinkhorn.privacy import SeededNoise, epsilon
from dpsinkhorn.transport import (
    Clouds,
    Setting,
    SlicedMechanism,
    SmoothedMechanism,
    TransportError,
    private_cost,
    published_sensitivity,
)
from dpsinkhorn.transport import sliced as module
from dpsinkhorn.transport.sliced import slope_of, smoothed_cost

BOUND, CENTER = 2.0, [0.5, 0.5]
OPTIONS = {"epsilon": 1.0, "cost_bound": BOUND, "cost": "euclidean"}


def clouds(x, y, **options) -> Clouds:
    return Clouds.of(x, y, cost_bound=BOUND, cost="euclidean", **options)


def neighbours(rng, paired=False):
    """Clouds, and the same with one point replaced, often from beyond one end of the ball to the other."""
    n, m = (5, 5) if paired else tuple(int(size) for size in rng.integers(1, 7, size=2))
    angle = rng.random() * 2 * math.pi
    far = np.array([math.cos(angle), math.sin(angle)]) * 10.0 ** rng.integers(0, 100)
    ends = far, (-far if paired else far)
    together = rng.random() < 0.5
    x, y = (
        np.tile(end, (size, 1)) if together else rng.random((size, 2))
        for end, size in zip(ends, (n, m), strict=True)
    )
    other = x.copy(), y.copy()
    for side in (0, 1) if paired else (int(rng.integers(2)),):
        other[side][0] = -ends[side]
    return (x, y), other


class TestSensitivity:
    @pytest.mark.parametrize("center", [None, CENTER])
    @pytest.mark.parametrize("paired", [False, True])
    def test_no_neighbours_are_farther_apart(self, paired, center):
        rng, sliced_most, points_most = np.random.default_rng(0), 0.0, 0.0
        for _ in range(150):
            first, second = (clouds(*pair, paired=paired) for pair in neighbours(rng, paired))
            plan = SlicedMechanism.plan(first.setting, epsilon=1.0, center=center)
            moved = abs(plan.value(first) - plan.value(second))
            assert moved <= plan.sensitivity
            sliced_most = max(sliced_most, moved / plan.sensitivity)
            smoothed = SmoothedMechanism.plan(first.setting, epsilon=1.0, delta=1e-5, center=center)
            moved = math.sqrt(
                sum(
                    float((smoothed.ball.moved(a) - smoothed.ball.moved(b)).square().sum())
                    for a, b in ((first.x, second.x), (first.y, second.y))
                )
            )
            assert moved <= smoothed.sensitivity
            points_most = max(points_most, moved / smoothed.sensitivity)
        assert sliced_most > 0.85  # the slope is a root mean square: in the plane 0.71 for a mean of 0.64
        assert points_most > 0.999

    def test_a_public_side_does_not_count(self):
        setting = Setting(10, 2, BOUND, public="y", dimension=2)
        plan = SlicedMechanism.plan(setting, epsilon=1.0, center=CENTER)
        assert plan.sensitivity == pytest.approx(BOUND / math.sqrt(2) / 10, rel=1e-6)

    def test_points_are_moved_one_by_one_to_the_ball(self):
        plan = SlicedMechanism.plan(Setting(2, 2, BOUND, dimension=2), epsilon=1.0, center=CENTER)
        points = torch.tensor([[0.5, 0.5], [1.5, 0.5], [0.5, 9.5], [1e300, 0.5]]).double()
        expected = torch.tensor([[0, 0], [1, 0], [0, 1], [1, 0]]).double()
        torch.testing.assert_close(plan.ball.moved(points), expected)

    @pytest.mark.parametrize("dimension", [1, 2, 5, 40])
    def test_the_slope_is_reached_by_no_point(self, dimension):
        theta = whole_bases(dimension)
        z = torch.randn(5000, dimension, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        seen = ((z / z.norm(dim=1, keepdim=True)) @ theta.T).abs().mean(1).max()
        assert 0.7 * slope_of(theta) < seen <= slope_of(theta)
        assert slope_of(theta) == pytest.approx(1 / math.sqrt(dimension))

    def test_the_published_bound_is_passed_by_some_point(self):
        """For directions that are public beforehand: one of them tells where to look."""
        rng = np.random.default_rng(0)
        theta = rng.normal(size=(50, 784))
        theta /= np.linalg.norm(theta, axis=1, keepdims=True)
        largest = np.linalg.norm(theta, 2)
        assert largest > 2.5 * published_sensitivity(50, 784, 1e-5, normal=True)
        many = rng.normal(size=(20_000, 784))
        moved = np.linalg.norm(many @ theta.T, axis=1) / np.linalg.norm(many, axis=1)
        assert np.mean(moved <= published_sensitivity(50, 784, 1e-3, normal=True)) > 0.99  # as published
        assert published_sensitivity(50, 784, 1e-5) > largest  # Bernstein's is far from the truth


class TestNoise:
    def test_laplace_law_and_audit(self):
        setting = Setting(4, 4, BOUND, dimension=2)
        plan = SlicedMechanism.plan(setting, epsilon=1.0, center=CENTER)
        noise, runs = SeededNoise(0), 4000
        draws = np.array([plan.noised(0.0, noise) for _ in range(runs)])
        assert stats.kstest(draws / plan.scale, stats.laplace.cdf).pvalue > 1e-3
        assert plan.scale == pytest.approx(BOUND / math.sqrt(2) / 4, rel=1e-4)
        moved = np.array([plan.noised(plan.sensitivity, noise) for _ in range(runs)])
        above = [int((each >= plan.sensitivity).sum()) for each in (moved, draws)]
        low = stats.beta.ppf(0.005, above[0], runs - above[0] + 1)
        high = stats.beta.ppf(0.995, above[1] + 1, runs - above[1])
        assert 0.8 < math.log(low / high) < 1.0
        assert epsilon(plan.charge, 0.0) == pytest.approx(1.0)

    def test_gaussian_law(self):
        rng = np.random.default_rng(0)
        given = clouds(rng.random((300, 2)), rng.random((200, 2)))
        plan = SmoothedMechanism.plan(given.setting, epsilon=2.0, delta=1e-5, center=CENTER)
        found = torch.cat(plan.release(given, SeededNoise(0)))
        noise = (found - plan.ball.moved(torch.cat([given.x, given.y]))).flatten().numpy()
        assert stats.kstest(noise / plan.smoothing, stats.norm.cdf).pvalue > 1e-3
        assert plan.smoothing == pytest.approx(plan.multiplier * BOUND, rel=1e-4)
        assert epsilon(plan.charge, 1e-5) == pytest.approx(2.0, rel=1e-3)

    def test_gaussian_audit_is_below_the_claim_and_near_it(self):
        """At either end of the ball, and the best test there is of which: every row is a draw of its own."""
        target, delta, runs = 1.0, 0.01, 200_000
        ends = [clouds(np.full((runs, 1), end), [[0.0]]) for end in (-1.0, 1.0)]
        plan = SmoothedMechanism.plan(ends[0].setting, epsilon=target, delta=delta, center=[0.0])
        at, noise = target * plan.smoothing**2 / BOUND, SeededNoise(0)  # where the loss is ε
        below, above = (int((plan.release(end, noise)[0] > at).sum()) for end in ends)
        low = stats.beta.ppf(0.005, above, runs - above + 1) - delta
        high = stats.beta.ppf(0.995, below + 1, runs - below)
        assert 0.7 * target < math.log(low / high) < target

    def test_noise_does_not_grow_with_the_number_of_directions(self):
        """Slices of noised points are noised as much along each of them."""
        plan = SmoothedMechanism.plan(Setting(2000, 1, BOUND, dimension=2), epsilon=1.0, delta=1e-5)
        noised, _ = plan.release(clouds(np.zeros((2000, 2)), np.zeros((1, 2))), SeededNoise(0))
        spread = (noised @ whole_bases(2, least=200).T).std(0)
        assert float((spread / plan.smoothing - 1).abs().max()) < 0.1


class TestWhatIsEstimated:
    @pytest.mark.parametrize("d", [1, 3])
    def test_sliced(self, d):
        rng = np.random.default_rng(0)
        x, y = 0.8 * rng.random((300, d)), 0.8 * rng.random((200, d)) + 0.3
        found = private_cost(
            x, y, **{**OPTIONS, "epsilon": 1e4}, method="sliced", center=[0.6] * d, noise=SeededNoise(0)
        )
        true = sliced_cost(torch.from_numpy(x), torch.from_numpy(y))
        assert found.cost == pytest.approx(true, abs=1e-4)
        assert (found.quantity, found.delta, found.regularization) == ("sliced", 0.0, 0.0)

    def test_smoothed_measures_in_closed_form(self):
        """Of normal measures, one shifted, the distance is the shift, smoothed or not."""
        x = torch.zeros(1, 1).double()
        assert smoothed_cost(x, x + 0.7, 0.5) == pytest.approx(0.7, abs=1e-4)
        assert smoothed_cost(torch.tensor([[-1.0], [1.0]]).double(), x, 5.0) < 0.2  # 1 without smoothing

    def test_the_offset_is_that_of_equal_data(self):
        plan, distances = None, []
        for run in range(80):
            given = clouds(np.full((300, 2), 0.5), np.full((200, 2), 0.5))
            plan = SmoothedMechanism.plan(given.setting, epsilon=1.0, delta=1e-5, center=CENTER)
            distances.append(plan.distance(*plan.release(given, SeededNoise(run))))
        assert np.mean(distances) == pytest.approx(plan.offset, rel=0.12)

    def test_constants(self):
        variance = integrate.quad(lambda t: math.sqrt(stats.norm.cdf(t) * stats.norm.sf(t)), -38, 38)[0]
        tails = 2 * integrate.quad(lambda t: math.sqrt(stats.norm.sf(t)), 0, 38)[0]
        assert variance <= module._ROOT_VARIANCE < variance + 1e-6
        assert tails <= module._ROOT_TAILS < tails + 1e-6


class TestIntervals:
    def test_cover_the_samples_as_often_as_they_say(self):
        x, y = np.random.default_rng(0).random((2, 12, 2))
        true = sliced_cost(torch.from_numpy(x), torch.from_numpy(y))
        noise, inside = SeededNoise(0), 0
        for _ in range(300):
            found = private_cost(x, y, **OPTIONS, method="sliced", center=CENTER, confidence=0.8, noise=noise)
            inside += found.interval[0] <= true <= found.interval[1]
        assert 0.74 < inside / 300 < 0.93  # an end that is cut to 0 covers more

    @pytest.mark.parametrize("method", ["sliced", "smoothed-sliced"])
    def test_cover_the_populations(self, method):
        """Of one population, at 0, where those of the samples rarely are; and not all that there is."""
        rng, covered = np.random.default_rng(0), 0
        options = {**OPTIONS, "epsilon": 100, "delta": 1e-5, "method": method, "center": CENTER}
        for run in range(30):
            x, y = rng.random((2, 60, 2))
            found = private_cost(x, y, **options, confidence=0.5, noise=SeededNoise(run))
            covered += found.population_interval[0] == 0
        assert covered == 30
        x, y = np.zeros((2, 4000, 2))
        found = private_cost(x, y + 1, **options, noise=SeededNoise(0))
        low, high = found.population_interval
        assert 0.3 < low < float((whole_bases(2) @ torch.ones(2).double()).abs().mean()) < high < 1.2

    def test_smoothed_cover_the_smoothed_samples(self):
        x, y = np.random.default_rng(0).random((2, 40, 2))
        given = clouds(x, y)
        plan = SmoothedMechanism.plan(given.setting, epsilon=5.0, delta=1e-5, center=CENTER)
        true, noise = plan.target(given), SeededNoise(0)
        for _ in range(20):
            distance = plan.distance(*plan.release(given, noise))
            low, high = plan.interval(distance, 0.5)
            assert low <= true <= high
        assert plan.interval(distance, 0.5)[1] < distance + plan.smoothing

    def test_none_for_pairs_and_public_sides(self):
        x, y = np.random.default_rng(0).random((2, 12, 2))
        for options in ({"paired": True}, {"public": "y"}):
            assert private_cost(x, y, **OPTIONS, method="sliced", **options).population_interval is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"cost": "sqeuclidean"}, "sliced methods are of the Euclidean distance"),
        ({"center": [1.0, 2.0, 3.0]}, "center must be a point of the same dimension"),
        ({"center": ["a"]}, "center must be an array of numbers"),
        ({"regularization": 0.1}, "without regularization"),
        ({"debiased": True}, "without regularization"),
        ({"method": "smoothed-sliced"}, "needs a delta"),
    ],
)
def test_bad_input(change, message):
    x, y = np.random.default_rng(0).random((2, 12, 2))
    with pytest.raises(TransportError, match=message):
        private_cost(x, y, **{**OPTIONS, "method": "sliced", **change})


def test_notes_give_the_published_noise_beside_the_proved_one():
    x, y = np.random.default_rng(0).random((2, 12, 2))
    found = private_cost(x, y, **OPTIONS, method="smoothed-sliced", delta=1e-5, center=CENTER)
    assert any("As published, for 50 directions" in note for note in found.notes)
    assert "remarks" not in found.to_json()
