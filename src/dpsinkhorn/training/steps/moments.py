"""Steps of `moments`: a mixture of Gaussians fitted by a few noised sums over all records.

Step 0 finds the classes' means, step 1 the covariance about them, over all classes. The steps that follow are
of k-means, each from the noised sums of deviations from the nearest centre; the last finds the covariance
within components, class by class. All that a step leaves behind is in the generator's own tensors, and all of
it is post-processing of noised sums.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from dpsinkhorn.generators import Mixture
from dpsinkhorn.generators.mixture import bands
from dpsinkhorn.training.records import Drawable
from dpsinkhorn.training.sanitizers.moments import Moments
from dpsinkhorn.training.state import TrainingState

__all__ = ["MomentSteps"]

_MEANS_RADIUS = 1.75  # images lie this much farther from black than from their class's mean
_LEAST_VARIANCE = 1e-4  # of a coefficient
_VARIANCE_PRIOR = 0.5  # squared spread of variances about the mean of their band, relative to it
_COVARIANCE_PRIOR = 0.002  # mean square of correlations
_SPREAD = 0.5  # of the first centres about the mean, in standard deviations
_PRIOR = 0.5  # variance of centres about the mean, as a part of that of images
_LEAST_SHARE = 0.1  # of a component, as a part of an even share
_CLASS_PRIOR = 0.3  # variance of what a class's covariance has of its own, relative to the common one


class MomentSteps:
    """Takes the steps of a plan by `moments`, one after the other.

    Args:
        state: whose generator is a mixture.
        records: all of which every step reads.
        moments: the noised sums.
        horizon: steps after which the run ends; the last one is of another kind.
    """

    multiple = 1
    way = "one by one"

    def __init__(self, state: TrainingState, records: Drawable, moments: Moments, *, horizon: int) -> None:
        assert isinstance(state.generator, Mixture)
        self._state, self._records, self._moments, self._horizon = state, records, moments, horizon
        self._mixture = state.generator
        self._sigma = moments.mechanism.noise_multiplier
        self._radius = moments.radius
        self._bands = bands(moments.config)

    def take(self, count: int) -> None:
        """Take `count` steps."""
        for _ in range(count):
            before = [parameter.detach().clone() for parameter in self._state.parameters]
            with torch.no_grad():
                self._step(self._state.step)
            # no gradients here: what each tensor was changed by stands in their place
            self._state.gradients = [
                now.detach() - then for now, then in zip(self._state.parameters, before, strict=True)
            ]
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
        sums = self._moments.deviations(self._records.every(), origin, radius, self._state.noise)
        least = max(1.0, 4 * math.sqrt(2) * self._sigma)  # of a count that is more than noise
        counts = sums.counts.clamp(min=least)
        middles = radius * sums.deviations[:, 0] / counts
        mixture.weights.copy_((counts / self.components).expand_as(mixture.weights))
        mixture.middles.copy_(middles)
        mixture.centres.copy_(middles.unsqueeze(1).expand_as(mixture.centres))
        mixture.factors.zero_()

    def _find_common_covariance(self) -> None:
        mixture, state = self._mixture, self._state
        middles = mixture.middles.unsqueeze(1)
        squares = self._moments.squares(self._records.every(), middles, state.noise, pooled=True)[0]
        scale = self._radius**2 / float(self._counts.sum())
        values, vectors = torch.linalg.eigh(self._smoothed(squares * scale, self._sigma * scale))
        values = values.clamp(min=_LEAST_VARIANCE)
        mixture.factors.copy_((vectors * values.sqrt()).expand_as(mixture.factors))
        if self.components > 1:
            draws = torch.randn(mixture.centres.shape, generator=state.random, device=state.device).double()
            spread = _SPREAD * (draws * values.sqrt()) @ vectors.T
            mixture.centres.copy_(middles.double() + spread)

    def _move_centres(self) -> None:
        mixture = self._mixture
        centres, middles = mixture.centres.double(), mixture.middles.double().unsqueeze(1)
        sums = self._moments.deviations(self._records.every(), centres, self._radius, self._state.noise)
        even = self._counts.unsqueeze(1) / self.components
        counts = torch.maximum(sums.counts, _LEAST_SHARE * even)
        found = centres + self._radius * sums.deviations / counts.unsqueeze(-1) - middles
        # shrunk towards the mean, direction by direction: by how much of what was found is noise
        factor = mixture.factors[0].double()
        values, vectors = torch.linalg.eigh(factor @ factor.T)
        prior = _PRIOR * values.clamp(min=_LEAST_VARIANCE)
        noise = (math.sqrt(2) * self._radius * self._sigma / counts).square().unsqueeze(-1)
        moved = middles + (found @ vectors * (prior / (prior + noise))) @ vectors.T
        mixture.centres.copy_(moved)
        mixture.weights.copy_(counts * (self._counts / counts.sum(1)).unsqueeze(1))

    def _find_covariances(self) -> None:
        mixture = self._mixture
        squares = (
            self._moments.squares(self._records.every(), mixture.centres, self._state.noise, pooled=False)
            * self._radius**2
        )
        counts = self._counts.view(-1, 1, 1)
        # independent noise on as many sums as there are classes
        noise = self._sigma * math.sqrt(len(squares)) * self._radius**2 / float(counts.sum())
        common = self._smoothed(squares.sum(0) / counts.sum(), noise)
        # Every class's own, shrunk towards the common one entry by entry, in the basis of that one.
        values, vectors = torch.linalg.eigh(common)
        own = vectors.T @ (squares / counts) @ vectors
        likely = values.clamp(min=_LEAST_VARIANCE)
        prior = _CLASS_PRIOR * likely.unsqueeze(1) * likely
        variance = (self._radius**2 * self._sigma / counts).square()
        middle = torch.diag(values)
        shrunk = middle + prior / (prior + variance) * (own - middle)
        own_values, own_vectors = torch.linalg.eigh(shrunk)
        mixture.factors.copy_(vectors @ own_vectors * own_values.clamp(min=0).sqrt().unsqueeze(1))

    def _smoothed(self, covariance: Tensor, noise: float) -> Tensor:
        """A noised covariance of all classes, shrunk to what is likely of images.

        Variances are shrunk towards the mean of those of like frequency, covariances towards 0, each by how
        much of it is noise, of standard deviation `noise` on variances.
        """
        found = covariance.diagonal()
        # not by atomic additions, whose order on a GPU differs from run to run
        alike = (self._bands.unsqueeze(1) == self._bands).to(found)
        likely = ((alike * found).sum(1) / alike.sum(1)).clamp(min=_LEAST_VARIANCE)
        prior = _VARIANCE_PRIOR * likely.square()
        variances = likely + prior / (prior + noise**2) * (found - likely)
        prior = _COVARIANCE_PRIOR * likely.unsqueeze(1) * likely
        return torch.diag(variances) + (prior / (prior + noise**2 / 2) * covariance).fill_diagonal_(0)

    @property
    def components(self) -> int:
        """K."""
        return self._mixture.config.components

    @property
    def _counts(self) -> Tensor:
        """Records of each class, as released: what the components' weights add up to."""
        return self._mixture.weights.double().sum(1)
