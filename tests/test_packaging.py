"""Files that say the same thing about the package agree."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from packaging.requirements import Requirement

tomllib = pytest.importorskip("tomllib")  # Python 3.11 and later

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
CONDA = (ROOT / "conda/recipe.yaml").read_text(encoding="utf-8")
CONDA_NAMES = {"matplotlib": "matplotlib-base", "torch": "pytorch"}


@pytest.mark.parametrize(
    ("file", "pattern"),
    [("CITATION.cff", r"^version: (\S+)$"), ("conda/recipe.yaml", r'^  version: "(\S+)"$')],
)
def test_the_version_is_the_same_everywhere(file: str, pattern: str):
    found = re.search(pattern, (ROOT / file).read_text(encoding="utf-8"), re.MULTILINE)
    assert found is not None
    assert found[1] == PROJECT["version"]


def test_the_conda_recipe_needs_what_the_package_needs():
    for line in PROJECT["dependencies"]:
        needed = Requirement(line)
        if needed.marker is None:
            name = CONDA_NAMES.get(needed.name, needed.name).lower()
            least = min(str(needed.specifier).split(","), key=lambda part: not part.startswith(">="))
            assert f"    - {name} {least}" in CONDA, line


def test_the_lock_has_everything():
    locked = dict(
        re.findall(r"^([\w.-]+)==([^\s;]+)", (ROOT / "requirements-dev.lock").read_text(), re.MULTILINE)
    )
    for line in PROJECT["dependencies"]:
        needed = Requirement(line)
        assert needed.specifier.contains(locked[needed.name.lower()]), line
