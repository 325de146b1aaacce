"""Pictures for the privacy commands. Imported only when one is asked for: matplotlib is slow to load."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from dpsinkhorn.mechanisms import find_mechanism
from dpsinkhorn.privacy import epsilon, format_epsilon

if TYPE_CHECKING:
    from dpsinkhorn.cli.privacy import Setting

_POINTS = 12


def draw_epsilon_against_steps(setting: Setting, path: Path) -> None:
    """ε against the number of steps, up to the setting's own, which is marked."""
    first = max(1, setting.steps // 1000)
    counts = np.unique(np.geomspace(first, setting.steps, _POINTS).round().astype(int))
    settings = [dataclasses.replace(setting, steps=int(count)) for count in counts]
    spent = [epsilon(each.charge, each.delta, each.accountant) for each in settings]

    figure = Figure(figsize=(6.0, 4.0), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    axes.plot(counts, spent, marker=".", label=f"epsilon ({setting.accountant})")
    axes.margins(y=0.12)
    axes.annotate(
        format_epsilon(spent[-1], digits=3),
        (float(counts[-1]), spent[-1]),
        textcoords="offset points",
        xytext=(-6, 6),
        ha="right",
    )
    if find_mechanism(setting.mechanism).clips_rows:
        published = [each.published for each in settings]
        axes.plot(counts, published, linestyle="--", label="as published (not a guarantee)")
        axes.set_yscale("log")
    axes.set_xscale("log")
    axes.set_xlabel("steps")
    axes.set_ylabel(f"epsilon at delta = {setting.delta:g}")
    axes.set_title(
        f"{setting.mechanism}: noise multiplier {setting.noise_multiplier:.4g}, "
        f"sampling rate {setting.sampling_rate:.4g}",
        fontsize="medium",
    )
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=150)
