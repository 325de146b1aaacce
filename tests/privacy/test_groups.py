"""ε for several records of one person: never below what an exact computation gives, and close to it."""

from __future__ import annotations

import itertools
import math

import dp_accounting as dp
import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as pld
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, optimize, stats

from dpsinkhorn.privacy import (
    ACCOUNTANTS,
    Adjacency,
    Charge,
    GaussianMechanism,
    LaplaceMechanism,
    NonPrivate,
    RecordMechanism,
    compose,
    epsilon,
    group_epsilon,
)

DELTA = 1e-5
TRAINING = RecordMechanism(1.0, 2.0).sampled(0.1, 300)


def gaussian_delta(e: float, noise: float) -> float:
    """Balle and Wang (2018), Theorem 8."""
    return float(
        stats.norm.cdf(0.5 / noise - e * noise) - math.exp(e + stats.norm.logcdf(-0.5 / noise - e * noise))
    )


def gaussian_epsilon(noise: float, delta: float) -> float:
    if gaussian_delta(0.0, noise) <= delta:
        return 0.0
    return float(optimize.brentq(lambda e: gaussian_delta(e, noise) - delta, 0.0, 700.0))


def binomial(size: int, rate: float) -> np.ndarray:
    return stats.binom.pmf(np.arange(size + 1), size, rate)


def mixture_delta(e: float, noise: float, rate: float, size: int) -> float:
    """One step, by quadrature: `size` records, each of which moves the result by 1 if it is drawn."""
    weights = binomial(size, rate)

    def normal(x: float) -> float:
        return math.exp(-((x / noise) ** 2) / 2) / (noise * math.sqrt(2 * math.pi))

    def excess(x: float, factor: float, turn: bool) -> float:
        here, there = sum(weight * normal(x - k) for k, weight in enumerate(weights)), normal(x)
        return max(0.0, there - factor * here) if turn else max(0.0, here - factor * there)

    low, high = -12 * noise, size + 12 * noise
    grid = np.linspace(low, high, 60)
    return max(
        sum(
            integrate.quad(excess, a, b, args=(math.exp(e), turn), epsabs=1e-13, limit=100)[0]
            for a, b in itertools.pairwise(grid)
        )
        for turn in (False, True)
    )


@pytest.mark.parametrize("accountant", ACCOUNTANTS)
def test_one_record_is_epsilon_itself(accountant):
    for charge in (TRAINING, GaussianMechanism(1.0, 3.0).charge()):
        assert group_epsilon(charge, DELTA, 1, accountant) == epsilon(charge, DELTA, accountant)


@settings(max_examples=40, deadline=None)
@given(st.floats(0.3, 30), st.integers(2, 8), st.sampled_from([1e-3, 1e-5, 1e-8]))
def test_gaussian_against_its_exact_value(noise, size, delta):
    """k records move an unsampled sum k times as far: the exact ε is that of noise / k."""
    exact = gaussian_epsilon(noise / size, delta)
    event = dp.GaussianDpEvent(noise)
    tight = group_epsilon(event, delta, size)
    assert exact <= tight <= 1.05 * exact + 1e-3
    for accountant, factor in (("rdp", 1.25), ("rdp-classic", 1.6)):
        found = group_epsilon(event, delta, size, accountant)
        assert exact <= found
        # loose already for one record, and hardly looser for several
        single = epsilon(event, delta, accountant) / max(gaussian_epsilon(noise, delta), 1e-3)
        assert found <= max(factor, 1.1 * single) * exact + 1e-2


@pytest.mark.parametrize("accountant", ACCOUNTANTS)
@pytest.mark.parametrize(
    "charge", [TRAINING, GaussianMechanism(1.0, 20.0).charge(), LaplaceMechanism(1.0, 4.0).charge()]
)
def test_more_records_are_protected_less(charge, accountant):
    found = [group_epsilon(charge, DELTA, size, accountant) for size in range(1, 9)]
    assert all(after > before for before, after in itertools.pairwise(found))
    # and no less than one record's ε each
    assert all(value >= size * found[0] * (1 - 1e-9) for size, value in enumerate(found, 1))
    far = [group_epsilon(charge, DELTA, size, accountant) for size in (30, 49, 50, 51, 52, 80)]
    assert far == sorted(far)
    assert far[0] > found[-1]


@pytest.mark.parametrize("accountant", ["pld", "rdp"])
def test_no_looser_than_the_textbook_rule(accountant):
    """The rule with one ε' for all records, by a search of its own that only asks `epsilon`."""
    logs = np.linspace(math.log(DELTA), math.log(1e-20), 60)
    singles = [epsilon(TRAINING, math.exp(log), accountant) for log in logs]
    for size in (2, 3):
        best = math.inf
        for log, one in zip(logs, singles, strict=True):
            if log + math.log(math.expm1(size * one) / math.expm1(one)) <= math.log(DELTA):
                best = min(best, size * one)
        assert size * epsilon(TRAINING, DELTA, accountant) < group_epsilon(TRAINING, DELTA, size, accountant)
        assert group_epsilon(TRAINING, DELTA, size, accountant) <= best


