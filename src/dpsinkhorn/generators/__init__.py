"""Generators: plain modules with a small frozen config each.

>>> generator = build_generator(DCGANConfig(image_shape=(1, 28, 28), classes=10), seed=0).eval()
>>> images = generator(draw_latents(2, 12), torch.tensor([3, 7]))
>>> images.shape
torch.Size([2, 1, 28, 28])
"""

import torch

from dpsinkhorn.generators.base import Generator
from dpsinkhorn.generators.biggan import BigGAN
from dpsinkhorn.generators.configs import (
    BigGANConfig,
    DCGANConfig,
    GeneratorConfig,
    GeneratorError,
    MixtureConfig,
    MLPConfig,
    config_from_json,
    config_to_json,
)
from dpsinkhorn.generators.dcgan import DCGAN
from dpsinkhorn.generators.devices import choose_device
from dpsinkhorn.generators.frozen import frozen_copy
from dpsinkhorn.generators.inputs import check_probabilities, draw_labels, draw_latents
from dpsinkhorn.generators.mixture import Mixture
from dpsinkhorn.generators.mlp import MLP
from dpsinkhorn.generators.statistics import recompute_batch_statistics
from dpsinkhorn.generators.variation import Variation

__all__ = [
    "DCGAN",
    "MLP",
    "BigGAN",
    "BigGANConfig",
    "DCGANConfig",
    "Generator",
    "GeneratorConfig",
    "GeneratorError",
    "MLPConfig",
    "Mixture",
    "MixtureConfig",
    "Variation",
    "build_generator",
    "check_probabilities",
    "choose_device",
    "config_from_json",
    "config_to_json",
    "draw_labels",
    "draw_latents",
    "frozen_copy",
    "recompute_batch_statistics",
]


def build_generator(config: GeneratorConfig, seed: int | None = None) -> Generator:
    """The generator of a config, on the CPU, in training mode.

    With a seed the initial weights depend on it alone, and PyTorch's global random state stays as it was.

    >>> build_generator(MLPConfig(image_shape=(1, 8, 8), classes=10)).config.classes
    10
    """
    if seed is None:
        return _build(config)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return _build(config)


def _build(config: GeneratorConfig) -> Generator:
    match config:
        case DCGANConfig():
            return DCGAN(config)
        case BigGANConfig():
            return BigGAN(config)
        case MLPConfig():
            return MLP(config)
        case MixtureConfig():
            return Mixture(config)
    raise GeneratorError(f"not the config of a generator: {type(config).__name__}")
