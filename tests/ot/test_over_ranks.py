"""A problem whose rows are on several ranks: the solution is that of one."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch

from dpsinkhorn.errors import RankLostError
from dpsinkhorn.ot import Problem, solve, solve_rows
from support.ranks import Group

CASES = {
    # by Cholesky, by conjugate gradients, with weights and another cost
    "few columns": ((70, 40, 3), 0.05, None, False),
    "many columns": ((90, 400, 3), 0.05, None, False),
    "weights": ((60, 30, 2), 0.02, "cityblock", True),
}


def problem(name):
    (n, m, d), regularization, cost, weighted = CASES[name]
    random = torch.Generator().manual_seed(0)
    x, y = (torch.rand(k, d, generator=random, dtype=torch.float64) for k in (n, m))
    a, b = (torch.rand(k, generator=random, dtype=torch.float64) + 0.1 for k in (n, m))
    return x, y, regularization, cost, a if weighted else None, b if weighted else None


def rows(rank):
    return slice(*((0, 7), (7, 30), (30, None))[rank])


def solves(rank, folder):
    for name in CASES:
        x, y, regularization, cost, a, b = problem(name)
        own = None if a is None else a[rows(rank)]
        found = solve_rows(x[rows(rank)], y, regularization, cost=cost, a=own, b=b, seconds=60)
        assert found.converged
        np.savez(folder / f"{name} {rank}", f=found.f, g=found.g, value=found.value)


def test_the_same_solution_as_on_one(tmp_path):
    assert Group(3, solves, tmp_path).wait(120) == [0, 0, 0]
    for name in CASES:
        x, y, regularization, cost, a, b = problem(name)
        whole = solve(Problem(x, y, cost, a, b), regularization)
        parts = [np.load(tmp_path / f"{name} {rank}.npz") for rank in range(3)]
        for part in parts:
            assert part["value"] == pytest.approx(float(whole.value), rel=1e-7)
            assert np.array_equal(part["g"], parts[0]["g"])
        # a constant may move from one potential to the other
        f, g = np.concatenate([part["f"] for part in parts]), parts[0]["g"]
        moved = (whole.g - torch.from_numpy(g)).mean()
        assert torch.allclose(torch.from_numpy(g) + moved, whole.g, atol=1e-6)
        assert torch.allclose(torch.from_numpy(f) - moved, whole.f, atol=1e-6)


def fails(rank, folder, kind):
    x, y, regularization, *_ = problem("few columns")
    if kind == "other columns" and rank == 1:
        y = y + 1
    regularization = 1e9 if kind == "far above" else regularization
    try:
        solve_rows(
            x[rows(rank)] * (float("nan") if kind == "not a number" and rank == 2 else 1), y, regularization
        )
    except (RankLostError, ValueError) as error:
        (folder / f"{rank}.txt").write_text(str(error))
        os._exit(7)


@pytest.mark.parametrize(
    ("kind", "who", "why"),
    [
        ("other columns", 0, "y, b and settings: those of rank 1 are not those of rank 0"),
        ("far above", 0, "regularization: 1000000000.0 is so far above all costs"),
        ("not a number", 2, "x: has NaN or infinite entries"),
    ],
)
def test_one_line_on_every_rank(kind, who, why, tmp_path):
    assert Group(3, fails, tmp_path, kind).wait(60) == [7, 7, 7]
    for rank in range(3):
        said = (tmp_path / f"{rank}.txt").read_text()
        assert said.startswith(why if rank == who else f"rank {who}: {why}")
        assert len(said.splitlines()) == 1
