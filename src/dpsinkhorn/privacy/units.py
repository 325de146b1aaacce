"""Whom the charges of a run protect: each record, or each person with all of theirs. Its name says so."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

__all__ = ["new_run_name", "unit_conflict"]

_RUN_NAME = re.compile(r"-(record|person)-[0-9a-f]{8}$")


def new_run_name(title: str, unit: str) -> str:
    """The name of a run on a ledger: unlike any other, and it says whom the run protects."""
    return f"{title}-{unit}-{os.urandom(4).hex()}"


def unit_conflict(runs: Iterable[str], unit: str) -> str | None:
    """Why a run that protects this unit cannot go with the runs of a ledger, or None where it can.

    ε for records says nothing of a person with several. Whoever is protected as a person is as a record, so
    that a charge of which nobody knows whom it protects goes with records, and only with them.

    >>> unit_conflict(["a-person-01234567", "b"], "person")
    "has charges of 'b', of which it is not known whether they protect a person or a record"
    >>> unit_conflict(["a-person-01234567"], "record")
    'is of runs that protect each person'
    """
    for name in runs:
        known = _RUN_NAME.search(name)
        if known is None and unit == "person":
            return (
                f"has charges of {name!r}, of which it is not known whether they protect a person or a record"
            )
        if known is not None and known[1] != unit:
            return f"is of runs that protect each {known[1]}"
    return None
