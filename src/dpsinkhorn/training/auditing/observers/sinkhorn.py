"""Who watches a training by `batch`, `image` or `parameter`: what a canary does is known by direction.

These clip a gradient that all records of a batch have brought about together. What one more record does to it
has no closed form; its share, as if the potentials did not move, is where it points.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dpsinkhorn.mechanisms.batch import Batch
from dpsinkhorn.mechanisms.image import Image
from dpsinkhorn.mechanisms.parameter import Parameter
from dpsinkhorn.mechanisms.shared.base import Parameters, Sample
from dpsinkhorn.mechanisms.shared.clipping import on_grid
from dpsinkhorn.mechanisms.shared.shares import pixel_cost
from dpsinkhorn.ot.divergence import split_generated
from dpsinkhorn.privacy.noise import NoiseSource
from dpsinkhorn.training.auditing.observers.evidence import GradientObserver, Units, rows_of, shares_of

_EXPECTED_FROM = 512  # records that the expected gradient is computed from
_NUMBERS = 2**22  # of shares at a time


class SinkhornObserver(GradientObserver):
    """Stands in the place of a barrier of the Sinkhorn loss, which does all the work, and looks on.

    The released gradient, less that of other records, is multiplied with each canary's
    share. For `parameter` both are compared as gradients of the parameters, through the generator.
    """

    watches = (Batch, Image, Parameter)

    def __init__(self, watched: Batch | Image | Parameter, canaries: Sample, others: Sample) -> None:
        assert canaries.groups is not None
        super().__init__(watched)
        self._cost = pixel_cost(watched.cost)
        self._others = _some(others)
        self._scores = torch.zeros(int(canaries.groups.max()) + 1, dtype=torch.float64)
        self._classes = [
            Units.of(canaries, rows_of(canaries.labels, kind, len(canaries.points)))
            for kind in range(max(1, watched.classes))
        ]

    def scores(self) -> Tensor:
        """Return a score for each canary from all steps so far."""
        return self._scores

    def gradient(self, points: Tensor, labels: Tensor | None, sample: Sample, noise: NoiseSource) -> Tensor:
        released: Tensor = self._watched.gradient(points, labels, sample, noise).to(points.dtype)
        expected = self._watched.clipped(points.detach(), labels, self._others)
        self._score(points, labels, released[: len(expected)].double() - expected)
        return released

    def backward(
        self,
        points: Tensor,
        labels: Tensor | None,
        sample: Sample,
        parameters: Parameters,
        noise: NoiseSource,
    ) -> None:
        """Take the step of `parameter`, and carry what was released beyond what was expected to the images.

        <Jᵀ s, r> = <s, J r>, where Jᵀ s is what a share s does there.
        """
        watched = self._watched
        if not isinstance(watched, Parameter):
            super().backward(points, labels, sample, parameters, noise)
            return
        probe = torch.zeros_like(points, requires_grad=True)
        pulled = torch.autograd.grad(
            points, list(parameters), probe, create_graph=True, allow_unused=True, materialize_grads=True
        )
        expected = watched.clipped(points, labels, self._others, parameters, keep_graph=True)
        watched.backward(points, labels, sample, parameters, noise)
        parts = torch.split(expected, [parameter.numel() for parameter in parameters])
        surprises = [
            (parameter.grad - part.view_as(parameter)).to(parameter.dtype)
            for parameter, part in zip(parameters, parts, strict=True)
            if parameter.grad is not None
        ]
        (carried,) = torch.autograd.grad(pulled, probe, surprises)
        self._score(points, labels, carried.double())

    def _score(self, points: Tensor, labels: Tensor | None, surprise: Tensor) -> None:
        n, _ = split_generated(len(points), self._watched.loss.debias)
        images = on_grid(points[:n].detach())
        for kind, (units, numbers) in enumerate(self._classes):
            rows = rows_of(None if labels is None else labels[:n], kind, n)
            if len(rows) and units.count:
                self._scores[numbers] += self._along(units, images[rows], surprise[rows].flatten())

    def _along(self, units: Units, x: Tensor, direction: Tensor) -> Tensor:
        """<share, direction> for each unit."""
        found = torch.zeros(units.count, dtype=torch.float64)
        for rows in torch.split(torch.arange(len(units.points)), max(1, _NUMBERS // x.numel())):
            each = Units(units.points[rows], torch.arange(len(rows)), len(rows))
            along = shares_of(each, x, self._cost, self._watched.loss.regularization) @ direction
            found.index_add_(0, units.owners[rows], along)
        return found


def _some(others: Sample) -> Sample:
    """Other records; where there are many, some of them."""
    step = -(-len(others.points) // _EXPECTED_FROM)
    return Sample(others.points[::step], None if others.labels is None else others.labels[::step])
