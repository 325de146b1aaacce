"""Charges: what was done to private data, under which adjacency, and how charges add up."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any

import dp_accounting as dp  # type: ignore[import-untyped]

from dpsinkhorn.privacy.errors import MixedAdjacencyError
from dpsinkhorn.privacy.events import Event, event_from_json, event_to_json, halve_noise

__all__ = ["Adjacency", "Charge", "compose"]


class Adjacency(enum.Enum):
    """When two data sets count as neighbours. The value is the name used in files and on the command line."""

    ADD_OR_REMOVE_ONE = "add-or-remove-one"
    """One data set has one record more than the other: training."""
    REPLACE_ONE = "replace-one"
    """The same number of records, one of them different: transport, where that number is public."""

    @property
    def relation(self) -> Any:
        """The same as dp-accounting's `NeighboringRelation`."""
        return dp.NeighboringRelation[self.name]


@dataclass(frozen=True)
class Charge:
    """What was done to the private data: an event, and the adjacency its noise multipliers refer to."""

    event: Event
    adjacency: Adjacency = Adjacency.ADD_OR_REMOVE_ONE

    def to_replace_one(self) -> Charge:
        """The same release, charged under replace-one.

        Replacing a record is removing one and adding another, so that every sensitivity at most doubles and
        every noise multiplier is halved; see docs/proofs/composing-adjacencies.md. The way back does not
        exist: a bound for data sets of one size says nothing of a record more.
        """
        if self.adjacency is Adjacency.REPLACE_ONE:
            return self
        return Charge(halve_noise(self.event), Adjacency.REPLACE_ONE)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values: `{"adjacency": ..., "event": {...}}`."""
        return {"adjacency": self.adjacency.value, "event": event_to_json(self.event)}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Charge:
        """Read back `to_json`."""
        return cls(event_from_json(value["event"]), Adjacency(value["adjacency"]))


def compose(*charges: Charge, adjacency: Adjacency | None = None) -> Charge:
    """Everything that was done to the same records, as one charge.

    Charges under different adjacencies raise `MixedAdjacencyError`, unless `adjacency=REPLACE_ONE` asks for
    the conversion.

    >>> training = Charge(dp.PoissonSampledDpEvent(0.1, dp.GaussianDpEvent(2.0)))
    >>> transport = Charge(dp.GaussianDpEvent(5.0), Adjacency.REPLACE_ONE)
    >>> compose(training, transport)
    Traceback (most recent call last):
    dpsinkhorn.privacy.errors.MixedAdjacencyError: ...
    >>> compose(training, transport, adjacency=Adjacency.REPLACE_ONE).adjacency
    <Adjacency.REPLACE_ONE: 'replace-one'>
    """
    found = {charge.adjacency for charge in charges}
    if adjacency is None:
        if len(found) > 1:
            raise MixedAdjacencyError(
                "charges under add-or-remove-one and replace-one do not add up; "
                "pass adjacency=Adjacency.REPLACE_ONE to convert all of them to replace-one"
            )
        adjacency = found.pop() if found else Adjacency.ADD_OR_REMOVE_ONE
    elif adjacency is Adjacency.ADD_OR_REMOVE_ONE and Adjacency.REPLACE_ONE in found:
        raise MixedAdjacencyError("a replace-one charge cannot be converted to add-or-remove-one")
    elif adjacency is Adjacency.REPLACE_ONE:
        charges = tuple(charge.to_replace_one() for charge in charges)
    return Charge(dp.ComposedDpEvent([charge.event for charge in charges]), adjacency)
