"""The arrows of the architecture: which part of the package may import which."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import dpsinkhorn

ROOT = Path(dpsinkhorn.__file__).parent
LOWER = {"ot", "privacy"}
MIDDLE = {"data", "generators", "release", "mechanisms"}
UPPER = {"training", "transport", "evaluation"}
TOP = {"cli", "report", "papers"}
MAY_NOT_IMPORT = {
    "kernels": {"errors", "files"} | LOWER | MIDDLE | UPPER | TOP,
    "ot": {"privacy"} | MIDDLE | UPPER | TOP,
    "privacy": {"ot"} | MIDDLE | UPPER | TOP,
    "data": {"generators", "release", "mechanisms"} | UPPER | TOP,
    "generators": {"data", "release", "mechanisms"} | UPPER | TOP,
    "release": {"data", "mechanisms"} | UPPER | TOP,
    "mechanisms": UPPER | TOP,
    "training": (UPPER - {"training"}) | TOP,
    "transport": (UPPER - {"transport"}) | TOP,
    "evaluation": (UPPER - {"evaluation"}) | TOP,
    "report": {"cli", "papers"},
    "papers": {"cli", "report"},
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


@pytest.mark.parametrize("name", ["files.py", "_checks.py", "errors.py"])
def test_what_all_parts_share_imports_none(name: str):
    assert not imported_parts(ROOT / name)


def test_how_processes_talk_knows_nothing_of_what_is_said():
    assert imported_parts(ROOT / "ranks.py") == {"errors"}
