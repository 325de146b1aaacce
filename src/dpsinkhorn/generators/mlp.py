"""A fully connected generator for small images."""

from __future__ import annotations

from torch import Tensor, nn

from dpsinkhorn.generators.base import Generator, activation
from dpsinkhorn.generators.configs import MLPConfig

__all__ = ["MLP"]


class MLP(Generator):
    """Linear layers with BatchNorm and an activation in between; see `MLPConfig`."""

    def __init__(self, config: MLPConfig) -> None:
        super().__init__(config)
        self.layers = nn.Sequential()
        before = config.inputs
        for size in config.hidden:
            self.layers.append(nn.Linear(before, size, bias=not config.batch_norm))
            if config.batch_norm:
                self.layers.append(nn.BatchNorm1d(size))
            self.layers.append(activation(config.activation))
            before = size
        self.layers.append(nn.Linear(before, config.points))

    def render(self, inputs: Tensor) -> Tensor:
        images: Tensor = self.layers(inputs)
        return images.view(-1, *self.config.image_shape)
