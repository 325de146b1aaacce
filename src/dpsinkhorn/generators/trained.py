"""What is done with a trained generator: fresh statistics for BatchNorm, and a faster copy to sample with."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.utils import parametrize
from torch.nn.utils.fusion import fuse_conv_bn_eval, fuse_linear_bn_eval

from dpsinkhorn.generators.base import Generator


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
    ours = generator.module_class is None
    if ours and not norms and not any(map(parametrize.is_parametrized, generator.modules())):
        return  # nothing to settle, and some generators take long
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


@torch.no_grad()
def frozen_copy(generator: Generator) -> Generator:
    """Return a copy in eval mode without gradients, equal up to rounding.

    BatchNorm moves into the layer before it, spectral normalisation into its weights, and convolutions are
    laid out channels last, which is what CPUs and GPUs are quickest at. It lies on the CPU. Its state is not
    that of the config any more: it cannot be saved. Of a module of the user's own it is a plain copy.

    >>> from dpsinkhorn.generators import DCGANConfig, build_generator, draw_latents
    >>> generator = build_generator(DCGANConfig(image_shape=(1, 8, 8), classes=0, width=4), seed=0).eval()
    >>> latents = draw_latents(3, 12)
    >>> torch.allclose(frozen_copy(generator)(latents), generator(latents), atol=1e-5)
    True
    """
    if generator.module_class is not None:
        return copy.deepcopy(generator).eval().requires_grad_(False)
    # Built anew, not deep-copied: copies share PyTorch's classes of parametrised layers, and taking the
    # spectral norm off one would take it off the other.
    with torch.random.fork_rng(devices=[]):
        twin = type(generator)(generator.config)
    twin.load_state_dict(generator.state_dict())
    twin.eval()  # first: in training mode a spectral norm would take another step when it is taken off
    for module in list(twin.modules()):
        if parametrize.is_parametrized(module, "weight"):
            parametrize.remove_parametrizations(module, "weight")
    for name, module in list(twin.named_modules()):
        if isinstance(module, nn.Sequential):
            twin.set_submodule(name, _folded(module))
    return twin.requires_grad_(False).to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


def _folded(layers: nn.Sequential) -> nn.Sequential:
    folded: list[nn.Module] = []
    for layer in layers:
        before = folded[-1] if folded else None
        if isinstance(layer, nn.BatchNorm2d) and isinstance(before, nn.ConvTranspose2d):
            folded[-1] = fuse_conv_bn_eval(before, layer, transpose=True)
        elif isinstance(layer, nn.BatchNorm1d) and isinstance(before, nn.Linear):
            folded[-1] = fuse_linear_bn_eval(before, layer)
        else:
            folded.append(layer)
    return nn.Sequential(*folded)
