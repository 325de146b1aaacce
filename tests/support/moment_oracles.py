"""A slow, obvious reference for `moments`: records one at a time, whole numbers where it must be exact.

Nothing here is shared with what is tested but the public grids, which the exact form takes as arguments.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import torch
from scipy.fft import dctn

from dpsinkhorn.generators import MixtureConfig
from dpsinkhorn.mechanisms.shared.base import Sample
from support.barriers import moments


def moments_of(
    image_shape=(1, 8, 8),
    classes=10,
    components=3,
    frequencies=6,
    *,
    clip=7.0,
    sigma=1.3,
    most=2**20,
    persons=False,
):
    config = MixtureConfig(
        image_shape=image_shape, classes=classes, components=components, frequencies=frequencies
    )
    return moments(config, clip, sigma, most, persons=persons)


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


def reference_of_persons(config, points, labels, groups, centres, radius, matrix=None):
    """Persons one at a time: all of theirs, shortened to norm √(1 + τ²) where it is longer.

    Sums and counts of deviations, then squares by class with their counts, and squares over all classes.
    """
    totals = [0.0] * 6
    for person in np.unique(groups):
        own = np.flatnonzero(groups == person)[:1024]
        kinds = None if labels is None else labels[own]
        sums, counts, squares = reference(config, points[own], kinds, centres, radius, matrix)
        many = counts.sum()
        if not many:
            continue
        releases = (
            (0.3, sums, counts),
            (0.1, squares, counts.sum(1)),
            (0.1, squares.sum(0, keepdims=True), np.array([many])),
        )
        for place, (weight, values, beside) in enumerate(releases):
            norm = np.sqrt((values**2).sum() + weight**2 * (beside**2).sum())
            scale = min(1.0, np.sqrt(1 + weight**2) / norm)
            totals[2 * place] += scale * values
            totals[2 * place + 1] += scale * beside
    return totals


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
    """The same records, some at a time; at least one part, perhaps empty.

    Persons come whole, and in the order of their numbers.
    """
    rows = torch.arange(len(sample.points))
    parts = rows.split(size) if len(rows) else (rows,)
    if sample.groups is not None:
        numbers = sample.groups.unique()
        persons = numbers.split(size) if len(numbers) else (numbers,)
        parts = [torch.isin(sample.groups, some).nonzero().flatten() for some in persons]
    return [
        Sample(
            *(None if part is None else part[own] for part in (sample.points, sample.labels, sample.groups))
        )
        for own in parts
    ]
