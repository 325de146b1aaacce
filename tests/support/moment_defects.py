"""Defects of `moments`, to be planted one at a time."""

from __future__ import annotations

import pytest

from dpsinkhorn.mechanisms import moments
from dpsinkhorn.mechanisms.moments import Moments
from dpsinkhorn.mechanisms.shared.moment_steps import MomentSteps
from support.defects import rewrite


def without_noise(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(moments, "add_gaussian", lambda values, **_: values)


def little_noise_above_the_diagonal(patch: pytest.MonkeyPatch) -> None:
    """As if entries above the diagonal moved by a half at most."""
    rewrite(patch, Moments, "squares", "math.sqrt(0.5)", "0.5")


def true_counts(patch: pytest.MonkeyPatch) -> None:
    """Sums are noised, the numbers of records beside them are not."""
    rewrite(
        patch, Moments, "deviations", "self._noised(counts, COUNT_SENSITIVITY, numbers, noise)", "counts",
    )  # fmt: skip


def deviations_as_if_alone(patch: pytest.MonkeyPatch) -> None:
    """As if there were no counts beside the deviations: a sensitivity of 1."""
    rewrite(patch, Moments, "deviations", "DEVIATION_SENSITIVITY", "1.0")


def counts_as_heavy_as_deviations(patch: pytest.MonkeyPatch) -> None:
    """Noise on counts that is not divided by their weight."""
    rewrite(patch, Moments, "deviations", "COUNT_SENSITIVITY", "DEVIATION_SENSITIVITY")


def coordinates_off_the_grid(patch: pytest.MonkeyPatch) -> None:
    """W with all its digits: sums in W v depend on their order."""
    rewrite(
        patch, Moments, "_matrix", "_rounded(finite * (1 / norm).clamp_(max=1.0), _MAP_BITS)",
        "finite * (1 / norm).clamp_(max=1.0)",
    )  # fmt: skip


def too_many_digits_in_coordinates(patch: pytest.MonkeyPatch) -> None:
    """Two more than leave room for W v in float64."""
    patch.setattr(moments, "_MAP_BITS", 28)


def scaled_deviations_off_the_grid(patch: pytest.MonkeyPatch) -> None:
    """W v with all its digits: its length depends on the order of a sum."""
    product = "deviations @ matrix.T"
    rewrite(patch, Moments, "_units", f"_rounded({product}, self._bits)", product)


def long_coordinates(patch: pytest.MonkeyPatch) -> None:
    """W of any length: W v has more digits than float64."""
    rewrite(patch, Moments, "_matrix", "finite * (1 / norm).clamp_(max=1.0)", "finite")


def coordinates_that_are_not_finite(patch: pytest.MonkeyPatch) -> None:
    rewrite(
        patch, Moments, "_matrix",
        "torch.nan_to_num(coordinates.detach().cpu().double(), nan=0.0, posinf=0.0, neginf=0.0)",
        "coordinates.detach().cpu().double()",
    )  # fmt: skip


def without_clipping(patch: pytest.MonkeyPatch) -> None:
    rewrite(
        patch, Moments, "_clipped", "(self._bound / norms).clamp_(max=1 / radius)",
        "(norms * 0).add_(1 / radius)",
    )  # fmt: skip


def clipped_by_coordinate(patch: pytest.MonkeyPatch) -> None:
    rewrite(
        patch, Moments, "_clipped", "(deviations * deviations).sum(-1, keepdim=True).sqrt()",
        "deviations.abs()",
    )  # fmt: skip


def off_the_grid(patch: pytest.MonkeyPatch) -> None:
    """Coefficients and centres with all their digits: sums depend on their order, and so do choices."""
    patch.setattr(moments, "_rounded", lambda values, _bits: values)


def true_normaliser(patch: pytest.MonkeyPatch) -> None:
    """Means over the true number of records."""
    rewrite(
        patch, MomentSteps, "_find_means", "counts = sums.counts.clamp(min=least)",
        "counts = sums.counts.clamp(min=sum(len(s.points) for s in self._records.every()) / 10)",
    )  # fmt: skip


def records_in_a_radius(patch: pytest.MonkeyPatch) -> None:
    """Where deviations are clipped depends on the true number of records, a little."""
    rewrite(
        patch, MomentSteps, "_move_centres", "radius / place.size,",
        "radius / place.size * (1 + 1e-9 * sum(len(s.points) for s in self._records.every())),",
    )  # fmt: skip
