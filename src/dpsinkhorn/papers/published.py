"""The papers' own figures, to stand beside ours.

From T. Cao, A. Bie, A. Vahdat, S. Fidler, K. Kreis, "Don't Generate Me: Training Differentially Private
Generative Models with Sinkhorn Divergence", 2021: its `first` version (tables 1 to 6, with the appendix)
and its `final` one. Those of other methods are as quoted there.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache
from importlib import resources

__all__ = ["Published", "published_figures"]


@dataclass(frozen=True)
class Published:
    """A row of one of the papers' tables. ε is what the paper says, which for the final version is no
    guarantee."""

    data: str
    method: str
    epsilon: float
    fid: float | None
    logistic: float | None
    mlp: float | None
    cnn: float | None


@cache
def published_figures(item: str, version: str) -> tuple[Published, ...]:
    """The rows of a table, in the order of the paper; none for a figure, whose numbers are not given.

    >>> [row.cnn for row in published_figures("table1", "final") if row.method == "real data"]
    [99.3, 90.8]
    """
    with (resources.files("dpsinkhorn.papers") / "published.csv").open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if (row["item"], row["version"]) == (item, version)]
    return tuple(
        Published(
            row["data"],
            row["method"],
            float(row["epsilon"]),
            *(float(row[name]) if row[name] else None for name in ("fid", "logistic", "mlp", "cnn")),
        )
        for row in rows
    )
