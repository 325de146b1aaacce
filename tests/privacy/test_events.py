"""Events written as JSON and read back."""

from __future__ import annotations

import json
import math
from typing import Any

import dp_accounting as dp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpsinkhorn.privacy import Adjacency, Charge, UnsupportedEventError, event_from_json, event_to_json

positive = st.floats(min_value=0, exclude_min=True, allow_infinity=False, allow_nan=False)
leaves = st.one_of(
    st.builds(dp.GaussianDpEvent, positive),
    st.builds(dp.LaplaceDpEvent, positive),
    st.just(dp.NoOpDpEvent()),
    st.just(dp.NonPrivateDpEvent()),
)
events = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.builds(dp.PoissonSampledDpEvent, st.floats(0, 1), inner),
        st.builds(dp.SelfComposedDpEvent, inner, st.integers(0, 10**12)),
        st.builds(dp.ComposedDpEvent, st.lists(inner, max_size=3)),
    ),
    max_leaves=8,
)


@given(events, st.sampled_from(Adjacency))
def test_every_event_survives_a_round_trip_through_text(event: Any, adjacency: Adjacency) -> None:
    """Bit for bit: floats are written with all their digits, and the text is strict JSON."""
    charge = Charge(event, adjacency)
    text = json.dumps(charge.to_json(), allow_nan=False)
    assert Charge.from_json(json.loads(text)) == charge


@pytest.mark.parametrize(
    "event",
    [
        dp.dp_event.UnsupportedDpEvent(),
        dp.dp_event.ZCDpEvent(1.0),
        dp.SelfComposedDpEvent(dp.GaussianDpEvent(1.0), 2.5),
        dp.SelfComposedDpEvent(dp.GaussianDpEvent(1.0), math.inf),
        dp.ComposedDpEvent([dp.GaussianDpEvent(1.0), dp.dp_event.UnsupportedDpEvent()]),
        "Gaussian",
        None,
    ],
)
def test_unknown_events_have_no_form(event: Any) -> None:
    with pytest.raises(UnsupportedEventError):
        event_to_json(event)


@pytest.mark.parametrize(
    "value",
    [
        {},
        [],
        {"type": "Unknown"},
        {"type": "Gaussian"},
        {"type": "Gaussian", "noise_multiplier": "much"},
        {"type": "PoissonSampled", "sampling_rate": 0.1},
        {"type": "PoissonSampled", "sampling_rate": 0.1, "event": {"type": "Unknown"}},
        {"type": "Composed", "events": [1]},
        {"type": "Composed", "events": 3},
        {"type": "SelfComposed", "count": None, "event": {"type": "NoOp"}},
        {"type": "SelfComposed", "count": 1.9, "event": {"type": "NoOp"}},
        {"type": "SelfComposed", "count": -1, "event": {"type": "NoOp"}},
        {"type": "SelfComposed", "count": "3", "event": {"type": "NoOp"}},
    ],
)
def test_unknown_forms_are_refused(value: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedEventError):
        event_from_json(value)
