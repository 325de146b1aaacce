"""What sampling adds to images: small random changes by public numbers. Nothing of it is learned."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from dpsinkhorn import _checks
from dpsinkhorn.errors import GeneratorError

_CELL = 7  # pixels between the points of the grid that a displacement is drawn on


@dataclass(frozen=True)
class Variation:
    """Random changes to every image, drawn for each anew.

    A generator's images are smoother than real ones and vary less, and classifiers that never saw anything
    else stumble over both. All of it is public, so it costs no privacy.

    Args:
        warp: standard deviation, in pixels, of a smooth random displacement.
        sharpen: largest strength of sharpening (unsharp masking); each image's is uniform up to it.
        grain: largest standard deviation of white noise on pixels in [-1, 1]; each image's is uniform up to
            it.

    >>> images = torch.zeros(2, 1, 28, 28)
    >>> Variation(grain=0.2)(images, torch.Generator().manual_seed(0)).std() > 0
    tensor(True)
    >>> torch.equal(Variation()(images, torch.Generator()), images)
    True
    """

    warp: float = 0.0
    sharpen: float = 0.0
    grain: float = 0.0

    def __post_init__(self) -> None:
        for name, most in (("warp", 8), ("sharpen", 16), ("grain", 1)):
            _checks.number(getattr(self, name), name, GeneratorError, least=0, most=most)

    def __bool__(self) -> bool:
        return bool(self.values)

    @property
    def values(self) -> dict[str, float]:
        return {name: value for name, value in vars(self).items() if value}

    def __call__(self, images: Tensor, random: torch.Generator) -> Tensor:
        """Change images, (n, channels, height, width) in [-1, 1]; grain can take them out of that range."""
        if self.warp:
            images = _warped(images, self.warp, random)
        if self.sharpen:
            images = images + self._strengths(images, self.sharpen, random) * (images - _blurred(images))
            images = images.clamp(-1, 1)
        if self.grain:
            noise = torch.randn(images.shape, generator=random, device=images.device)
            images = images + self._strengths(images, self.grain, random) * noise
        return images

    @staticmethod
    def _strengths(images: Tensor, most: float, random: torch.Generator) -> Tensor:
        return most * torch.rand(len(images), 1, 1, 1, generator=random, device=images.device)


def _warped(images: Tensor, size: float, random: torch.Generator) -> Tensor:
    """Displace each image by a smooth field: normal numbers on a coarse grid, interpolated."""
    count, _, height, width = images.shape
    cells = [math.ceil(side / _CELL) + 1 for side in (height, width)]
    coarse = size * torch.randn(count, 2, *cells, generator=random, device=images.device)
    field = functional.interpolate(coarse, size=(height, width), mode="bicubic", align_corners=True)
    # from pixels to the units of grid_sample, in which an image reaches from -1 to 1
    scale = torch.tensor([2 / width, 2 / height], device=images.device)
    place = torch.eye(2, 3, device=images.device).expand(count, 2, 3)
    grid = functional.affine_grid(place, list(images.shape), align_corners=False)
    return functional.grid_sample(
        images, grid + field.permute(0, 2, 3, 1) * scale, padding_mode="border", align_corners=False
    )


def _blurred(images: Tensor) -> Tensor:
    """Blur images by the binomial kernel of 3 x 3."""
    channels = images.shape[1]
    line = torch.tensor([0.25, 0.5, 0.25], device=images.device)
    kernel = torch.outer(line, line).expand(channels, 1, 3, 3)
    padded = functional.pad(images, (1, 1, 1, 1), mode="replicate")
    return functional.conv2d(padded, kernel, groups=channels)
