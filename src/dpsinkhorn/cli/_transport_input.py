"""What `dpsinkhorn transport` is given: points, costs, a ledger; and what is wrong with it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpsinkhorn.cli._output import BadInputError, check_file
from dpsinkhorn.cli._transport_options import CostName

if TYPE_CHECKING:  # torch is slow to import: `--help` does without
    from dpsinkhorn.ot import Cost
    from dpsinkhorn.privacy.noise import NoiseSource

__all__ = [
    "check_budget",
    "cost_of",
    "new_arrays",
    "noise_of",
    "one_line",
    "parse_epsilons",
    "read",
]


def read(x: Path, y: Path, support: Path | None, columns: list[str] | None) -> tuple[Any, Any, Any]:
    """The points of the files, of these columns or of all, coordinates in one order; None for no support."""
    from dpsinkhorn.transport import read_together

    names = [name.strip() for part in columns or () for name in part.split(",")]
    files = [x, y] if support is None else [x, y, support]
    first, second, *rest = read_together(files, names)
    return first, second, rest[0] if rest else None


def cost_of(name: CostName, l1_weight: float) -> Cost:
    """The cost of `--cost`."""
    from dpsinkhorn.ot import as_cost

    if not 0 <= l1_weight < float("inf"):
        raise BadInputError(f"--l1-weight must be a number from 0 upwards, not {l1_weight}")
    return as_cost(name, l1_weight=l1_weight)


def parse_epsilons(text: str) -> list[float]:
    """The numbers of `--epsilons`."""
    try:
        return [float(part) for part in text.split(",")]
    except ValueError as error:
        raise BadInputError(f"--epsilons must be numbers with commas between, not {text}") from error


def noise_of(seed: int | None) -> NoiseSource | None:
    """Noise that replays where there is a seed; None for the default, which is for release."""
    from dpsinkhorn.privacy import SeededNoise

    return None if seed is None else SeededNoise(seed)


@contextmanager
def new_arrays(path: Path) -> Iterator[Callable[..., None]]:
    """A function that writes arrays by name to `path`, which is there whole after the block or not at all.

    An existing file is a release that was paid for: it is refused.
    """
    import numpy as np

    from dpsinkhorn.files import new_file

    check_file(path, ".npz", "--output")
    if os.path.lexists(path):
        raise BadInputError(f"--output {path} exists already; name another")
    with new_file(path) as draft:

        def write(**arrays: Any) -> None:
            with draft.open("wb") as stream:  # given a name, NumPy would add an ending of its own
                np.savez(stream, **{name: array for name, array in arrays.items() if array is not None})

        yield write


def check_budget(budget: float | None, ledger: Path | None) -> None:
    """Refuse a budget without a ledger to begin."""
    if budget is not None and ledger is None:
        raise BadInputError("--budget is that of a new ledger; name it by --ledger")


@contextmanager
def one_line() -> Iterator[None]:
    """Trouble with memory or a file, as one line."""
    try:
        yield
    except MemoryError as error:
        raise BadInputError("these points do not fit into memory; give fewer rows") from error
    except OSError as error:
        raise BadInputError(f"cannot read or write: {error.strerror or error}") from error
