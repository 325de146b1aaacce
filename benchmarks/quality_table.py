"""The table of results in docs/results.md, from what `quality.py --protocols paper --out FOLDER` wrote.

    python benchmarks/quality_table.py                            # of benchmarks/results/evaluated.json
    python benchmarks/quality_table.py FOLDER/figures.jsonl ...   # of these, which are kept there

A row is a recipe at an ε, a column a data set: mean and standard deviation over trainings.
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path
from typing import Any

KEPT = Path(__file__).parent / "results" / "evaluated.json"
CLASSIFIERS = ("logistic", "mlp", "cnn")
ABOUT = (
    *("data", "recipe", "mechanism", "settings", "budget_epsilon", "seed", "epsilon", "delta", "accountant"),
    *("noise_multiplier", "steps", "vary", "train_seconds", "hardware"),
)
COLUMNS = (("mnist", "fashion-mnist"), ("faces",))
Run = dict[str, Any]


def main() -> None:
    """Run the command."""
    sources = [Path(name) for name in sys.argv[1:]]
    if sources:
        KEPT.write_text(json.dumps([run for source in sources for run in runs_of(source)], indent=1) + "\n")
    print("\n\n".join("\n".join(lines) for lines in tables(json.loads(KEPT.read_text()))))


def tables(runs: list[Run]) -> list[list[str]]:
    """Those of grey images, and of faces."""
    found = (rows([run for run in runs if run["data"] in columns], columns) for columns in COLUMNS)
    return [lines for lines in found if len(lines) > 2]


def runs_of(source: Path) -> list[Run]:
    """What is kept of the trainings in a file: what they are, and a figure for each classifier."""
    runs: dict[str, Run] = {}
    for line in map(json.loads, source.read_text().splitlines()):
        if line["measure"] in CLASSIFIERS and line["protocol"] == "paper":
            training = line["key"].split("/")[0]
            about = {name: line.get(name) for name in ABOUT}
            runs.setdefault(training, about)[line["measure"]] = line["value"]
    return list(runs.values())


def rows(runs: list[Run], columns: tuple[str, ...]) -> list[str]:
    """Lines of Markdown, the largest ε first."""
    by_row: dict[tuple[float, str, str], dict[str, list[Run]]] = {}
    for run in runs:
        key = (-(run["budget_epsilon"] or float("inf")), run["mechanism"] or "real data", run["recipe"])
        by_row.setdefault(key, {}).setdefault(run["data"], []).append(run)
    lines = [f"| | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    for key in sorted(by_row):
        epsilon, mechanism, recipe = key
        name = "real data" if recipe == "real" else f"`{mechanism}` (`{recipe}`), ε = {-epsilon:g}"
        cells = [cell(by_row[key].get(column, [])) for column in columns]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def cell(runs: list[Run]) -> str:
    """Mean and spread of each classifier's accuracy."""
    parts = []
    for name in CLASSIFIERS:
        values = [run[name] for run in runs if name in run]
        spread = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
        parts.append(f"{statistics.fmean(values):.1f}{spread}" if values else "-")
    return " / ".join(parts) if any(part != "-" for part in parts) else ""


if __name__ == "__main__":
    main()
