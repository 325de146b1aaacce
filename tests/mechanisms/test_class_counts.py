"""Label frequencies: neighbours, noise, and what comes out."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from dpsinkhorn.mechanisms.shared import class_counts
from dpsinkhorn.mechanisms.shared.class_counts import release_label_frequencies
from dpsinkhorn.privacy import GaussianMechanism, SeededNoise
from support.sanitizer_oracles import digits


class TestSensitivity:
    @given(seed=st.integers(0, 10**6), bound=st.sampled_from([0.3, 1.0, 2.5]), grouped=st.booleans())
    @settings(max_examples=60, deadline=None)
    def test_neighbours(self, seed: int, bound: float, grouped: bool):
        rng = np.random.default_rng(seed)
        labels = torch.from_numpy(rng.integers(-1, 6, rng.integers(0, 40)))  # -1 and 5 are no classes
        groups = torch.from_numpy(rng.integers(0, 9, len(labels))) if grouped else None
        more = torch.from_numpy(rng.integers(0, 5, rng.integers(1, 30) if grouped else 1))
        after = torch.cat([labels, more])
        groups_after = torch.cat([groups, torch.full_like(more, 77)]) if groups is not None else None
        first = class_counts._clipped_counts(labels, 5, bound, groups)
        second = class_counts._clipped_counts(after, 5, bound, groups_after)
        assert math.fsum(value * value for value in (second - first).tolist()) <= bound * bound
        assert float((second - first).norm()) > 0.99 * min(1.0, bound)

    @pytest.mark.parametrize("bound", [0.3, 1.0, 2.5])
    def test_sums_are_exact(self, bound: float):
        """So that one person more cannot change the rounding of the others."""
        random = torch.Generator().manual_seed(0)
        labels = torch.randint(5, (3000,), generator=random)
        groups = torch.randint(700, (3000,), generator=random)
        total = [Fraction(0)] * 5
        for person in range(700):
            own = groups == person
            counts = class_counts._clipped_counts(labels[own], 5, bound, groups[own]).tolist()
            total = [one + Fraction(other) for one, other in zip(total, counts, strict=True)]
        assert [Fraction(v) for v in class_counts._clipped_counts(labels, 5, bound, groups).tolist()] == total

    def test_records_are_counted(self):
        labels = digits()[1]
        counts = class_counts._clipped_counts(labels, 10, 1.0, None)
        torch.testing.assert_close(counts, torch.bincount(labels).double(), rtol=1e-6, atol=0)

    def test_persons_count_once(self):
        """A person of 3 zeros and 4 ones adds (0.6, 0.8)."""
        labels = torch.tensor([0, 1, 1, 1, 0, 1, 0, 2])
        counts = class_counts._clipped_counts(labels, 3, 1.0, torch.tensor([4] * 7 + [9]))
        torch.testing.assert_close(counts.tolist(), [0.6, 0.8, 1.0], rtol=1e-5, atol=1e-5)


class TestRelease:
    mechanism = GaussianMechanism(sensitivity=1.0, noise_multiplier=20.0)

    def test_digits(self):
        labels = digits()[1][digits()[1] < 4]
        released = release_label_frequencies([(labels, None)], 5, GaussianMechanism(1.0, 3.0), SeededNoise(0))
        assert sum(released) == pytest.approx(1)
        assert released[:4] == pytest.approx([0.25] * 4, abs=0.03)
        assert released[4] < 0.03

    def test_noise_variance(self, monkeypatch: pytest.MonkeyPatch):
        """What is added to the counts, caught on its way."""
        seen = []
        original = class_counts.add_gaussian

        def watch(values, **options):
            noised = original(values, **options)
            seen.append(noised - values)
            return noised

        monkeypatch.setattr(class_counts, "add_gaussian", watch)
        labels = torch.zeros(100, dtype=torch.int64)
        release_label_frequencies([(labels, None)], 20000, self.mechanism, SeededNoise(3))
        total = float((seen[0] / self.mechanism.noise_std).square().sum())
        low, high = stats.chi2.interval(1 - 1e-6, 20000)
        assert low < total < high

    def test_nothing_to_count(self):
        released = release_label_frequencies(
            [(torch.empty(0, dtype=torch.int64), None)], 3, GaussianMechanism(1.0, 1e-6), SeededNoise(1)
        )
        assert sum(released) == pytest.approx(1)
        assert all(0 <= p <= 1 for p in released)

    def test_no_classes(self):
        with pytest.raises(ValueError, match="classes"):
            release_label_frequencies([(torch.tensor([0]), None)], 0, self.mechanism, SeededNoise(1))
