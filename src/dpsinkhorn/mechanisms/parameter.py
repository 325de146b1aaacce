"""Mechanism `parameter`: the generator's whole parameter gradient is clipped and noised."""

from __future__ import annotations

import torch
from torch import Tensor

from dpsinkhorn.generators import CustomConfig
from dpsinkhorn.mechanisms.shared.base import Parameters, Sample, pulled_back
from dpsinkhorn.mechanisms.shared.clipping import clip_whole
from dpsinkhorn.mechanisms.shared.sinkhorn import SinkhornMechanism
from dpsinkhorn.mechanisms.shared.terms import Terms
from dpsinkhorn.privacy.charges import ParameterMechanism
from dpsinkhorn.privacy.noise import NoiseSource


class Parameter(SinkhornMechanism):
    """The gradient of Eq. 6 in all parameters together is clipped to Δ; noise 2Δσ. Accounted as `batch`."""

    name = "parameter"
    summary = "the gradient of the network's parameters is clipped, and noise is added to it"
    recipe = "paper-parameter"

    @classmethod
    def check(cls, terms: Terms) -> None:
        super().check(terms)
        if isinstance(terms.generator, CustomConfig):
            raise ValueError(
                f"the mechanism parameter cannot train {terms.generator.module}: gradients pass through the "
                "module before they are clipped and noised, and it could keep them; choose record, batch or "
                "image"
            )

    @classmethod
    def releases(cls, terms: Terms) -> ParameterMechanism:
        return ParameterMechanism(terms.clip, terms.noise_multiplier)

    def clipped(
        self,
        points: Tensor,
        labels: Tensor | None,
        sample: Sample,
        parameters: Parameters = (),
        *,
        keep_graph: bool = False,
    ) -> Tensor:
        """What is noised: all parameters' gradients in one vector, in float64; without any, the images'."""
        gradient = self._gradient(points, labels, sample)
        parts = pulled_back(points, gradient, parameters, keep_graph=keep_graph) if parameters else [gradient]
        return clip_whole(torch.cat([part.double().flatten() for part in parts]), self.mechanism.clip)

    def backward(
        self,
        points: Tensor,
        labels: Tensor | None,
        sample: Sample,
        parameters: Parameters,
        noise: NoiseSource,
    ) -> None:
        released = self.noised(self.clipped(points, labels, sample, parameters), noise)
        sizes = [parameter.numel() for parameter in parameters]
        for parameter, part in zip(parameters, torch.split(released, sizes), strict=True):
            parameter.grad = part.reshape(parameter.shape).to(parameter.dtype)
