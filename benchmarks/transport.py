"""Private transport: error against ε and n on digits, the paper's Theorem 1 against simulation, and time.

    python benchmarks/transport.py tradeoff | sizes | theorem1 | all     [--runs 40]
    python benchmarks/transport.py table
    python benchmarks/transport.py histogram      # how near the errors that histograms estimate are
    python benchmarks/transport.py large          # time and memory of 10,000 points a side

Figures of the first ones go to benchmarks/results/transport.json, pictures to docs/images.
"""

from __future__ import annotations

import json
import math
import resource
import subprocess
import sys
import time
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from sklearn.datasets import load_digits

from dpsinkhorn.ot import MatrixProblem, solve
from dpsinkhorn.privacy import SeededNoise
from dpsinkhorn.transport import (
    Clouds,
    DirectMechanism,
    HistogramMechanism,
    bounds,
    draw_tradeoff,
    measure_tradeoff,
    private_cost,
)
from dpsinkhorn.transport.algorithm import Exact, iterate

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "transport.json"
IMAGES = ROOT / "docs" / "images"
EPSILONS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)


def digits(label: int) -> npt.NDArray[np.float64]:
    """All digits of a class, reduced to the mean grey of their four quarters: four numbers in [0, 1]."""
    images, labels = load_digits(return_X_y=True)
    chosen = images[labels == label].reshape(-1, 2, 4, 2, 4) / 16
    return np.asarray(chosen.mean(axis=(2, 4)).reshape(-1, 4))


def tradeoff(runs: int) -> dict[str, object]:
    """Errors of all methods between digits 0 and 1; costs are capped at 0.5, distances at its root."""
    x, y = digits(0), digits(1)
    support = np.stack(np.meshgrid(*[np.array([0.15, 0.4, 0.65])] * 4), -1).reshape(-1, 4)
    found: dict[str, object] = {}
    distance = {"cost": "euclidean", "cost_bound": math.sqrt(0.5), "center": [0.4] * 4}
    squared = {"cost_bound": 0.5}
    settings: dict[str, dict[str, Any]] = {
        "small λ": {**squared, "regularization": 0.025},
        "λ = bound": {**squared, "regularization": 0.5},
        "λ = bound, y public": {**squared, "regularization": 0.5, "public": "y"},
        "exact": {**squared, "regularization": 0.0},
        "distances, exact": {**distance, "regularization": 0.0},
        "distances, λ = bound": {**distance, "regularization": math.sqrt(0.5)},
    }
    for name, options in settings.items():
        result = measure_tradeoff(x, y, **options, epsilons=EPSILONS, support=support, runs=runs)
        found[name] = {
            "true_value": result.true_value,
            "worst_choice": result.worst_choice(),
            "rows": [vars(row) for row in result.rows],
        }
        pictures = {"λ = bound": "transport-tradeoff.png", "distances, exact": "transport-sliced.png"}
        if name in pictures:
            at = "λ = c̄ = 0.5" if name == "λ = bound" else "Euclidean distance, c̄ = √0.5, exact"
            draw_tradeoff(
                result,
                IMAGES / pictures[name],
                title=f"digits 0 and 1, {len(x)} and {len(y)} records, {at}, δ = 1e-5",
            )
    table(found)
    return found


def table(found: dict[str, Any]) -> None:
    """Print what was measured: for every method its error against what it estimates, and the prediction."""
    shown = (0.1, 1.0, 10.0)
    print("| setting | method | " + " | ".join(f"ε = {epsilon:g}" for epsilon in shown) + " | ratio |")
    print("|---|---|" + "---|" * (len(shown) + 1))
    for name, measured in found.items():
        for method in dict.fromkeys(row["method"] for row in measured["rows"]):
            rows = {row["epsilon"]: row for row in measured["rows"] if row["method"] == method}
            ratios = [row["predicted_error"] / row["own_error"] for row in rows.values()]
            cells = [
                f"{rows[at]['own_error']:.2g}; {rows[at]['measured_error']:.2g}{' *' * rows[at]['chosen']}"
                for at in shown
            ]
            span = f"{min(ratios):.2g} to {max(ratios):.2g}"
            print(f"| {name} | {method} | " + " | ".join([*cells, span]) + " |")
        print(
            f"| {name} | auto, at worst | "
            + f"{measured['worst_choice']:.2f} times the least error |"
            + " |" * 3
        )


