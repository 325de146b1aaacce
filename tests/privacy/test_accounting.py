"""The accountants: one contract for all, independent computations, the papers' figures."""

from __future__ import annotations

import itertools
import math
from decimal import Context, Decimal, localcontext

import dp_accounting as dp
import numpy as np
import pytest
from scipy import integrate, optimize, stats

from dpsinkhorn.privacy import (
    ACCOUNTANTS,
    Adjacency,
    BatchMechanism,
    Charge,
    GaussianMechanism,
    ImageMechanism,
    LaplaceMechanism,
    RecordMechanism,
    UnsupportedEventError,
    _pld,
    _rdp,
    compose,
    epsilon,
    published_epsilon,
)
from dpsinkhorn.privacy.charges import flatten

DELTA = 1e-5


def sampled(noise: float, rate: float = 0.01, steps: int = 1) -> Charge:
    return RecordMechanism(1.0, noise).sampled(rate, steps)


# Independent computations: nothing below calls dp-accounting.


def exact_gaussian(noise: float, delta: float) -> float:
    """Balle and Wang (2018), Theorem 8: Φ(1/2σ - εσ) - e^ε Φ(-1/2σ - εσ) = δ."""

    def excess(e: float) -> float:
        return (
            stats.norm.cdf(0.5 / noise - e * noise)
            - math.exp(e + stats.norm.logcdf(-0.5 / noise - e * noise))
            - delta
        )

    return float(optimize.brentq(excess, 0.0, 1000.0)) if excess(0.0) > 0 else 0.0


def integrated_epsilon(upper, lower, delta: float, reach: float) -> float:
    """ε at δ between two densities on the line, by quadrature of [upper - e^ε lower]₊."""

    points = np.linspace(-reach, reach, 400_001)
    above, below = upper(points), lower(points)

    def excess(e: float) -> float:
        gap = np.maximum(above - math.exp(e) * below, 0.0)
        return float(integrate.trapezoid(gap, points)) - delta

    return float(optimize.brentq(excess, 0.0, 50.0, xtol=1e-10)) if excess(0.0) > 0 else 0.0


def exact_sampled_gaussian(noise: float, rate: float, delta: float) -> float:
    """One Poisson-sampled step, both directions: removing and adding the record."""
    without = stats.norm(0, noise).pdf

    def with_record(x):
        return (1 - rate) * without(x) + rate * stats.norm(1, noise).pdf(x)

    reach = 1 + 12 * noise
    return max(
        integrated_epsilon(with_record, without, delta, reach),
        integrated_epsilon(without, with_record, delta, reach),
    )


def renyi_of_sampled_gaussian(noise: float, rate: float, order: float) -> float:
    """D_α((1-q) N(0, σ²) + q N(1, σ²) || N(0, σ²)) by quadrature (Mironov, Talwar and Zhang 2019)."""
    x = np.linspace(-15 * noise, order + 15 * noise, 200_001)
    ratio = np.logaddexp(math.log1p(-rate), math.log(rate) + (2 * x - 1) / (2 * noise**2))
    density = stats.norm.logpdf(x, 0, noise)
    peak = max(0.0, float(np.max(order * ratio + density)))
    if peak == 0:  # near 1 the integral is 1 + something small: integrate what is above 1
        above = integrate.trapezoid(np.exp(density) * np.expm1(order * ratio), x)
        return math.log1p(float(above)) / (order - 1)
    total = integrate.trapezoid(np.exp(order * ratio + density - peak), x)
    return (math.log(float(total)) + peak) / (order - 1)


def convert(curve, delta: float, accountant: str) -> float:
    """The least ε over the accountants' orders, by either conversion."""
    values = np.array([curve(order) for order in _rdp.ORDERS])
    classic = values + math.log(1 / delta) / (_rdp.ORDERS - 1)
    improved = values + np.log1p(-1 / _rdp.ORDERS) - np.log(delta * _rdp.ORDERS) / (_rdp.ORDERS - 1)
    return max(0.0, float(np.min(classic if accountant == "rdp-classic" else improved)))


