"""Training without privacy, on the same loss: what the private runs are compared with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from dpsinkhorn.ot import Cost
from dpsinkhorn.privacy.mechanisms import NonPrivate
from dpsinkhorn.privacy.noise import NoiseSource
from dpsinkhorn.training.sanitizers.base import Sample, backpropagate
from dpsinkhorn.training.sanitizers.gradients import SinkhornSanitizer


class NonPrivateSanitizer(SinkhornSanitizer):
    """The gradient of Eq. 6 as it is: not clipped, no noise, no protection. Settings are those of its base.

    >>> import torch
    >>> from dpsinkhorn.ot import SquaredEuclidean
    >>> from dpsinkhorn.privacy import SeededNoise
    >>> images = nn.Parameter(torch.rand(4, 2))
    >>> sanitizer = NonPrivateSanitizer(SquaredEuclidean(), regularization=0.05)
    >>> sanitizer.backward(images * 1, None, Sample(torch.rand(5, 2)), [images], SeededNoise(0))
    >>> images.grad.shape
    torch.Size([4, 2])
    """

    mechanism: NonPrivate

    def __init__(self, cost: Cost, regularization: float, *settings: Any, **more: Any) -> None:
        super().__init__(NonPrivate(), cost, regularization, *settings, **more)

    def backward(
        self,
        points: Tensor,
        labels: Tensor | None,
        sample: Sample,
        parameters: Sequence[nn.Parameter],
        noise: NoiseSource,  # noqa: ARG002
    ) -> None:
        backpropagate(points, self._gradient(points, labels, sample), parameters)
