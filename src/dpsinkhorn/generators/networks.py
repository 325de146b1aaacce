"""The networks: fully connected, the papers' convolutional one, and a residual one as in BigGAN."""

from __future__ import annotations

import math
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.parametrizations import spectral_norm

from dpsinkhorn.generators.base import Generator, activation
from dpsinkhorn.generators.configs import BigGANConfig, DCGANConfig, MLPConfig
from dpsinkhorn.kernels.last_layer import fused_last, last_supported
from dpsinkhorn.kernels.launch import available
from dpsinkhorn.kernels.norm import fused_norm, supported

_ALIGNED = 16  # columns of a product that a GPU takes well come in multiples of this


class MLP(Generator, makes=MLPConfig):
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


class DCGAN(Generator, makes=DCGANConfig):
    """Four transposed convolutions; see `DCGANConfig` for the shapes.

    Without BatchNorm nothing else keeps the scale of the signal from layer to layer, and PyTorch's own
    initial weights, meant for other shapes, would start at an almost constant image: then the weights are
    drawn so that the scale is kept.
    """

    def __init__(self, config: DCGANConfig) -> None:
        super().__init__(config)
        self.layers = nn.Sequential()
        self._slope = getattr(activation(config.activation), "negative_slope", 0.0)
        before = config.inputs
        # kernel, stride, padding of each layer; the first has no padding and makes the start size
        shapes: list[tuple[int | tuple[int, int], int, int]] = [
            (config.start, 1, 0),
            (4, 2, 1),
            (4, 2, 1),
            (3, 1, 1),
        ]
        for index, (after, (kernel, stride, padding)) in enumerate(zip(config.channels, shapes, strict=True)):
            last = index == len(shapes) - 1
            normed = config.batch_norm and not last
            layer = nn.ConvTranspose2d(before, after, kernel, stride, padding, bias=not normed)
            self.layers.append(layer)
            if normed:
                self.layers.append(nn.BatchNorm2d(after))
            elif not config.batch_norm:
                _keep_scale(layer, first=index == 0)
            if not last:
                self.layers.append(activation(config.activation))
            before = after

    @property
    def products(self) -> list[str]:
        layers = self.layers.named_children()
        return [f"layers.{name}.weight" for name, layer in layers if isinstance(layer, nn.ConvTranspose2d)]

    def finished(self, inputs: Tensor) -> Tensor:
        images = self._hidden(inputs)
        layer = cast(nn.ConvTranspose2d, self.layers[-1])
        if _fused_last(images, layer):
            return fused_last(images, layer, self.config.image_shape[1:]).to(inputs.dtype)
        return self._cropped_tanh(self._last(images), inputs.dtype)

    def render(self, inputs: Tensor) -> Tensor:
        return self._last(self._hidden(inputs))

    def _hidden(self, inputs: Tensor) -> Tensor:
        """Return what goes into the last layer."""
        images = self._first(inputs)
        layers = iter(list(self.layers)[1:-1])
        for layer in layers:
            if isinstance(layer, nn.BatchNorm2d) and _fused(images, layer):
                images = fused_norm(images, layer, self._slope)
                next(layers)  # the activation is in it
            else:
                images = layer(images)
        return images

    def _first(self, inputs: Tensor) -> Tensor:
        """Apply the first layer, whose input is one pixel, as a matrix product: far faster on a GPU."""
        layer = cast(nn.ConvTranspose2d, self.layers[0])
        channels, height, width = layer.out_channels, *layer.kernel_size
        matrix = layer.weight.permute(0, 2, 3, 1).flatten(1)  # channels last, as later layers like it
        images = (inputs @ matrix).view(-1, height, width, channels).permute(0, 3, 1, 2)
        return images if layer.bias is None else images + layer.bias[:, None, None]

    def _last(self, images: Tensor) -> Tensor:
        """Apply the last layer. On a GPU a product and a sum of shifted images is faster."""
        layer = cast(nn.ConvTranspose2d, self.layers[-1])
        if not images.is_cuda:
            return cast(Tensor, layer(images))
        return self._last_as_product(images, layer)

    def _last_as_product(self, images: Tensor, layer: nn.ConvTranspose2d) -> Tensor:
        taps = layer.weight.flatten(1)
        taps = functional.pad(taps, (0, -taps.shape[1] % _ALIGNED))
        columns = images.permute(0, 2, 3, 1) @ taps
        summed = cast(Tensor, _Fold.apply(columns, layer.out_channels))  # type: ignore[no-untyped-call]
        return summed if layer.bias is None else summed + layer.bias[:, None, None]


class _Fold(torch.autograd.Function):
    """The sum of shifted images that a 3 x 3 transposed convolution ends in, as `functional.fold`.

    The backward of that one goes through images one by one. Columns ``(n, height, width, channels x 9 and
    more)``; what is more is padding.
    """

    @staticmethod
    def forward(ctx: Any, columns: Tensor, channels: int) -> Tensor:
        ctx.columns, ctx.kind = columns.shape, columns.dtype
        size = columns.shape[1:3]
        rows = columns[..., : 9 * channels].flatten(1, 2).mT.float()
        return functional.fold(rows, size, 3, padding=1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (gradient,) = gradients
        channels = gradient.shape[1]
        patches = functional.pad(gradient, (1, 1, 1, 1)).unfold(2, 3, 1).unfold(3, 3, 1)
        out = torch.zeros(ctx.columns, dtype=ctx.kind, device=gradient.device)
        out[..., : 9 * channels].view(*ctx.columns[:3], channels, 3, 3).copy_(
            patches.permute(0, 2, 3, 1, 4, 5)
        )
        return out, None


def _fused(images: Tensor, norm: nn.BatchNorm2d) -> bool:
    return available(images.device) and supported(images, norm)


def _fused_last(images: Tensor, layer: nn.ConvTranspose2d) -> bool:
    reduced = images.dtype == torch.bfloat16  # in float32 the product of the library is faster
    return reduced and available(images.device) and last_supported(images, layer)


def _keep_scale(layer: nn.ConvTranspose2d, *, first: bool) -> None:
    """Draw normal weights whose variance is 2 over the number of inputs that meet in one output."""
    taps = 1.0 if first else math.prod(layer.kernel_size) / math.prod(layer.stride)
    nn.init.normal_(layer.weight, std=math.sqrt(2 / (layer.in_channels * taps)))
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)


class BigGAN(Generator, makes=BigGANConfig):
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
