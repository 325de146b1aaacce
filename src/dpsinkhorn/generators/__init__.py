"""Generators: plain modules with a small frozen config each.

>>> import torch
>>> generator = build_generator(DCGANConfig(image_shape=(1, 28, 28), classes=10), seed=0).eval()
>>> images = generator(draw_latents(2, 12), torch.tensor([3, 7]))
>>> images.shape
torch.Size([2, 1, 28, 28])
"""

import dpsinkhorn.generators.networks  # noqa: F401  # what configs of their kinds are made into
from dpsinkhorn.errors import GeneratorError
from dpsinkhorn.generators.base import (
    Generator,
    ModuleClass,
    build_generator,
    check_probabilities,
    choose_device,
    draw_labels,
    draw_latents,
    frozen_copy,
    recompute_batch_statistics,
)
from dpsinkhorn.generators.configs import (
    BigGANConfig,
    DCGANConfig,
    FlowConfig,
    MixtureConfig,
    MLPConfig,
    Variation,
    config_from_json,
    config_to_json,
)
from dpsinkhorn.generators.configs import Config as GeneratorConfig
from dpsinkhorn.generators.custom import CustomConfig, register_module
from dpsinkhorn.generators.flow import Flow
from dpsinkhorn.generators.mixture import Mixture

__all__ = [
    "BigGANConfig",
    "CustomConfig",
    "DCGANConfig",
    "Flow",
    "FlowConfig",
    "Generator",
    "GeneratorConfig",
    "GeneratorError",
    "MLPConfig",
    "Mixture",
    "MixtureConfig",
    "ModuleClass",
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
    "register_module",
]
