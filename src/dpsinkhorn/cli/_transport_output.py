"""What `dpsinkhorn transport` prints: warnings, and the result of each command as a table or as JSON."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

from dpsinkhorn.cli._output import print_json, print_table, warn

if TYPE_CHECKING:  # torch is slow to import: `--help` does without
    from dpsinkhorn.transport import NoisyPotentials, PrivateCost, Tradeoff

__all__ = ["show_cost", "show_potentials", "show_tradeoff", "warn_not_private"]

_SEEDED = "made with a seed, which whoever knows it can undo: not for release"


def show_cost(found: PrivateCost, as_json: bool, *, confidence: float, paired: bool) -> None:
    """The cost, its interval, what it cost, and why the method was taken."""
    from dpsinkhorn.privacy import format_epsilon

    if found.seeded:
        warn(_SEEDED)
    if as_json:
        print_json(found.to_json())
        return
    low, high = found.interval
    rows = [
        ("quantity", found.quantity),
        ("cost", f"{found.cost:.6g}"),
        (f"interval, {100 * confidence:g} %", f"{low:.6g} to {high:.6g}"),
        ("epsilon", format_epsilon(found.epsilon)),
        ("delta", f"{found.delta:g}"),
        ("method", found.method),
        ("predicted error", f"{found.predicted_error:.3g}"),
        ("regularization", f"{found.regularization:g}" if found.regularization else "0 (exact)"),
        ("adjacency", found.adjacency),
    ]
    told = [
        *found.notes,
        f"Method: {found.reason}.",
        f"Protected: each {'person, on both sides' if paired else 'row'}; numbers of rows count as public.",
    ]
    print_table("private transport cost", rows, told)


def show_potentials(found: NoisyPotentials, output: Path, as_json: bool, *, cost_bound: float) -> None:
    """All but the potentials themselves, which are in the file."""
    if found.seeded:
        warn(_SEEDED)
    if not found.private:
        warn("mode paper: this epsilon is the paper's own count, which is not a valid guarantee")
    if found.noise_std[-1] > cost_bound:  # exact potentials span no more than it
        warn(
            "the noise exceeds the cost bound: these potentials say next to nothing; for a cost use "
            "transport cost"
        )
    result = {
        "cost": found.cost,
        "cost_noise_std": found.cost_std,
        "noise_std": list(found.noise_std),
        "iterations": found.iterations,
        "regularization": found.regularization,
        "epsilon": found.epsilon,
        "delta": found.delta,
        "method": f"noisy-sinkhorn ({found.mode})",
        "guaranteed": found.private,
        "adjacency": "replace-one",
        "seeded": found.seeded,
        "output": str(output),
    }
    if as_json:
        print_json(result)
        return
    shown = ("cost", "iterations", "regularization", "epsilon", "delta", "method", "adjacency")
    rows = [(name, f"{result[name]:.6g}" if name == "cost" else str(result[name])) for name in shown]
    rows.insert(1, ("noise of the cost", f"{found.cost_std:.4g}"))
    rows.append(("noise per coordinate", f"{found.noise_std[-1]:.4g}"))
    print_table("private potentials", rows, [f"Written: {output}"])


def warn_not_private() -> None:
    """Before anything is measured on private data without noise."""
    warn("measured errors are not private: they are for the curator alone")


def show_tradeoff(found: Tradeoff, as_json: bool, *, cost_bound: float) -> None:
    """Errors of every method at every epsilon."""
    if as_json:
        rows = [vars(row) for row in found.rows]
        print_json({"rows": rows, "worst_choice": found.worst_choice(), "private": False})
        return

    def predicted(error: float) -> str:  # a guess without any data is off by no more than the bound
        return "no better than the bound" if error >= cost_bound else f"predicted {error:.3g}"

    table = [
        (
            f"{row.method}, epsilon {row.epsilon:g}",
            f"{row.measured_error:.3g} ({predicted(row.predicted_error)})" + (" *" if row.chosen else ""),
        )
        for row in found.rows
    ]
    worst = found.worst_choice()
    told = [
        "Errors are against the value asked for (see --regularization and --debiased).",
        f"In brackets: the error predicted from public quantities, if below the bound of {cost_bound:g}.",
        *_omitted(found),
        "* the method that auto takes.",
        f"At worst its error is {worst:.2f} times the least measured one."
        if math.isfinite(worst)
        else "At worst the least measured error is 0, and its own is not.",
    ]
    print_table("mean absolute error", table, told)


def _omitted(found: Tradeoff) -> list[str]:
    """What the predictions of some methods do not know."""
    what = {
        "two-stage": "that it leaves out the entropy of the cost",
        "histogram": "what moving data to the support changes",
    }
    here = {row.method for row in found.rows}
    return [f"Not in the prediction of {name}: {omitted}." for name, omitted in what.items() if name in here]
