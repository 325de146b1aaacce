"""What is made of noised covariances: shrinking, square roots, coordinates. All of it is post-processing."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

LEAST_VARIANCE = 1e-4  # of a coefficient
_VARIANCE_PRIOR = 0.5  # squared spread of variances about the mean of those alike, relative to it
_COVARIANCE_PRIOR = 0.002  # mean square of correlations
_CLASS_PRIOR = 0.3  # variance of what a class's covariance has of its own, relative to the common one
_FLOOR = 0.01  # added to variances before they are scaled, as a part of their mean
_GROWTH = 1.45  # of groups of ranks
_LEAST_TRACE = 1e-3


@dataclass(frozen=True)
class Coordinates:
    """Where deviations v are clipped: u = w ∘ Vᵀv, with w = (λ + 0.01 mean λ)^(-1/4).

    Between v itself, whose noise drowns directions of small variance λ, and v of variance 1 everywhere, where
    these directions use up the radius.

    >>> place = Coordinates.of(torch.diag(torch.tensor([1.0, 4.0])))
    >>> place.back(place.into(torch.tensor([[3.0, -1.0]], dtype=torch.float64))).round()
    tensor([[ 3., -1.]], dtype=torch.float64)
    """

    scales: Tensor  # w, (k,)
    vectors: Tensor  # the columns of V, (k, k), of the largest variance first
    variances: Tensor  # of u, (k,)

    @classmethod
    def of(cls, factor: Tensor) -> Coordinates:
        """Of a covariance F Fᵀ, where F's columns are eigenvectors, of the smallest eigenvalue first."""
        columns = factor.detach().double().flip(1)
        values = columns.square().sum(0).clamp(min=LEAST_VARIANCE)
        # no sign of its own has an eigenvector: given one, noise in u is the same noise on every device
        order = torch.arange(1, len(columns) + 1).to(columns).sqrt()
        signs = torch.where(order @ columns < 0, -1.0, 1.0)
        vectors = columns * (signs / values.sqrt())
        scales = (values + _FLOOR * values.mean()) ** -0.25
        return cls(scales, vectors, scales.square() * values)

    @property
    def size(self) -> float:
        """The Frobenius norm of v -> u."""
        return float(self.scales.norm())

    @property
    def matrix(self) -> Tensor:
        """v -> u over `size`, (k, k): of norm 1."""
        return (self.vectors * self.scales).T / self.size

    def into(self, deviations: Tensor) -> Tensor:
        """u of v, in the last dimension."""
        return deviations @ self.vectors * self.scales

    def back(self, scaled: Tensor) -> Tensor:
        """v of u, in the last dimension."""
        return scaled / self.scales @ self.vectors.T


def like_ranks(count: int) -> Tensor:
    """Groups of ranks 0, 1, ... of growing size, (count,).

    >>> like_ranks(10).tolist()
    [0, 1, 2, 3, 4, 4, 5, 5, 5, 6]
    """
    ends = sorted({round(_GROWTH**power) for power in range(1, 40)})
    return torch.searchsorted(torch.tensor(ends), torch.arange(count), right=True)


def smoothed(covariance: Tensor, noise: float, groups: Tensor) -> Tensor:
    """A noised covariance of all classes, shrunk to what is likely of images.

    Variances are shrunk towards the mean of those of their group, covariances towards 0, each by how much of
    it is noise, of standard deviation `noise` on variances.
    """
    found = covariance.diagonal()
    # not by atomic additions, whose order on a GPU differs from run to run
    alike = (groups.unsqueeze(1) == groups).to(found)
    likely = ((alike * found).sum(1) / alike.sum(1)).clamp(min=LEAST_VARIANCE)
    prior = _VARIANCE_PRIOR * likely.square()
    variances = likely + prior / (prior + noise**2) * (found - likely)
    prior = _COVARIANCE_PRIOR * likely.unsqueeze(1) * likely
    return torch.diag(variances) + (prior / (prior + noise**2 / 2) * covariance).fill_diagonal_(0)


def towards(own: Tensor, common: Tensor, noise: Tensor) -> Tensor:
    """Classes' noised covariances, (classes, k, k), shrunk towards the common one, in the basis of that one.

    `noise` is the standard deviation of their variances, (classes,); that of covariances is less by √2.
    """
    values, vectors = torch.linalg.eigh(common)
    likely = values.clamp(min=LEAST_VARIANCE)
    prior = _CLASS_PRIOR * likely.unsqueeze(1) * likely
    middle = torch.diag(values)
    entries = 0.5 + 0.5 * torch.eye(len(values)).to(common)
    variance = noise.square().view(-1, 1, 1) * entries
    kept = prior / (prior + variance)
    shrunk: Tensor = vectors @ (middle + kept * (vectors.T @ own @ vectors - middle)) @ vectors.T
    return shrunk


def root(covariances: Tensor) -> Tensor:
    """F with F Fᵀ the nearest covariance of the same trace, (classes, k, k).

    Eigenvalues below 0 are cut, and what that adds to the trace is taken from all others alike.

    >>> found = root(torch.diag(torch.tensor([3.0, 2.0, -1.0])).unsqueeze(0))
    >>> (found @ found.mT).diagonal(dim1=1, dim2=2)
    tensor([[2.5000, 1.5000, 0.0000]])
    """
    values, vectors = torch.linalg.eigh(covariances)
    trace = values.sum(-1, keepdim=True).clamp(min=_LEAST_TRACE)
    largest = values.flip(-1)
    ranks = torch.arange(1, largest.shape[-1] + 1).to(values)
    over = (largest.cumsum(-1) - trace) / ranks
    last = (largest > over).sum(-1, keepdim=True).clamp(min=1) - 1
    kept = values - over.gather(-1, last).clamp(min=0)
    factors: Tensor = vectors * kept.clamp(min=0).sqrt().unsqueeze(-2)
    return factors