@pytest.mark.parametrize(("noise", "rate", "size"), [(0.7, 0.3, 2), (1.0, 0.5, 3), (2.0, 0.05, 2)])
@pytest.mark.parametrize("accountant", ACCOUNTANTS)
def test_an_exact_pair_keeps_the_claim(noise, rate, size, accountant):
    """One sampled step on data sets that differ in `size` records, all of which pull the same way."""
    claim = group_epsilon(RecordMechanism(1.0, noise).sampled(rate, 1), DELTA, size, accountant)
    assert mixture_delta(claim, noise, rate, size) <= DELTA
    # the check would notice ε of one record, or k times that
    single = epsilon(RecordMechanism(1.0, noise).sampled(rate, 1), DELTA)
    assert mixture_delta(single, noise, rate, size) > 1.5 * DELTA


@pytest.mark.parametrize("size", [2, 3])
def test_many_steps_keep_the_claim(size):
    """The same pair, composed; dp-accounting rounds it downwards, which leaves a lower bound on its ε."""
    rate, noise, steps = 0.1, 2.0, 300
    lower = pld.from_mixture_gaussian_mechanism(
        standard_deviation=noise,
        sensitivities=np.arange(size + 1.0),
        sampling_probs=binomial(size, rate),
        pessimistic_estimate=False,
        value_discretization_interval=1e-3,
        use_connect_dots=False,
    ).self_compose(steps)
    truth = float(lower.get_epsilon_for_delta(DELTA))
    claim = group_epsilon(TRAINING, DELTA, size)
    assert truth <= claim <= 1.4 * truth
    assert truth > size * epsilon(TRAINING, DELTA), "more than k times the ε, at the same δ"


def test_an_epsilon_of_zero_does_not_stay_zero():
    """At ε = 0 the δ of k records is k times as large."""
    noise = optimize.brentq(lambda s: gaussian_delta(0.0, s) - 0.9 * DELTA, 1e3, 1e6)
    event = dp.GaussianDpEvent(noise)
    assert epsilon(event, DELTA) == 0
    claim = group_epsilon(event, DELTA, 3)
    assert claim > 0
    assert gaussian_delta(claim, noise / 3) <= DELTA < gaussian_delta(0.0, noise / 3)


def test_pure_differential_privacy_adds_up():
    charge = LaplaceMechanism(1.0, 4.0).charge()
    assert group_epsilon(charge, 0.0, 3) == pytest.approx(0.75)
    assert group_epsilon(charge, DELTA, 3) <= 0.75
    assert group_epsilon(TRAINING, 0.0, 3) == math.inf


def test_nothing_was_done():
    assert group_epsilon(dp.NoOpDpEvent(), DELTA, 5) == 0
    assert group_epsilon(compose(), DELTA, 5) == 0


def test_replace_one():
    charge = RecordMechanism(1.0, 20.0).sampled(0.1, 100).to_replace_one()
    found = [group_epsilon(charge, DELTA, size) for size in (1, 2, 3)]
    assert found[0] < found[1] < found[2] < 3 * 1.3 * found[0]
    # a plain Gaussian's k records are replaced: its sensitivity is k times that of one
    bare = GaussianMechanism(1.0, 5.0, Adjacency.REPLACE_ONE).charge()
    assert gaussian_epsilon(5.0 / 2, DELTA) <= group_epsilon(bare, DELTA, 2)
    # RDP knows nothing of sampling under replace-one, and δ is too small for a distribution: no figure
    loud = RecordMechanism(1.0, 0.5).sampled(0.5, 200).to_replace_one()
    assert math.isfinite(epsilon(loud, DELTA))
    assert group_epsilon(loud, DELTA, 2) == math.inf


def test_infinite_where_nothing_is_proved():
    assert group_epsilon(NonPrivate().charge(), DELTA, 2) == math.inf
    assert group_epsilon(TRAINING, DELTA, 10**6) == math.inf


@pytest.mark.parametrize("size", [0, -1, 1.5, True, "2"])
def test_bad_sizes(size):
    with pytest.raises(ValueError, match="size must be a whole number"):
        group_epsilon(TRAINING, DELTA, size)


def test_a_bare_event_with_an_adjacency():
    event = dp.GaussianDpEvent(3.0)
    same = group_epsilon(Charge(event, Adjacency.REPLACE_ONE), DELTA, 2)
    assert group_epsilon(event, DELTA, 2, adjacency=Adjacency.REPLACE_ONE) == same
