"""`record` against autograd of the semi-dual, record by record, and what rounding may do to it."""

from __future__ import annotations

import dataclasses
import math
from fractions import Fraction
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from dpsinkhorn.mechanisms.record import Record
from dpsinkhorn.mechanisms.shared import base, shares
from dpsinkhorn.mechanisms.shared.base import Sample
from dpsinkhorn.mechanisms.shared.clipping import LARGEST_MARGIN, grid_bits, margin, on_grid
from dpsinkhorn.mechanisms.shared.shares import measure, pixel_cost, slope_bound
from dpsinkhorn.ot import L1L2, Cityblock, Cost, SquaredEuclidean
from dpsinkhorn.privacy import SeededNoise
from support.barriers import mechanism_of
from support.sanitizer_oracles import COSTS, digits, pair_costs, record_sum

CLASSES = 10


def images(count: int, dimension: int = 64, seed: int = 3) -> Tensor:
    """Generated images on the public grid, some pixels at exactly -1, as backgrounds are."""
    values = 8 * torch.randn(count, dimension, generator=torch.Generator().manual_seed(seed)) - 3
    return on_grid(torch.tanh(values)).float()


def some_digits(count: int, start: int = 0) -> Sample:
    points, labels = digits()
    return Sample(points[start : start + count], labels[start : start + count])


def made(cost: Cost, *, clip=6.0, regularization=1.0, batch=30.0, own=0.0, classes=CLASSES, **more):
    """A public limit of 2,000 records keeps the margin for rounding far below the tolerances here."""
    more = {"most": 2000, "batch": batch, "own": own, "classes": classes} | more
    return mechanism_of(Record, clip, 1.0, cost, regularization, **more)


def close(value: Tensor, reference: Tensor, tolerance: float = 1e-5) -> None:
    assert float((value - reference).norm()) <= tolerance * max(1e-3, float(reference.norm()))


