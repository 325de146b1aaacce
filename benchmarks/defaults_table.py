"""The tables on the default recipe, in docs/results.md, docs/defaults.md and docs/experiments.md.

    python benchmarks/defaults_table.py                  # of benchmarks/results/defaults.jsonl
    python benchmarks/defaults_table.py grid.jsonl

In short, what the default's samples teach a CNN; all that it makes of data sets; recipes beside each other on
a GPU, where there are such rows; other settings; the demo; and, by ε times the records of a class, the part
of the accuracy on real records that is left, as `training/advice.py` tells it, and of what is gained.
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path
from typing import Any

from dpsinkhorn.training.advice import MEASURED, weigh

KEPT = Path(__file__).parent / "results" / "defaults.jsonl"
CLASSIFIERS = ("logistic", "forest", "cnn")
SHAPES = {"faces": (3, 2), "cifar10": (3, 10)}  # channels and classes; (1, 10) of all others
EPSILONS = (0.5, 1, 10, 20)
SETTINGS = ("K=2,m=16,T=4", "K=4,m=16,T=5", "K=8,m=16,T=6", "K=32,m=20,T=6")
Row = dict[str, Any]


def main() -> None:
    """Run the command."""
    rows = read(Path(sys.argv[1]) if len(sys.argv) > 1 else KEPT)
    tables = short, by_default, on_gpu, others, demo, expected
    print("\n\n".join("\n".join(lines) for table in tables if (lines := table(rows))))


def read(path: Path) -> list[Row]:
    """Return the rows that are there."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def key(row: Row) -> tuple[Any, ...]:
    """What names a run."""
    return tuple(row[name] for name in ("data", "side", "records", "epsilon", "setting", "seed"))


def short(rows: list[Row]) -> list[str]:
    """Lines of Markdown: by numbers of records, how often a CNN is right that was taught by samples."""
    lines = [
        f"| images | records | {' | '.join(f'ε = {epsilon:g}' for epsilon in EPSILONS)} | on the records |",
        "|---" * (3 + len(EPSILONS)) + "|",
    ]
    real = _real(rows)
    means = {
        name[:4]: f"{statistics.fmean(row['cnn'] for row in group):.0f}"
        for name, group in _groups(rows, lambda row: row["setting"] == "rule")
    }
    for data, side, records in sorted(name for name in real if name[1] in (8, 28, 32)):
        if "split" not in data:
            cells = [means.get((data, side, records, epsilon), "") for epsilon in EPSILONS]
            lines += [
                f"| {data} | {records:,} | {' | '.join(cells)} | {real[data, side, records]['cnn']:.0f} |"
            ]
    return lines


