"""The table of all systems in docs/results.md, from the figures that are kept in benchmarks/results.

    python benchmarks/systems_table.py

What is published is printed beside what `systems.py` and `quality.py --paper-protocol` measured: means and
standard deviations over trainings.
"""

from __future__ import annotations

import csv
import json
from pathlib import Path

from quality_table import CLASSIFIERS, Run, cell

RESULTS = Path(__file__).parent / "results"
PUBLISHED = Path(__file__).parents[1] / "src" / "dpsinkhorn" / "papers" / "published.csv"
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


def main() -> None:
    """Run the command."""
    print("\n".join(table(kept())))


def kept() -> list[Run]:
    """Return all runs that are kept, in one form."""
    found = [
        {**run, "protocol": "paper", "published_noise": False, "changes": ""}
        for run in json.loads((RESULTS / "evaluated.json").read_text())
        if run["mechanism"] and run["data"] in DATA
    ]
    systems = RESULTS / "systems.jsonl"
    for line in systems.read_text().splitlines() if systems.exists() else []:
        run = json.loads(line)
        row = run["row"]
        mechanism, _, changes = row["method"].partition(":")
        own = row["epsilon"] is None
        if row["data"] in DATA and (changes or not own):
            budget = {
                "budget_epsilon": row["epsilon"],
                "published_noise": own,
                "changes": "" if own else changes,
            }
            found.append({**run, **row, "mechanism": mechanism, **budget})
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
