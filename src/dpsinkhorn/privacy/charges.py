"""Events, what a mechanism does to the data, and charges: an event and the adjacency it is counted under.

An event is one of dp-accounting's immutable trees. Throughout this package a noise multiplier is **noise
standard deviation (or Laplace scale) / sensitivity under the charge's own adjacency**. dp-accounting's PLD
accountant counts replace-one in another unit, half the sensitivity; the translation is made in one place
only, `_pld`.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import dp_accounting as dp  # type: ignore[import-untyped]

from dpsinkhorn.errors import MixedAdjacencyError, UnsupportedEventError

Event: TypeAlias = dp.DpEvent
"""What was done with private data, as `dp_accounting` writes it: its accountants say what that costs."""


@dataclass(frozen=True)
class Part:
    """A leaf of an event tree, and how often it happens."""

    event: Event
    count: int


def flatten(event: Event) -> tuple[Part, ...]:
    """Multiply out an event tree into its leaves; equal leaves are counted together, no-ops dropped.

    The order of adaptive composition does not matter for any accountant here, so the tree is a multiset.

    >>> import dp_accounting as dp
    >>> step = dp.PoissonSampledDpEvent(0.1, dp.GaussianDpEvent(2.0))
    >>> flatten(dp.ComposedDpEvent([step, dp.SelfComposedDpEvent(step, 9)]))[0].count
    10
    """
    parts: dict[str, Part] = {}

    def visit(node: Event, times: int) -> None:
        match node:
            case dp.SelfComposedDpEvent():
                visit(node.event, times * _times(node.count))
            case dp.ComposedDpEvent():
                for child in node.events:
                    visit(child, times)
            case dp.NoOpDpEvent():
                pass
            case dp.DpEvent():
                if times:
                    # repr shows every float in full, and works for events that hold lists, which do not hash
                    key = repr(node)
                    parts[key] = Part(node, times + (parts[key].count if key in parts else 0))
            case _:
                raise UnsupportedEventError(f"not an event of dp-accounting: {node!r}")

    visit(event, 1)
    return tuple(parts.values())


def _times(count: Any) -> int:
    """Return how often an event happens, as a whole number; never rounded, which could lose a part of it."""
    try:
        whole = int(count)
    except (OverflowError, TypeError, ValueError):
        whole = -1
    if whole < 0 or whole != count:
        raise UnsupportedEventError(f"an event cannot happen {count!r} times")
    return whole


def halve_noise(event: Event) -> Event:
    """Return the event with every noise multiplier halved: the same noise beside twice the sensitivity."""
    match event:
        case dp.GaussianDpEvent() | dp.LaplaceDpEvent():
            return type(event)(event.noise_multiplier / 2)
        case dp.PoissonSampledDpEvent():
            return dp.PoissonSampledDpEvent(event.sampling_probability, halve_noise(event.event))
        case dp.SelfComposedDpEvent():
            return dp.SelfComposedDpEvent(halve_noise(event.event), event.count)
        case dp.ComposedDpEvent():
            return dp.ComposedDpEvent([halve_noise(child) for child in event.events])
        case dp.NoOpDpEvent() | dp.NonPrivateDpEvent():
            return event
    raise UnsupportedEventError(f"no conversion between adjacencies is proved for {event!r}")


def event_to_json(event: Event) -> dict[str, Any]:
    """Return an event as plain JSON values; `event_from_json` reads it back.

    >>> import dp_accounting as dp
    >>> event_to_json(dp.PoissonSampledDpEvent(0.5, dp.GaussianDpEvent(2.0)))
    {'type': 'PoissonSampled', 'sampling_rate': 0.5, 'event': {'type': 'Gaussian', 'noise_multiplier': 2.0}}
    """
    match event:
        case dp.GaussianDpEvent():
            return {"type": "Gaussian", "noise_multiplier": float(event.noise_multiplier)}
        case dp.LaplaceDpEvent():
            return {"type": "Laplace", "noise_multiplier": float(event.noise_multiplier)}
        case dp.PoissonSampledDpEvent():
            rate = float(event.sampling_probability)
            return {"type": "PoissonSampled", "sampling_rate": rate, "event": event_to_json(event.event)}
        case dp.SampledWithoutReplacementDpEvent(sample_size=1):
            parts = _times(event.source_dataset_size)
            return {"type": "OneOfParts", "parts": parts, "event": event_to_json(event.event)}
        case dp.SelfComposedDpEvent():
            return {"type": "SelfComposed", "count": _times(event.count), "event": event_to_json(event.event)}
        case dp.ComposedDpEvent():
            return {"type": "Composed", "events": [event_to_json(child) for child in event.events]}
        case dp.NoOpDpEvent():
            return {"type": "NoOp"}
        case dp.NonPrivateDpEvent():
            return {"type": "NonPrivate"}
    raise UnsupportedEventError(f"no JSON form for {event!r}")


def event_from_json(value: Mapping[str, Any]) -> Event:
    """Read back what `event_to_json` wrote. Anything else raises `UnsupportedEventError`.

    >>> import dp_accounting as dp
    >>> event = dp.SelfComposedDpEvent(dp.LaplaceDpEvent(2.0), 3)
    >>> event_from_json(event_to_json(event)) == event
    True
    """
    try:
        match value["type"]:
            case "Gaussian":
                return dp.GaussianDpEvent(float(value["noise_multiplier"]))
            case "Laplace":
                return dp.LaplaceDpEvent(float(value["noise_multiplier"]))
            case "PoissonSampled":
                inner = event_from_json(value["event"])
                return dp.PoissonSampledDpEvent(float(value["sampling_rate"]), inner)
            case "OneOfParts":
                inner = event_from_json(value["event"])
                return dp.SampledWithoutReplacementDpEvent(_times(value["parts"]), 1, inner)
            case "SelfComposed":
                return dp.SelfComposedDpEvent(event_from_json(value["event"]), _times(value["count"]))
            case "Composed":
                return dp.ComposedDpEvent([event_from_json(child) for child in value["events"]])
            case "NoOp":
                return dp.NoOpDpEvent()
            case "NonPrivate":
                return dp.NonPrivateDpEvent()
    except (KeyError, TypeError, ValueError) as error:
        raise UnsupportedEventError(f"not an event: {value!r}") from error
    raise UnsupportedEventError(f"not an event: {value!r}")


class Adjacency(enum.Enum):
    """When two data sets count as neighbours. The value is the name used in files and on the command line."""

    ADD_OR_REMOVE_ONE = "add-or-remove-one"
    """One data set has one record more than the other: training."""
    REPLACE_ONE = "replace-one"
    """The same number of records, one of them different: transport, where that number is public."""

    @property
    def relation(self) -> Any:
        """Return the same as dp-accounting's `NeighboringRelation`."""
        return dp.NeighboringRelation[self.name]


@dataclass(frozen=True)
class Charge:
    """What was done to the private data: an event, and the adjacency its noise multipliers refer to."""

    event: Event
    adjacency: Adjacency = Adjacency.ADD_OR_REMOVE_ONE

    def to_replace_one(self) -> Charge:
        """Return the same release, charged under replace-one.

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
        return cls(event_from_json(value["event"]), Adjacency(value["adjacency"]))


def compose(*charges: Charge, adjacency: Adjacency | None = None) -> Charge:
    """Return everything that was done to the same records, as one charge.

    Charges under different adjacencies raise `MixedAdjacencyError`, unless `adjacency=REPLACE_ONE` asks for
    the conversion.

    >>> training = Charge(dp.PoissonSampledDpEvent(0.1, dp.GaussianDpEvent(2.0)))
    >>> transport = Charge(dp.GaussianDpEvent(5.0), Adjacency.REPLACE_ONE)
    >>> compose(training, transport)
    Traceback (most recent call last):
    dpsinkhorn.errors.MixedAdjacencyError: ...
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
