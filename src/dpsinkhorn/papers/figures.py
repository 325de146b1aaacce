"""The papers' figures, drawn from our own rows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy.typing import NDArray

from dpsinkhorn.papers.gradients import GradientSpread
from dpsinkhorn.papers.tables import Line

_MARKS = ("o", "s", "^", "D", "v")


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
    for series in _by_series(lines):
        rates = [line.row.at for line in series[1]]
        _curve(axis, rates, [_error(line) for line in series[1]], series[0])
    axis.set_xscale("log")
    axis.set_xlabel("learning rate")
    axis.set_ylabel("error of the CNN, per cent")
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
        axis.set_xscale("log")
        axis.set_xlabel("epsilon, proved")
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
    for k, (name, points) in enumerate(spreads.items()):
        at = [point.debias for point in points]
        mark = _MARKS[k % len(_MARKS)]
        left.plot(at, [point.bias for point in points], marker=mark, label=name)
        right.plot(at, [point.variance for point in points], marker=mark, label=name)
    left.set_ylabel("bias, relative to the gradient")
    right.set_ylabel("variance, relative to p = 0")
    for axis in (left, right):
        axis.set_xlabel("p")
    left.legend(fontsize="small")
    _save(figure, note, path)


def _figure(columns: int, height: float = 3.6, width: float = 4.4) -> tuple[Figure, Sequence[Axes]]:
    figure = Figure(figsize=(width * columns, height), layout="constrained")
    FigureCanvasAgg(figure)
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
