"""The page of a comparison: one table, and generated images side by side."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from PIL import Image

from dpsinkhorn.errors import ReportError
from dpsinkhorn.files import failing_as, replace_file
from dpsinkhorn.report.page import render
from dpsinkhorn.report.pictures import Picture


def write_comparison(output: Path, found: Mapping[str, Any], grids: Mapping[str, Image.Image]) -> None:
    """Write the page of a comparison.

    Args:
        output: The page.
        found: Figures, as `Comparison.to_json` gives them.
        grids: A picture of each method, by its name.
    """
    pictures = {name: Picture.of(grid) for name, grid in grids.items()}
    classifiers = list(found["methods"][0]["accuracy"])
    context = {**found, "pictures": pictures, "classifiers": classifiers}
    with failing_as(ReportError, f"cannot write {output}"):
        replace_file(output, render("comparison.html.j2", context))
