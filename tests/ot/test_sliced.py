"""Transport along lines, against an exact solver."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import ot as pot
from dpsinkhorn.ot import line_costs, sliced_cost, whole_bases


@pytest.mark.parametrize("power", [1, 2, 3])
@pytest.mark.parametrize(("n", "m"), [(7, 7), (6, 4), (5, 1), (3, 8)])
def test_lines_are_solved_exactly(n, m, power):
    rng = np.random.default_rng(n + m)
    x, y = rng.normal(size=(n, 2)).round(1), rng.normal(size=(m, 2))
    found = line_costs(torch.from_numpy(x), torch.from_numpy(y), power)
    for k in range(2):
        costs = np.abs(x[:, k, None] - y[None, :, k]) ** power
        assert float(found[k]) == pytest.approx(pot.emd2([], [], costs), abs=1e-12)


@pytest.mark.parametrize("dimension", [1, 2, 3, 7, 60])
def test_whole_bases_see_all_directions_alike(dimension):
    theta = whole_bases(dimension)
    assert len(theta) >= (1 if dimension == 1 else 50)
    square = len(theta) / dimension * torch.eye(dimension, dtype=torch.float64)
    torch.testing.assert_close(theta.T @ theta, square)
    torch.testing.assert_close(theta.norm(dim=1), torch.ones(len(theta)).double())
    assert torch.equal(theta, whole_bases(dimension))


def test_a_shift_moves_every_line_by_its_projection():
    x = torch.randn(40, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    step = torch.arange(5).double()
    assert sliced_cost(x, x + step) == pytest.approx(float((whole_bases(5) @ step).abs().mean()))
    assert sliced_cost(x, x + step, power=2) == pytest.approx(float(step @ step) / 5)
