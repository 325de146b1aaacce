"""Defects of `moments`, to be planted one at a time."""

from __future__ import annotations

import math

import pytest
import torch

from dpsinkhorn.mechanisms import moments
from dpsinkhorn.mechanisms.moments import Moments
from dpsinkhorn.mechanisms.shared import base
from dpsinkhorn.mechanisms.shared.moment_steps import MomentSteps
from support.defects import wrap


def without_noise(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(base, "add_gaussian", lambda values, **_: values)


def little_noise_above_the_diagonal(patch: pytest.MonkeyPatch) -> None:
    """As if entries above the diagonal moved by a half at most."""

    def noised(real, self, values, noise, *, times, **rest):
        return real(self, values, noise, times=0.5 if times == math.sqrt(0.5) else times, **rest)

    wrap(patch, Moments, "noised", noised)


def true_counts(patch: pytest.MonkeyPatch) -> None:
    """Sums are noised, the numbers of records beside them are not."""

    def noised(real, self, values, noise, *, times, **rest):
        counts = times == moments.COUNT_SENSITIVITY
        return values if counts else real(self, values, noise, times=times, **rest)

    wrap(patch, Moments, "noised", noised)


def deviations_as_if_alone(patch: pytest.MonkeyPatch) -> None:
    """As if there were no counts beside the deviations: a sensitivity of 1."""
    patch.setattr(moments, "DEVIATION_SENSITIVITY", 1.0)


def counts_as_heavy_as_deviations(patch: pytest.MonkeyPatch) -> None:
    """Noise on counts that is not divided by their weight."""
    patch.setattr(moments, "COUNT_SENSITIVITY", moments.DEVIATION_SENSITIVITY)


def coordinates_off_the_grid(patch: pytest.MonkeyPatch) -> None:
    """W with all its digits: sums in W v depend on their order."""
    patch.setattr(moments, "_MAP_BITS", 60)


def too_many_digits_in_coordinates(patch: pytest.MonkeyPatch) -> None:
    """Two more than leave room for W v in float64."""
    patch.setattr(moments, "_MAP_BITS", 28)


def scaled_deviations_off_the_grid(patch: pytest.MonkeyPatch) -> None:
    """W v with all its digits: its length depends on the order of a sum."""

    class OfMatrix(torch.Tensor):
        """W, and what it is multiplied with."""

    def rounded(real, values, bits):
        return values.as_subclass(torch.Tensor) if isinstance(values, OfMatrix) else real(values, bits)

    wrap(patch, Moments, "_matrix", lambda real, *given: real(*given).as_subclass(OfMatrix))
    wrap(patch, moments, "_rounded", rounded)


def long_coordinates(patch: pytest.MonkeyPatch) -> None:
    """W of any length: W v has more digits than float64."""

    def matrix(_self, w):
        return moments._rounded(w.cpu().double().nan_to_num(0.0, 0.0, 0.0), moments._MAP_BITS)

    patch.setattr(Moments, "_matrix", matrix)


def coordinates_that_are_not_finite(patch: pytest.MonkeyPatch) -> None:
    wrap(patch, Moments, "_matrix", lambda real, self, w: torch.where(w.isfinite(), real(self, w), w))


def without_clipping(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Moments, "_clipped", lambda _self, vectors, radius: moments._rounded(vectors / radius, 16))


def clipped_by_coordinate(patch: pytest.MonkeyPatch) -> None:
    def clipped(real, self, vectors, radius):
        return real(self, vectors.reshape(-1, 1), radius).view_as(vectors)

    wrap(patch, Moments, "_clipped", clipped)


def off_the_grid(patch: pytest.MonkeyPatch) -> None:
    """Coefficients and centres with all their digits: sums depend on their order, and so do choices."""
    patch.setattr(moments, "_rounded", lambda values, _bits: values)


def true_normaliser(patch: pytest.MonkeyPatch) -> None:
    """Means over the true number of records."""

    def find_means(real, self):
        real(self)
        self._mixture.middles.mul_(100 / _records(self))

    wrap(patch, MomentSteps, "_find_means", find_means)


def records_in_a_radius(patch: pytest.MonkeyPatch) -> None:
    """Where deviations are clipped depends on the true number of records, a little."""

    def radius(real, self, place):
        return real(self, place) * (1 + 1e-9 * _records(self))

    wrap(patch, MomentSteps, "_radius_in", radius)


def _records(steps: MomentSteps) -> int:
    return sum(len(sample.points) for sample in steps._records.every())
