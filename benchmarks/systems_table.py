"""The table of all systems in docs/results.md, from the figures that are kept in benchmarks/results.

    python benchmarks/systems_table.py

What is published is printed beside what `systems.py` and `quality.py --paper-protocol` measured: means and
standard deviations over trainings.
"""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
DATA = {"mnist": "MNIST", "fashion-mnist": "Fashion-MNIST"}
CLASSIFIERS = ("logistic", "mlp", "cnn")
Run = dict[str, Any]

SYSTEMS = {
    "dp_cgan": "DP-CGAN",
    "g_pate": "G-PATE",
    "datalens": "DataLens",
    "gs_wgan": "GS-WGAN",
    "dp_merf": "DP-MERF",
    "batch": "DP-Sinkhorn",
    "moments": "ours",
    "record": "ours",
}
# per cent, at ε = 10 and δ = 1e-5, as the DP-Sinkhorn paper and the systems' own papers have them
PUBLISHED: dict[str, dict[str, tuple[str, str]]] = {
    "dp_cgan": {"ε = 10 †": ("60 / 60 / 63", "51 / 50 / 46")},
    "g_pate": {
        "ε = 10 †": ("26 / 25 / 51", "42 / 30 / 50"),
        "ε = 10 †, by its authors": ("- / - / 80.9", "- / - / 69.3"),
    },
    "datalens": {"ε = 10 †": ("- / - / 80.66", "- / - / 70.61")},
    "gs_wgan": {"ε = 10 †": ("79 / 79 / 80", "68 / 65 / 65")},
    "dp_merf": {"ε = 10": ("79.4 / 78.3 / 82.1", "75.5 / 74.5 / 75.4")},
    "batch": {"ε = 10": ("79.5 / 80.2 / 83.2", "73.0 / 72.8 / 70.9")},
}


def main() -> None:
    """Run the command."""
    print("\n".join(table(kept())))


def kept() -> list[Run]:
    """Return all runs that are kept, in one form."""
    found = [
        {**run, "protocol": "paper", "published_noise": False}
        for run in json.loads((RESULTS / "evaluated.json").read_text())
        if run["mechanism"] and run["data"] in DATA
    ]
    systems = RESULTS / "systems.jsonl"
    for line in systems.read_text().splitlines() if systems.exists() else []:
        run = json.loads(line)
        row = run["row"]
        mechanism, _, changes = row["method"].partition(":")
        own = row["epsilon"] is None
        if row["data"] in DATA and bool(changes) == own:  # other changes are trials
            budget = {"budget_epsilon": row["epsilon"], "published_noise": own}
            found.append({**run, **row, "mechanism": mechanism, **budget})
    return found


def table(runs: list[Run]) -> list[str]:
    """Lines of Markdown: a system after the other, what is published first, then the largest ε."""
    lines = [f"| system | ε, δ = 1e-5 | {' | '.join(DATA.values())} | measured |", "|---|---|---|---|---|"]
    for mechanism, name in SYSTEMS.items():
        for epsilon, figures in PUBLISHED.get(mechanism, {}).items():
            lines.append(f"| {name} | {epsilon} | {' | '.join(figures)} | published |")
        mine = [run for run in runs if run["mechanism"] == mechanism]
        for key in sorted({_key(run) for run in mine}, reverse=True):
            some = [run for run in mine if _key(run) == key]
            cells = tuple(_cell([run for run in some if run["data"] == data]) for data in DATA)
            lines.append(
                f"| `{mechanism}` | {_epsilon(some)} | {cells[0]} | {cells[1]} | {key[2]}, {key[3]} |"
            )
    return lines


def _key(run: Run) -> tuple[float, bool, str, str]:
    return run["budget_epsilon"] or float("inf"), run["published_noise"], run["protocol"], run["hardware"]


def _epsilon(runs: list[Run]) -> str:
    first = runs[0]
    if not first["published_noise"]:
        return f"ε = {first['budget_epsilon']:g}"
    told = first["published_epsilon"]
    counted = "" if told is None else f", its paper counts {told:.3g} †"
    return f"ε = {first['epsilon']:.4g}: the published noise{counted}"


def _cell(runs: list[Run]) -> str:
    parts = []
    for name in CLASSIFIERS:
        values = [run[name] for run in runs if name in run]
        spread = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
        parts.append(f"{statistics.fmean(values):.1f}{spread}" if values else "-")
    return " / ".join(parts) if runs else ""


if __name__ == "__main__":
    main()
