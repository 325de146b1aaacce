"""What `dpsinkhorn transport` is given, and what is wrong with it; what it prints, as a table or as JSON."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpsinkhorn.cli._shared import (
    BadInputError,
    check_file,
    parse_names,
    parse_numbers,
    print_json,
    print_table,
    warn,
)
from dpsinkhorn.files import failing_as, new_file

if TYPE_CHECKING:  # torch is slow to import: `--help` does without
    from dpsinkhorn.transport import NoisyPotentials, PrivateCost, PrivateTest, Tradeoff

_SEEDED = "made with a seed, which whoever knows it can undo: not for release"


def read(x: Path, y: Path, support: Path | None, columns: list[str] | None) -> tuple[Any, Any, Any]:
    """The points of both files, of these columns or of all, coordinates in one order; and of the support."""
    from dpsinkhorn.transport import read_together

    names = [name for part in columns or () for name in parse_names(part)]
    first, second, *rest = read_together([x, y] if support is None else [x, y, support], names)
    return first, second, rest[0] if rest else None


def keywords(asked: Any, **changed: Any) -> dict[str, Any]:
    """Options by their names, but for those that a function takes in another form."""
    from dpsinkhorn.ot import as_cost

    given = {name: value for name, value in vars(asked).items() if name not in ("l1_weight", "output")}
    if not 0 <= asked.l1_weight < float("inf"):
        raise BadInputError(f"--l1-weight must be a number from 0 upwards, not {asked.l1_weight}")
    if (center := given.get("center")) is not None:
        given["center"] = parse_numbers(center, "--center")
    return {**given, "cost": as_cost(asked.cost, l1_weight=asked.l1_weight), **changed}


@contextmanager
def new_arrays(path: Path) -> Iterator[Callable[..., None]]:
    """A function that writes arrays by name to `path`, which is there whole after the block or not at all.

    An existing file is a release that was paid for: it is refused.
    """
    import numpy as np

    check_file(path, ".npz", "--output")
    if os.path.lexists(path):
        raise BadInputError(f"--output {path} exists already; name another")
    with new_file(path) as draft:

        def write(**arrays: Any) -> None:
            with draft.open("wb") as stream:  # given a name, NumPy would add an ending of its own
                np.savez(stream, **{name: array for name, array in arrays.items() if array is not None})

        yield write


@contextmanager
def one_line() -> Iterator[None]:
    """Trouble with memory or a file, as one line."""
    try:
        with failing_as(BadInputError, "cannot read or write"):
            yield
    except MemoryError as error:
        raise BadInputError("these points do not fit into memory; give fewer rows") from error


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
        *(
            ("the populations'", f"{ends[0]:.6g} to {ends[1]:.6g}")
            for ends in [found.population_interval]
            if ends
        ),
        ("epsilon", format_epsilon(found.epsilon)),
        ("delta", f"{found.delta:g}"),
        ("method", found.method),
        ("predicted error", f"{found.predicted_error:.3g}"),
        ("regularization", f"{found.regularization:g}" if found.regularization else "0 (exact)"),
        ("adjacency", found.adjacency),
    ]
    print_table(
        "private transport cost", rows, [*found.notes, f"Method: {found.reason}.", _protected(paired)]
    )


def show_test(found: PrivateTest, as_json: bool, *, paired: bool) -> None:
    """The decision, how clear it was, the effect if it was paid for, and what the level promises."""
    from dpsinkhorn.privacy import format_epsilon

    if found.seeded:
        warn(_SEEDED)
    if as_json:
        print_json(found.to_json())
        return

    def between(ends: tuple[float, float]) -> str:
        return f"{100 * found.confidence:g} %: {ends[0]:.4g} to {ends[1]:.4g}"

    sample, populations = found.effect_interval, found.population_interval
    rows = [
        ("one distribution", "rejected" if found.rejected else "not rejected"),
        ("p-value, at most", f"{found.p_value:g}"),
        ("statistic", found.statistic),
        ("above its threshold by", f"{found.margin:.4g} ({between(found.margin_interval)})"),
        ("effect, these samples", sample and f"{found.effect:.4g} ({between(sample)})"),
        ("effect, populations", populations and between(populations)),
        ("epsilon", format_epsilon(found.epsilon)),
        ("adjacency", found.adjacency),
    ]
    sentences = [
        f"If both data sets come from one distribution, it is rejected with probability {found.level:g} at "
        "most. Not rejected does not mean that they are equal.",
        "Intervals are over the noise, for these samples, unless they say otherwise.",
        _protected(paired),
    ]
    print_table("private two-sample test", rows, sentences)


def _protected(paired: bool) -> str:
    who = "person, with a row on either side" if paired else "row, not a person with several"
    return f"Protected: each {who}; numbers of rows count as public."


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
    sentences = [
        "Errors are against the value asked for (see --regularization and --debiased).",
        f"In brackets: the error predicted from public quantities, if below the bound of {cost_bound:g}; of "
        "methods on a support, the one that they estimate from what they release.",
        *_omitted(found),
        "* the method that auto takes.",
        f"At worst its error is {worst:.2f} times the least measured one."
        if math.isfinite(worst)
        else "At worst the least measured error is 0, and its own is not.",
    ]
    print_table("mean absolute error", table, sentences)


def _omitted(found: Tradeoff) -> list[str]:
    """What the predictions of some methods do not know."""
    what = {
        "two-stage": "that it leaves out the entropy of the cost",
        "histogram": "what moving data to the support changes",
        "linear-program": "what moving data to the support changes",
    }
    here = {row.method for row in found.rows}
    notes = [f"Not in the prediction of {name}: {omitted}." for name, omitted in what.items() if name in here]
    if "sliced" in here:
        notes.append("The sliced methods estimate a distance of their own, and their errors are of that.")
    return notes
