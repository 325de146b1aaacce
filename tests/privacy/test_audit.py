"""Lower bounds on ε: against exact probabilities, and on simulations whose ε is known."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

from dpsinkhorn.privacy import GaussianMechanism, epsilon
from dpsinkhorn.privacy.audit import (
    AuditError,
    gaussian_bound,
    gaussian_epsilon,
    one_run_bound,
    p_value,
    sampled_gaussian_bound,
    threshold_bound,
    two_worlds,
)


def binomial_tail(trials: int, chance: Fraction, least: int) -> Fraction:
    """P[W >= least], term by term in whole numbers."""
    if least <= 0:
        return Fraction(1)
    terms = range(least, trials + 1)
    return sum(
        (math.comb(trials, k) * chance**k * (1 - chance) ** (trials - k) for k in terms), start=Fraction(0)
    )


class TestOneRunPValue:
    """Steinke, Nasr, Jagielski 2023, Theorem 5.2."""

    @settings(max_examples=40, deadline=None)
    @given(
        canaries=st.integers(1, 40),
        data=st.data(),
        ratio=st.fractions(Fraction(1, 2), Fraction(99, 100), max_denominator=100),
        delta=st.sampled_from([0.0, 1e-5, 1e-2]),
    )
    def test_equals_the_formula_in_exact_arithmetic(self, canaries, data, ratio, delta):
        guesses = data.draw(st.integers(0, canaries))
        correct = data.draw(st.integers(0, guesses))
        e = math.log(ratio / (1 - ratio))
        beta = binomial_tail(guesses, ratio, correct)
        alpha = max(
            ((binomial_tail(guesses, ratio, correct - i) - beta) / i for i in range(1, canaries + 1)),
            default=Fraction(0),
        )
        expected = min(1.0, float(beta + 2 * canaries * Fraction(delta) * alpha))
        assert p_value(canaries, guesses, correct, max(e, 0.0), delta) == pytest.approx(expected, rel=1e-9)

    @pytest.mark.parametrize("true", [0.5, 1.0, 3.0])
    def test_randomised_response_attains_it(self, true):
        """m bits by randomised response, guesses as they are: at δ = 0 nothing is lost."""
        rng, m, times = np.random.default_rng(0), 200, 20_000
        chance = 1 / (1 + math.exp(-true))
        correct = (rng.random((times, m)) < chance).sum(1)
        for v in np.quantile(correct, [0.1, 0.5, 0.9, 0.99]).astype(int).tolist():
            seen = float((correct >= v).mean())
            bound = p_value(m, m, v, true, 0.0)
            assert abs(seen - bound) < 5 * math.sqrt(bound * (1 - bound) / times)

    @pytest.mark.parametrize("delta", [1e-3, 1e-2, 0.1])
    @pytest.mark.parametrize("true", [0.0, 1.0])
    @pytest.mark.parametrize("m", [1, 10, 100])
    def test_holds_for_randomised_response_that_fails_sometimes(self, m, true, delta):
        """Two (ε, δ)-DP mechanisms: each bit shown as it is with probability δ, and all bits at once."""
        chance = 1 / (1 + math.exp(-true))
        for v in range(m + 1):
            each = stats.binom.sf(v - 1, m, delta + (1 - delta) * chance)
            together = delta + (1 - delta) * stats.binom.sf(v - 1, m, chance)
            assert max(each, together) <= p_value(m, m, v, true, delta) + 1e-12

    def test_without_delta_the_bound_would_not_hold(self):
        """The δ term is needed: the same mechanism against the p-value at δ = 0."""
        m, delta, v = 100, 0.01, 95
        together = delta + (1 - delta) * stats.binom.sf(v - 1, m, 0.5)
        assert p_value(m, m, v, 0.0, 0.0) < together <= p_value(m, m, v, 0.0, delta)

    @pytest.mark.parametrize(
        "arguments",
        [(10, 11, 5, 0.0, 0.0), (10, 5, 6, 0.0, 0.0), (10, 5, 5, -1.0, 0.0), (10, 5, 5, 0.0, 1.0)],
    )
    def test_bad_requests(self, arguments):
        with pytest.raises(AuditError):
            p_value(*arguments)


class TestOneRunBound:
    @pytest.mark.parametrize("true", [0.5, 2.0])
    def test_randomised_response(self, true):
        """Rarely above the truth, and near it: each bit is told rightly with e^ε / (1 + e^ε)."""
        rng, m, bounds = np.random.default_rng(1), 1000, []
        for _ in range(60):
            included = rng.random(m) < 0.5
            told = included ^ (rng.random(m) > 1 / (1 + math.exp(-true)))
            # ties are broken at random, so that abstaining picks no bits in particular
            bounds.append(one_run_bound(told + 0.1 * rng.random(m), included, delta=1e-9).epsilon)
        assert (np.array(bounds) > true).mean() <= 0.05
        assert np.median(bounds) > 0.6 * true

    def test_abstaining_helps_where_few_are_sure(self):
        rng, m = np.random.default_rng(2), 2000
        included = rng.random(m) < 0.5
        scores = rng.normal(size=m)
        scores[:200] = 10 * (included[:200] - 0.5)  # of these all is known, of the others nothing
        found = one_run_bound(scores, included, delta=1e-9)
        everyone = one_run_bound(scores, included, delta=1e-9, guesses=[m])
        assert found.guesses < m
        assert found.epsilon > everyone.epsilon + 1

    def test_no_signal_no_bound(self):
        rng = np.random.default_rng(3)
        found = [
            one_run_bound(rng.normal(size=400), rng.random(400) < 0.5, delta=1e-5).epsilon for _ in range(100)
        ]
        assert (np.array(found) > 0).mean() <= 0.05

    def test_all_right_is_as_much_as_the_number_allows(self):
        included = np.arange(100) < 50
        found = one_run_bound(included * 1.0, included, delta=0.0, guesses=[100])
        assert p_value(100, 100, 100, found.epsilon, 0.0) == pytest.approx(0.05, rel=1e-3)

    @pytest.mark.parametrize(
        ("scores", "included", "options"),
        [
            ([1.0], [True], {}),
            ([1.0, 2.0], [True], {}),
            ([1.0, math.nan], [True, False], {}),
            ([1.0, 2.0], [True, False], {"guesses": [3]}),
            ([1.0, 2.0], [True, False], {"guesses": []}),
            ([1.0, 2.0], [True, False], {"confidence": 1.0}),
        ],
    )
    def test_bad_requests(self, scores, included, options):
        with pytest.raises(AuditError):
            one_run_bound(scores, included, delta=1e-5, **options)


def normal_pair(rng, mu: float, count: int):
    return rng.normal(mu, 1, count), rng.normal(0, 1, count)


class TestTwoWorlds:
    def test_limits_are_clopper_and_pearson(self):
        for count, size in ((0, 10), (3, 10), (10, 10), (250, 1000)):
            exact = stats.binomtest(count, size).proportion_ci(0.9, method="exact")
            assert float(two_worlds._lower(np.array(count), size, 0.05)) == pytest.approx(
                exact.low, abs=1e-12
            )
            assert float(two_worlds._upper(np.array(count), size, 0.05)) == pytest.approx(
                exact.high, abs=1e-12
            )

    @pytest.mark.parametrize("mu", [0.1, 1.0, 5.0])
    @pytest.mark.parametrize("delta", [1e-6, 1e-2])
    def test_closed_form_of_a_gaussian(self, mu, delta):
        """Against the integral of the positive part, and the accountant, which may be a little above."""
        found = gaussian_epsilon(mu, delta)
        if found:
            excess, _ = integrate.quad(
                lambda x: max(0.0, stats.norm.pdf(x, mu) - math.exp(found) * stats.norm.pdf(x)),
                found / mu + mu / 2,
                mu + 12,
                epsabs=1e-12,
            )
            assert excess == pytest.approx(delta, rel=1e-3)
        claimed = epsilon(GaussianMechanism(1.0, 1 / mu).charge(), delta)
        assert found <= claimed + 1e-9
        assert found == pytest.approx(claimed, rel=0.01, abs=1e-3)

    @pytest.mark.parametrize(("bound", "least"), [(threshold_bound, 0.5), (gaussian_bound, 0.75)])
    def test_rarely_above_the_truth_and_not_far_below(self, bound, least):
        rng, delta = np.random.default_rng(4), 1e-2
        truth = gaussian_epsilon(1.0, delta)
        found = [bound(*normal_pair(rng, 1.0, 2000), delta=delta).epsilon for _ in range(200)]
        assert (np.array(found) > truth).mean() <= 0.05
        assert np.median(found) > least * truth

    def test_the_better_side_is_taken(self):
        """A release that is sometimes loud without the record, never with it, or the other way round."""
        rng = np.random.default_rng(5)
        absent = rng.random(4000) * (1 + 9 * (rng.random(4000) < 0.3))
        present = rng.random(4000)
        assert threshold_bound(present, absent, delta=1e-5).epsilon > 2
        assert threshold_bound(absent, present, delta=1e-5).epsilon > 2

    def test_thresholds_are_judged_on_other_scores_than_they_were_chosen_on(self):
        """All the difference is in the first half: none is found."""
        rng = np.random.default_rng(6)
        present, absent = normal_pair(rng, 0.0, 2000)
        present[:1000] += 10
        for bound in (threshold_bound, gaussian_bound):
            assert bound(present, absent, delta=1e-5).epsilon < 0.2

    @pytest.mark.parametrize(
        ("noise", "rate", "steps"), [(0.3, 0.2, 1), pytest.param(1.0, 0.5, 3, marks=pytest.mark.long)]
    )
    def test_sampled_steps(self, noise, rate, steps):
        rng, count = np.random.default_rng(7), 4000
        sampled = rng.random((count, steps)) < rate
        worlds = []
        for shift in (sampled / noise, 0 * sampled):
            ratio = (rng.normal(size=(count, steps)) + shift) / noise - 0.5 / noise**2
            worlds.append(np.logaddexp(math.log1p(-rate), math.log(rate) + ratio).sum(1))
        found = sampled_gaussian_bound(*worlds, sampling_rate=rate, steps=steps, delta=1e-5)
        claimed = epsilon(GaussianMechanism(1.0, noise).sampled(rate, steps), 1e-5)
        assert claimed / 2 < found.epsilon < claimed
        assert threshold_bound(*worlds, delta=1e-5).epsilon < found.epsilon

    def test_no_signal_no_bound(self):
        rng = np.random.default_rng(8)
        scores = normal_pair(rng, 0.0, 400)
        assert sampled_gaussian_bound(*scores, sampling_rate=0.5, steps=1, delta=1e-5).epsilon < 0.5

    @pytest.mark.parametrize(
        ("present", "options"),
        [
            ([1.0, 2.0, 3.0], {}),
            ([1.0, 2.0, 3.0, math.inf], {}),
            ([1.0, 2.0, 3.0, 4.0], {"delta": 0.0}),
            ([1.0, 2.0, 3.0, 4.0], {"confidence": 0.0}),
        ],
    )
    def test_bad_requests(self, present, options):
        with pytest.raises(AuditError):
            threshold_bound(present, [1.0, 2.0, 3.0, 4.0], **({"delta": 1e-5} | options))
        with pytest.raises(AuditError):
            gaussian_epsilon(-1.0, 0.5)
