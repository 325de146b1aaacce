"""Rectified normals against numerical integration, random draws, and each other over the whole range."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

from dpsinkhorn.generators.mixture import attainable, latent_normal, rectified_moments

MEANS = st.one_of(
    st.floats(-0.2, 1.2),
    st.floats(-12, 12).map(lambda value: 1 / (1 + np.exp(-value))),  # near black and white
    st.sampled_from([0.0, 1e-300, 1e-5, 1e-4, 0.5, 1 - 1e-4, 1 - 1e-5, 1.0]),
)
VARIANCES = st.one_of(st.floats(0, 0.3), st.floats(-30, 3).map(np.exp), st.sampled_from([0.0, 1e-300, 1e30]))


def integrated(a, b):
    """Mean and variance of clamp(N(a, b²), 0, 1), by quadrature over z = (x - a) / b."""
    black, white = -a / b, (1 - a) / b
    low, high = max(black, -12.0), min(white, 12.0)

    def expectation(function):
        inside = 0.0
        if low < high:
            peak = min(max(0.0, low), high)
            inside = sum(
                integrate.quad(lambda z: function(z) * stats.norm.pdf(z), *side, epsabs=1e-13, epsrel=1e-12)[
                    0
                ]
                for side in [(low, peak), (peak, high)]
            )
        return function(black) * stats.norm.cdf(black) + inside + function(white) * stats.norm.sf(white)

    middle = expectation(lambda z: z)
    return a + b * middle, b * b * expectation(lambda z: (z - middle) ** 2)


def scalars(*values):
    return [torch.tensor(value, dtype=torch.float64) for value in values]


class TestMoments:
    @settings(deadline=None)
    @given(a=st.floats(-3, 4), b=st.floats(-7, 2).map(np.exp))
    def test_against_integration(self, a, b):
        found = rectified_moments(*scalars(a, b))
        np.testing.assert_allclose(found, integrated(a, b), rtol=1e-7, atol=1e-11)

    @pytest.mark.parametrize(("a", "b"), [(-0.1, 0.2), (0.5, 1.5), (0.9, 0.3), (1.2, 0.1), (0.4, 0.05)])
    def test_against_draws(self, a, b):
        draws = np.clip(np.random.default_rng(0).normal(a, b, 10**6), 0, 1)
        mean, variance = rectified_moments(*scalars(a, b))
        assert float(mean) == pytest.approx(draws.mean(), abs=5 * draws.std() / 1000)
        assert float(variance) == pytest.approx(draws.var(), rel=0.02)

    def test_small_spreads_near_white(self):
        """They are not lost beside a mean near 1."""
        mean, variance = rectified_moments(*scalars(1 - 1e-4, 1e-6))
        assert float(mean) == pytest.approx(1 - 1e-4, rel=1e-15)
        assert float(variance) == pytest.approx(1e-12, rel=1e-6)


class TestAttainable:
    @settings(deadline=None)
    @given(mean=MEANS, variance=VARIANCES)
    def test_is_within_what_there_is(self, mean, variance):
        m, v = (float(value) for value in attainable(*scalars(mean, variance)))
        assert m == min(max(mean, 0), 1)
        assert 0 <= v <= min(variance, 0.8 * m * (1 - m))

    @settings(deadline=None)
    @given(mean=st.floats(0.05, 0.95), variance=st.floats(0, 0.03))
    def test_plain_wishes_are_granted(self, mean, variance):
        assert [float(value) for value in attainable(*scalars(mean, variance))] == [mean, variance]


class TestLatentNormal:
    @settings(deadline=None)
    @given(mean=MEANS, variance=VARIANCES)
    def test_has_what_is_attainable(self, mean, variance):
        """By integration, which knows nothing of how a and b were found."""
        a, b = (float(value) for value in latent_normal(*scalars(mean, variance)))
        m, v = (float(value) for value in attainable(*scalars(mean, variance)))
        if b < 1e-12:
            assert (a, v) == (m, pytest.approx(b * b))
            return
        np.testing.assert_allclose(integrated(a, b)[0], m, rtol=1e-7, atol=1e-9)
        np.testing.assert_allclose(integrated(a, b)[1], v, rtol=1e-6, atol=1e-15)

    def test_has_it_everywhere(self):
        """On a grid finer than the table, edges included."""
        ends = torch.linspace(np.log(1.0001e-4), np.log(0.5), 700, dtype=torch.float64).exp()
        mean = torch.cat([ends, 1 - ends])[:, None]
        part = torch.linspace(-14, 0, 400, dtype=torch.float64).exp()
        aims = attainable(mean, part * attainable(mean, torch.ones(1))[1])
        a, b = latent_normal(*aims)
        found = rectified_moments(a, b)
        assert float((found[0] - aims[0]).abs().max()) < 1e-9
        assert float((found[1] / aims[1] - 1).abs().max()) < 1e-6

    def test_is_smooth(self):
        """No steps where the table begins or the two halves meet: more variance, more b, at every mean."""
        mean = torch.linspace(0.01, 0.99, 99, dtype=torch.float64)[:, None]
        share = torch.linspace(0.001, 1, 1000, dtype=torch.float64)
        largest = attainable(mean, torch.ones(1))[1]
        b = latent_normal(mean, share * largest)[1]
        assert bool((b.diff(dim=1) > 0).all())
        rising = latent_normal(torch.linspace(0.01, 0.99, 9999), torch.full((9999,), 1e-3))[0]
        assert bool((rising.diff() > 0).all())

    @settings(deadline=None)
    @given(mean=st.integers(0, 2**29).map(lambda n: n / 2**30), variance=VARIANCES)
    def test_black_and_white_are_alike(self, mean, variance):
        a, b = latent_normal(*scalars(mean, variance))
        other_a, other_b = latent_normal(*scalars(1 - mean, variance))
        torch.testing.assert_close(1 - other_a, a, rtol=1e-7, atol=1e-9)
        torch.testing.assert_close(other_b, b, rtol=1e-7, atol=1e-9)

    def test_nothing_changes_far_from_black_and_white(self):
        a, b = latent_normal(*scalars(0.4, 0.0025))
        assert (float(a), float(b)) == (0.4, 0.05)

    def test_no_spread(self):
        mean = torch.tensor([-3.0, 0, 1e-9, 0.3, 1, 7])
        a, b = latent_normal(mean, torch.zeros(6))
        assert torch.equal(a, mean.double().clamp(0, 1))
        assert not b.any()

    def test_shapes(self):
        a, b = latent_normal(torch.rand(5, 1, 7), torch.rand(3, 1))
        assert a.shape == b.shape == (5, 3, 7)
        assert a.dtype == b.dtype == torch.float64
        assert latent_normal(torch.empty(0), torch.empty(0))[0].shape == (0,)

    def test_each_number_depends_on_its_own_alone(self):
        draws = torch.Generator().manual_seed(0)
        mean, variance = torch.rand(70_000, generator=draws), 0.1 * torch.rand(70_000, generator=draws)
        together = torch.stack(latent_normal(mean, variance))
        apart = torch.stack(latent_normal(mean[40_000:40_009], variance[40_000:40_009]))
        torch.testing.assert_close(together[:, 40_000:40_009], apart, rtol=1e-12, atol=1e-12)

    def test_wild_wishes(self):
        infinity = torch.tensor(torch.inf)
        for mean in (-infinity, infinity, torch.tensor(3e38)):
            for variance in (infinity, torch.tensor(3e38)):
                a, b = latent_normal(mean, variance)
                assert float(a) in (0, 1)
                assert not b
        assert bool(torch.isnan(latent_normal(*scalars(np.nan, 0.1))[0]))
        assert bool(torch.isnan(latent_normal(*scalars(0.5, np.nan))[1]))
