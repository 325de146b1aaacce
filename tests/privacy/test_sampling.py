"""Poisson sampling. Fixed seeds; with a random seed each test would raise a false alarm with probability
below one in a million (ALARM)."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from scipy import stats

from dpsinkhorn.privacy import sampling
from dpsinkhorn.privacy.noise import SecureNoise, SeededNoise
from dpsinkhorn.privacy.sampling import poisson_sample

ALARM = 1e-6
CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("records", "rate"), [(0, 0.5), (10, 0.0), (10**8, 1e-300), (1, 1e-12), (2**40, 5e-324)]
)
def test_an_empty_sample_is_an_ordinary_outcome(records: int, rate: float) -> None:
    sample = poisson_sample(records, rate, SeededNoise(0))
    assert sample.shape == (0,)
    assert sample.dtype == torch.int64


def test_rate_one_takes_all() -> None:
    assert poisson_sample(5, 1.0, SeededNoise(0)).tolist() == [0, 1, 2, 3, 4]
    assert len(poisson_sample(100_000, math.nextafter(1, 0), SeededNoise(0))) == 100_000


@pytest.mark.parametrize(
    ("records", "rate"), [(-1, 0.5), (2**41, 0.5), (10, -0.1), (10, 1.5), (10, math.nan)]
)
def test_bad_requests_are_refused(records: int, rate: float) -> None:
    with pytest.raises(ValueError, match="must be between"):
        poisson_sample(records, rate, SeededNoise(0))


@pytest.mark.parametrize("rate", [0.001, 0.3, 0.97])
def test_indices_are_increasing_and_in_range(rate: float) -> None:
    sample = poisson_sample(1_000_000, rate, SecureNoise())
    assert bool((sample.diff() > 0).all())
    assert 0 <= int(sample[0]) <= int(sample[-1]) < 1_000_000


def test_seeded_samples_replay() -> None:
    samples = [poisson_sample(10_000, 0.1, SeededNoise(9)) for _ in range(2)]
    assert torch.equal(*samples)
    assert not torch.equal(samples[0], poisson_sample(10_000, 0.1, SeededNoise(10)))


@pytest.mark.parametrize("rate", [0.25, 0.6])
def test_every_subset_has_its_probability(rate: float) -> None:
    """The whole joint law for 4 records, over 6000 separate draws: frequencies and dependences at once."""
    source = SeededNoise(1)
    counts = dict.fromkeys((s for k in range(5) for s in itertools.combinations(range(4), k)), 0)
    for _ in range(6000):
        counts[tuple(poisson_sample(4, rate, source).tolist())] += 1
    expected = [6000 * rate ** len(s) * (1 - rate) ** (4 - len(s)) for s in counts]
    assert stats.chisquare(list(counts.values()), expected).pvalue > ALARM


@pytest.mark.parametrize("rate", [1 / 1200, 0.02, 0.3])
def test_inclusion_frequency_and_pairwise_independence(rate: float) -> None:
    """40 places x 50,000 repetitions, cut from one long draw."""
    places, times = 40, 50_000
    taken = np.zeros(places * times)
    taken[poisson_sample(places * times, rate, SeededNoise(2)).numpy()] = 1
    table = taken.reshape(times, places)
    frequency = (table.mean(0) - rate) / math.sqrt(rate * (1 - rate) / times)
    assert stats.chi2(places).sf(float((frequency**2).sum())) > ALARM
    centred = (table - rate) / math.sqrt(rate * (1 - rate))
    pairs = (centred.T @ centred / math.sqrt(times))[np.triu_indices(places, 1)]
    # variance 1 each and uncorrelated: 780 squares, their spread widened by the kurtosis at low rates
    kurtosis = ((1 - rate) ** 3 + rate**3) / (rate * (1 - rate))
    spread = math.sqrt(2 + kurtosis**2 / times)
    assert abs((pairs**2).sum() - len(pairs)) < 5 * spread * math.sqrt(len(pairs))


@pytest.mark.parametrize("rate", [1e-6, 1e-3])
def test_size_of_samples_of_a_hundred_million(rate: float) -> None:
    source = SeededNoise(3)
    sizes = [len(poisson_sample(10**8, rate, source)) for _ in range(10)]
    assert stats.binomtest(sum(sizes), 10**9, rate).pvalue > ALARM


@pytest.mark.parametrize("wide", [False, True])
def test_gaps_are_geometric(wide: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when a fifth of the gaps is left open by float64 and goes through decimal arithmetic."""
    if wide:
        monkeypatch.setattr(sampling, "_RELATIVE", 0.01)
    count, rate = (10_000, 0.1) if wide else (500_000, 0.1)
    gaps = sampling._gaps(SeededNoise(4), count, rate, limit=60, device=CPU).numpy()
    expected = [rate * (1 - rate) ** k for k in range(60)] + [(1 - rate) ** 60]
    assert stats.chisquare(np.bincount(gaps, minlength=61), np.array(expected) * count).pvalue > ALARM


def test_decimal_arithmetic_agrees_with_float64_where_that_is_sure() -> None:
    source = SeededNoise(5)
    rng = np.random.default_rng(5)
    for rate in (1e-9, 1 / 1200, 0.5, 1 - 1e-9):
        for _ in range(50):
            cell = int(rng.exponential() * 2**50)
            gap = cell * 2.0**-50 / -math.log1p(-rate)
            if abs(gap - round(gap)) > 1e-4:
                assert sampling._exact_gap(cell, rate, source) == math.floor(gap)


def test_bounds_on_the_logarithm_hold() -> None:
    """Against 1 - rate = 2^-k, where the logarithm is known, and against a series for tiny rates."""
    for k in (1, 7, 40):
        low, high = sampling._log_bounds(1 - 2.0**-k, 200)
        ln2 = [bound / k for bound in (low, high)]
        assert ln2[0] < ln2[1]
        assert abs(float(ln2[0]) - math.log(2)) < 1e-15
    for rate in (2.0**-60, 1e-200):
        low, high = sampling._log_bounds(rate, 100)
        q = Fraction(rate)
        assert low < q + q * q / 2 + q**3
        assert q + q * q / 2 < high
        assert (high - low) / low < Fraction(1, 2**90)
