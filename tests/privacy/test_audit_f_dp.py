"""Bounds from one release by the whole trade-off curve: docs/proofs/one-run-f-dp.md.

What is proved there is held against linear programs over all distributions of the number of right guesses.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy import optimize, stats

from dpsinkhorn.privacy import GaussianMechanism, compose
from dpsinkhorn.privacy.audit import (
    AuditError,
    TradeOff,
    curve_p_value,
    f_dp_bound,
    f_dp_gaussian_bound,
    gaussian_epsilon,
    one_run_bound,
    pair_p_value,
)
from dpsinkhorn.privacy.audit.one_run import Guesses, _impossible, least_refuted_noise


def delta_of(mu: float, e: float) -> float:
    """δ at ε of telling N(μ, 1) from N(0, 1)."""
    return float(stats.norm.cdf(mu / 2 - e / mu) - math.exp(e) * stats.norm.cdf(-mu / 2 - e / mu))


def gaussian_curve(mu: float, count: int = 12) -> TradeOff:
    epsilons = np.linspace(0, mu * mu / 2 + 3 * mu, count)
    return TradeOff(epsilons, np.array([delta_of(mu, e) for e in epsilons]))


def pairs(*values: tuple[float, float]) -> TradeOff:
    return TradeOff(*(np.array(column) for column in zip(*values, strict=True)))


def likeliest(canaries: int, guesses: int, correct: int, curve: TradeOff, sets: list[set[int]]) -> float:
    """The largest P[J >= correct] under the lemma, for these sets T: a linear program."""
    right = np.arange(guesses + 1) / canaries
    wrong = (guesses - np.arange(guesses + 1)) / canaries
    rows, limits = [], []
    for chosen in sets:
        first, second = np.zeros(guesses + 1), np.zeros(guesses + 1)
        for j in chosen:
            first[j] += right[j]
            second[j - 1] += wrong[j - 1]
        for e, d in zip(curve.epsilons, curve.deltas, strict=True):
            rows += [first - math.exp(e) * second, first - math.exp(-e) * second]
            limits += [d, 1 - math.exp(-e) * (1 - d)]
    goal = -(np.arange(guesses + 1) >= correct).astype(float)
    found = optimize.linprog(
        goal, A_ub=np.array(rows), b_ub=limits, A_eq=np.ones((1, guesses + 1)), b_eq=[1], method="highs"
    )
    assert found.success
    return -float(found.fun)


def every_set(guesses: int) -> list[set[int]]:
    numbers = range(1, guesses + 1)
    return [set(some) for size in numbers for some in itertools.combinations(numbers, size)]


def upper_sets(guesses: int) -> list[set[int]]:
    return [set(range(j, guesses + 1)) for j in range(1, guesses + 1)]


CURVES = [
    pairs((0.0, 0.0)),
    pairs((0.7, 0.0)),
    pairs((0.5, 0.02)),
    pairs((0.0, 0.3), (1.0, 0.05), (2.0, 0.001)),
    gaussian_curve(0.5, 6),
    gaussian_curve(1.5, 6),
]


class TestAgainstLinearPrograms:
    @pytest.mark.parametrize("curve", CURVES)
    @pytest.mark.parametrize(("canaries", "guesses"), [(7, 7), (20, 6), (200, 9), (25, 25)])
    def test_the_recursion_finds_the_least_that_is_impossible(self, canaries, guesses, curve):
        for correct in range(1, guesses + 1):
            expected = likeliest(canaries, guesses, correct, curve, upper_sets(guesses))
            found = curve_p_value(canaries, guesses, correct, curve)
            assert found == pytest.approx(expected, abs=2e-7)

    @pytest.mark.parametrize("pair", [(0.0, 0.0), (0.5, 0.02), (1.0, 1e-3), (0.1, 0.2), (2.0, 0.0)])
    @pytest.mark.parametrize(("canaries", "guesses"), [(7, 7), (30, 6), (1000, 8)])
    def test_of_one_pair_nothing_less_can_be_claimed(self, canaries, guesses, pair):
        """All sets T at once, which the closed form stands for."""
        for correct in range(guesses + 1):
            expected = likeliest(canaries, guesses, correct, pairs(pair), every_set(guesses))
            found = pair_p_value(canaries, guesses, correct, *pair)
            assert found >= expected - 2e-7
            if found < 0.5:  # near 1 the line of the complement helps, which the closed form leaves out
                assert found == pytest.approx(expected, abs=2e-7)

    def test_more_sets_only_sharpen(self):
        for correct in range(1, 8):
            least = likeliest(7, 7, correct, CURVES[3], every_set(7))
            assert least <= curve_p_value(7, 7, correct, CURVES[3]) + 1e-7


class TestMechanismsThatAreKnown:
    @pytest.mark.parametrize("true", [0.0, 0.5, 3.0])
    def test_randomised_response_attains_it(self, true):
        """Each bit told rightly with e^ε / (1 + e^ε): at δ = 0 nothing is lost."""
        response = stats.binom(200, 1 / (1 + math.exp(-true)))
        for v in range(1, 201, 13):
            assert pair_p_value(200, 200, v, true, 0.0) == pytest.approx(response.sf(v - 1), rel=1e-9)
            assert curve_p_value(200, 200, v, pairs((true, 0.0))) >= response.sf(v - 1) - 1e-9

    @pytest.mark.parametrize("delta", [1e-3, 1e-2, 0.1])
    @pytest.mark.parametrize("true", [0.0, 1.0])
    @pytest.mark.parametrize("m", [1, 10, 100])
    def test_holds_for_randomised_response_that_fails_sometimes(self, m, true, delta):
        """Two (ε, δ)-DP mechanisms: each bit shown as it is with probability δ, and all bits at once."""
        chance = 1 / (1 + math.exp(-true))
        for v in range(1, m + 1, max(1, m // 12)):
            each = stats.binom.sf(v - 1, m, delta + (1 - delta) * chance)
            together = delta + (1 - delta) * stats.binom.sf(v - 1, m, chance)
            for found in (pair_p_value(m, m, v, true, delta), curve_p_value(m, m, v, pairs((true, delta)))):
                assert max(each, together) <= found + 1e-9

    def test_gaussian_scores(self):
        """Independent canaries with Gaussian noise: below the truth, nearer to it than with one pair."""
        rng, mu, delta = np.random.default_rng(0), 2.0, 1e-5
        truth, found = gaussian_epsilon(mu, delta), []
        for _ in range(12):
            included = rng.random(1000) < 0.5
            scores = mu * included + rng.normal(size=1000)
            given = f_dp_gaussian_bound(scores, included, charge_at=one_step, delta=delta)
            alone = f_dp_bound(scores, included, delta=delta)
            old = one_run_bound(scores, included, delta=delta)
            found.append((given.epsilon, alone.epsilon, old.epsilon))
        given, alone, old = np.median(found, axis=0)
        assert np.max(found) < truth
        assert 0.45 * truth < given
        assert given > alone + 1
        assert alone >= old

    def test_rarely_above_the_truth(self):
        """All canaries are shown at once with probability δ, else none: (0, δ)."""
        rng, delta, error, over = np.random.default_rng(1), 0.02, 0.1, []
        for _ in range(300):
            included = rng.random(100) < 0.5
            scores = included if rng.random() < delta else rng.normal(size=100)
            over.append(f_dp_bound(scores, included, delta=delta, confidence=1 - error).epsilon > 0)
        assert 0 < np.mean(over) <= error

    def test_no_signal_no_bound(self):
        rng = np.random.default_rng(3)
        found = [
            f_dp_bound(rng.normal(size=400), rng.random(400) < 0.5, delta=1e-5).epsilon for _ in range(100)
        ]
        assert (np.array(found) > 0).mean() <= 0.05
        none = f_dp_gaussian_bound(
            rng.normal(size=100), rng.random(100) < 0.5, charge_at=one_step, delta=1e-5, guesses=[100]
        )
        assert none.epsilon == 0
        assert none.assumption == "Gaussian noise of unknown size"


def one_step(noise: float):
    return GaussianMechanism(1.0, noise).charge()


class TestCurve:
    def test_of_a_gaussian_mechanism(self):
        curve = TradeOff.of(one_step(0.8))
        for e, d in list(zip(curve.epsilons, curve.deltas, strict=True))[::9]:
            assert delta_of(1 / 0.8, e) <= d <= delta_of(1 / 0.8, e) * 1.01 + 1e-9

    def test_of_several_charges(self):
        """Class counts beside the steps, as a ledger has them: composed, whatever they are."""
        both = TradeOff.of(compose(GaussianMechanism(1.0, 5.0).sampled(0.3, 4), one_step(3.0)))
        alone = TradeOff.of(GaussianMechanism(1.0, 5.0).sampled(0.3, 4))
        assert both.least(0.3) < alone.least(0.3) < 0.3

    def test_the_least_probability_is_that_of_the_best_test(self):
        curve = gaussian_curve(1.3, 400)
        for y in (0.01, 0.2, 0.6, 0.97):
            best = stats.norm.cdf(stats.norm.ppf(y) - 1.3)
            assert best * 0.98 - 1e-4 <= curve.least(y) <= best + 1e-9

    def test_fewer_pairs_claim_less(self):
        whole, some = gaussian_curve(1.0, 41), gaussian_curve(1.0, 11)
        for v in (80, 90, 95):
            assert curve_p_value(200, 100, v, whole) <= curve_p_value(200, 100, v, some)
        assert curve_p_value(200, 100, 99, TradeOff(np.empty(0), np.empty(0))) == 1


class TestMonotone:
    def test_p_values(self):
        """They fall with correct guesses, and rise with ε, with δ and as noise falls."""
        for made in (40, 100):
            by_correct = [curve_p_value(100, made, v, gaussian_curve(1.0)) for v in range(made + 1)]
            assert (np.diff(by_correct) <= 1e-9).all()
            assert (np.diff([pair_p_value(100, made, v, 0.5, 1e-2) for v in range(made + 1)]) <= 1e-12).all()
        for delta in (0.0, 1e-5, 1e-2):
            by_epsilon = [pair_p_value(100, 60, 52, e, delta) for e in np.linspace(0, 5, 60)]
            assert (np.diff(by_epsilon) >= -1e-12).all()
        assert (np.diff([pair_p_value(100, 60, 52, 1.0, d) for d in (0.0, 1e-6, 1e-4, 1e-2)]) > 0).all()
        by_noise = [curve_p_value(100, 60, 52, TradeOff.of(one_step(s))) for s in (0.5, 0.7, 1.0, 2.0, 4.0)]
        assert (np.diff(by_noise) <= 0).all()

    def test_what_is_impossible_stays_so_for_a_larger_chance(self):
        for curve in CURVES:
            answers = [_impossible(60, Guesses(30, 27), curve, t) for t in np.linspace(0, 1, 101)]
            assert answers == sorted(answers)


class TestSearch:
    def test_the_least_noise(self):
        assert least_refuted_noise(lambda _: True) == math.inf
        assert least_refuted_noise(lambda _: False) == pytest.approx(1e-2)

    @pytest.mark.parametrize("arguments", [(10, 11, 5), (10, 5, 6), (10, 5, -1)])
    def test_bad_counts(self, arguments):
        with pytest.raises(AuditError):
            curve_p_value(*arguments, CURVES[0])
        with pytest.raises(AuditError):
            pair_p_value(*arguments, 0.0, 0.0)

    @pytest.mark.parametrize(
        ("scores", "included", "options"),
        [
            ([1.0], [True], {}),
            ([1.0, math.nan], [True, False], {}),
            ([1.0, 2.0], [True, False], {"guesses": [3]}),
            ([1.0, 2.0], [True, False], {"confidence": 1.0}),
        ],
    )
    def test_bad_requests(self, scores, included, options):
        with pytest.raises(AuditError):
            f_dp_bound(scores, included, delta=1e-5, **options)
        with pytest.raises(AuditError):
            f_dp_gaussian_bound(scores, included, charge_at=one_step, delta=1e-5, **options)
