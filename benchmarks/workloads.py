"""Point clouds for benchmarks, in the papers' regime: images with class labels, costs in the hundreds."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from dpsinkhorn.ot import with_labels

CLASSES, LABEL_WEIGHT = 10, 15.0


def images(count: int, seed: int, blur: float = 0.0) -> Tensor:
    """Digits at 28 x 28 in [-1, 1] with some noise, and their labels: ``(count, 794)``.

    ``blur`` mixes in the mean image, as a generator in training would.
    """
    from sklearn.datasets import load_digits

    generator = torch.Generator().manual_seed(seed)
    pixels, labels = (torch.as_tensor(array) for array in load_digits(return_X_y=True))
    index = torch.randint(0, len(pixels), (count,), generator=generator)
    small = pixels[index].float().view(-1, 1, 8, 8) / 16
    large = functional.interpolate(small, size=(28, 28), mode="bilinear").flatten(1) * 2 - 1
    large = (large + 0.1 * torch.randn(large.shape, generator=generator)).clamp(-1, 1)
    if blur:
        large = (1 - blur) * large + blur * large.mean(0)
    return with_labels(large, labels[index], CLASSES, LABEL_WEIGHT)


def synthetic_images(count: int, seed: int, device: str = "cpu") -> Tensor:
    """Smooth random images at 28 x 28 in [-1, 1], ``(count, 784)``: any number of them, no data needed."""
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.rand(count, 1, 5, 5, generator=generator).to(device)
    smooth = functional.interpolate(coarse, size=(28, 28), mode="bicubic").flatten(1)
    return (smooth * 4 - 2).clamp_(-1, 1)