class AccountantContract:
    """What every accountant promises."""

    accountant: str

    def epsilon(self, charge, delta=DELTA):
        return epsilon(charge, delta, self.accountant)

    def gaussian_reference(self, noise: float, delta: float) -> float:
        return convert(lambda order: order / (2 * noise**2), delta, self.accountant)

    def sampled_reference(self, noise: float, rate: float, delta: float) -> float:
        return convert(lambda order: renyi_of_sampled_gaussian(noise, rate, order), delta, self.accountant)

    @pytest.mark.parametrize("steps", [1, 300, 100_000])
    def test_more_noise_costs_less(self, steps):
        spent = [self.epsilon(sampled(noise, 0.01, steps)) for noise in (0.6, 0.9, 1.2, 2.0, 5.0)]
        assert all(a > b for a, b in itertools.pairwise(spent))

    @pytest.mark.parametrize("steps", [10, 1000])
    def test_a_higher_rate_costs_more(self, steps):
        spent = [self.epsilon(sampled(1.5, rate, steps)) for rate in (0.001, 0.01, 0.05, 0.3, 1.0)]
        assert all(a < b for a, b in itertools.pairwise(spent))

    def test_more_steps_cost_more(self):
        spent = [
            self.epsilon(sampled(1.5, 0.02, steps)) for steps in (1, 2, 10, 100, 101, 1000, 50_000, 10**6)
        ]
        assert all(a < b for a, b in itertools.pairwise(spent))

    def test_a_smaller_delta_costs_more(self):
        deltas = (1e-2, 1e-4, 1e-5, 1e-7, 1e-9, 1e-13, 1e-30)
        spent = [self.epsilon(sampled(1.5, 0.02, 500), delta) for delta in deltas]
        assert all(a < b for a, b in itertools.pairwise(spent))
        assert spent[-1] < math.inf

    @pytest.mark.parametrize("noise", [0.3, 1.0, 4.0, 40.0])
    @pytest.mark.parametrize("delta", [1e-3, 1e-5, 1e-9])
    def test_the_gaussian_agrees_with_its_closed_form(self, noise, delta):
        found = self.epsilon(GaussianMechanism(3.0, noise).charge(), delta)
        assert found == pytest.approx(self.gaussian_reference(noise, delta), rel=2e-3, abs=1e-4)
        assert found >= exact_gaussian(noise, delta)

    @pytest.mark.parametrize(("noise", "rate"), [(0.7, 0.01), (1.1, 0.1), (2.0, 0.5)])
    def test_the_sampled_gaussian_agrees_with_numerical_integration(self, noise, rate):
        found = self.epsilon(sampled(noise, rate))
        assert found == pytest.approx(self.sampled_reference(noise, rate, DELTA), rel=2e-3, abs=1e-4)
        assert found >= exact_sampled_gaussian(noise, rate, DELTA) - 1e-6

    def test_gaussians_compose_exactly(self):
        many = GaussianMechanism(1.0, 10.0).charge(100)
        assert self.epsilon(many) == pytest.approx(
            self.epsilon(GaussianMechanism(1.0, 1.0).charge()), rel=1e-9
        )

    def test_the_shape_of_the_tree_does_not_matter(self):
        step = sampled(1.5, 0.02).event.event
        flat = dp.SelfComposedDpEvent(step, 12)
        nested = dp.ComposedDpEvent(
            [dp.SelfComposedDpEvent(dp.ComposedDpEvent([step, step]), 3), dp.NoOpDpEvent(), *[step] * 6]
        )
        assert self.epsilon(nested) == self.epsilon(flat)

    def test_several_runs_cost_more_than_each_and_at_most_their_sum(self):
        runs = [sampled(1.5, 0.02, 500), sampled(0.9, 0.001, 4000), LaplaceMechanism(1.0, 4.0).charge(2)]
        single = [self.epsilon(run, DELTA / 3) for run in runs]
        together = self.epsilon(compose(*runs))
        assert max(self.epsilon(run) for run in runs) < together < sum(single)

    def test_nothing_costs_nothing_and_no_privacy_costs_everything(self):
        assert self.epsilon(dp.NoOpDpEvent()) == 0
        assert self.epsilon(dp.NonPrivateDpEvent()) == math.inf
        assert self.epsilon(compose(sampled(5.0), Charge(dp.NonPrivateDpEvent()))) == math.inf
        assert self.epsilon(sampled(1.0, steps=0)) == 0

    def test_next_to_no_noise_costs_next_to_everything(self):
        gaussian = dp.GaussianDpEvent(1e-100)
        for event in (
            dp.PoissonSampledDpEvent(0.2, gaussian),
            dp.SampledWithoutReplacementDpEvent(5, 1, gaussian),
        ):
            assert self.epsilon(event) > 1e100

    def test_rounding_at_tiny_rates_never_says_zero(self):
        """The sum of squared losses is about 1e-8, so that δ(0) is near 4e-5: ε = 0 at δ = 1e-5 is wrong."""
        assert self.epsilon(sampled(3.0, 1e-9, 10**11)) > 0

    def test_pure_differential_privacy(self):
        laplace = LaplaceMechanism(2.0, 4.0).charge(3)
        assert self.epsilon(laplace, 0.0) == pytest.approx(0.75)
        assert self.epsilon(laplace, 1e-5) <= 0.75 + 1e-12
        assert self.epsilon(sampled(1.0), 0.0) == math.inf

    @pytest.mark.parametrize("delta", [0.0, DELTA])
    @pytest.mark.parametrize(
        "event",
        [
            dp.UnsupportedDpEvent(),
            dp.SampledWithoutReplacementDpEvent(100, 10, dp.GaussianDpEvent(1.0)),
            dp.PoissonSampledDpEvent(0.1, dp.UnsupportedDpEvent()),
            dp.PoissonSampledDpEvent(0.1, dp.PoissonSampledDpEvent(0.1, dp.GaussianDpEvent(1.0))),
            dp.ComposedDpEvent([dp.GaussianDpEvent(1.0), dp.UnsupportedDpEvent()]),
            dp.SelfComposedDpEvent(dp.GaussianDpEvent(1.0), -1),
            dp.SelfComposedDpEvent(dp.GaussianDpEvent(1.0), 2.5),
            "Gaussian",
        ],
        ids=repr,
    )
    def test_unknown_events_raise(self, event, delta):
        with pytest.raises(UnsupportedEventError):
            self.epsilon(event, delta)

    @pytest.mark.parametrize("delta", [-1e-9, 1.0, math.nan])
    def test_a_delta_that_is_no_probability_raises(self, delta):
        with pytest.raises(ValueError, match="delta"):
            self.epsilon(sampled(1.0), delta)

    @pytest.mark.parametrize(
        "event",
        [
            dp.GaussianDpEvent(0.0),
            dp.LaplaceDpEvent(-1.0),
            dp.PoissonSampledDpEvent(1.5, dp.GaussianDpEvent(1.0)),
            dp.PoissonSampledDpEvent(0.1, dp.GaussianDpEvent(math.nan)),
            dp.PoissonSampledDpEvent(0.1, dp.GaussianDpEvent(1e-200)),
            dp.PoissonSampledDpEvent(0.1, dp.GaussianDpEvent(1e200)),
        ],
        ids=repr,
    )
    def test_events_without_meaning_raise(self, event):
        with pytest.raises(ValueError, match="must be"):
            self.epsilon(event)


