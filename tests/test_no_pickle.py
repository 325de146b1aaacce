"""No pickle is loaded anywhere, but for published weights through PyTorch's restricted loader."""

from __future__ import annotations

import ast
import pickle
from pathlib import Path

import numpy as np
import pytest

import dpsinkhorn
from dpsinkhorn.data import load_dataset
from dpsinkhorn.release import load
from support.releases import write_small_release

ROOT = Path(dpsinkhorn.__file__).parent
WEIGHTS = {ROOT / "evaluation" / "features.py", ROOT / "evaluation" / "architectures.py"}
FORBIDDEN = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}


def calls(file: Path):
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), {word.arg: ast.unparse(word.value) for word in node.keywords}


def imports(file: Path):
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module.split(".")[0]


@pytest.mark.parametrize("file", sorted(ROOT.rglob("*.py")), ids=lambda file: str(file.relative_to(ROOT)))
def test_the_source_has_no_way_to(file: Path):
    assert not FORBIDDEN & set(imports(file))
    for name, words in calls(file):
        assert words.get("allow_pickle", "False") == "False", name
        if name == "torch.load":
            assert file in WEIGHTS
            assert words["weights_only"] == "True"
        if name in ("np.load", "numpy.load"):
            assert words.get("allow_pickle") == "False", "not left to the default of some version"


def test_reading_never_unpickles(tmp_path, monkeypatch):
    """With pickle out of order, releases and data are read as before."""

    def refuse(*_, **__):
        raise AssertionError("something is unpickled")

    write_small_release(tmp_path / "release")
    np.savez(tmp_path / "data.npz", images=np.zeros((4, 8, 8), np.uint8), labels=np.arange(4) % 2)
    for name in ("load", "loads", "Unpickler"):
        monkeypatch.setattr(pickle, name, refuse)
    load(tmp_path / "release").sample(3, random_state=0)
    load_dataset(tmp_path / "data.npz")
