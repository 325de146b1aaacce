"""How like real images the synthetic ones are: by a distance, and by precision and recall."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from dpsinkhorn.errors import EvaluationError
from dpsinkhorn.evaluation.features import FeatureNetwork

Progress = Callable[[str, float], object]
_CELLS = 2**24  # distances at a time


@dataclass(frozen=True)
class Likeness:
    """How like the real images the synthetic ones are, beside real images measured in the same way."""

    name: str
    """What the distance is called: `FID` only with Inception's standard weights."""
    features: str
    floor_from: str
    """Which real images are measured beside."""
    frechet: float | None = None
    """`None` where it was left out, and so for all that follow."""
    floor: float | None = None
    """The distance of real images to the test images: what a perfect generator would have."""
    diversity: PrecisionRecall | None = None
    real_diversity: PrecisionRecall | None = None
    """Precision and recall of those real images."""
    compared: int | None = None
    """Images on either side of precision and recall, of both kinds: with more of them manifolds shrink."""

    def to_json(self) -> dict[str, Any]:
        ours, real = self.diversity, self.real_diversity
        return {
            "name": self.name,
            "features": self.features,
            "frechet": self.frechet,
            "floor": self.floor,
            "floor_from": self.floor_from,
            "precision": None if ours is None else ours.precision,
            "recall": None if ours is None else ours.recall,
            "neighbours": None if ours is None else ours.neighbours,
            "real_precision": None if real is None else real.precision,
            "real_recall": None if real is None else real.recall,
            "compared": self.compared,
        }


def compare_images(
    network: FeatureNetwork,
    synthetic: Tensor,
    test: Tensor,
    training: Tensor | None,
    *,
    measures: Sequence[str] = ("frechet", "precision-recall"),
    compared: int = 10_000,
    progress: Progress = lambda *_: None,
) -> Likeness:
    """Distance, precision and recall of uint8 images (n, C, H, W) on one device, beside the real ones'."""
    if len(test) < 8:
        raise EvaluationError(f"{len(test)} real images are too few to measure anything by; give more")
    # a fixed order: a subset is a random one, and the same in every evaluation
    draws = torch.Generator().manual_seed(0)
    shuffled = test[torch.randperm(len(test), generator=draws).to(test.device)]
    if training is None:
        half = len(test) // 2
        others, reference = shuffled[:half], shuffled[half:]
        source = "one half of the test images against the other"
    else:
        chosen = torch.randperm(len(training), generator=draws)[: max(len(synthetic), 8)].to(training.device)
        others, reference = training[chosen], shuffled
        source = f"{len(others):,} training images against the test images"
    done, total = 0, len(synthetic) + len(others) + len(reference)

    def count(images: int) -> None:
        nonlocal done
        done += images
        progress("features", done / total)

    ours, theirs, floor = (network.features(images, count) for images in (synthetic, reference, others))
    likeness = Likeness(network.name, network.description, source)
    if "frechet" in measures:
        # where the real images are halves, the synthetic ones are held against both
        whole = theirs if training is not None else torch.cat([floor, theirs])
        likeness = replace(
            likeness,
            frechet=frechet_distance(feature_statistics(ours), feature_statistics(whole)),
            floor=frechet_distance(feature_statistics(floor), feature_statistics(theirs)),
        )
    if "precision-recall" in measures:
        # Balls shrink as points are added: as many on either side, and in either column, or recall would fall
        # with every synthetic image more. Images may come sorted, so these are chosen at random too.
        most = min(len(ours), len(floor), len(theirs), compared)
        some = ours[torch.randperm(len(ours), generator=draws)[:most].to(ours.device)]
        diversity = []
        for k, points in enumerate((some, floor[:most])):
            progress("precision-recall", k / 2)
            diversity.append(precision_recall(theirs[:most], points))
        likeness = replace(likeness, diversity=diversity[0], real_diversity=diversity[1], compared=most)
        progress("precision-recall", 1.0)
    return likeness


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
    if isinstance(features, Tensor):
        parts = [features]
    elif isinstance(features, (list, tuple, np.ndarray)):
        parts = [torch.from_numpy(np.array(features, dtype=np.float64))]
    else:
        parts = list(features)  # type: ignore[arg-type]
    for part in parts:
        if part.ndim != 2:
            raise EvaluationError(f"features must be (n, d), not of shape {tuple(part.shape)}")
    count = sum(map(len, parts))
    if count < 2:
        raise EvaluationError("a Frechet distance needs two images at least on either side")
    values = torch.cat([part.double() for part in parts])
    covariance = torch.cov(values.T).reshape(values.shape[1], -1)
    if not bool(torch.isfinite(covariance).all()):
        raise EvaluationError("features hold numbers that are not finite")
    return FeatureStatistics(count, values.mean(0).cpu().numpy(), covariance.cpu().numpy())