class TestPld(AccountantContract):
    accountant = "pld"

    def gaussian_reference(self, noise, delta):
        return exact_gaussian(noise, delta)

    def sampled_reference(self, noise, rate, delta):
        return exact_sampled_gaussian(noise, rate, delta)

    @pytest.mark.parametrize(("noise", "rate", "steps"), [(1.0, 0.1, 20), (0.8, 0.01, 200)])
    def test_compositions_agree_with_simulation(self, noise, rate, steps):
        """δ(ε) = E[(1 - e^(ε - L))₊], L the summed loss when the record is there; L is simulated."""
        rng = np.random.default_rng(0)
        loss = np.zeros(400_000)
        for _ in range(steps):
            x = noise * rng.standard_normal(loss.size) + (rng.random(loss.size) < rate)
            loss += np.log1p(rate * np.expm1((2 * x - 1) / (2 * noise**2)))
        for delta in (1e-2, 1e-3):
            e = epsilon(sampled(noise, rate, steps), delta)
            terms = np.maximum(-np.expm1(e - loss), 0.0)
            error = terms.std() / math.sqrt(loss.size)
            assert terms.mean() == pytest.approx(delta, abs=5 * error + 0.01 * delta)

    @pytest.mark.parametrize("noise", [0.25, 0.6, 1.1, 3.0, 30.0])
    @pytest.mark.parametrize(("rate", "steps"), [(1.0, 1), (0.2, 50), (0.01, 5000), (1 / 1200, 300_000)])
    @pytest.mark.parametrize("delta", [1e-3, 1e-6])
    def test_is_at_most_rdp(self, noise, rate, steps, delta):
        charge = sampled(noise, rate, steps)
        rdp = epsilon(charge, delta, "rdp")
        assert rdp <= epsilon(charge, delta, "rdp-classic")
        # the distribution alone, without the cap that epsilon() puts on it; the grid may cost 0.2%
        alone = _pld.epsilon(flatten(charge.event), delta, charge.adjacency, 1.5 * rdp)
        assert alone <= 1.002 * rdp
        assert epsilon(charge, delta) <= min(alone, rdp) * 1.002

    def test_the_grid_and_the_rounding_cost_little(self):
        """At millions of steps the answer is within 0.2% of the limit of ever finer grids."""
        charge = sampled(1.1, 1 / 1200, 3_400_000)
        # connecting the dots errs with the square of the width: 8.4633 at 1e-4 and 8.4546 at 3e-5 give 8.4538
        assert epsilon(charge, DELTA) == pytest.approx(8.4538, rel=2e-3)

    def test_a_delta_below_double_precision_falls_back_on_rdp(self):
        charge = sampled(1.1, 0.01, 10_000)
        assert epsilon(charge, 1e-14) == epsilon(charge, 1e-14, "rdp")

    def test_sampled_laplace(self):
        charge = LaplaceMechanism(1.0, 1.0).sampled(0.1, 1)
        # pure bound of a sampled mechanism: log(1 + q (e^ε - 1))
        assert epsilon(charge, 1e-12) == pytest.approx(math.log1p(0.1 * math.expm1(1.0)), rel=0.02)
        with pytest.raises(UnsupportedEventError):
            epsilon(charge.to_replace_one(), DELTA)


