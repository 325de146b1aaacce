"""Precision and recall against a slow reference, and on sets where they are known."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dpsinkhorn.evaluation import EvaluationError, likeness, precision_recall


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