def by_default(rows: list[Row]) -> list[str]:
    """Lines of Markdown: the default on each data set, beside real records."""
    real = _real(rows)
    lines = [
        "| images | records | ε | logistic / forest / CNN | on real ones | Frechet | precision | recall |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, group in _groups(rows, lambda row: row["setting"] == "rule" and "split" not in row["data"]):
        base = real.get((name[0].partition(",")[0], *name[1:3]))  # of persons, too
        cells = [_figures(group), "" if base is None else _figures([base])]
        cells += [_cell([row[column] for row in group]) for column in ("frechet", "precision", "recall")]
        lines += [f"| {name[0]}, {name[1]} | {name[2]:,} | {name[3]:g} | {' | '.join(cells)} |"]
    return lines


def others(rows: list[Row]) -> list[str]:
    """Lines of Markdown: mixtures of K components, m frequencies and T steps."""
    lines = [f"| images | records | ε | {' | '.join(SETTINGS)} |", "|---" * (3 + len(SETTINGS)) + "|"]
    groups = dict(_groups(rows, lambda row: row["setting"] in SETTINGS))
    for name in sorted({name[:4] for name in groups}):
        cells = [_short(groups.get((*name, setting), [])) for setting in SETTINGS]
        lines += [f"| {name[0]}, {name[1]} | {name[2]:,} | {name[3]:g} | {' | '.join(cells)} |"]
    return lines


def on_gpu(rows: list[Row]) -> list[str]:
    """Lines of Markdown: recipes that were trained on a GPU, beside each other."""
    if not any("gpu" in row for row in rows):
        return []
    lines = [
        "| images | records | ε | recipe | logistic / forest / CNN | Frechet | precision | recall | s |",
        "|---" * 9 + "|",
    ]
    for name, group in _groups(rows, lambda row: "gpu" in row):
        cells = [_figures(group)]
        cells += [
            _cell([row[column] for row in group]) for column in ("frechet", "precision", "recall", "seconds")
        ]
        lines += [f"| {name[0]}, {name[1]} | {name[2]:,} | {name[3]:g} | `{name[4]}` | {' | '.join(cells)} |"]
    return lines


def demo(rows: list[Row]) -> list[str]:
    """Lines of Markdown: digits on their test split, by the default and by what was the default before."""
    names = {
        "real": "real digits",
        "digits": "`record` (`digits`)",
        "rule": "`moments` (`mixture`), the default",
    }
    lines = [
        "| digits, test split | logistic / forest / CNN | Frechet | recall | seconds |",
        "|---|---|---|---|---|",
    ]
    for name, group in _groups(rows, lambda row: row["data"].endswith("test split")):
        title = names[name[4]] + ("" if name[4] == "real" else f", ε = {name[3]:g}")
        cells = [
            _figures(group),
            *(_cell([row[column] for row in group]) for column in ("frechet", "recall")),
        ]
        seconds = [row["seconds"] for row in group if "seconds" in row]
        cells += [f"{statistics.median(seconds):.1f}" if seconds else ""]
        lines += [f"| {title} | {' | '.join(cells)} |"]
    return lines


def expected(rows: list[Row]) -> list[str]:
    """Lines of Markdown: by ε times records of a class, accuracies in per cent of those on real records."""
    lines = [
        "| ε × records of a class | cells | accuracy, % of that on real records | gain on guessing, % |",
        "|---|---|---|---|",
    ]
    bounds = [0.0, 50.0, 100.0, 200.0, *(bound for bound, _, _ in MEASURED)]
    for least, (cells, parts, gains) in zip(bounds, measured(rows, bounds), strict=True):
        if cells:
            lines += [f"| from {least:,.0f} | {cells} | {_ends(parts)} | {_ends(gains)} |"]
    return lines


def measured(rows: list[Row], bounds: list[float]) -> list[tuple[int, list[float], list[float]]]:
    """Return how many cells of the grid there are, and of each classifier in them two parts, in per cent.

    Of the accuracy on real records; and of what that is above guessing, which is what records teach.
    """
    real = _real(rows)
    found: list[tuple[int, list[float], list[float]]] = [(0, [], []) for _ in bounds]
    for name, group in _groups(rows, lambda row: row["setting"] == "rule"):
        if name[:3] not in real:
            continue
        data, side, records, epsilon, _ = name
        channels, classes = SHAPES.get(data, (1, 10))
        weight = weigh(epsilon, records / classes, (channels, side, side))
        place = max(number for number, least in enumerate(bounds) if weight >= least)
        base, guessed = real[name[:3]], 100 / classes
        means = {c: statistics.fmean(row[c] for row in group) for c in CLASSIFIERS}
        parts = [100 * means[c] / base[c] for c in CLASSIFIERS]
        gains = [100 * (means[c] - guessed) / (base[c] - guessed) for c in CLASSIFIERS]
        cells, before, gained = found[place]
        found[place] = (cells + 1, before + parts, gained + gains)
    return found


def _ends(values: list[float]) -> str:
    return f"{min(values):.0f} to {max(values):.0f}"


def _real(rows: list[Row]) -> dict[tuple[Any, ...], Row]:
    return {key(row)[:3]: row for row in rows if row["setting"] == "real"}


def _groups(rows: list[Row], wanted: Any) -> list[tuple[tuple[Any, ...], list[Row]]]:
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        if wanted(row):
            groups.setdefault(key(row)[:-1], []).append(row)
    return sorted(groups.items())


def _figures(rows: list[Row]) -> str:
    return " / ".join(_cell([row[name] for row in rows]) for name in CLASSIFIERS)


def _short(rows: list[Row]) -> str:
    if not rows:
        return ""
    means = [statistics.fmean(row[name] for row in rows) for name in (*CLASSIFIERS, "frechet", "recall")]
    return "{:.0f} / {:.0f} / {:.0f}, {:.3g}, {:.2f}".format(*means) + (" *" if len(rows) == 1 else "")


def _cell(values: list[float]) -> str:
    digits = 1 if max(values) > 1.5 else 2
    spread = f" ± {(max(values) - min(values)) / 2:.{digits}f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.{digits}f}{spread}"


if __name__ == "__main__":
    main()
