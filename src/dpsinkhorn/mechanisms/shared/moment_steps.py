"""Steps of `moments`: a mixture of Gaussians fitted by a few noised sums over all records.

Step 0 finds the classes' means, step 1 the covariance about them, over all classes, by which the means of
rare ones are shrunk. The steps that follow are of k-means, each from the noised sums of deviations from the
nearest centre; the last finds the covariance within components, class by class. From step 2 on deviations are
clipped in coordinates that the common covariance scales. All that a step leaves behind is in the generator's
own tensors, coordinates and radius are computed from these anew, and all of it is post-processing of noised
sums. That is computed on the CPU, wherever the sums come from: they are the same bits on every device, and so
is then what is learnt from them.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from dpsinkhorn.generators import Mixture
from dpsinkhorn.generators.mixture import bands
from dpsinkhorn.mechanisms.moments import COUNT_SENSITIVITY, DEVIATION_SENSITIVITY, Moments, Squares, Sums
from dpsinkhorn.mechanisms.shared.steps import AllRecords, Learner, Steps

_MEANS_RADIUS = 1.75  # images lie this much farther from black than from their class's mean
_SPREAD = 0.5  # of the first centres about the mean, in standard deviations
_PRIOR = 0.5  # variance of centres about the mean, as a part of that of images
_LEAST_SHARE = 0.1  # of records that a centre is divided by, as a part of an even share
_LEAST_WEIGHT = 0.01  # likewise: a component without records is hardly drawn, since its centre is noise
_RADIUS = 1.4  # in scaled coordinates, in root mean square norms
_MOST_SHARE = 100.0  # of a record's weight in one step and in another
_LEAST_WITHIN = 0.3  # of the variance that is left within components, as a part of all


class MomentSteps(Steps):
    """Takes the steps of a plan by `moments`, one after the other.

    Args:
        state: whose generator is a mixture.
        records: all of which every step reads.
        moments: the noised sums.
        horizon: steps after which the run ends; the last one is of another kind.
    """

    def __init__(self, state: Learner, records: AllRecords, moments: Moments, *, horizon: int) -> None:
        assert isinstance(state.generator, Mixture)
        self._state, self._records, self._moments, self._horizon = state, records, moments, horizon
        self._mixture = copy.deepcopy(state.generator).cpu()  # where all is computed
        self._sigma = moments.mechanism.noise_multiplier
        self._radius = moments.radius
        self._bands = bands(moments.config)

    def take(self, count: int) -> None:
        own = [parameter.detach() for parameter in self._mixture.parameters()]
        for _ in range(count):
            before = [parameter.detach().cpu().clone() for parameter in self._state.parameters]
            _copy(own, before)
            with torch.no_grad():
                self._step(self._state.step)
            # no gradients here: what each tensor was changed by stands in their place
            self._state.gradients = [now - then for now, then in zip(own, before, strict=True)]
            _copy([parameter.detach() for parameter in self._state.parameters], own)
            self._state.step += 1

    def _step(self, step: int) -> None:
        if step == 0:
            self._find_means()
        elif step == 1:
            self._find_common_covariance()
        elif step == self._horizon - 1:
            self._find_covariances()
        else:
            self._move_centres()

    def _find_means(self) -> None:
        mixture, radius = self._mixture, _MEANS_RADIUS * self._radius
        origin = torch.zeros_like(mixture.middles).unsqueeze(1)
        sums = self._deviations(origin, radius)
        least = max(1.0, 4 * COUNT_SENSITIVITY * self._sigma)  # of a count that is more than noise
        counts = sums.counts.clamp(min=least)
        middles = radius * sums.deviations[:, 0] / counts
        mixture.weights.copy_((counts / self.components).expand_as(mixture.weights))
        mixture.middles.copy_(middles)
        mixture.centres.copy_(middles.unsqueeze(1).expand_as(mixture.centres))
        mixture.factors.zero_()

    def _find_common_covariance(self) -> None:
        mixture, state = self._mixture, self._state
        middles = mixture.middles.unsqueeze(1)
        squares = self._squares(middles, self._radius, pooled=True)
        scale = self._radius**2 / float(self._counts_in(squares.counts).sum())
        noise = self._moments.square_sensitivity * self._sigma * scale
        values, vectors = torch.linalg.eigh(smoothed(squares.matrices[0] * scale, noise, self._bands))
        values = values.clamp(min=LEAST_VARIANCE)
        mixture.factors.copy_((vectors * values.sqrt()).expand_as(mixture.factors))
        middles = self._shrunk_means(values, vectors)
        mixture.middles.copy_(middles)
        mixture.centres.copy_(middles.unsqueeze(1).expand_as(mixture.centres))
        if self.components > 1:
            random = state.random
            draws = torch.randn(mixture.centres.shape, generator=random, device=random.device).cpu().double()
            mixture.centres.add_(_SPREAD * (draws * values.sqrt()) @ vectors.T)

    def _shrunk_means(self, values: Tensor, vectors: Tensor) -> Tensor:
        """The classes' means; those with more noise than in a class of average size shrunk towards all's."""
        means, counts = self._mixture.middles.double(), self._counts.unsqueeze(1)
        common = (counts * means).sum(0) / counts.sum()
        scale = DEVIATION_SENSITIVITY * _MEANS_RADIUS * self._radius * self._sigma
        excess = ((scale / counts).square() - (scale / counts.mean()).square()).clamp(min=0)
        shrunk: Tensor = (means - common) @ vectors * (values / (values + excess)) @ vectors.T
        return common + shrunk

    def _move_centres(self) -> None:
        mixture = self._mixture
        place = Coordinates.of(mixture.factors[0])
        radius = self._radius_in(place)
        sums = self._deviations(mixture.centres, radius / place.size, place.matrix)
        even = self._counts_in(sums.counts if self._moments.persons else None).unsqueeze(1) / self.components
        counts = torch.maximum(sums.counts, _LEAST_SHARE * even)
        found = self._from_middles(place) + radius * sums.deviations / counts.unsqueeze(-1)
        # shrunk towards the mean, direction by direction: by how much of what was found is noise
        prior = _PRIOR * place.variances
        noise = (DEVIATION_SENSITIVITY * radius * self._sigma / counts).square().unsqueeze(-1)
        moved = place.back(found * (prior / (prior + noise)))
        mixture.centres.copy_(mixture.middles.double().unsqueeze(1) + moved)
        held = torch.maximum(sums.counts, _LEAST_WEIGHT * even)
        mixture.weights.copy_(held * (self._counts / held.sum(1)).unsqueeze(1))

    def _find_covariances(self) -> None:
        mixture = self._mixture
        place = Coordinates.of(mixture.factors[0])
        radius = self._radius_in(place)
        released = self._squares(mixture.centres, radius / place.size, place.matrix, pooled=False)
        squares, counts = released.matrices * radius**2, self._counts_in(released.counts)
        noise = self._moments.square_sensitivity * self._sigma * radius**2
        total = float(counts.sum())
        # independent noise on as many sums as there are classes
        spread = noise * math.sqrt(len(squares)) / total
        common = smoothed(squares.sum(0) / total, spread, like_ranks(len(place.scales)))
        own = towards(squares / counts.view(-1, 1, 1), common, noise / counts)
        mixture.factors.copy_(place.back(root(own).mT).mT)

    def _deviations(self, centres: Tensor, radius: float, coordinates: Tensor | None = None) -> Sums:
        """Noised sums of deviations, on the CPU."""
        state = self._state
        sums = self._moments.deviations(
            self._records.every(), centres.to(state.device), radius, state.noise, coordinates=coordinates
        )
        return Sums(sums.deviations.cpu(), sums.counts.cpu())

    def _squares(
        self, centres: Tensor, radius: float, coordinates: Tensor | None = None, *, pooled: bool
    ) -> Squares:
        """Noised sums of squares, on the CPU."""
        state, places = self._state, centres.to(self._state.device)
        found = self._moments.squares(
            self._records.every(), places, radius, state.noise, pooled=pooled, coordinates=coordinates
        )
        return Squares(found.matrices.cpu(), None if found.counts is None else found.counts.cpu())

    def _radius_in(self, place: Coordinates) -> float:
        """Where deviations from centres are clipped in these coordinates."""
        total, within = float(place.variances.sum()), 1.0
        if self._state.step > 2:  # the first centres are drawn, so that they explain nothing
            lengths = self._from_middles(place).square().sum(-1)
            between = float((self._mixture.weights.double() * lengths).sum() / self._counts.sum())
            within = max(_LEAST_WITHIN, 1 - between / total)
        return _RADIUS * math.sqrt(total * within)

    def _from_middles(self, place: Coordinates) -> Tensor:
        """Centres' deviations from the mean of their class."""
        mixture = self._mixture
        return place.into(mixture.centres.double() - mixture.middles.double().unsqueeze(1))

    @property
    def components(self) -> int:
        """K."""
        return self._mixture.config.components

    @property
    def _counts(self) -> Tensor:
        """Records of each class, as released: what the components' weights add up to."""
        return self._mixture.weights.double().sum(1)

    def _counts_in(self, released: Tensor | None) -> Tensor:
        """Records of each class as they weigh in a step that released these counts of its own.

        Records of persons weigh less in one step than in another, by how much of a person was clipped away.
        """
        if released is None:
            return self._counts
        share = float(released.sum() / self._counts.sum())
        return self._counts * min(max(share, 1 / _MOST_SHARE), _MOST_SHARE)


