"""Where a release is charged before anything private is computed: an open ledger, or a ledger's file."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from dpsinkhorn.errors import TransportError
from dpsinkhorn.privacy import Budget, BudgetExceededError, Charge, Ledger, format_epsilon, read_ledger
from dpsinkhorn.privacy import epsilon as epsilon_of
from dpsinkhorn.privacy.journal import JournalDamagedError
from dpsinkhorn.privacy.words import new_run_name, unit_conflict
from dpsinkhorn.transport import checks

LedgerLike: TypeAlias = "Ledger | str | os.PathLike[str] | None"


@dataclass(frozen=True)
class Account:
    """A ledger that was checked, and the budget that it begins with if its file is not there yet."""

    ledger: Ledger | Path | None
    begin: Budget | None = None

    @classmethod
    def of(cls, ledger: LedgerLike, *, budget: float | None, epsilon: float, delta: float) -> Account:
        """Check what was given; nothing is written yet.

        A file that is not there yet begins with `budget`, by default this release's ε, at its δ.
        """
        if budget is not None and not (checks.is_number(budget) and budget > 0):
            raise TransportError(f"budget must be a positive number, not {checks.shown(budget)}")
        if ledger is None or isinstance(ledger, Ledger):
            if budget is not None:
                raise TransportError("budget is that of a new ledger; give the ledger as the path of a file")
            return cls(ledger)
        if not isinstance(ledger, str | os.PathLike) or not isinstance(os.fspath(ledger), str):
            raise TransportError(
                f"ledger must be the path of a file, an open Ledger or None, not {checks.shown(ledger)}"
            )
        path = Path(ledger)
        if path.is_dir():
            raise TransportError(f"the ledger {path} is a folder; name a file")
        if not path.parent.is_dir():
            raise TransportError(f"the folder of the ledger {path} does not exist; create it first")
        if not path.exists():
            return cls(path, Budget(float(epsilon if budget is None else budget), float(delta)))
        if budget is not None:
            raise TransportError(f"the ledger {path} has its budget already; leave out the budget")
        try:
            read_ledger(path)  # before it is locked, which would leave a file beside what is no ledger
        except JournalDamagedError as error:
            if _is_no_ledger(path):
                raise TransportError(f"{path} is not a ledger; name one, or a new file") from error
            raise
        return cls(path)

    def spend(self, charge: Charge, *, what: str, paired: bool) -> None:
        """Write a charge down. The run's name says whom it protects."""
        unit = "person" if paired else "record"
        self._check_first(charge)
        with self._open() as ledger:
            if ledger is None:
                return
            if conflict := unit_conflict(ledger.statement().runs, unit):
                raise TransportError(
                    f"the ledger {conflict}, and this one protects each {unit}; give it another ledger"
                )
            try:
                ledger.spend(charge, run=new_run_name(f"transport-{what}", unit))
            except BudgetExceededError as error:
                if ledger.budget.delta > 0 or math.isfinite(ledger.epsilon_after(charge, 1)):
                    raise
                raise BudgetExceededError(
                    "the ledger counts at delta 0, where this release, which needs a delta above 0, has no "
                    "finite epsilon; begin a ledger with a delta (--delta in its first release), or give "
                    "another; nothing was spent"
                ) from error

    def _check_first(self, charge: Charge) -> None:
        """Refuse what a new ledger would refuse before it is begun, so that nothing is left behind.

        Its files are never taken away again: another process may have begun it meanwhile, or hold the lock.
        """
        if self.begin is None or not isinstance(self.ledger, Path):
            return
        needed = epsilon_of(charge, self.begin.delta)
        if needed > self.begin.epsilon:
            raise BudgetExceededError(
                f"a new ledger {self.ledger.name} would allow epsilon {self.begin.epsilon:g} at delta "
                f"{self.begin.delta:g}, and this, of epsilon {format_epsilon(needed)}, would pass it; "
                "nothing was spent, and none was begun"
            )

    @contextmanager
    def _open(self) -> Iterator[Ledger | None]:
        if not isinstance(self.ledger, Path):
            yield self.ledger
            return
        try:
            ledger = Ledger.open(self.ledger, epsilon_of, budget=self.begin)
        except JournalDamagedError:
            raise
        except ValueError as error:  # someone began it with another budget meanwhile
            raise TransportError(str(error)) from error
        with ledger:
            yield ledger


def _is_no_ledger(path: Path) -> bool:
    """Return whether a file has no ledger's head beside it, and does not begin as one does either."""
    if path.with_name(f"{path.name}.head").exists():
        return False
    try:
        with path.open("rb") as stream:
            first = json.loads(stream.readline(1 << 16))
    except (ValueError, RecursionError):
        return True
    return not (isinstance(first, dict) and {"body", "digest", "index", "previous"} <= set(first))
