"""Rows with the papers' figures and ours side by side, as CSV and on the screen."""

from __future__ import annotations

import csv
import io
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.table import Table

from dpsinkhorn.mechanisms import find_mechanism
from dpsinkhorn.papers.rows import Row
from dpsinkhorn.papers.runner import Result
from dpsinkhorn.training import load_recipe

NOT_A_GUARANTEE = "not a valid guarantee: all images of a step share one sample"

_CLASSIFIERS = {"logistic": "Log Reg", "mlp": "MLP", "cnn": "CNN"}


@dataclass(frozen=True)
class Line:
    """A row and what came out of it, with every seed that was run."""

    row: Row
    data: str
    """What the row was trained on; it may stand in for the paper's data."""
    results: tuple[Result, ...]

    @property
    def published_note(self) -> str | None:
        """What must be said of the paper's ε, where it is one of those that do not hold."""
        row = self.row
        if row.published is None or not row.recipe or math.isinf(row.published.epsilon):
            return None
        recipe = load_recipe(row.recipe).replace(**row.settings)
        return NOT_A_GUARANTEE if find_mechanism(recipe.privacy.mechanism).clips_rows else None

    def values(self) -> dict[str, Any]:
        """Everything known about the row by column; `None` where there is nothing."""
        paper, results = self.row.published, self.results
        values: dict[str, Any] = {
            "data": self.row.data,
            "trained_on": self.data if results else None,
            "method": self.row.method,
            "epsilon_published": None if paper is None else paper.epsilon,
            "epsilon_published_note": self.published_note,
            "epsilon": max(result.epsilon for result in results) if results else None,
            "delta": results[0].delta if results else None,
            "steps": results[0].steps if results else None,
            "noise_multiplier": results[0].noise_multiplier if results else None,
            "seeds": len(results),
            "fid_published": None if paper is None else paper.fid,
            "distance_name": results[0].distance_name if results else None,
            **_mean_and_spread("distance", [result.distance for result in results]),
            "distance_floor": results[0].distance_floor if results else None,
        }
        for name in _CLASSIFIERS:
            values[f"{name}_published"] = None if paper is None else getattr(paper, name)
            values.update(_mean_and_spread(name, [result.accuracy[name] for result in results]))
        for name in ("precision", "recall", "seconds"):
            values[name] = statistics.fmean(getattr(r, name) for r in results) if results else None
        return values


def to_csv(lines: Sequence[Line]) -> str:
    """Return all columns; empty where there is nothing."""
    return csv_of([{name: _plain(value) for name, value in line.values().items()} for line in lines])


def csv_of(rows: Sequence[Mapping[str, object]]) -> str:
    """Return rows that have the same names as CSV."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def to_tables(lines: Sequence[Line]) -> list[Table]:
    """For a screen: a table for each data set, the paper's figures in a line above ours.

    An ε of the paper's that is no guarantee has a †.
    """
    tables = []
    for data in dict.fromkeys(line.row.data for line in lines):
        of_data = [line for line in lines if line.row.data == data]
        trained_on = next((line.data for line in of_data if line.data not in ("", data)), data)
        table = Table(
            title=trained_on, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False
        )
        table.add_column("method")
        table.add_column("")
        for heading in ("ε", "distance", *_CLASSIFIERS.values()):
            table.add_column(heading, justify="right", no_wrap=True)
        for line in of_data:
            values, name = line.values(), line.row.method
            if line.row.published is not None:
                accuracy = [_number(values[f"{each}_published"]) for each in _CLASSIFIERS]
                mark = "" if line.published_note is None else " †"
                spent = _epsilon(values["epsilon_published"]) + mark
                table.add_row(name, "paper", spent, _number(values["fid_published"]), *accuracy, style="dim")
                name = ""
            if line.results:
                accuracy = [_number(values[each], values[f"{each}_spread"]) for each in _CLASSIFIERS]
                distance = _number(values["distance"], values["distance_spread"])
                table.add_row(name, "ours", _epsilon(values["epsilon"]), distance, *accuracy)
        tables.append(table)
    return tables


def _mean_and_spread(name: str, numbers: list[float]) -> dict[str, float | None]:
    return {
        name: statistics.fmean(numbers) if numbers else None,
        f"{name}_spread": statistics.stdev(numbers) if len(numbers) > 1 else None,
    }


def _number(value: float | None, spread: float | None = None) -> str:
    if value is None:
        return "-"
    return f"{value:.1f}" if spread is None else f"{value:.1f} ± {spread:.1f}"


def _epsilon(value: float | None) -> str:
    return "-" if value is None else "∞" if math.isinf(value) else f"{value:.3g}"


def _plain(value: Any) -> Any:
    return "" if value is None else f"{value:.6g}" if isinstance(value, float) else value
