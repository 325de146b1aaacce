"""What `dpsinkhorn transport` is given: points, costs, a ledger; and what is wrong with it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpsinkhorn.cli._output import BadInputError
from dpsinkhorn.cli._transport_options import CostName

if TYPE_CHECKING:  # torch is slow to import: `--help` does without
    from dpsinkhorn.ot import Cost
    from dpsinkhorn.privacy import Ledger
    from dpsinkhorn.privacy.noise import NoiseSource

__all__ = [
    "check_file",
    "cost_of",
    "noise_of",
    "one_line",
    "opened",
    "parse_epsilons",
    "read",
    "required_bound",
]


def required_bound(value: float | None) -> float:
    """The bound of `--cost-bound`, which has no default: only users know the scale of their data."""
    if value is None:
        raise BadInputError(
            "give --cost-bound, a public bound on the cost of a pair; it must not be read off the data"
        )
    return value


def read(path: Path, columns: str | None) -> Any:
    """The points of a file, of these columns with commas between, or of all."""
    from dpsinkhorn.transport import read_points

    return read_points(path, [] if columns is None else [name.strip() for name in columns.split(",")])


def cost_of(name: CostName, l1_weight: float) -> Cost:
    """The cost of `--cost`."""
    from dpsinkhorn.ot import L1L2, Cityblock, SquaredEuclidean

    if not 0 <= l1_weight < float("inf"):
        raise BadInputError(f"--l1-weight must be a number from 0 upwards, not {l1_weight}")
    costs: dict[CostName, Cost] = {
        CostName.sqeuclidean: SquaredEuclidean(),
        CostName.cityblock: Cityblock(),
        CostName.l1l2: L1L2(l1_weight),
    }
    return costs[name]


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


def check_file(path: Path, suffix: str, option: str) -> None:
    """Refuse a file that could not be written, before any work is done."""
    if path.suffix.lower() != suffix:
        raise BadInputError(f"{option} must end in {suffix}, not {path.name}")
    if not path.parent.is_dir():
        raise BadInputError(f"the folder of {option} {path} does not exist; create it first")
    if path.is_dir():
        raise BadInputError(f"{option} {path} is a folder; name a file")


@contextmanager
def opened(
    path: Path | None, epsilon: float, budget: float | None, delta: float | None
) -> Iterator[Ledger | None]:
    """The ledger, or a new one; None where none was named."""
    from dpsinkhorn import privacy

    if path is None:
        if budget is not None:
            raise BadInputError("--budget is that of a new ledger; name it by --ledger")
        yield None
        return
    if path.is_dir():
        raise BadInputError(f"the ledger {path} is a folder; name a file")
    if not path.parent.is_dir():
        raise BadInputError(f"the folder of the ledger {path} does not exist; create it first")
    begin = None
    if not path.exists():
        allowed = epsilon if budget is None else budget
        if not allowed > 0:
            raise BadInputError(f"a budget must be a positive number, not {allowed:g}")
        if not 0 <= (delta or 0.0) < 1:
            raise BadInputError(f"--delta must be from 0 to below 1, not {delta:g}")
        begin = privacy.Budget(allowed, delta or 0.0)
    elif budget is not None:
        raise BadInputError(f"the ledger {path} has its budget already; leave out --budget")
    else:
        privacy.read_ledger(path)  # before it is locked, which would leave a file beside what is no ledger
    with privacy.Ledger.open(path, privacy.epsilon, budget=begin) as ledger:
        try:
            yield ledger
        except BaseException:
            if begin is not None and not ledger.statement().spends:  # bad input leaves nothing behind
                for ending in ("", ".head", ".lock"):
                    path.with_name(path.name + ending).unlink(missing_ok=True)
            raise


@contextmanager
def one_line() -> Iterator[None]:
    """What is wrong with the input, the budget or a file, as one line."""
    from dpsinkhorn.privacy import BudgetExceededError
    from dpsinkhorn.privacy.journal import JournalDamagedError, JournalLockedError
    from dpsinkhorn.transport import TransportError

    try:
        yield
    except (TransportError, BudgetExceededError, JournalDamagedError, JournalLockedError) as error:
        raise BadInputError(str(error)) from error
    except MemoryError as error:
        raise BadInputError("these points do not fit into memory; give fewer rows") from error
    except OSError as error:
        raise BadInputError(f"cannot read or write: {error.strerror or error}") from error
