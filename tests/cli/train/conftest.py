"""`dpsinkhorn train` as the tests call it: in a folder with small data and small recipes."""

from __future__ import annotations

import numpy as np
import pytest

from support.runs import RECIPE, tiny_arrays
from support.train_command import snapshot


@pytest.fixture(autouse=True)
def _one_thread(one_thread):
    """As in the processes of `Command`: with another number of threads sums end in other last bits."""


@pytest.fixture
def place(tmp_path):
    """A folder with a small data set and a small recipe."""
    images, labels, groups = tiny_arrays(persons=30)
    np.savez(tmp_path / "data.npz", images=images, labels=labels)
    np.savez(tmp_path / "persons.npz", images=images, labels=labels, patient=groups)
    (tmp_path / "tiny.toml").write_text(RECIPE.format(steps=12))
    (tmp_path / "long.toml").write_text(RECIPE.format(steps=500))
    return tmp_path


@pytest.fixture
def run(run, place, monkeypatch):
    """Run `dpsinkhorn train COMMAND` in the folder: exit status, stdout, stderr."""
    monkeypatch.chdir(place)
    return lambda command, *more: run(f"train {command}", *more)


@pytest.fixture
def refused(run, place):
    """The one line of a refusal. Status 2, nothing on stdout, nothing written."""

    def refused(command, *more):
        before = snapshot(place)
        status, out, err = run(command, *more)
        assert (status, out) == (2, "")
        errors = [line for line in err.splitlines() if not line.startswith("dpsinkhorn: warning: ")]
        assert len(errors) == 1, err
        assert errors[0].startswith("dpsinkhorn: ")
        assert snapshot(place) == before
        return errors[0]

    return refused