class TestAgainstAutograd:
    @pytest.mark.parametrize("regularization", [0.05, 1.0, 50.0])
    @pytest.mark.parametrize("clip", [0.7, 6.0, 1e4])
    @pytest.mark.parametrize("cost", COSTS, ids=repr)
    def test_with_labels(self, cost: Cost, clip: float, regularization: float):
        x, labels, sample = images(30), torch.arange(30) % 7, some_digits(25)  # three classes have no image
        value = made(cost, clip=clip, regularization=regularization).clipped(x, labels, sample)
        reference = record_sum(cost, x, labels, sample, regularization, clip)
        assert value.dtype == torch.float64
        assert float(reference.norm()) > 0
        close(value, reference)

    @pytest.mark.parametrize("cost", COSTS, ids=repr)
    def test_without_labels(self, cost: Cost):
        x, sample = images(20), Sample(some_digits(25).points)
        value = made(cost, classes=0).clipped(x, None, sample)
        close(value, record_sum(cost, x, None, sample, 1.0, 6.0))

    @pytest.mark.parametrize("clip", [0.7, 6.0, 1e4])
    @pytest.mark.parametrize("cost", COSTS, ids=repr)
    def test_persons(self, cost: Cost, clip: float):
        x, labels = images(30), torch.arange(30) % CLASSES
        sample = some_digits(26)
        groups = torch.tensor([5] * 9 + [2] * 2 + [11] * 2 + list(range(100, 113)))
        groups = groups[torch.randperm(26, generator=torch.Generator().manual_seed(1))]
        sample = Sample(
            sample.points,
            sample.labels,
            groups[torch.randperm(26, generator=torch.Generator().manual_seed(1))],
        )
        value = made(cost, clip=clip).clipped(x, labels, sample)
        close(value, record_sum(cost, x, labels, sample, 1.0, clip))

    @pytest.mark.parametrize("cost", COSTS, ids=repr)
    def test_update_with_self_term(self, cost: Cost):
        """G = sum / B - s Σ clip(v(x')) / n on the first n rows, none on the others."""
        parameter = nn.Parameter(images(40))
        labels = (torch.arange(20) % CLASSES).repeat(2)
        sample = some_digits(25)
        barrier = made(cost, clip=2.0, batch=17.0, own=0.7)
        barrier.backward(parameter * 1, labels, sample, [parameter], SeededNoise(1))
        noised = parameter.grad
        sums = [
            record_sum(cost, parameter[:20], labels[:20], part, 1.0, 2.0)
            for part in (sample, Sample(parameter[20:].detach(), labels[20:]))
        ]
        noise = 17 * (noised[:20].double() + 0.7 * sums[1] / 20) - sums[0]
        assert 0.9 < float(noise.std()) / 2.0 < 1.1  # C σ
        assert not noised[20:].any()
        # the same noise on an empty sample: what is left is the cross term alone
        barrier.backward(parameter * 1, labels, some_digits(0), [parameter], SeededNoise(1))
        close(17 * (noised - parameter.grad)[:20].double(), sums[0], 2e-5)

    @pytest.mark.parametrize("size", [2, 3, 50])
    def test_generated_images_go_in_groups_as_large_as_persons(self, size: int):
        points, labels = images(40), (torch.arange(20) % CLASSES).repeat(2)
        barrier = made(SquaredEuclidean(), clip=2.0, own=1.0, persons=size)
        found = barrier.clipped_sums(points, labels, some_digits(6))[1]
        groups = Sample(points[20:], labels[20:], torch.arange(20) // size)
        expected = record_sum(SquaredEuclidean(), points[:20], labels[:20], groups, 1.0, 2.0)
        close(found, expected)
        alone = made(SquaredEuclidean(), clip=2.0, own=1.0).clipped_sums(points, labels, some_digits(6))[1]
        assert float((found - alone).norm()) > 0.1 * float(alone.norm())

    def test_off_the_grid(self):
        """Pixels are rounded to 2^-22 here, which changes nothing of note."""
        x = torch.tanh(3 * torch.randn(30, 64, generator=torch.Generator().manual_seed(0)))
        labels, sample = torch.arange(30) % CLASSES, some_digits(40)
        value = made(SquaredEuclidean()).clipped(x, labels, sample)
        close(value, record_sum(SquaredEuclidean(), x, labels, sample, 1.0, 6.0))

    @given(seed=st.integers(0, 10**6))
    @settings(max_examples=25, deadline=None)
    def test_any_sizes(self, seed: int):
        rng = np.random.default_rng(seed)
        n, b, d, classes = (int(rng.integers(1, top)) for top in (12, 14, 9, 5))
        x = on_grid(torch.from_numpy(rng.uniform(-1, 1, (n, d)))).float()
        y = on_grid(torch.from_numpy(rng.uniform(-1, 1, (b, d)))).float()
        x_labels = torch.from_numpy(rng.integers(0, classes, n))
        groups = torch.from_numpy(rng.integers(0, 4, b)) if rng.random() < 0.5 else None
        sample = Sample(y, torch.from_numpy(rng.integers(0, classes, b)), groups)
        cost = COSTS[int(rng.integers(len(COSTS)))]
        regularization = float(10.0 ** rng.uniform(-2, 2))
        clip = float(10.0 ** rng.uniform(-1, 1))
        batch = float(rng.uniform(0.1, 100))  # sets the length of a tile
        barrier = made(cost, clip=clip, regularization=regularization, classes=classes, batch=batch)
        value = barrier.clipped(x, x_labels, sample)
        close(value, record_sum(cost, x, x_labels, sample, regularization, clip))


class TestSum:
    @pytest.mark.parametrize("persons", [False, True])
    def test_chunks_add_up(self, persons: bool, monkeypatch: pytest.MonkeyPatch):
        """However little fits at a time, every record counts."""
        x, labels, sample = images(30), torch.arange(30) % CLASSES, some_digits(700)
        if persons:
            sample = Sample(sample.points, sample.labels, torch.arange(700) // 9 * (torch.arange(700) > 300))
        barrier = made(L1L2(), batch=80.0)
        whole = barrier.clipped(x, labels, sample)
        monkeypatch.setattr(shares, "_WORK", 1)
        close(barrier.clipped(x, labels, sample), whole, 1e-11)

    def test_a_batch_is_not_truncated(self):
        x, labels = images(20), torch.arange(20) % CLASSES
        barrier = made(L1L2(), batch=5.0)
        parts = sum(barrier.clipped(x, labels, some_digits(100, at)) for at in range(0, 1700, 100))
        close(barrier.clipped(x, labels, some_digits(1700)), parts, 1e-11)

    def test_the_normaliser_is_public(self):
        check_normaliser(Record)

    def test_a_realised_normaliser_is_noticed(self):
        class Realised(Record):
            def backward(self, points, labels, sample, parameters, noise):
                facts = dataclasses.replace(self.terms.facts, records=max(1, len(sample.points)))
                self.terms = dataclasses.replace(self.terms, facts=facts)
                super().backward(points, labels, sample, parameters, noise)

        with pytest.raises(AssertionError):
            check_normaliser(Realised)

    def test_labels_that_are_no_class_count_for_nothing(self):
        x, labels, sample = images(20), torch.arange(20) % CLASSES, some_digits(30)
        odd = Sample(
            torch.cat([sample.points, sample.points]),
            torch.cat([sample.labels, torch.tensor([-1, 10, 99] * 10)]),
        )
        value = made(L1L2()).clipped(x, labels, odd)
        close(value, made(L1L2()).clipped(x, labels, sample), 1e-12)

    def test_generated_labels_must_be_classes(self):
        with pytest.raises(ValueError, match="generated labels"):
            made(L1L2()).clipped(images(20), torch.arange(20), some_digits(3))

    def test_other_costs_are_refused(self):
        class Mine(SquaredEuclidean):
            pass

        with pytest.raises(ValueError, match="cost: expected SquaredEuclidean"):
            pixel_cost(Mine())

    def test_too_many_records(self):
        barrier = made(L1L2(), batch=7.0, most=29)
        barrier.clipped(images(20), torch.arange(20) % 10, some_digits(29))
        with pytest.raises(ValueError, match="max_sample"):
            barrier.clipped(images(20), torch.arange(20) % 10, some_digits(30))

    def test_odd_number_of_images(self):
        with pytest.raises(ValueError, match="points"):
            made(L1L2(), own=0.5).clipped(images(21), torch.arange(21) % 10, some_digits(30))


def check_normaliser(kind: type[Record]) -> None:
    """Ten times the records, ten times the update."""
    updates = []
    for copies in (1, 10):
        parameter = nn.Parameter(images(20))
        sample = some_digits(12)
        sample = Sample(sample.points.repeat(copies, 1), sample.labels.repeat(copies))
        barrier = mechanism_of(kind, 1e3, 1.0, L1L2(), batch=12.0, classes=CLASSES)
        labels = torch.arange(20) % CLASSES
        with mock.patch.object(base, "add_gaussian", lambda values, **_: values):
            barrier.backward(parameter * 1, labels, sample, [parameter], SeededNoise(0))
        updates.append(parameter.grad)
    close(updates[1], 10 * updates[0], 1e-6)


class TestRounding:
    """docs/proofs/record-rounding.md"""

    @pytest.mark.parametrize("dimension", [1, 2, 3, 64, 784, 3072, 2**21])
    def test_the_grid_leaves_room_for_exact_costs(self, dimension: int):
        bits = grid_bits(dimension)
        assert 4 * dimension * 4**bits <= 2**53 < 4 * dimension * 4 ** (bits + 2)

    def test_too_many_pixels(self):
        with pytest.raises(ValueError, match="dimension"):
            grid_bits(2**21 + 1)

    @given(seed=st.integers(0, 10**6))
    @settings(max_examples=20, deadline=None)
    def test_costs_and_slopes_are_exact(self, seed: int):
        """Whole-number arithmetic gives the same, to the last bit."""
        rng = np.random.default_rng(seed)
        d = int(rng.integers(1, 40))
        raw = rng.choice([rng.uniform(-1, 1, (4, d)), np.full((4, d), -1.0)])
        x, y = on_grid(torch.from_numpy(raw)), on_grid(torch.from_numpy(rng.uniform(-1, 1, (3, d))))
        y[0] = x[0]
        scale = 2 ** grid_bits(d)
        for cost in (SquaredEuclidean(), Cityblock()):
            values, slopes = measure(pixel_cost(cost), x[None], y[None])
            for i in range(4):
                for j in range(3):
                    steps = [round(step) for step in (scale * x[i] - scale * y[j]).tolist()]
                    if isinstance(cost, SquaredEuclidean):
                        exact = Fraction(sum(step * step for step in steps), scale**2)
                        assert Fraction(float(slopes[0, i, j])) == 4 * exact
                    else:
                        exact = Fraction(sum(map(abs, steps)), scale)
                        assert slopes[0, i, j] == sum(step != 0 for step in steps)
                    assert Fraction(float(values[0, i, j])) == exact

    @pytest.mark.parametrize("cost", COSTS, ids=repr)
    def test_costs_do_not_depend_on_the_company(self, cost: Cost):
        x, y = on_grid(images(33)), on_grid(some_digits(97).points)
        values, slopes = measure(pixel_cost(cost), x[None], y[None])
        torch.testing.assert_close(values[0], pair_costs(cost, x, y), rtol=1e-14, atol=0)
        order = torch.randperm(97)
        for rows in (order, order[:41], order[:1]):
            again, slopes_again = measure(pixel_cost(cost), x[None], y[rows][None])
            assert torch.equal(again[0], values[0][:, rows])
            assert torch.equal(slopes_again[0], slopes[0][:, rows])

    @pytest.mark.parametrize("regularization", [1e-3, 1.0])
    @pytest.mark.parametrize("cost", COSTS, ids=repr)
    def test_company_moves_the_sum_by_less_than_the_margin(self, cost: Cost, regularization: float):
        """The same records in other orders and other tiles: sums differ in their last bits only."""
        x, labels, sample = images(40), torch.arange(40) % CLASSES, some_digits(1000)
        sums = []
        for trial in range(4):
            order = torch.randperm(1000, generator=torch.Generator().manual_seed(trial))
            barrier = made(cost, regularization=regularization, batch=[5, 90, 300, 2000][trial], clip=1e3)
            sums.append(barrier.clipped(x, labels, Sample(sample.points[order], sample.labels[order])))
        allowed = 1e3 * margin(
            records=1000, generated=40, dimension=64, clip=1e3, slope=7.0, tile=256, persons=False
        )
        for other in sums[1:]:
            # C (1 - τ) differs a little with the tile, but nothing reaches C here
            assert float((other - sums[0]).norm()) < allowed

    @pytest.mark.parametrize("regularization", [1e-3, 1.0])
    @pytest.mark.parametrize("cost", COSTS, ids=repr)
    def test_computed_sums_are_close_to_real_ones(self, cost: Cost, regularization: float):
        """Beside a computation with more digits (64 binary ones): within the bound that is half of τ C."""
        if np.finfo(np.longdouble).nmant < 63:
            pytest.skip("no wider floating-point type on this machine")
        x, y = on_grid(images(20)), on_grid(some_digits(300).points)
        barrier = made(cost, regularization=regularization, clip=2.0, classes=0)
        value = barrier.clipped(x, None, Sample(y)).numpy()
        bound = barrier._sum.bound(shares_layout(x), persons=False)
        reference = wide_sum(cost, x.numpy(), y.numpy(), regularization, bound)
        error = float(np.sqrt(((value - reference) ** 2).sum()))
        tau = margin(records=300, generated=20, dimension=64, clip=2.0, slope=7.0, tile=1024, persons=False)
        assert error < tau * 2.0 / 2

    @pytest.mark.parametrize("persons", [False, True])
    @pytest.mark.parametrize("cost", COSTS, ids=repr)
    def test_shares_are_clipped_below_the_bound_by_the_margin(self, cost: Cost, persons: bool):
        """With room for so many records that the margin shows."""
        n, d, clip, most = 20, 64, 0.1, 2**20
        barrier = made(cost, clip=clip, classes=0, most=most)
        record = Sample(torch.ones(1, d), None, torch.tensor([5]) if persons else None)
        norm = float(barrier.clipped(-torch.ones(n, d), None, record).norm())
        slope = slope_bound(pixel_cost(cost))
        tau = margin(
            records=most, generated=n, dimension=d, clip=clip, slope=slope, tile=1024, persons=persons
        )
        assert tau > 1e-5
        assert norm == pytest.approx(clip * (1 - tau), rel=1e-3 * tau)

    @pytest.mark.parametrize("kind", [torch.float32, torch.float64])
    def test_no_record_is_out_of_range(self, kind: torch.dtype):
        values = torch.tensor([[1.5, -7.0, 1e30, -1e30, math.inf, -math.inf, math.nan, 0.25]], dtype=kind)
        assert on_grid(values).tolist() == [[1.0, -1.0, 1.0, -1.0, 1.0, -1.0, 0.0, 0.25]]

    def test_limits(self):
        x, labels = images(20), torch.arange(20) % CLASSES
        made(L1L2(), clip=0.01, most=2**20).clipped(x, labels, some_digits(3))
        with pytest.raises(ValueError, match="raise clip or lower max_sample"):
            made(L1L2(), clip=1e-5, most=2**20).clipped(x, labels, some_digits(3))
        made(L1L2(), clip=1e-5, most=10**3).clipped(x, labels, some_digits(3))

    @pytest.mark.parametrize(
        ("generated", "dimension", "clip", "records"),
        [(500, 784, 6.0, 2**20), (500, 3072, 6.0, 2**20), (200, 64, 1.0, 2**20), (5000, 784, 0.5, 60000)],
    )
    def test_the_margin_is_a_trifle_where_it_is_used(self, generated, dimension, clip, records):
        for persons in (False, True):
            tau = margin(
                records=records,
                generated=generated,
                dimension=dimension,
                clip=clip,
                slope=7.0,
                tile=1024,
                persons=persons,
            )
            assert 0 < tau <= LARGEST_MARGIN
            if not persons:
                assert tau < 1e-4


def shares_layout(x: Tensor):
    """The layout of images without classes."""
    from dpsinkhorn.mechanisms.shared.shares import arrange, sort_by_class

    (rows,) = sort_by_class([None], [len(x)], 0, x.device)
    return arrange(None, len(x), rows).place(x)


def wide_sum(cost: Cost, x: np.ndarray, y: np.ndarray, regularization: float, bound: float) -> np.ndarray:
    """The clipped sum in NumPy's widest type, record by record."""
    wide = np.longdouble
    l2, l1 = (1, getattr(cost, "l1_weight", 0.0)) if not isinstance(cost, Cityblock) else (0, 1.0)
    x, total = x.astype(wide), np.zeros(x.shape, dtype=wide)
    for record in y.astype(wide):
        difference = x - record
        costs = l2 * (difference**2).sum(1) + wide(l1) * np.abs(difference).sum(1)
        scores = (-costs).astype(float) * (1 / regularization)  # the scores are rounded, by definition
        weights = np.exp((scores - scores.max()).astype(wide))
        share = (weights / weights.sum())[:, None] * (l2 * 2 * difference + wide(l1) * np.sign(difference))
        norm = np.sqrt((share**2).sum())
        total += share * min(wide(1), wide(bound) / norm)
    return total
