"""Events: what a mechanism does to the data, as dp-accounting's immutable trees.

An event says nothing of its adjacency; a `Charge` (see `charges`) pairs the two. Throughout this package
a noise multiplier is **noise standard deviation (or Laplace scale) / sensitivity under the charge's own
adjacency**. dp-accounting's PLD accountant counts replace-one in another unit, half the sensitivity; the
translation is made in one place only, `_pld`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import dp_accounting as dp  # type: ignore[import-untyped]

from dpsinkhorn.privacy.errors import UnsupportedEventError

__all__ = ["Event", "Part", "event_from_json", "event_to_json", "flatten", "halve_noise"]

Event: TypeAlias = dp.DpEvent


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
    """How often an event happens, as a whole number; never rounded, which could lose a part of it."""
    try:
        whole = int(count)
    except (OverflowError, TypeError, ValueError):
        whole = -1
    if whole < 0 or whole != count:
        raise UnsupportedEventError(f"an event cannot happen {count!r} times")
    return whole


def halve_noise(event: Event) -> Event:
    """The event with every noise multiplier halved: the same noise beside twice the sensitivity."""
    match event:
        case dp.GaussianDpEvent():
            return dp.GaussianDpEvent(event.noise_multiplier / 2)
        case dp.LaplaceDpEvent():
            return dp.LaplaceDpEvent(event.noise_multiplier / 2)
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
    """An event as plain JSON values; `event_from_json` reads it back.

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
