"""A slow, obvious reference for `moments`: records one at a time, whole numbers where it must be exact.

Nothing here is shared with what is tested but the public grids, which the exact form takes as arguments.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import torch
from scipy.fft import dctn

from dpsinkhorn.generators import MixtureConfig
from dpsinkhorn.mechanisms.moments import Moments
from dpsinkhorn.mechanisms.shared.base import Sample
from dpsinkhorn.privacy import MomentsMechanism


def moments_of(
    image_shape=(1, 8, 8), classes=10, components=3, frequencies=6, *, clip=7.0, sigma=1.3, most=2**20
):
    config = MixtureConfig(
        image_shape=image_shape, classes=classes, components=components, frequencies=frequencies
    )
    return Moments(MomentsMechanism(clip, sigma), config, most)


def low_frequencies(config, points):
    """Coefficients (i, j) with i + j < m of every channel, by scipy's transform, ``(n, k)``."""
    channels, height, width = config.image_shape
    pixels = np.nan_to_num(np.asarray(points, dtype=np.float64), nan=0.0).clip(-1, 1) / 2 + 0.5
    found = []
    for image in pixels.reshape(len(points), channels, height, width):
        one = []
        for channel in image:
            spectrum = dctn(channel, norm="ortho")
            one += [spectrum[i, j] for i in range(height) for j in range(width) if i + j < config.frequencies]
        found.append(one)
    return np.array(found).reshape(len(points), config.coefficients)


def reference(config, points, labels, centres, radius, matrix=None):
    """Sums of clipped deviations over the radius, counts, and sums of their squares by class.

    With a matrix, of norm 1 at most, it is what that makes of deviations.
    """
    k = config.coefficients
    sums = np.zeros((config.kinds, centres.shape[1], k))
    counts = np.zeros((config.kinds, centres.shape[1]))
    squares = np.zeros((config.kinds, k, k))
    for row, value in enumerate(low_frequencies(config, points)):
        kind = 0 if labels is None else int(labels[row])
        if not 0 <= kind < config.kinds:
            continue
        nearest = int(np.argmin(((value - centres[kind]) ** 2).sum(1)))
        deviation = value - centres[kind, nearest]
        if matrix is not None:
            deviation = np.array([np.dot(row, deviation) for row in matrix])
        unit = deviation / max(radius, np.linalg.norm(deviation))
        sums[kind, nearest] += unit
        counts[kind, nearest] += 1
        squares[kind] += np.outer(unit, unit)
    return sums, counts, squares


def scaled_coordinates(covariance, centres, middles, weights, *, first=False):
    """Where k-means clips: the matrix v -> u (k, k), its inverse, the variances of u, the radius."""
    values, vectors = np.linalg.eigh(covariance)
    values = np.maximum(values, 1e-4)[::-1]
    scales = 1 / np.sqrt(np.sqrt(values + 0.01 * values.mean()))
    matrix = np.diag(scales) @ vectors[:, ::-1].T
    variances = scales**2 * values
    within, total = 1.0, variances.sum()
    if not first:
        between = 0.0
        for kind in range(len(centres)):
            for centre, weight in zip(centres[kind], weights[kind], strict=True):
                between += weight * ((matrix @ (centre - middles[kind])) ** 2).sum() / weights.sum()
        within = max(0.3, 1 - between / total)
    return matrix, np.linalg.inv(matrix), variances, 1.4 * np.sqrt(total * within)


def exact_norm(difference: torch.Tensor) -> Fraction:
    """The squared norm of a tensor, as a fraction."""
    return sum((Fraction(value) ** 2 for value in difference.flatten().tolist()), Fraction(0))


def in_chunks(sample: Sample, size: int) -> list[Sample]:
    """The same records, some at a time; at least one part, perhaps empty."""
    return [
        Sample(
            sample.points[at : at + size], None if sample.labels is None else sample.labels[at : at + size]
        )
        for at in range(0, max(1, len(sample.points)), size)
    ]
