"""A residual generator in the manner of BigGAN."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.parametrizations import spectral_norm

from dpsinkhorn.generators.base import Generator, activation
from dpsinkhorn.generators.configs import BigGANConfig

__all__ = ["BigGAN"]


class BigGAN(Generator):
    """Four residual blocks of depth 256 by default; see `BigGANConfig` for the shapes.

    In training mode every use of a layer moves its spectral normalisation by one power iteration; in eval
    mode the network is a fixed function.
    """

    def __init__(self, config: BigGANConfig) -> None:
        super().__init__(config)
        height, width = config.start
        self._start = (config.depth, height, width)
        self.first = spectral_norm(nn.Linear(config.inputs, config.depth * height * width))
        self.blocks = nn.ModuleList(
            _Block(config, index < config.upsamplings) for index in range(config.blocks)
        )
        self.norm = _norm(config)
        self.activation = activation(config.activation)
        self.last = spectral_norm(nn.Conv2d(config.depth, config.image_shape[0], 3, padding=1))

    def render(self, inputs: Tensor) -> Tensor:
        images: Tensor = self.first(inputs).view(-1, *self._start)
        for block in self.blocks:
            images = block(images)
        rendered: Tensor = self.last(self.activation(self.norm(images)))
        return rendered


class _Block(nn.Module):
    """Norm, activation and a 3 x 3 convolution, twice, beside a 1 x 1 convolution; before the first
    convolution the size may double."""

    def __init__(self, config: BigGANConfig, upsample: bool) -> None:
        super().__init__()
        depth = config.depth
        self._upsample = upsample
        self.norm1, self.norm2 = _norm(config), _norm(config)
        self.activation = activation(config.activation)
        self.conv1 = spectral_norm(nn.Conv2d(depth, depth, 3, padding=1))
        self.conv2 = spectral_norm(nn.Conv2d(depth, depth, 3, padding=1))
        self.shortcut = spectral_norm(nn.Conv2d(depth, depth, 1))

    def forward(self, images: Tensor) -> Tensor:
        hidden = self.conv1(self._grow(self.activation(self.norm1(images))))
        hidden = self.conv2(self.activation(self.norm2(hidden)))
        # a 1 x 1 convolution commutes with the doubling, and costs a quarter before it
        grown: Tensor = hidden + self._grow(self.shortcut(images))
        return grown

    def _grow(self, images: Tensor) -> Tensor:
        return functional.interpolate(images, scale_factor=2, mode="nearest") if self._upsample else images


def _norm(config: BigGANConfig) -> nn.Module:
    return nn.BatchNorm2d(config.depth) if config.batch_norm else nn.Identity()
