"""The table of results in docs/results.md, from what `quality.py --paper-protocol --out FOLDER` wrote.

    python benchmarks/quality_table.py                            # of benchmarks/results/evaluated.json
    python benchmarks/quality_table.py FOLDER/quality.json ...    # of these, which are kept there

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
    """What is kept of the runs in a file: figures, recipe, budget, hardware."""
    report = json.loads(source.read_text())
    kept = []
    for result in report["results"]:
        plan = result.get("plan")
        recipe = "real" if plan is None else plan["recipe"]
        kept.append(
            {
                "data": result["data"],
                "recipe": recipe if plan is None else recipe["name"],
                "mechanism": None if plan is None else recipe["privacy"]["mechanism"],
                "settings": result.get("settings", []),
                "budget_epsilon": None if plan is None else plan["budget_epsilon"],
                **{key: result[key] for key in ("seed", "epsilon", "delta") if key in result},
                "accountant": None if plan is None else plan["accountant"],
                "noise_multiplier": None if plan is None else plan["noise_multiplier"],
                "steps": None if plan is None else plan["steps"],
                **{name: result[name] for name in CLASSIFIERS if name in result},
                "train_seconds": result.get("train_seconds"),
                "hardware": report["hardware"],
            }
        )
    return kept


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
        cells = [_cell(by_row[key].get(column, [])) for column in columns]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def _cell(runs: list[Run]) -> str:
    parts = []
    for name in CLASSIFIERS:
        values = [run[name] for run in runs if name in run]
        spread = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
        parts.append(f"{statistics.fmean(values):.1f}{spread}" if values else "-")
    return " / ".join(parts) if any(part != "-" for part in parts) else ""


if __name__ == "__main__":
    main()
