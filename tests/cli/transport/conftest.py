"""`dpsinkhorn transport` on small files."""

from __future__ import annotations

import numpy as np
import pytest


@pytest.fixture
def run(run, files):  # noqa: ARG001
    """Run `dpsinkhorn transport COMMAND`."""
    return lambda command, *more: run(f"transport {command}", *more)


@pytest.fixture
def files(tmp_path, monkeypatch):
    """The folder that commands are run in, with some points."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    x, y = rng.random((200, 2)), rng.random((150, 2)) + 0.4
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "y.npy", y)
    np.save(tmp_path / "grid.npy", np.stack(np.meshgrid(*[np.linspace(0, 1.4, 5)] * 2), -1).reshape(-1, 2))
    return tmp_path
