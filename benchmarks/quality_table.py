"""The tables of results in docs/results.md, from what `quality.py --out FOLDER` wrote.

    python benchmarks/quality_table.py                            # of what is kept in benchmarks/results
    python benchmarks/quality_table.py FOLDER/figures.jsonl ...   # of these, which are kept there

Ours by recipe and ε, a column a data set; then all systems, what is published beside what was measured: means
and standard deviations over trainings. Rows of other systems are in results/systems.jsonl, too.
"""

from __future__ import annotations

import csv
import json
import statistics
import sys
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
KEPT = RESULTS / "evaluated.json"
PUBLISHED = Path(__file__).parents[1] / "src" / "dpsinkhorn" / "papers" / "published.csv"
CLASSIFIERS = ("logistic", "mlp", "cnn")
ABOUT = (
    *("data", "recipe", "mechanism", "settings", "budget_epsilon", "seed", "epsilon", "delta", "accountant"),
    *("noise_multiplier", "steps", "vary", "train_seconds", "hardware", "protocol", "published_epsilon"),
)
PROTOCOLS = {"paper": "paper", "evaluate": "quick"}  # and what they are called in the table
COLUMNS = (("mnist", "fashion-mnist"), ("faces",))
DATA = {"mnist": "MNIST", "fashion-mnist": "Fashion-MNIST"}

SYSTEMS = {
    "dp_cgan": ("DP-CGAN",),
    "g_pate": ("G-PATE", "G-PATE, by its authors"),
    "datalens": ("DataLens",),
    "gs_wgan": ("GS-WGAN",),
    "dp_merf": ("DP-MERF",),
    "image": ("DP-Sinkhorn, final version",),
    "batch": ("DP-Sinkhorn, first version",),
    "moments": (),
    "record": (),
}
"""By mechanism, what is published of it."""
NO_GUARANTEE = {"dp_cgan", "g_pate", "datalens", "gs_wgan", "image"}
BY_ITS_AUTHORS = ("- / - / 80.9", "- / - / 69.3")  # G-PATE's
# of the two weights of L1 that the paper has, the one whose rows come first in it
SETTINGS = {"first": ("m = 1", "m = 1"), "final": ("m = 1", "m = 3")}
Run = dict[str, Any]


def main() -> None:
    """Run the command."""
    sources = [Path(name) for name in sys.argv[1:]]
    if sources:
        KEPT.write_text(json.dumps([run for source in sources for run in runs_of(source)], indent=1) + "\n")
    runs = [{"protocol": "paper", **run} for run in json.loads(KEPT.read_text())]
    found = [*tables([run for run in runs if run["protocol"] == "paper"]), table(all_systems(runs))]
    print("\n\n".join("\n".join(lines) for lines in found))


def tables(runs: list[Run]) -> list[list[str]]:
    """Those of grey images, and of faces."""
    found = (rows([run for run in runs if run["data"] in columns], columns) for columns in COLUMNS)
    return [lines for lines in found if len(lines) > 2]


def runs_of(source: Path) -> list[Run]:
    """What is kept of the trainings in a file: what they are, and a figure for each classifier."""
    runs: dict[str, Run] = {}
    for line in map(json.loads, source.read_text().splitlines()):
        if line["measure"] in CLASSIFIERS and line["protocol"] in PROTOCOLS:
            training = "/".join(line["key"].split("/")[:2])  # and its protocol
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


# ---- all systems


def all_systems(runs: list[Run]) -> list[Run]:
    """Return all runs that are kept, in one form."""
    found = []
    for run in runs:
        settings = run["settings"] if run["settings"] and run["protocol"] != "paper" else []
        own = any(each.startswith("privacy.noise_multiplier=") for each in settings)
        if run["mechanism"] and run["data"] in DATA:
            about = {"published_noise": own, "changes": "" if own else ":".join(settings)}
            found.append({**run, "protocol": PROTOCOLS[run["protocol"]], **about})
    for run in map(json.loads, (RESULTS / "systems.jsonl").read_text().splitlines()):
        row = run["row"]
        mechanism, _, changes = row["method"].partition(":")
        own = row["epsilon"] is None
        if row["data"] in DATA and (changes or not own):
            about = {"published_noise": own, "changes": "" if own else changes}
            found.append({**run, **row, "mechanism": mechanism, "budget_epsilon": row["epsilon"], **about})
    return found


def published(name: str) -> tuple[str, ...]:
    """Return what the papers report at ε = 10, a cell for each data set."""
    if name == "G-PATE, by its authors":
        return BY_ITS_AUTHORS
    name, _, words = name.partition(", ")
    version = words.partition(" ")[0] or "final"
    methods = [f"{name}, {setting}" if words else name for setting in SETTINGS[version]]
    with PUBLISHED.open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if (row["item"], row["version"]) == ("table1", version)]
    figures = {(row["data"], row["method"]): row for row in rows}
    found = [figures[data, method] for data, method in zip(DATA, methods, strict=True)]
    return tuple(" / ".join(row[each] or "-" for each in CLASSIFIERS) for row in found)


def table(runs: list[Run]) -> list[str]:
    """Lines of Markdown: a system after the other, what is published first, then the largest ε."""
    lines = [f"| system | ε, δ = 1e-5 | {' | '.join(DATA.values())} | measured |", "|---|---|---|---|---|"]
    for mechanism, names in SYSTEMS.items():
        epsilon = "ε = 10 †" if mechanism in NO_GUARANTEE else "ε = 10"
        lines += [f"| {name} | {epsilon} | {' | '.join(published(name))} | published |" for name in names]
        mine = [run for run in runs if run["mechanism"] == mechanism]
        for key in sorted({_key(run) for run in mine}, reverse=True):
            some = [run for run in mine if _key(run) == key]
            cells = tuple(cell([run for run in some if run["data"] == data]) for data in DATA)
            lines.append(
                f"| `{mechanism}` | {_epsilon(some)} | {cells[0]} | {cells[1]} | {key[2]}, {key[3]} |"
            )
    return lines


def _key(run: Run) -> tuple[float, bool, str, str, str]:
    size = run["budget_epsilon"] or float("inf")
    return size, run["published_noise"], run["protocol"], run["hardware"], run["changes"]


def _epsilon(runs: list[Run]) -> str:
    first = runs[0]
    if not first["published_noise"]:
        return ", ".join([f"ε = {first['budget_epsilon']:g}", *first["changes"].split(":")]).removesuffix(
            ", "
        )
    told = first["published_epsilon"]
    counted = "" if told is None else f", its paper counts {told:.3g} †"
    return f"ε = {first['epsilon']:.4g}: the published noise{counted}"


if __name__ == "__main__":
    main()
