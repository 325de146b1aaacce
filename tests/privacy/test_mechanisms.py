"""Mechanism values: sensitivity, noise, adjacency, and their events, also as JSON."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

import dp_accounting as dp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpsinkhorn.privacy import (
    Adjacency,
    BatchMechanism,
    Charge,
    GaussianMechanism,
    ImageMechanism,
    LaplaceMechanism,
    Mechanism,
    MixedAdjacencyError,
    MomentsMechanism,
    NonPrivate,
    ParameterMechanism,
    RecordMechanism,
    UnsupportedEventError,
    compose,
    epsilon,
    event_from_json,
    event_to_json,
)

GAUSSIANS = [
    BatchMechanism(clip=0.5, noise_multiplier=1.1),
    ParameterMechanism(clip=1.0, noise_multiplier=0.8),
    ImageMechanism(clip=0.5, row_noise_multiplier=1.5, rows=50),
    RecordMechanism(clip=6.0, noise_multiplier=2.0),
    MomentsMechanism(clip=7.0, noise_multiplier=9.1),
    GaussianMechanism(sensitivity=0.3, noise_multiplier=4.0),
    GaussianMechanism(sensitivity=0.3, noise_multiplier=4.0, adjacency=Adjacency.REPLACE_ONE),
]


@pytest.mark.parametrize("mechanism", GAUSSIANS, ids=lambda m: type(m).__name__)
def test_the_noise_multiplier_is_noise_over_sensitivity_and_is_what_the_event_carries(mechanism):
    assert mechanism.noise_std / mechanism.sensitivity == pytest.approx(mechanism.noise_multiplier)
    assert mechanism.event == dp.GaussianDpEvent(mechanism.noise_multiplier)


def test_each_sanitizer_adds_the_noise_of_its_algorithm():
    # Algorithm 1 adds 2 Δ σ to the matrix; the final version adds the same to every row; ours adds σ C.
    assert BatchMechanism(0.5, 1.1).noise_std == pytest.approx(2 * 0.5 * 1.1)
    assert ImageMechanism(0.5, 1.5, rows=50).noise_std == pytest.approx(2 * 0.5 * 1.5)
    assert ImageMechanism(0.5, 1.5, rows=50).noise_multiplier == pytest.approx(1.5 / math.sqrt(50))
    assert RecordMechanism(6.0, 2.0).noise_std == pytest.approx(12.0)


def test_laplace_noise():
    mechanism = LaplaceMechanism(sensitivity=0.5, noise_multiplier=4.0)
    assert mechanism.scale == 2.0
    assert mechanism.noise_std == pytest.approx(math.sqrt(8))
    assert epsilon(mechanism.charge(), 0.0) == pytest.approx(0.25)


def test_sampled_steps_are_one_event_per_step():
    charge = BatchMechanism(0.5, 1.1).sampled(1 / 1200, steps=7)
    step = dp.PoissonSampledDpEvent(1 / 1200, dp.GaussianDpEvent(1.1))
    assert charge == Charge(dp.SelfComposedDpEvent(step, 7), Adjacency.ADD_OR_REMOVE_ONE)


def test_a_run_without_privacy_says_so():
    assert epsilon(NonPrivate().charge(), 1e-5) == math.inf
    assert epsilon(NonPrivate().sampled(0.01, steps=10), 1e-5) == math.inf
    assert epsilon(NonPrivate().sampled(0.01, steps=0), 1e-5) == 0


@pytest.mark.parametrize("mechanism", [*GAUSSIANS, NonPrivate()], ids=lambda m: type(m).__name__)
def test_values_are_frozen(mechanism: Mechanism):
    with pytest.raises(dataclasses.FrozenInstanceError):
        mechanism.clip = 0.1


@pytest.mark.parametrize(
    "build",
    [
        lambda bad: BatchMechanism(bad, 1.0),
        lambda bad: BatchMechanism(1.0, bad),
        lambda bad: ParameterMechanism(bad, 1.0),
        lambda bad: ImageMechanism(bad, 1.0, 5),
        lambda bad: ImageMechanism(1.0, bad, 5),
        lambda bad: ImageMechanism(1.0, 1.0, bad),
        lambda bad: RecordMechanism(bad, 1.0),
        lambda bad: GaussianMechanism(1.0, bad),
        lambda bad: GaussianMechanism(bad, 1.0),
        lambda bad: LaplaceMechanism(1.0, bad),
    ],
)
@pytest.mark.parametrize("bad", [0, -1.0, math.nan, math.inf])
def test_settings_that_would_void_the_guarantee_raise(build, bad):
    with pytest.raises(ValueError, match="must be a positive number"):
        build(bad)


def test_bad_rates_and_counts_raise():
    mechanism = RecordMechanism(1.0, 1.0)
    for rate in (0.0, -0.1, 1.1, math.nan):
        with pytest.raises(ValueError, match="sampling_rate"):
            mechanism.sampled(rate, 1)
    with pytest.raises(ValueError, match="steps"):
        mechanism.sampled(0.1, -1)
    with pytest.raises(ValueError, match="uses"):
        mechanism.charge(-1)


class TestAdjacency:
    training = RecordMechanism(1.0, 2.0).sampled(0.1, steps=100)
    transport = GaussianMechanism(1.0, 5.0, Adjacency.REPLACE_ONE).charge(3)

    def test_the_relations_are_dp_accountings(self):
        assert {a.relation for a in Adjacency} == {
            dp.NeighboringRelation.ADD_OR_REMOVE_ONE,
            dp.NeighboringRelation.REPLACE_ONE,
        }

    def test_two_adjacencies_never_mix_silently(self):
        with pytest.raises(MixedAdjacencyError, match="REPLACE_ONE"):
            compose(self.training, self.transport)
        with pytest.raises(MixedAdjacencyError, match="cannot be converted"):
            compose(self.training, self.transport, adjacency=Adjacency.ADD_OR_REMOVE_ONE)
        with pytest.raises(MixedAdjacencyError):
            epsilon(self.transport, 1e-5, adjacency=Adjacency.ADD_OR_REMOVE_ONE)
        with pytest.raises(MixedAdjacencyError):
            GaussianMechanism(1.0, 5.0, Adjacency.REPLACE_ONE).sampled(0.1, 1)

    def test_conversion_halves_noise_and_only_of_what_needs_it(self):
        both = compose(self.training, self.transport, adjacency=Adjacency.REPLACE_ONE)
        assert both.adjacency is Adjacency.REPLACE_ONE
        converted, kept = both.event.events
        assert converted.event.event == dp.GaussianDpEvent(1.0)
        assert kept == self.transport.event

    def test_one_adjacency_composes_as_it_is(self):
        assert compose(self.training, self.training).adjacency is Adjacency.ADD_OR_REMOVE_ONE
        assert epsilon(compose(), 1e-5) == 0

    def test_conversion_of_an_unknown_event_raises(self):
        with pytest.raises(UnsupportedEventError):
            Charge(dp.UnsupportedDpEvent()).to_replace_one()


def test_moments_takes_all_records():
    mechanism = MomentsMechanism(clip=7.0, noise_multiplier=2.0)
    assert mechanism.sensitivity == 1
    assert epsilon(mechanism.sampled(1.0, 6), 1e-5) == pytest.approx(
        epsilon(GaussianMechanism(1.0, 2.0).charge(6), 1e-5), rel=1e-4
    )
    for rate in (0.5, 1e-3, 0.0, 2.0, math.nan):
        with pytest.raises(ValueError, match="sampling_rate"):
            mechanism.sampled(rate, 1)


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
