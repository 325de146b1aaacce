"""BatchNorm's statistics from generated data alone."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from dpsinkhorn.generators.base import Generator

__all__ = ["recompute_batch_statistics"]


@torch.no_grad()
def recompute_batch_statistics(
    generator: Generator, draw: Callable[[], tuple[Tensor, Tensor | None]], batches: int = 30
) -> None:
    """Replace the running statistics of every BatchNorm by plain averages over freshly generated batches.

    What training left in them lags behind the weights, and does not belong to averaged (EMA) weights at
    all. Spectral normalisation settles on the present weights in the same passes. Weights, the training
    mode and the momenta are left as they were.

    Args:
        generator: Changed in place, its buffers only.
        draw: Gives the latents and the labels of one batch, on the generator's device; two rows or more.
        batches: How many batches are averaged.

    >>> from dpsinkhorn.generators import MLPConfig, build_generator, draw_latents
    >>> generator = build_generator(MLPConfig(image_shape=(1, 8, 8), classes=0))
    >>> recompute_batch_statistics(generator, lambda: (draw_latents(32, 12), None), batches=4)
    >>> generator.eval()(draw_latents(1, 12)).shape
    torch.Size([1, 1, 8, 8])
    """
    norms = [module for module in generator.modules() if isinstance(module, _BatchNorm)]
    momenta = [norm.momentum for norm in norms]
    modes = {module: module.training for module in generator.modules()}
    generator.train()
    try:
        for norm in norms:
            norm.reset_running_stats()
            norm.momentum = None  # PyTorch's word for a plain average over all batches
        for _ in range(batches):
            generator(*draw())
    finally:
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
        for module, training in modes.items():
            module.training = training