def sizes(runs: int) -> list[dict[str, float]]:
    """The direct method's error against n and ε, over c̄ / (n ε): one everywhere if theory is right."""
    rows = []
    for n in (20, 40, 80, 160):
        x, y = digits(0)[:n], digits(1)[:n]
        clouds = Clouds.of(x, y, cost_bound=0.5)
        for epsilon in EPSILONS:
            plan = DirectMechanism.plan(clouds.setting, "entropic", regularization=0.025, epsilon=epsilon)
            true = plan.value(clouds)
            noise = SeededNoise(n)
            errors = [abs(plan.noised(true, noise) - true) for _ in range(10 * runs)]
            ratio = float(np.mean(errors)) / (0.5 / (n * epsilon))
            rows.append({"n": n, "epsilon": epsilon, "error": float(np.mean(errors)), "ratio": ratio})
    spread = [row["ratio"] for row in rows]
    print(f"direct error over c̄/(nε): from {min(spread):.2f} to {max(spread):.2f}")
    return rows


def gap(C: torch.Tensor, phi: torch.Tensor, psi: torch.Tensor, eta: float, best: float) -> float:
    value = phi.mean() + psi.mean() - eta * (torch.exp((phi[:, None] + psi - C) / eta).mean() - 1)
    return best - float(value)


