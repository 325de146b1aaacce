"""Private transport on real digits: error against ε and n, and the paper's Theorem 1 against simulation.

    python benchmarks/transport.py tradeoff | sizes | theorem1 | all     [--runs 40]
    python benchmarks/transport.py table

Figures go to benchmarks/results/transport.json, pictures to docs/images.
"""

from __future__ import annotations

import json
import math
from argparse import ArgumentParser
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
from dpsinkhorn.transport import Clouds, DirectMechanism, bounds, draw_tradeoff, measure_tradeoff
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


def main() -> None:
    parser = ArgumentParser(description=__doc__)
    parser.add_argument(
        "what", nargs="?", default="all", choices=("tradeoff", "sizes", "theorem1", "all", "table")
    )
    parser.add_argument("--runs", type=int, default=40)
    options = parser.parse_args()
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
