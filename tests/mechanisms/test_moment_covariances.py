"""What `moments` makes of noised covariances, entry by entry, against plain Python and scipy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq

from dpsinkhorn.generators import MixtureConfig
from dpsinkhorn.generators.mixture import bands
from dpsinkhorn.mechanisms.shared.moment_steps import Coordinates, like_ranks, root, smoothed, towards


def symmetric(k, seed, shift=0.0):
    draws = torch.randn(k, k, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return (draws + draws.T) / 9 + shift * torch.eye(k, dtype=torch.float64)


@pytest.mark.parametrize("groups", ["bands", "ranks"])
@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 4, 5)])
def test_what_is_smoothed(shape, groups):
    """A covariance that is mostly noise."""
    of = bands(MixtureConfig(image_shape=shape, classes=0, frequencies=4))
    if groups == "ranks":
        of = like_ranks(len(of))
    k, noise = len(of), 0.2
    covariance = symmetric(k, 0)
    found = smoothed(covariance, noise, of)
    likely = []
    for group in of.tolist():
        own = [float(covariance[i, i]) for i in range(k) if of[i] == group]
        likely.append(max(1e-4, sum(own) / len(own)))
    for i in range(k):
        for j in range(k):
            prior = (0.5 if i == j else 0.002) * likely[i] * likely[j]
            kept = prior / (prior + (noise**2 if i == j else noise**2 / 2))
            middle = likely[i] if i == j else 0.0
            assert float(found[i, j]) == pytest.approx(middle + kept * (float(covariance[i, j]) - middle))


def test_classes_are_shrunk_towards_the_common_covariance():
    k, noise = 6, [0.0, 0.05, 3.0, 1e9]
    common = symmetric(k, 1, shift=0.3)
    own = torch.stack([symmetric(k, 2 + at, shift=0.4) for at in range(4)])
    found = towards(own, common, torch.tensor(noise, dtype=torch.float64))
    values, vectors = np.linalg.eigh(common.numpy())
    for at, spread in enumerate(noise):
        turned = vectors.T @ own[at].numpy() @ vectors
        for i in range(k):
            for j in range(k):
                prior = 0.3 * max(values[i], 1e-4) * max(values[j], 1e-4)
                middle = values[i] if i == j else 0.0
                variance = spread**2 if i == j else spread**2 / 2
                turned[i, j] = middle + prior / (prior + variance) * (turned[i, j] - middle)
        np.testing.assert_allclose(found[at], vectors @ turned @ vectors.T, atol=1e-9)
    np.testing.assert_allclose(found[0], own[0], atol=1e-9)
    np.testing.assert_allclose(found[3], common, atol=1e-9)


class TestRoot:
    @settings(max_examples=40, deadline=None, derandomize=True)
    @given(seed=st.integers(0, 10**6), k=st.integers(1, 12), shift=st.floats(-0.5, 1))
    def test_the_trace_is_kept(self, seed, k, shift):
        """What is taken off all eigenvalues, found by a search."""
        covariance = symmetric(k, seed, shift)
        factor = root(covariance.unsqueeze(0))[0]
        values, vectors = np.linalg.eigh(covariance.numpy())
        trace = max(values.sum(), 1e-3)
        less = 0.0
        if np.maximum(values, 0).sum() > trace:
            less = brentq(lambda t: np.maximum(values - t, 0).sum() - trace, 0, values.max(), xtol=1e-14)
        expected = vectors * np.maximum(values - less, 0) @ vectors.T
        np.testing.assert_allclose(factor @ factor.T, expected, atol=1e-9)

    def test_a_covariance_is_left_alone(self):
        covariance = symmetric(5, 3, shift=2.0)
        factor = root(covariance.unsqueeze(0))[0]
        torch.testing.assert_close(factor @ factor.T, covariance)


def test_ranks_are_grouped_as_they_grow():
    for k in (1, 2, 7, 136, 210, 3000):
        found = like_ranks(k)
        expected = torch.zeros(k, dtype=torch.int64)
        for end in sorted({min(k, round(1.45**power)) for power in range(1, 40)})[:-1]:
            expected[end:] += 1
        assert torch.equal(found, expected)
        sizes = torch.bincount(found)[:-1]
        assert bool((sizes.diff() >= 0).all())


class TestCoordinates:
    def place(self, k=9):
        draws = torch.randn(k, k, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        factor = torch.linalg.qr(draws)[0] * torch.logspace(-1.5, 0, k)
        return factor, Coordinates.of(factor)

    def test_signs_of_eigenvectors_do_not_matter(self):
        factor, place = self.place()
        other = Coordinates.of(factor * torch.tensor([1.0, -1, -1, 1, 1, -1, 1, -1, -1]))
        assert torch.equal(place.matrix, other.matrix)

    def test_there_and_back(self):
        _, place = self.place()
        v = torch.randn(4, 3, 9, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        torch.testing.assert_close(place.back(place.into(v)), v)
        torch.testing.assert_close(place.size * v @ place.matrix.T, place.into(v))

    def test_the_matrix_is_as_long_as_it_may_be(self):
        _, place = self.place()
        assert float(place.matrix.norm()) == pytest.approx(1, abs=1e-14)

    def test_variances(self):
        """Those of u, largest first, by what the matrix makes of the covariance."""
        factor, place = self.place()
        covariance = factor.double() @ factor.double().T
        values = torch.linalg.eigvalsh(covariance)
        scaled = place.size**2 * place.matrix @ covariance @ place.matrix.T
        np.testing.assert_allclose(scaled.diagonal(), place.variances, rtol=1e-9)
        assert float((scaled - torch.diag(scaled.diagonal())).abs().max()) < 1e-9
        assert bool((place.variances.diff() <= 0).all())
        weight = (values[-1] + 0.01 * values.mean()) ** -0.25
        assert float(place.variances[0]) == pytest.approx(float(weight**2 * values[-1]))

    def test_nothing_was_found(self):
        place = Coordinates.of(torch.zeros(4, 4))
        assert bool(torch.isfinite(place.matrix).all())
        assert float(place.variances.sum()) > 0
