"""Improved precision and recall (Kynkäänniemi et al., 2019): fidelity and diversity, told apart.

The manifold of a set is the union of balls about its features, each reaching to the k-th nearest other one.
Precision is the share of synthetic images on the manifold of the real ones, recall the other way round.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from dpsinkhorn.errors import EvaluationError

_CELLS = 2**24  # distances at a time


@dataclass(frozen=True)
class PrecisionRecall:
    """Shares from 0 to 1."""

    precision: float
    recall: float
    neighbours: int

    def to_json(self) -> dict[str, float | int]:
        """Plain values."""
        return asdict(self)


def precision_recall(real: Tensor, synthetic: Tensor, *, neighbours: int = 3) -> PrecisionRecall:
    """Precision and recall of synthetic features (n, d) with regard to real ones (m, d).

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
    return PrecisionRecall(_share(found), _share(torch.cat(covered)), neighbours)


def _radii(points: Tensor, neighbours: int) -> Tensor:
    """Squared distance of each point to its k-th nearest other one."""
    radii = []
    for start, squares in _squared_distances(points, points):
        rows = torch.arange(len(squares), device=points.device)
        squares[rows, start + rows] = torch.inf  # a point is no neighbour of itself
        radii.append(squares.kthvalue(neighbours, dim=1).values)
    return torch.cat(radii)


def _share(which: Tensor) -> float:
    return float(which.double().mean())


def _squared_distances(x: Tensor, y: Tensor) -> Iterator[tuple[int, Tensor]]:
    squares = y.square().sum(1)
    step = max(1, _CELLS // len(y))
    for start in range(0, len(x), step):
        part = x[start : start + step]
        yield start, (part.square().sum(1, keepdim=True) + squares - 2 * part @ y.T).clamp_(min=0)