class TestRdp(AccountantContract):
    accountant = "rdp"

    def test_composition_is_the_sum(self):
        runs = [sampled(1.5, 0.02, 500), sampled(0.9, 0.001, 4000), LaplaceMechanism(1.0, 4.0).charge(2)]
        curves = [_rdp.curve(flatten(run.event), run.adjacency) for run in runs]
        together = compose(*runs)
        np.testing.assert_allclose(_rdp.curve(flatten(together.event), together.adjacency), sum(curves))
        assert epsilon(together, DELTA, "rdp") == pytest.approx(_rdp.improved(sum(curves), DELTA))

    @pytest.mark.parametrize(("noise", "rate"), [(0.8, 0.01), (1.1, 1 / 1200), (3.0, 0.3)])
    def test_the_curve_agrees_with_numerical_integration(self, noise, rate):
        found = _rdp.curve(flatten(sampled(noise, rate).event), Adjacency.ADD_OR_REMOVE_ONE)
        for order, value in zip(_rdp.ORDERS, found, strict=True):
            if order <= 64 and order == int(order):
                assert value == pytest.approx(renyi_of_sampled_gaussian(noise, rate, order), rel=1e-5)
            elif order in (1.5, 2.5, 4.5, 8.5):  # from a series of absolute values: an upper bound
                assert value >= renyi_of_sampled_gaussian(noise, rate, order) * (1 - 1e-6)

    @pytest.mark.parametrize(("noise", "rate"), [(3.0, 1e-9), (1.1, 1e-7), (1.1, 1 / 1200), (0.4, 0.001)])
    def test_rounding_never_takes_the_curve_below_its_value(self, noise, rate):
        """At whole orders the divergence is a finite sum: here in 60 digits."""
        found = _rdp.curve(flatten(sampled(noise, rate).event), Adjacency.ADD_OR_REMOVE_ONE)
        q, twice_variance = Decimal(rate), 2 * Decimal(noise) ** 2
        with localcontext(Context(prec=60)):
            for order, value in zip(_rdp.ORDERS, found, strict=True):
                if order <= 256 and order == int(order) and math.isfinite(value):
                    a = int(order)
                    total = sum(
                        math.comb(a, i) * (1 - q) ** (a - i) * q**i * (i * (i - 1) / twice_variance).exp()
                        for i in range(a + 1)
                    )
                    assert Decimal(float(value)) >= total.ln() / (a - 1)

    def test_sampling_under_replace_one_is_left_to_pld(self):
        with pytest.raises(UnsupportedEventError, match="pld"):
            epsilon(sampled(2.0).to_replace_one(), DELTA, "rdp")


