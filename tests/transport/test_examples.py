"""The examples run, and show what they say."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from dpsinkhorn.privacy import Statement, epsilon

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look themselves up
    spec.loader.exec_module(module)
    return module


class TestDrift:
    def test_made_up_months(self):
        drift = example("drift")
        before = drift.made_up_month(700, older=0, seed=1)
        same = drift.drift(before, drift.made_up_month(700, older=0, seed=2), drift.SCALE, seed=0)
        older = drift.drift(before, drift.made_up_month(700, older=10, seed=3), drift.SCALE, seed=0)
        assert (same.rejected, older.rejected) == (False, True)
        assert older.effect_interval[0] > same.effect_interval[1]

    def test_files(self, tmp_path, capsys):
        drift = example("drift")
        for name, older in (("a", 0), ("b", 40)):
            rows = drift.made_up_month(400, older, seed=older)
            np.savetxt(tmp_path / f"{name}.csv", rows, delimiter=",", header="age,amount", comments="")
        drift.main([str(tmp_path / "a.csv"), str(tmp_path / "b.csv")])
        assert "given: drift at level 0.05" in capsys.readouterr().out


class TestMovePoints:
    def test_public_points_arrive(self, tmp_path, capsys):
        module = example("move_points")
        assert module.main(tmp_path / "moved.png", count=8000) < 0.3
        assert (tmp_path / "moved.png").exists()
        assert "before" in capsys.readouterr().out

    def test_gradients_of_the_monomials(self):
        module = example("move_points")
        points = np.random.default_rng(0).random((5, 2))
        values, gradients = module.monomials(points)
        for axis in (0, 1):
            step = np.zeros(2)
            step[axis] = 1e-6
            slope = (module.monomials(points + step)[0] - values) / 1e-6
            np.testing.assert_allclose(slope, gradients[..., axis], atol=1e-4)


def test_the_snippets_of_the_manual_run():
    text = (ROOT / "docs" / "transport.md").read_text(encoding="utf-8")
    names: dict[str, object] = {}
    snippets = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(snippets) == 3
    for snippet in snippets:
        exec(snippet, names)
    statement = names["statement"]
    assert isinstance(statement, Statement)
    assert len(statement.runs) == 2
    assert epsilon(statement.total(), 0.0) == pytest.approx(2)