def frechet_distance(first: FeatureStatistics, second: FeatureStatistics) -> float:
    """The (squared) Frechet distance, as FID has it: of sets of features, each taken for a Gaussian.

        d = |m_1 - m_2|^2 + tr S_1 + tr S_2 - 2 tr (S_1 S_2)^(1/2)

    The last trace is the sum of the singular values of R_1^T R_2 for any S = R R^T. Roots R come from an
    eigendecomposition without the directions that have no variance, so covariances of low rank (fewer images
    than features) do no harm, and no square root is taken of what is rounding only.

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


@dataclass(frozen=True)
class PrecisionRecall:
    """Shares from 0 to 1."""

    precision: float
    recall: float
    neighbours: int


def precision_recall(real: Tensor, synthetic: Tensor, *, neighbours: int = 3) -> PrecisionRecall:
    """Precision and recall (Kynkäänniemi et al., 2019) of synthetic features (n, d) beside real ones (m, d).

    The manifold of a set is the union of balls about its features, each reaching to the k-th nearest other
    one. Precision is the share of synthetic images on the manifold of the real ones, recall the opposite.

    >>> real = torch.arange(10.0)[:, None]
    >>> precision_recall(real, torch.tensor([[0.4], [1.4], [2.4], [3.4]]), neighbours=1)
    PrecisionRecall(precision=1.0, recall=0.5, neighbours=1)
    """
    if real.ndim != 2 or synthetic.ndim != 2 or real.shape[1] != synthetic.shape[1]:
        raise EvaluationError("features must be (n, d) with the same d on both sides")
    if neighbours < 1 or min(len(real), len(synthetic)) <= neighbours:
        raise EvaluationError(
            f"{neighbours} neighbours need {neighbours + 1} images at least on either side, "
            f"not {len(real)} and {len(synthetic)}"
        )
    # distances by products of matrices: float64, and centred, else they cancel
    centre = real.double().mean(0)
    x, y = real.double() - centre, synthetic.double() - centre
    radii_x, radii_y = _radii(x, neighbours), _radii(y, neighbours)
    found, covered = torch.zeros_like(radii_y, dtype=torch.bool), []  # each row and column near enough
    for start, squares in _squared_distances(x, y):
        covered.append((squares <= radii_y).any(1))
        found |= (squares <= radii_x[start : start + len(squares), None]).any(0)
    precision, recall = (float(which.double().mean()) for which in (found, torch.cat(covered)))
    return PrecisionRecall(precision, recall, neighbours)


def _radii(points: Tensor, neighbours: int) -> Tensor:
    """Squared distance of each point to its k-th nearest other one."""
    radii = []
    for start, squares in _squared_distances(points, points):
        rows = torch.arange(len(squares), device=points.device)
        squares[rows, start + rows] = torch.inf  # a point is no neighbour of itself
        radii.append(squares.kthvalue(neighbours, dim=1).values)
    return torch.cat(radii)


def _squared_distances(x: Tensor, y: Tensor) -> Iterator[tuple[int, Tensor]]:
    squares = y.square().sum(1)
    step = max(1, _CELLS // len(y))
    for start in range(0, len(x), step):
        part = x[start : start + step]
        yield start, (part.square().sum(1, keepdim=True) + squares - 2 * part @ y.T).clamp_(min=0)
