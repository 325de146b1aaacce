"""What a type checker sees of `DPSinkhorn`."""

from __future__ import annotations

import pytest

api = pytest.importorskip("mypy.api")

CONFIG = """
[mypy]
follow_imports = skip
ignore_missing_imports = true
[mypy-dpsinkhorn.training.estimator]
follow_imports = silent
"""
USE = """
from dpsinkhorn.training.estimator import DPSinkhorn

model = DPSinkhorn(epsilon=3.0)
model.fit([]).sample(5, random_state=1)
model.set_params(delta=1e-6).get_params()
{line}
"""


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("", ""),
        ("model.fitt([])", '"DPSinkhorn" has no attribute "fitt"'),
        ("DPSinkhorn()", 'Missing positional argument "epsilon"'),
        ("model.sample(5, seed=1)", 'Unexpected keyword argument "seed"'),
    ],
)
def test_what_is_wrong_is_seen(line, error, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mypy.ini").write_text(CONFIG)
    (tmp_path / "use.py").write_text(USE.format(line=line))
    out, _, status = api.run(["use.py", "--cache-dir", str(tmp_path.parent / "mypy-cache")])
    assert (status, error in out) == (int(bool(error)), True), out