def _copy(places: Iterable[Tensor], values: Iterable[Tensor]) -> None:
    for place, value in zip(places, values, strict=True):
        place.copy_(value)


_LITTLE = 1e-3  # in some direction, so that every number has all its digits


def exact_releases(moments: Moments, record: Tensor) -> dict[str, Callable[..., object]]:
    """Return both kinds of release, with centres as far from a record, (1, d), as any can be.

    Coordinates W are long, not finite, or along the line between record and centre.
    """
    config, draws = moments.config, torch.Generator().manual_seed(0)
    k = config.coefficients

    def drawn(*shape: int) -> Tensor:
        return torch.randn(shape, generator=draws, dtype=torch.float64)

    own = moments.coefficients(record)[0]
    opposite = _LITTLE * drawn(config.kinds, config.components, k) - own / own.norm()
    centres = 1e6 * opposite  # which is brought to where images are
    along = torch.zeros(k, k, dtype=torch.float64)
    along[0] = _LITTLE * drawn(k) - opposite[0, 0]
    turned = torch.linalg.qr(drawn(k, k))[0] / k**0.5
    broken, infinite = turned.clone(), turned.clone()
    broken[0, 0], infinite[0, 0] = torch.nan, torch.inf
    coordinates = {
        "none": None,
        "turned": turned,
        "along a record": along,
        "a thousand times too long": 1e3 * along,
        "beyond all numbers": 1e306 * turned,
        "one no number": broken,
        "one infinite": infinite,
    }
    kinds: dict[str, Callable[..., object]] = {
        "deviations": moments.deviations,
        "squares": partial(moments.squares, pooled=False),
    }
    return {
        f"{kind}, coordinates: {words}": partial(
            release, centres=centres, radius=moments.radius, coordinates=matrix
        )
        for words, matrix in coordinates.items()
        for kind, release in kinds.items()
    }


# ---- what is made of noised covariances: shrinking, square roots, coordinates

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
