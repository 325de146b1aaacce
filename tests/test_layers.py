"""The arrows of the architecture: which part of the package may import which."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import dpsinkhorn

ROOT = Path(dpsinkhorn.__file__).parent
ABOVE = {"cli", "training", "evaluation"}
MIDDLE = {"data", "generators", "release"}
MAY_NOT_IMPORT = {
    "ot": {"privacy"} | MIDDLE | ABOVE,
    "privacy": {"ot"} | MIDDLE | ABOVE,
    "data": {"generators", "release"} | ABOVE,
    "generators": {"data", "release"} | ABOVE,
    "release": {"data"} | ABOVE,
    "training": {"cli", "evaluation"},
    "evaluation": {"cli", "training"},
}


def imported_parts(file: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return {name.split(".")[1] for name in names if name.startswith("dpsinkhorn.")}


@pytest.mark.parametrize("part", MAY_NOT_IMPORT)
def test_arrows_point_one_way(part: str):
    files = list((ROOT / part).rglob("*.py"))
    assert files
    for file in files:
        assert not imported_parts(file) & MAY_NOT_IMPORT[part], file
