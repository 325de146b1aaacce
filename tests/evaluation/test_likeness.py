"""Frechet distance, precision and recall, against closed forms and other people's code."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.linalg
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torchmetrics.image.fid import FrechetInceptionDistance

from dpsinkhorn.evaluation import (
    EvaluationError,
    FeatureStatistics,
    feature_statistics,
    frechet_distance,
    likeness,
    precision_recall,
)


def rotation(size, draws):
    return np.linalg.qr(draws.normal(size=(size, size)))[0]


@given(seed=st.integers(0, 2**32 - 1), size=st.integers(1, 12), scale=st.sampled_from([1e-4, 1.0, 1e4]))
@settings(max_examples=40, deadline=None)
def test_gaussians_with_the_same_axes(seed, size, scale):
    """For covariances that commute it is a sum over axes."""
    draws = np.random.default_rng(seed)
    axes = rotation(size, draws)
    first, second = draws.uniform(0, scale, (2, size))
    means = draws.normal(size=(2, size)) * scale
    one = FeatureStatistics(100, means[0], axes * first @ axes.T)
    two = FeatureStatistics(100, means[1], axes * second @ axes.T)
    expected = np.sum((means[0] - means[1]) ** 2) + np.sum((np.sqrt(first) - np.sqrt(second)) ** 2)
    assert frechet_distance(one, two) == pytest.approx(expected, rel=1e-7, abs=1e-10 * scale)


@pytest.mark.parametrize(("count", "size"), [(500, 64), (300, 16), (60, 5)])
def test_agrees_with_scipy(count, size):
    draws = np.random.default_rng(size)
    x = draws.normal(size=(count, size)) @ draws.normal(size=(size, size))
    y = 1.3 * draws.normal(size=(2 * count, size)) @ draws.normal(size=(size, size)) + 0.5
    first, second = np.cov(x, rowvar=False), np.cov(y, rowvar=False)
    root = scipy.linalg.sqrtm(first @ second).real
    shift = x.mean(0) - y.mean(0)
    expected = shift @ shift + np.trace(first + second - 2 * root)
    assert frechet_distance(feature_statistics(x), feature_statistics(y)) == pytest.approx(expected, rel=1e-8)


@pytest.mark.parametrize("count", [40, 400])
def test_agrees_with_torchmetrics(count):
    """On given features, within 1e-4; with 40 images of 64 features the covariances are of low rank."""
    draws = torch.Generator().manual_seed(0)
    real = torch.rand(count, 1, 8, 8, generator=draws)
    fake = torch.rand(count, 1, 8, 8, generator=draws) ** 1.5
    metric = FrechetInceptionDistance(feature=nn.Flatten(), input_img_size=(1, 8, 8)).set_dtype(torch.float64)
    metric.update(real.double(), real=True)
    metric.update(fake.double(), real=False)
    ours = frechet_distance(feature_statistics(real.flatten(1)), feature_statistics(fake.flatten(1)))
    assert ours == pytest.approx(float(metric.compute()), rel=1e-4)


def test_fewer_images_than_features():
    """The trace of the root is the nuclear norm of a product of the features themselves."""
    draws = np.random.default_rng(0)
    x, y = draws.normal(size=(10, 200)), draws.normal(size=(15, 200)) * 2 + 1
    a, b = (x - x.mean(0)) / 3, (y - y.mean(0)) / np.sqrt(14)
    shift = x.mean(0) - y.mean(0)
    overlap = np.linalg.norm(a @ b.T, "nuc")
    expected = shift @ shift + (a**2).sum() + (b**2).sum() - 2 * overlap
    assert frechet_distance(feature_statistics(x), feature_statistics(y)) == pytest.approx(
        expected, rel=1e-10
    )


@given(seed=st.integers(0, 2**32 - 1), count=st.integers(2, 20), size=st.integers(1, 30))
@settings(max_examples=40, deadline=None)
def test_symmetric_never_negative_and_zero_on_equal(seed, count, size):
    draws = np.random.default_rng(seed)
    one = feature_statistics(draws.normal(size=(count, size)))
    two = feature_statistics(draws.normal(size=(count + 3, size)))
    distance = frechet_distance(one, two)
    assert distance >= 0
    assert frechet_distance(two, one) == pytest.approx(distance, rel=1e-9, abs=1e-12)
    assert frechet_distance(one, one) == pytest.approx(0, abs=1e-11 * size)


def test_no_variance_at_all():
    one, two = feature_statistics(np.zeros((5, 3))), feature_statistics(np.full((4, 3), 2.0))
    assert frechet_distance(one, two) == 12


def test_in_parts_as_in_one():
    values = torch.randn(1000, 7, generator=torch.Generator().manual_seed(0)) + 100
    whole = feature_statistics(values)
    parts = feature_statistics(iter([values[:1], values[1:400], values[400:400], values[400:]]))
    assert parts.count == whole.count == 1000
    np.testing.assert_allclose(parts.mean, whole.mean, rtol=1e-12)
    np.testing.assert_allclose(parts.covariance, whole.covariance, rtol=0, atol=1e-11)
    np.testing.assert_allclose(whole.covariance, np.cov(values.double().numpy(), rowvar=False), atol=1e-11)


def test_a_large_common_offset_cancels():
    draws = np.random.default_rng(0)
    x, y = draws.normal(size=(100, 4)), draws.normal(size=(100, 4)) + 1
    near = frechet_distance(feature_statistics(x), feature_statistics(y))
    far = frechet_distance(feature_statistics(x + 1e6), feature_statistics(y + 1e6))
    assert far == pytest.approx(near, rel=1e-6)


@pytest.mark.parametrize(
    "features",
    [np.zeros((1, 3)), np.zeros(3), np.full((3, 2), np.nan), torch.zeros(0, 3), torch.zeros(2, 2, 2)],
)
def test_bad_features(features):
    with pytest.raises(EvaluationError):
        feature_statistics(features)


def test_different_features():
    with pytest.raises(EvaluationError, match="cannot be compared"):
        frechet_distance(feature_statistics(np.zeros((3, 2))), feature_statistics(np.zeros((3, 4))))


def share_inside(points, centres, neighbours):
    """By the definition, a point at a time."""
    inside = 0
    for point in points:
        for k, centre in enumerate(centres):
            others = np.delete(centres, k, axis=0)
            radius = np.sort(np.linalg.norm(others - centre, axis=1))[neighbours - 1]
            if np.linalg.norm(point - centre) <= radius:
                inside += 1
                break
    return inside / len(points)


@given(
    seed=st.integers(0, 2**32 - 1), real=st.integers(5, 25), synthetic=st.integers(5, 25), k=st.integers(1, 4)
)
@settings(max_examples=25, deadline=None)
def test_agrees_with_the_definition(seed, real, synthetic, k):
    draws = np.random.default_rng(seed)
    x, y = draws.normal(size=(real, 3)), draws.normal(size=(synthetic, 3)) * 1.5 + 0.5
    found = precision_recall(torch.from_numpy(x), torch.from_numpy(y), neighbours=k)
    assert found.precision == pytest.approx(share_inside(y, x, k))
    assert found.recall == pytest.approx(share_inside(x, y, k))


def test_half_of_the_modes():
    """Synthetic images of one of two clusters: all are real-looking, half of the real ones are covered."""
    draws = torch.Generator().manual_seed(0)
    near, far = (torch.randn(200, 2, generator=draws) + centre for centre in (0.0, 100.0))
    found = precision_recall(torch.cat([near, far]), torch.randn(200, 2, generator=draws))
    assert found.precision > 0.9
    assert 0.4 < found.recall < 0.5


def test_nothing_in_common_and_all():
    draws = torch.Generator().manual_seed(0)
    x = torch.randn(50, 4, generator=draws)
    apart = precision_recall(x, x + 1000)
    assert (apart.precision, apart.recall) == (0, 0)
    same = precision_recall(x, x.clone())
    assert (same.precision, same.recall) == (1, 1)


def test_one_image_over_and_over():
    x = torch.randn(60, 4, generator=torch.Generator().manual_seed(0))
    found = precision_recall(x, x[:1].repeat(40, 1))
    assert found.precision == 1
    assert found.recall == pytest.approx(1 / 60)


def test_in_chunks(monkeypatch):
    draws = torch.Generator().manual_seed(0)
    x, y = torch.randn(80, 3, generator=draws), torch.randn(70, 3, generator=draws)
    whole = precision_recall(x, y)
    monkeypatch.setattr(likeness, "_CELLS", 500)
    assert precision_recall(x, y) == whole


@pytest.mark.parametrize(
    ("real", "synthetic"), [((3, 2), (9, 2)), ((9, 2), (3, 2)), ((9, 2), (9, 3)), ((9,), (9,))]
)
def test_bad_input(real, synthetic):
    with pytest.raises(EvaluationError):
        precision_recall(torch.zeros(real), torch.zeros(synthetic))
