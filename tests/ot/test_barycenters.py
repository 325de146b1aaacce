"""Barycenters on a fixed support, beside POT's."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import ot
from dpsinkhorn.ot import ConvergenceWarning, barycenter

BINS = np.linspace(0, 1, 20)
COSTS = (BINS[:, None] - BINS) ** 2


@pytest.mark.parametrize("regularization", [0.1, 0.01, 0.002])
@pytest.mark.parametrize("weights", [None, np.array([0.2, 0.3, 0.5])], ids=["equal", "weighted"])
def test_as_pot(regularization: float, weights: np.ndarray | None):
    histograms = np.random.default_rng(0).random((3, 20))
    histograms /= histograms.sum(1, keepdims=True)
    expected = ot.bregman.barycenter(
        histograms.T.copy(), COSTS, regularization, weights=weights, method="sinkhorn_log", stopThr=1e-12,
        numItermax=20_000,
    )  # fmt: skip
    found = barycenter(histograms, COSTS, regularization, weights=weights)
    assert found.sum().item() == pytest.approx(1)
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-8)


def test_what_is_wrong_is_said():
    for name, arguments in {
        "histograms": (torch.rand(20), COSTS, 0.1),
        "histograms: expected": ("abc", COSTS, 0.1),
        "matrix: no barycenter": (torch.rand(2, 20), torch.full((20, 20), torch.inf), 0.1),
        "matrix": (torch.rand(2, 20), torch.rand(3, 20, 20), 0.1),
        "regularization": (torch.rand(2, 20), COSTS, 0.0),
    }.items():
        with pytest.raises(ValueError, match=f"^{name}"):
            barycenter(*arguments)
    with pytest.raises(ValueError, match=r"^a: "):
        barycenter(torch.rand(2, 19), COSTS, 0.1)
    with pytest.warns(ConvergenceWarning, match="did not converge"):
        barycenter(torch.rand(3, 20), COSTS, 0.001, max_iterations=3)
