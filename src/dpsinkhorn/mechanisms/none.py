"""Training without privacy, on the same loss: what the private runs are compared with."""

from __future__ import annotations

from torch import Tensor

from dpsinkhorn.mechanisms.shared.base import Sample
from dpsinkhorn.mechanisms.shared.sinkhorn import RowGradients
from dpsinkhorn.mechanisms.shared.terms import Terms
from dpsinkhorn.privacy.charges import NonPrivate
from dpsinkhorn.privacy.noise import NoiseSource


class NoPrivacy(RowGradients):
    """The gradient of Eq. 6 as it is: not clipped, no noise, no protection."""

    name = "none"
    summary = "nothing is clipped, no noise is added"
    recipe = "paper-final-mnist-nonprivate"
    private = False

    @classmethod
    def releases(cls, terms: Terms) -> NonPrivate:  # noqa: ARG003
        return NonPrivate()

    def clipped(self, points: Tensor, labels: Tensor | None, sample: Sample) -> Tensor:
        return self._gradient(points, labels, sample)

    def _released(
        self,
        gradient: Tensor,
        noise: NoiseSource | None = None,  # noqa: ARG002
        cells: Tensor | None = None,  # noqa: ARG002
    ) -> Tensor:
        return gradient
