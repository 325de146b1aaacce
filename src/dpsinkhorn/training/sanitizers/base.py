"""What a sanitizer is: it turns a private sample into a gradient that may be used freely."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dpsinkhorn.privacy.mechanisms import Mechanism
from dpsinkhorn.privacy.noise import NoiseSource
from dpsinkhorn.training.sanitizers.fixed import FixedStep, Setting


@dataclass(frozen=True, eq=False)
class Sample:
    """A Poisson sample of the private records.

    Attributes:
        points: ``(b, d)``, images flattened, in [-1, 1]; ``b`` may be 0.
        labels: ``(b,)``, whole numbers; ``None`` where there are no classes.
        groups: ``(b,)``, whole numbers: rows of one person share a number, and the sample holds all of a
            person's rows or none. ``None``: every row is a unit of privacy by itself.
    """

    points: Tensor
    labels: Tensor | None = None
    groups: Tensor | None = None


class Sanitizer(ABC):
    """Where the privacy barrier stands.

    ``backward`` alone sees private records, and hands on nothing of them but a noised gradient. Its
    ``mechanism`` says what a step costs: ``mechanism.sampled(rate, steps)``. Number and shapes of all
    outputs, and what is drawn from ``noise``, do not depend on the realised sample; an empty one is an
    ordinary step.
    """

    mechanism: Mechanism
    #: Whether the gradient of the resampled images is used; if not, they can be generated without a graph.
    resampled_learn: bool = True

    @abstractmethod
    def resampled(self, generated: int) -> int:
        """n': how many images a step generates beyond the ``generated`` ones of the cross term."""

    @abstractmethod
    def backward(
        self,
        points: Tensor,
        labels: Tensor | None,
        sample: Sample,
        parameters: Sequence[nn.Parameter],
        noise: NoiseSource,
    ) -> None:
        """Set ``.grad`` of the generator's parameters to the sanitized gradient.

        Args:
            points: ``(n + n', d)`` generated images, attached to the generator's graph.
            labels: ``(n + n',)`` their classes; the resampled images repeat the first n'.
            sample: the private records of this step.
            parameters: of the generator.
            noise: where all noise is drawn from.
        """

    def fixed(self, setting: Setting) -> FixedStep | None:  # noqa: ARG002
        """The same step in shapes that never change, for a captured graph; ``None`` where there is none."""
        return None


def tidy(points: Tensor) -> Tensor:
    """Points with NaN set to 0 and everything else brought into [-1, 1], detached, in float64.

    Data are in that range already; this is for those that are not, so that no record can do more than any
    other.

    >>> tidy(torch.tensor([0.5, float("nan"), 1e9]))
    tensor([0.5000, 0.0000, 1.0000], dtype=torch.float64)
    """
    return torch.nan_to_num(points.detach(), nan=0.0).clamp_(-1, 1).double()


def backpropagate(points: Tensor, gradient: Tensor, parameters: Sequence[nn.Parameter]) -> None:
    """Set ``.grad`` of the parameters, given the gradient in the points. What was there is replaced."""
    for parameter, value in zip(parameters, pulled_back(points, gradient, parameters), strict=True):
        parameter.grad = value


def pulled_back(
    points: Tensor, gradient: Tensor, parameters: Sequence[Tensor], *, keep_graph: bool = False
) -> tuple[Tensor, ...]:
    """The gradient in the parameters of a loss whose gradient in the points is ``gradient``."""
    parts = torch.autograd.grad(
        points,
        list(parameters),
        gradient.to(points.dtype),
        retain_graph=keep_graph,
        allow_unused=True,
        materialize_grads=True,
    )
    return tuple(parts)


def check_labels(points: Tensor, labels: Tensor | None, sample: Sample, classes: int) -> None:
    """One-line errors for what is wrong whatever the private records are."""
    if points.ndim != 2:
        raise ValueError(f"points: expected shape (n, d), got {tuple(points.shape)}")
    if sample.points.ndim != 2 or sample.points.shape[1] != points.shape[1]:
        raise ValueError(
            f"sample: expected points of dimension {points.shape[1]}, got shape {tuple(sample.points.shape)}"
        )
    if classes and (labels is None or sample.labels is None):
        raise ValueError(f"labels: missing, though there are {classes} classes")
    if classes and labels is not None and labels.shape != points.shape[:1]:
        raise ValueError(f"labels: expected shape ({len(points)},), got {tuple(labels.shape)}")
