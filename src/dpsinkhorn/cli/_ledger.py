"""`dpsinkhorn privacy ledger`: what was spent on a data set, and by which runs."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpsinkhorn.cli._shared import BadInputError, print_json, print_table

if TYPE_CHECKING:
    from dpsinkhorn.privacy import Accountant


def show_ledger(file: Path, accountant: Accountant, as_json: bool) -> None:
    """Print what a ledger allows, and what is spent, by all runs and by each."""
    found = _read(file, accountant)
    if as_json:
        print_json(found)
        return
    budget, runs = found["budget_epsilon"], found["runs"]
    mixed = len({run["adjacency"] for run in runs}) > 1
    rows = [
        ("ledger", found["ledger"]),
        ("epsilon allowed", "no limit" if budget is None else _number(budget)),
        ("epsilon spent", _number(found["epsilon"])),
        ("delta", f"{found['delta']:g}"),
        ("adjacency", found["adjacency"] or "-"),
        *((f"run {run['name']}", _describe(run, mixed)) for run in runs),
    ]
    print_table(
        "Ledger",
        rows,
        [
            *_compared(found, mixed),
            f"Digest {found['digest']}",
            "Noted elsewhere, as a release does, it shows up an older copy.",
        ],
    )


def _read(file: Path, accountant: Accountant) -> dict[str, Any]:
    from dpsinkhorn.privacy import UnsupportedEventError, epsilon, read_ledger
    from dpsinkhorn.training import Run

    try:
        path = Run.resume(file).ledger_path if file.is_dir() else file
        statement = read_ledger(path)
    except FileNotFoundError as error:
        raise BadInputError(f"there is no ledger {file}") from error
    except OSError as error:
        raise BadInputError(f"cannot read the ledger {file}: {error.strerror}") from error
    delta = statement.budget.delta

    def spent(run: str | None = None) -> float | None:
        return _finite(epsilon(statement.total(run), delta, accountant)) if statement.spends else 0.0

    def of_run(run: str, steps: int) -> dict[str, Any]:
        adjacency = statement.total(run).adjacency.value
        return {"name": run, "steps": steps, "epsilon": spent(run), "adjacency": adjacency}

    steps = dict.fromkeys(statement.runs, 0)
    for spend in statement.spends:
        steps[spend.run] += spend.steps
    try:
        return {
            "ledger": str(path),
            "budget_epsilon": _finite(statement.budget.epsilon),
            "delta": delta,
            "epsilon": spent(),
            "accountant": accountant,
            "adjacency": statement.total().adjacency.value if statement.spends else None,
            "runs": [of_run(run, count) for run, count in steps.items()],
            "digest": statement.digest,
        }
    except UnsupportedEventError as error:
        raise BadInputError(f"{error}; --accountant pld counts all that a ledger holds") from error


def _describe(run: dict[str, Any], mixed: bool) -> str:
    under = f" under {run['adjacency']}" if mixed else ""
    charges = "1 charge" if run["steps"] == 1 else f"{run['steps']:,} charges"
    return f"{charges}, epsilon {_number(run['epsilon'])}{under}"


def _compared(found: dict[str, Any], mixed: bool) -> list[str]:
    """How ε of all runs goes with those of each, where there are several."""
    if mixed:
        return [
            "Epsilon spent is that of all runs together, under replace-one, where a run that counts "
            "under add-or-remove-one costs more."
        ]
    parts = [run["epsilon"] for run in found["runs"]]
    if None not in (found["epsilon"], *parts) and found["epsilon"] < sum(parts):
        return ["Epsilon of several runs is that of all together, which is less than their sum."]
    return []


def _finite(value: float) -> float | None:
    """JSON has no infinity: None."""
    return value if math.isfinite(value) else None


def _number(value: float | None) -> str:
    from dpsinkhorn.privacy import format_epsilon

    return "infinite" if value is None else format_epsilon(value)
