"""Poisson samples of the private records, against a slow reference; persons are taken whole or not at all."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from dpsinkhorn.data import from_arrays
from dpsinkhorn.privacy import SeededNoise, poisson_sample
from dpsinkhorn.training import TrainingError, choose_recipe, facts_of, make_plan
from dpsinkhorn.training.records import Records

CPU = torch.device("cpu")


def reference(dataset, rate, noise):
    """Row by row: which units are taken, then every record of theirs, each scaled on its own."""
    taken = poisson_sample(dataset.units, rate, noise).tolist()
    low, high = dataset.value_range
    rows = []
    for unit in taken:
        if dataset.groups is None:
            rows.append(unit)
        else:
            rows += [row for row in range(dataset.records) if dataset.groups[row] == unit]
    points = []
    for row in rows:
        image = dataset.images[row].astype(np.float64)  # (H, W, C)
        flat = [
            image[y, x, c]
            for c in range(image.shape[2])
            for y in range(image.shape[0])
            for x in range(image.shape[1])
        ]
        points.append([2 * (value - low) / (high - low) - 1 for value in flat])
    return rows, np.array(points, dtype=np.float64)


@st.composite
def datasets(draw):
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    records = draw(st.integers(1, 25))
    shape = (records, draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.sampled_from([1, 3])))
    kind = draw(st.sampled_from(["uint8", "uint16", "float"]))
    if kind == "float":
        images, limits = random.uniform(-2, 5, shape).astype(np.float32), (-2.0, 5.0)
    else:
        images, limits = random.integers(0, np.iinfo(kind).max + 1, shape).astype(kind), None
    labels = random.integers(0, 4, records) if draw(st.booleans()) else None
    groups = random.integers(0, draw(st.integers(1, 8)), records) if draw(st.booleans()) else None
    return from_arrays(images, labels, groups=groups, value_range=limits)


@settings(max_examples=60, deadline=None)
@given(datasets(), st.sampled_from([0.0, 0.1, 0.5, 1.0]), st.integers(0, 1000))
def test_a_draw_equals_the_slow_reference(dataset, rate, seed):
    sample = Records(dataset, CPU).draw(rate, SeededNoise(seed))
    rows, points = reference(dataset, rate, SeededNoise(seed))
    np.testing.assert_allclose(sample.points.numpy(), points.reshape(sample.points.shape), atol=1e-6)
    assert sample.points.shape == (len(rows), np.prod(dataset.image_shape))
    assert sample.points.dtype == torch.float32
    for found, known in ((sample.labels, dataset.labels), (sample.groups, dataset.groups)):
        if known is None:
            assert found is None
        else:
            assert found.tolist() == known[rows].tolist()


@settings(max_examples=40, deadline=None)
@given(datasets())
def test_what_a_gpu_holds_gives_the_same_points(dataset):
    """The path of a GPU, on this processor: the whole set held in the type of its file."""
    held = Records(dataset, CPU)
    held._resident = held._hold()
    rows = torch.arange(dataset.records).flip(0)
    np.testing.assert_allclose(held._points(rows), dataset.points(rows), atol=2e-7)


def test_all_records_of_a_person_or_none():
    random = np.random.default_rng(0)
    groups = random.integers(0, 40, 300)
    data = from_arrays(np.arange(300, dtype=np.uint16).reshape(300, 1, 1), groups=groups)
    records, noise = Records(data, CPU), SeededNoise(1)
    for _ in range(50):
        sample = records.draw(0.3, noise)
        for person in set(sample.groups.tolist()):
            assert (sample.groups == person).sum() == (data.groups == person).sum()
        assert len(torch.unique(sample.points)) == len(sample.points)  # no record twice


@pytest.mark.parametrize("grouped", [False, True])
def test_units_are_taken_at_the_rate_and_independently(grouped):
    """Chi-square on how often each unit is taken, and on how many are taken together."""
    units, rate, draws = 12, 0.3, 3000
    groups = np.repeat(np.arange(units), np.arange(1, units + 1)) if grouped else None
    count = len(groups) if grouped else units
    data = from_arrays(np.arange(count, dtype=np.uint8).reshape(count, 1, 1), groups=groups)
    records, noise = Records(data, CPU), SeededNoise(7)
    taken, sizes = np.zeros(units), []
    for _ in range(draws):
        sample = records.draw(rate, noise)
        numbers = sample.groups if grouped else ((sample.points[:, 0] + 1) * 127.5).round().long()
        here = torch.unique(numbers).numpy()
        taken[here] += 1
        sizes.append(len(here))
    spread = draws * rate * (1 - rate)
    chi = ((taken - draws * rate) ** 2 / spread).sum()
    assert stats.chi2.sf(chi, units) > 1e-3
    expected = stats.binom.pmf(np.arange(units + 1), units, rate) * draws
    observed = np.bincount(sizes, minlength=units + 1)
    cells = expected > 5
    fit = stats.chisquare(
        [*observed[cells], observed[~cells].sum()], [*expected[cells], expected[~cells].sum()]
    )
    assert fit.pvalue > 1e-3


class TestFacts:
    data = from_arrays(
        np.zeros((6, 2, 3, 3), np.uint8), [0, 1, 2, 0, 1, 2], groups=["a", "a", "a", "b", "b", "c"]
    )

    def test_of_the_data(self):
        facts = facts_of(self.data)
        assert (facts.image_shape, facts.classes, facts.records, facts.units) == ((3, 2, 3), 3, 6, 3)
        assert facts.unit == "person"
        assert facts.size_is_public

    def test_declared_sizes_stand_for_both(self):
        facts = facts_of(self.data, records=100)
        assert (facts.records, facts.units, facts.size_is_public) == (100, 100, False)
        assert facts.grouped

    @pytest.mark.parametrize("records", [0, -5])
    def test_declared_sizes_are_positive(self, records):
        with pytest.raises(TrainingError, match="1 or more"):
            facts_of(self.data, records=records)


def test_groups_of_the_self_term_follow_public_sizes_alone():
    """Records that a person has on average; where a size was declared, nothing of the data."""
    images = np.zeros((12, 8, 8), np.uint8)
    data = from_arrays(images, np.arange(12) % 2, groups=np.arange(12) // 3)
    recipe = choose_recipe(facts_of(data), mechanism="record").replace(privacy={"batch": 6})
    for declared, size in ((None, 3), (100, 1)):
        plan = make_plan(recipe, facts_of(data, records=declared), budget_epsilon=10.0)
        assert plan.build().records_per_person == size


@pytest.mark.parametrize("kind", [np.uint8, np.uint16, np.float32, np.float64])
def test_held_on_a_device_records_are_the_same_points(kind):
    """As on a GPU, which holds all of them in the type of their file."""
    random = np.random.default_rng(0)
    images = random.uniform(0.1, 0.4, (50, 4, 5))
    images, limits = (images, (0.1, 0.4)) if np.issubdtype(kind, np.floating) else (images * 600, (3, 245))
    data = from_arrays(images.astype(kind), value_range=limits)
    records, rows = Records(data, CPU), torch.arange(50)
    plain = records._points(rows)
    records._resident = records._hold()
    assert torch.equal(records._points(rows), plain)
    assert torch.equal(records._points(rows), plain)  # nothing was changed in place