def simulate(C: torch.Tensor, eta: float, floor: float, iterations: int, runs: int) -> float:
    """Mean gap F(θ_K) - F* of Algorithm 1 with σ = 0."""
    best = float(solve(MatrixProblem(C), eta, tolerance=1e-10).value)
    generator = torch.Generator().manual_seed(0)

    def add_noise(exact: Exact, *_: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        phi, psi = (
            p + math.sqrt(floor) * torch.randn(len(p), generator=generator, dtype=torch.float64)
            for p in (exact.phi, exact.psi)
        )
        return phi, psi

    return float(np.mean([gap(C, *iterate(C, eta, iterations, add_noise), eta, best) for _ in range(runs)]))


def theorem1(runs: int) -> list[dict[str, float | bool]]:
    """Where Theorem 1's bound holds, over (n, η, M, K); rate and noise floor."""
    rows: list[dict[str, float | bool]] = []
    for n in (10, 100, 400):
        C = torch.tensor(np.random.default_rng(0).random((n, n)))
        zeros = torch.zeros(n, dtype=torch.float64)
        for eta in (0.25, 1.0, 4.0):
            best = float(solve(MatrixProblem(C), eta, tolerance=1e-10).value)
            start = gap(C, zeros, zeros, eta, best)
            for floor in (1e-6, 1e-4, 1e-2, 1e-1, 1.0):
                for k in (1, 3, 10):
                    found = simulate(C, eta, floor, k, max(2, runs // 8))
                    bound = bounds.theorem1(start, k, bound=1.0, regularization=eta, floor=floor)
                    rows.append(
                        {
                            "n": n,
                            "eta": eta,
                            "M": floor,
                            "K": k,
                            "gap": found,
                            "bound": bound,
                            "holds": found <= bound,
                        }
                    )
    holding = sum(bool(row["holds"]) for row in rows)
    print(f"Theorem 1 holds at {holding} of {len(rows)} settings")
    for row in rows:
        if not row["holds"] and row["K"] == 1:
            print(
                "  fails: "
                + ", ".join(f"{key} {row[key]:.4g}" for key in ("n", "eta", "M", "K", "gap", "bound"))
            )
    _draw_map(rows)
    _draw_rate(runs)
    return rows


def _draw_map(rows: list[dict[str, float | bool]]) -> None:
    figure = Figure(figsize=(9.0, 3.4), layout="constrained")
    FigureCanvasAgg(figure)
    for axes, eta in zip(figure.subplots(1, 3, sharey=True), (0.25, 1.0, 4.0), strict=True):
        here = [row for row in rows if row["eta"] == eta and row["n"] == 100]
        for holds, colour, label in ((True, "tab:green", "holds"), (False, "tab:red", "fails")):
            chosen = [row for row in here if row["holds"] == holds]
            axes.scatter([r["M"] for r in chosen], [r["K"] for r in chosen], c=colour, label=label, s=60)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel("noise floor M")
        axes.set_title(f"η = {eta:g} c̄, n = 100", fontsize="medium")
        axes.grid(alpha=0.3)
    figure.axes[0].set_ylabel("iterations K")
    figure.axes[0].legend(fontsize="small")
    figure.savefig(IMAGES / "transport-theorem1.png", dpi=150)


def _draw_rate(runs: int) -> None:
    """The gap against K: a fast linear rate, down to a floor of η (e^(M/η²) - 1)."""
    figure = Figure(figsize=(6.0, 4.0), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    C = torch.tensor(np.random.default_rng(0).random((100, 100)))
    iterations = list(range(1, 9))
    for floor in (0.0, 1e-6, 1e-4, 1e-2):
        gaps = [max(simulate(C, 0.25, floor, k, max(2, runs // 8)), 1e-16) for k in iterations]
        (line,) = axes.plot(iterations, gaps, marker=".", label=f"M = {floor:g}")
        if floor:
            axes.axhline(0.25 * math.expm1(floor / 0.25**2), linestyle=":", color=line.get_color())
    axes.set_yscale("log")
    axes.set_xlabel("iterations K")
    axes.set_ylabel("gap (dotted: η (exp(M/η²) - 1))")
    axes.set_title("n = 100, η = c̄/4, σ = 0", fontsize="medium")
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    figure.savefig(IMAGES / "transport-rate.png", dpi=150)


def histogram() -> None:
    """How near the estimated error of transport between histograms comes to the measured one.

    500 points a side: uniform on the unit cube, normal, or in opposite corners, on grids of 25 to 125 points,
    at three values of ε, exact and entropic. The estimate is of one release, the error measured over 12.
    """
    rng = np.random.default_rng(0)
    ratios, apart = [], 1.0
    for d, side in ((2, 5), (2, 9), (3, 5)):
        grid = np.stack(np.meshgrid(*[np.linspace(0, 1, side)] * d), -1).reshape(-1, d)
        uniform, normal = rng.random((2, 500, d)), rng.normal(0.5, 0.15, (2, 500, d))
        pairs = (
            (uniform[0], uniform[1]),
            (normal[0].clip(0, 1), (normal[1] + 0.1).clip(0, 1)),
            (0.3 * uniform[0], 0.3 * uniform[1] + 0.7),
        )
        for epsilon in (0.2, 1.0, 5.0):
            for quantity, at in (("exact", 0.0), ("entropic", 0.05 * d)):
                measured = []
                for x, y in pairs:
                    clouds = Clouds.of(x, y, cost_bound=float(d))
                    asked = {"quantity": quantity, "regularization": at}
                    plan = HistogramMechanism.plan(clouds, grid, epsilon=epsilon, **asked)  # type: ignore[arg-type]
                    precise = HistogramMechanism.plan(clouds, grid, epsilon=1e5)
                    true = precise.release(clouds, SeededNoise(99)).cost(quantity, at)  # type: ignore[arg-type]
                    found = [plan.release(clouds, SeededNoise(run)) for run in range(12)]
                    measured.append(np.mean([abs(each.cost(quantity, at) - true) for each in found]))  # type: ignore[arg-type]
                    ratios += [plan.estimated_error(each) / measured[-1] for each in found[:5]]
                apart = max(apart, max(measured) / min(measured))
    near = sum(1 / 3 < ratio < 3 for ratio in ratios)
    span = f"from {min(ratios):.2f} to {max(ratios):.2f}"
    print(f"{near} of {len(ratios)} estimates are within a factor of 3; {span}")
    print(f"errors of different data at the same public numbers: up to a factor of {apart:.0f} apart")


def large(n: int, d: int, quantity: str) -> None:
    """Time and memory of the direct private cost on large clouds, in a process of its own."""
    rng = np.random.default_rng(d)
    x, y = rng.random((n, d)), rng.random((n, d)) ** 1.5
    bound = float(d)
    start = time.perf_counter()
    found = private_cost(
        x,
        y,
        epsilon=1,
        cost_bound=bound,
        regularization=0.05 * bound,
        debiased=quantity == "divergence",
    )
    seconds = time.perf_counter() - start
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"{quantity:<11} n {n:>6}  d {d:>3}  {seconds:6.1f} s  {memory:6.0f} MiB  "
        f"cost/bound {found.cost / bound:.4f}  predicted error/bound {found.predicted_error / bound:.1e}",
        flush=True,
    )


def main() -> None:
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    choices = ("tradeoff", "sizes", "theorem1", "all", "table", "histogram", "large")
    parser.add_argument("what", nargs="?", default="all", choices=choices)
    parser.add_argument("--runs", type=int, default=40)
    parser.add_argument("--points", type=int, default=10_000, help="of large")
    parser.add_argument("--dimension", type=int, help="of one measurement of large, in this process")
    parser.add_argument("--quantity", choices=("entropic", "divergence"), default="entropic", help="of large")
    options = parser.parse_args()
    if options.what == "histogram":
        histogram()
        return
    if options.what == "large":
        if options.dimension:
            large(options.points, options.dimension, options.quantity)
            return
        for d in (2, 5, 10):  # a process each, so that its peak memory is its own
            subprocess.run([sys.executable, *sys.argv, "--dimension", str(d)], check=True)
        return
    found = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    if options.what == "table":
        table(found["tradeoff"])
        return
    for name, measure in (("tradeoff", tradeoff), ("sizes", sizes), ("theorem1", theorem1)):
        if options.what in (name, "all"):
            found[name] = measure(options.runs)
    RESULTS.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
