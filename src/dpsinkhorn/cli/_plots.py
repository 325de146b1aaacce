"""Pictures for `privacy` and `audit`. Imported only when one is asked for: matplotlib is slow to load."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure

from dpsinkhorn.mechanisms import find_mechanism
from dpsinkhorn.privacy import Calibration, ImageMechanism, epsilon, format_epsilon, published_epsilon

_POINTS = 12
_BINS = 60


def draw_epsilon_against_steps(found: Calibration, mechanism: str, path: Path) -> None:
    """ε against the number of steps, up to the run's own, which is marked."""
    first = max(1, found.steps // 1000)
    counts = np.unique(np.geomspace(first, found.steps, _POINTS).round().astype(int)).tolist()
    step = find_mechanism(mechanism).release_of_size(found.noise_multiplier, found.rows)
    charges = [step.sampled(found.sampling_rate, count) for count in counts]
    spent = [epsilon(charge, found.delta, found.accountant) for charge in charges]

    figure = Figure(figsize=(6.0, 4.0), layout="constrained")
    axes = figure.subplots()
    axes.plot(counts, spent, marker=".", label=f"epsilon ({found.accountant})")
    axes.margins(y=0.12)
    axes.annotate(
        format_epsilon(spent[-1], digits=3),
        (float(counts[-1]), spent[-1]),
        textcoords="offset points",
        xytext=(-6, 6),
        ha="right",
    )
    if isinstance(step, ImageMechanism) and find_mechanism(mechanism).clips_rows:
        published = [published_epsilon(step, found.sampling_rate, count, found.delta) for count in counts]
        axes.plot(counts, published, linestyle="--", label="as published (not a guarantee)")
        axes.set_yscale("log")
    axes.set(xscale="log", xlabel="steps", ylabel=f"epsilon at delta = {found.delta:g}")
    axes.set_title(
        f"{mechanism}: noise multiplier {found.noise_multiplier:.4g}, "
        f"sampling rate {found.sampling_rate:.4g}",
        fontsize="medium",
    )
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=150)


def draw_audit(
    path: Path,
    *,
    title: str,
    scores: Mapping[str, npt.NDArray[np.float64]],
    bounds: Mapping[str, float],
    claims: Mapping[str, float],
    delta: float,
    counted: str,
) -> None:
    """The scores of both worlds, and the bounds as bars below the lines of what is claimed."""
    figure = Figure(figsize=(9.0, 3.8), layout="constrained")
    left, right = figure.subplots(1, 2)
    # the outermost scores would leave everything else in one bin
    low, high = np.quantile(np.concatenate(list(scores.values())), [0.002, 0.998])
    bins = np.linspace(low, max(high, low + 1e-9), _BINS)
    for name, values in scores.items():
        left.hist(np.clip(values, low, high), bins=bins.tolist(), alpha=0.55, label=name)
    left.set(xlabel="score", ylabel=counted, yscale="log")
    left.legend(fontsize="small")
    names = [name.replace(" on ", "\non ") for name in bounds]
    bars = right.bar(names, list(bounds.values()), width=0.5, color="tab:green")
    right.bar_label(bars, fmt="%.3g", padding=2)
    for (name, value), style in zip(claims.items(), ("-", "--"), strict=False):
        right.axhline(value, linestyle=style, color="tab:red", label=f"{name}: {value:.4g}")
    top = 1.15 * max(*bounds.values(), *claims.values())
    right.set(ylim=(0, top), ylabel=f"epsilon at delta = {delta:g}")
    right.set_title("lower bounds, and what is claimed", fontsize="medium")
    right.legend(fontsize="small")
    left.set_title(title, fontsize="medium")
    figure.savefig(path, dpi=150)
