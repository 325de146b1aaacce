"""The Frechet distance between two sets of feature vectors, each taken for a Gaussian.

    d = |m_1 - m_2|^2 + tr S_1 + tr S_2 - 2 tr (S_1 S_2)^(1/2)

The last trace is the sum of the singular values of R_1^T R_2 for any S = R R^T. Roots R come from an
eigendecomposition without the directions that have no variance, so covariances of low rank (fewer images
than features) do no harm, and no square root is taken of what is rounding only.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from dpsinkhorn.errors import EvaluationError


@dataclass(frozen=True, eq=False)
class FeatureStatistics:
    """What the distance needs to know of a set of features."""

    count: int
    mean: NDArray[np.float64]  # (d,)
    covariance: NDArray[np.float64]  # (d, d), divided by count - 1 as is usual for this distance


def feature_statistics(features: ArrayLike | Tensor | Iterable[Tensor]) -> FeatureStatistics:
    """Mean and covariance, in float64, of features (n, d), or of such arrays in turn.

    >>> feature_statistics([[0.0, 1.0], [2.0, 1.0]]).covariance
    array([[2., 0.],
           [0., 0.]])
    """
    parts: Iterable[Tensor]
    if isinstance(features, Tensor):
        parts = [features]
    elif isinstance(features, (list, tuple, np.ndarray)):
        parts = [torch.from_numpy(np.array(features, dtype=np.float64))]
    else:
        parts = features  # type: ignore[assignment]
    count, mean, scatter = 0, None, None
    for part in parts:
        if part.ndim != 2:
            raise EvaluationError(f"features must be (n, d), not of shape {tuple(part.shape)}")
        if not len(part):
            continue
        values = part.double()
        own_mean = values.mean(0)
        own = values - own_mean
        own_scatter = own.T @ own
        if mean is None or scatter is None:
            count, mean, scatter = len(values), own_mean, own_scatter
            continue
        # two sets into one, without the cancellation of sums of squares
        step = own_mean - mean
        total = count + len(values)
        scatter = scatter + own_scatter + torch.outer(step, step) * (count * len(values) / total)
        mean = mean + step * (len(values) / total)
        count = total
    if mean is None or scatter is None or count < 2:
        raise EvaluationError("a Frechet distance needs two images at least on either side")
    if not bool(torch.isfinite(scatter).all()):
        raise EvaluationError("features hold numbers that are not finite")
    return FeatureStatistics(count, mean.cpu().numpy(), (scatter / (count - 1)).cpu().numpy())


def frechet_distance(first: FeatureStatistics, second: FeatureStatistics) -> float:
    """The (squared) Frechet distance, as FID has it.

    >>> one = FeatureStatistics(100, np.zeros(2), np.eye(2))
    >>> two = FeatureStatistics(100, np.array([3.0, 4.0]), 4 * np.eye(2))
    >>> round(frechet_distance(one, two), 12)  # 25 + 2 * (2 - 1)^2
    27.0
    """
    if first.mean.shape != second.mean.shape:
        raise EvaluationError(
            f"features of {first.mean.size} and of {second.mean.size} numbers cannot be compared"
        )
    shift = first.mean - second.mean
    overlap = np.linalg.svd(_root(first.covariance).T @ _root(second.covariance), compute_uv=False).sum()
    spread = np.trace(first.covariance) + np.trace(second.covariance) - 2 * overlap
    return max(float(shift @ shift + spread), 0.0)


def _root(covariance: NDArray[np.float64]) -> NDArray[np.float64]:
    """R (d, r) with R R^T the covariance and r its numerical rank, at least 1."""
    values, vectors = np.linalg.eigh(covariance)
    kept = values > values[-1] * len(values) * np.finfo(np.float64).eps
    kept[-1] = True
    root: NDArray[np.float64] = vectors[:, kept] * np.sqrt(np.maximum(values[kept], 0))
    return root
