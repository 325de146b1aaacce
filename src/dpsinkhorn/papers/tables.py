"""Rows with the papers' figures and ours side by side: as CSV, on the screen, and in pictures."""

from __future__ import annotations

import csv
import io
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray
from rich import box
from rich.table import Table

from dpsinkhorn.mechanisms import find_mechanism
from dpsinkhorn.papers.gradients import GradientSpread
from dpsinkhorn.papers.rows import Row
from dpsinkhorn.papers.runner import Result
from dpsinkhorn.training import load_recipe

NOT_A_GUARANTEE = "not a valid guarantee: all images of a step share one sample"

_CLASSIFIERS = {"logistic": "Log Reg", "mlp": "MLP", "cnn": "CNN"}


@dataclass(frozen=True)
class Line:
    """A row and what came out of it, with every seed that was run."""

    row: Row
    data: str  # what the row was trained on; it may stand in for the paper's data
    results: tuple[Result, ...]

    @property
    def published_note(self) -> str | None:
        """Return what must be said of the paper's ε, where it is one of those that do not hold."""
        row = self.row
        if row.published is None or not row.recipe or math.isinf(row.published.epsilon):
            return None
        recipe = load_recipe(row.recipe).replace(**row.settings)
        return NOT_A_GUARANTEE if find_mechanism(recipe.privacy.mechanism).clips_rows else None

    def values(self) -> dict[str, Any]:
        """Return everything known about the row by column; `None` where there is nothing."""
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


def draw_samples(samples: Sequence[tuple[str, NDArray[np.uint8], int]], note: str, path: Path) -> None:
    """Figure 2: images by class, a panel for each generator; every class has a row of the panel."""
    figure, axes = _figure(len(samples), height=4.3, width=2.8)
    for axis, (title, images, classes) in zip(axes, samples, strict=True):
        grid = images.reshape(classes, -1, *images.shape[1:])  # (classes, columns, H, W[, 3])
        picture = np.concatenate([np.concatenate(list(row), axis=1) for row in grid], axis=0)
        axis.imshow(picture, cmap="gray", vmin=0, vmax=255, interpolation="nearest")
        axis.set_title(title, fontsize="small")
        axis.set_xticks([])
        height = images.shape[1]
        axis.set_yticks(np.arange(classes) * height + height / 2, [str(k) for k in range(classes)])
        axis.tick_params(length=0, labelsize="x-small")
        for side in axis.spines.values():
            side.set_visible(False)
    _save(figure, note, path)


def draw_rates(lines: Sequence[Line], note: str, path: Path) -> None:
    """Figure 4a: error of the CNN against the learning rate, by optimizer."""
    figure, (axis,) = _figure(1)
    for name, series in _by_series(lines):
        _curve(axis, [line.row.at for line in series], [_error(line) for line in series], name)
    axis.set(xscale="log", xlabel="learning rate", ylabel="error of the CNN, per cent")
    axis.legend()
    _save(figure, note, path)


def draw_budgets(lines: Sequence[Line], note: str, path: Path) -> None:
    """Figure 4b: distance and error against ε, which here is the one that is proved."""
    figure, (left, right) = _figure(2)
    for name, series in _by_series(lines):
        spent = [line.values()["epsilon"] for line in series]
        _curve(left, spent, [line.values()["distance"] for line in series], name)
        _curve(right, spent, [_error(line) for line in series], name)
    for axis in (left, right):
        axis.set(xscale="log", xlabel="epsilon, proved")
    left.set_ylabel(lines[0].results[0].distance_name)
    right.set_ylabel("error of the CNN, per cent")
    left.legend(fontsize="small")
    _save(figure, note, path)


def draw_debias(lines: Sequence[Line], note: str, path: Path) -> None:
    """Figure 5: distance and error against p, a panel for each data set, the paper's beside where given."""
    series = _by_series(lines)
    figure, axes = _figure(len(series))
    for axis, (name, some) in zip(axes, series, strict=True):
        at = [line.row.at for line in some]
        _curve(axis, at, [_error(line) for line in some], "error of the CNN", colour="C0")
        axis.set_ylabel("error of the CNN, per cent", color="C0")
        axis.set_xlabel("p")
        axis.set_title(f"{name} ({some[0].data})", fontsize="medium")
        other = axis.twinx()
        _curve(other, at, [line.values()["distance"] for line in some], "distance", colour="C1")
        other.set_ylabel(some[0].results[0].distance_name, color="C1")
        quoted = [line for line in some if line.row.published is not None]
        if quoted:
            errors = [100 - (line.values()["cnn_published"] or math.nan) for line in quoted]
            axis.plot(
                [line.row.at for line in quoted], errors, "x:", color="C0", alpha=0.6, label="error, paper"
            )
            axis.legend(fontsize="small")
    _save(figure, note, path)


def draw_gradients(spreads: Mapping[str, Sequence[GradientSpread]], note: str, path: Path) -> None:
    """Figure 4c: bias and variance of the gradient against p, a line for each generator."""
    figure, (left, right) = _figure(2)
    for name, points in spreads.items():
        at = [point.debias for point in points]
        _curve(left, at, [point.bias for point in points], name)
        _curve(right, at, [point.variance for point in points], name)
    left.set_ylabel("bias, relative to the gradient")
    right.set_ylabel("variance, relative to p = 0")
    for axis in (left, right):
        axis.set_xlabel("p")
    left.legend(fontsize="small")
    _save(figure, note, path)


def _figure(columns: int, height: float = 3.6, width: float = 4.4) -> tuple[Figure, Sequence[Axes]]:
    figure = Figure(figsize=(width * columns, height), layout="constrained")
    axes: Any = figure.subplots(1, columns, squeeze=False)
    return figure, list(axes.flat)


def _save(figure: Figure, note: str, path: Path) -> None:
    figure.supxlabel(note, fontsize="x-small", color="0.35")
    for axis in figure.axes:
        if axis.get_xlabel():
            axis.grid(alpha=0.3)
    figure.savefig(path, dpi=150)


def _curve(axis: Axes, x: Sequence[float], y: Sequence[float], name: str, colour: str | None = None) -> None:
    kept = sorted((a, b) for a, b in zip(x, y, strict=True) if math.isfinite(a) and math.isfinite(b))
    axis.plot([a for a, _ in kept], [b for _, b in kept], marker="o", label=name, color=colour)


def _error(line: Line) -> float:
    return 100.0 - float(line.values()["cnn"])


def _by_series(lines: Sequence[Line]) -> list[tuple[str, list[Line]]]:
    series: dict[str, list[Line]] = {}
    for line in lines:
        if line.results:
            series.setdefault(line.row.series, []).append(line)
    return list(series.items())
