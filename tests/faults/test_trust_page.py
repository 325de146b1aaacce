"""docs/trust.md names tests that exist, and every defect that is planted."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "trust.md").read_text(encoding="utf-8")


def test_every_test_that_is_named_exists():
    named = set(re.findall(r"`([a-z_/]+\.py)((?:::\w+)*)`", PAGE))
    assert len(named) > 15
    for path, rest in named:
        node: ast.AST = ast.parse((ROOT / "tests" / path).read_text(encoding="utf-8"))
        for name in rest.split("::")[1:]:
            node = next(each for each in ast.iter_child_nodes(node) if getattr(each, "name", None) == name)


def test_the_defects_are_those_of_the_audit():
    audit = (ROOT / "docs" / "audit.md").read_text(encoding="utf-8")
    planted = audit.partition("## Planted defects")[2]
    rows = re.findall(r"^\| (.+?) \| `.+?` \| .+? \|$", planted, flags=re.MULTILINE)
    assert len(rows) >= 16
    for name in rows:
        assert f"| {name} | `" in PAGE, name
