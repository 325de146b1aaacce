"""A flow from noise to images, by a small U-Net that knows the class.

An image is where a point of normal noise z has got to at time 1 when it moves with velocity v(x, t). The
network learns v by flow matching: on the way x_t = (1 - t) z + t x from noise to an image x the velocity is
x - z.

Nothing in the network mixes images, and all of its parameters are weights and biases of convolutions and
linear layers: so `mechanisms.shared.record_gradients` can have each record's gradient by itself.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from dpsinkhorn.generators.base import Generator
from dpsinkhorn.generators.configs import FlowConfig
from dpsinkhorn.kernels.pixel_norm import normed_silu

_FREQUENCIES = 32  # of the time, from 1 to 1,000
_STEP = 2.0**-24  # uniform float32 numbers are whole multiples of it, 0 included, which no normal number has


class Flow(Generator, makes=FlowConfig):
    """Moves normal noise to images along the velocity that a U-Net gives; see `FlowConfig`."""

    config: FlowConfig

    def __init__(self, config: FlowConfig) -> None:
        super().__init__(config)
        self.network = Velocity(config)

    def images(self, latents: Tensor, labels: Tensor | None) -> Tensor:
        """Integrate from time 0 to 1 by Heun's method, with `evaluations` - 1 calls of the network.

        The last interval has Euler's alone: at time 1 no noise is left that would tell its velocity.
        """
        inside = latents.clamp(_STEP, 1 - _STEP)
        images = (math.sqrt(2) * torch.erfinv(2 * inside - 1)).view(-1, *self.config.image_shape)
        intervals = self.config.evaluations // 2
        length = 1 / intervals
        for interval in range(intervals):
            begin = images.new_full((images.shape[0],), interval * length)
            slope = self.network(images, begin, labels)
            if interval + 1 < intervals:
                ahead = self.network(images + length * slope, begin + length, labels)
                slope = (slope + ahead) / 2
            images = images + length * slope
        return images.clamp(-1, 1)


class Velocity(nn.Module):
    """The U-Net. It computes in the type of its weights, and takes and returns what the images are in."""

    def __init__(self, config: FlowConfig) -> None:
        super().__init__()
        channels, width = config.channels, 2 * config.channels
        pixels = 4 * config.image_shape[0]  # of a block of 2 x 2, which the network works on
        self.time = nn.Linear(2 * _FREQUENCIES, width)
        self.condition = nn.Linear(width, width)
        self.kinds = nn.Linear(max(1, config.classes), width, bias=False)
        nn.init.normal_(self.kinds.weight)  # as loud as the time from the start, or it is learnt last
        self.first = nn.Conv2d(pixels, channels, 3, padding=1)
        self.down = nn.ModuleList([_Block(channels, channels, width) for _ in range(2)])
        self.middle = nn.ModuleList(
            [_Block(channels, 2 * channels, width)]
            + [_Block(2 * channels, 2 * channels, width) for _ in range(2)]
        )
        self.up = nn.ModuleList(
            [_Block(3 * channels, channels, width), _Block(2 * channels, channels, width)]
        )
        self.last = nn.Conv2d(channels, pixels, 3, padding=1)
        _silence(self.last)
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(self, images: Tensor, times: Tensor, labels: Tensor | None) -> Tensor:
        """Return the velocity (n, channels, height, width) of points at times (n,), of classes (n,)."""
        height, width = images.shape[2:]
        blocks = functional.pixel_unshuffle(functional.pad(images, (0, -width % 4, 0, -height % 4)), 2)
        condition = self._condition(times, labels)
        fine = [self.first(blocks.to(condition.dtype))]
        for block in self.down:
            fine.append(block(fine[-1], condition))
        hidden = _halved(fine.pop())
        for block in self.middle:
            hidden = block(hidden, condition)
        hidden = _doubled(hidden)
        for block in self.up:
            hidden = block(torch.cat([hidden, fine.pop()], 1), condition)
        changed = functional.pixel_shuffle(self.last(normed_silu(hidden)), 2)
        return changed[:, :, :height, :width].to(images.dtype)

    def _condition(self, times: Tensor, labels: Tensor | None) -> Tensor:
        """Return what the blocks are told of time and class, (n, 2 channels)."""
        rates = torch.logspace(0, 3, _FREQUENCIES, device=times.device, dtype=times.dtype)
        angles = times.unsqueeze(1) * rates
        if labels is None:
            labels = torch.zeros(len(times), dtype=torch.int64, device=times.device)
        dtype = self.condition.weight.dtype
        classes = torch.arange(self.kinds.in_features, device=times.device)
        kinds = (labels.unsqueeze(1) == classes).to(dtype)  # one_hot would wait for the device
        moment = self.time(torch.cat([angles.sin(), angles.cos()], 1).to(dtype))
        told: Tensor = functional.silu(self.condition(functional.silu(moment))) + self.kinds(kinds)
        return told


class _Block(nn.Module):
    """Two convolutions with a shortcut; between them channels are scaled and shifted by the condition."""

    def __init__(self, before: int, after: int, condition: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(before, after, 3, padding=1)
        self.modulation = nn.Linear(condition, 2 * after)
        self.second = nn.Conv2d(after, after, 3, padding=1)
        self.shortcut = nn.Identity() if before == after else nn.Conv2d(before, after, 1)
        _silence(self.second)

    def forward(self, hidden: Tensor, condition: Tensor) -> Tensor:
        inner = normed_silu(self.first(normed_silu(hidden)), self.modulation(condition))
        changed: Tensor = self.second(inner) + self.shortcut(hidden)
        return changed


def _halved(hidden: Tensor) -> Tensor:
    """Return the means of blocks of 2 x 2 pixels: far faster than pooling where channels come last."""
    n, channels, height, width = hidden.shape
    blocks = hidden.permute(0, 2, 3, 1).reshape(n, height // 2, 2, width // 2, 2, channels)
    return blocks.mean((2, 4)).permute(0, 3, 1, 2)


def _doubled(hidden: Tensor) -> Tensor:
    """Return every pixel as a block of 2 x 2."""
    n, channels, height, width = hidden.shape
    pixels = hidden.permute(0, 2, 3, 1)[:, :, None, :, None]
    blocks = pixels.expand(n, height, 2, width, 2, channels)
    return blocks.reshape(n, 2 * height, 2 * width, channels).permute(0, 3, 1, 2)


def _silence(layer: nn.Conv2d) -> None:
    """Let a layer begin with an output of 0."""
    for parameter in layer.parameters():
        nn.init.zeros_(parameter)