class TestRdpClassic(AccountantContract):
    accountant = "rdp-classic"

    def test_the_conversion_is_the_papers(self):
        charge = GaussianMechanism(1.0, 2.0).charge()
        orders = np.array(_rdp.ORDERS)
        expected = np.min(orders / 8 + math.log(1e5) / (orders - 1))
        assert epsilon(charge, 1e-5, "rdp-classic") == pytest.approx(expected)


def test_every_accountant_is_under_contract():
    covered = {contract.accountant for contract in AccountantContract.__subclasses__()}
    assert covered == set(ACCOUNTANTS)


def test_an_unknown_accountant_raises():
    with pytest.raises(ValueError, match="accountant must be one of pld, rdp, rdp-classic"):
        epsilon(sampled(1.0), DELTA, "moments")


class TestTheFiguresOfThePapers:
    @pytest.mark.parametrize(
        ("accountant", "expected"), [("rdp", 9.09), ("rdp-classic", 9.89), ("pld", 8.46)]
    )
    def test_first_version(self, accountant, expected):
        charge = BatchMechanism(clip=0.5, noise_multiplier=1.1).sampled(1 / 1200, steps=3_400_000)
        assert epsilon(charge, DELTA, accountant) == pytest.approx(expected, abs=0.05)

    @pytest.mark.parametrize(
        ("noise", "steps", "accountant", "expected"),
        [
            (1.5, 160_000, "pld", 845),
            (1.5, 160_000, "rdp", 984),
            (1.9, 280_000, "pld", 460),
            (1.9, 280_000, "rdp", 494),
        ],
    )
    def test_final_version_soundly(self, noise, steps, accountant, expected):
        charge = ImageMechanism(clip=0.5, row_noise_multiplier=noise, rows=50).sampled(1 / 1200, steps)
        assert epsilon(charge, DELTA, accountant) == pytest.approx(expected, rel=0.02)

    def test_final_version_as_published(self):
        mechanism = ImageMechanism(clip=0.5, row_noise_multiplier=1.5, rows=50)
        assert published_epsilon(mechanism, 1 / 1200, 160_000, DELTA) == pytest.approx(10.0, abs=0.1)
