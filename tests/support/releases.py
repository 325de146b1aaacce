"""Small generators, statements and releases, private and not."""

from __future__ import annotations

import math

import torch

from dpsinkhorn.generators import (
    BigGANConfig,
    DCGANConfig,
    MixtureConfig,
    MLPConfig,
    build_generator,
    draw_labels,
    draw_latents,
    recompute_batch_statistics,
)
from dpsinkhorn.privacy import Adjacency, Charge, NonPrivate, RecordMechanism, SecureNoise, epsilon
from dpsinkhorn.release import About, PrivacyStatement, write_release

CONFIGS = {
    "mlp": MLPConfig(image_shape=(1, 8, 8), classes=3, hidden=(8,)),
    "dcgan": DCGANConfig(image_shape=(3, 12, 9), classes=4, width=4, activation="leaky_relu"),
    "biggan": BigGANConfig(image_shape=(1, 8, 8), classes=2, depth=4, blocks=1),
    "mixture": MixtureConfig(image_shape=(3, 6, 5), classes=2, components=2, frequencies=3),
    "unconditional": DCGANConfig(image_shape=(1, 8, 8), classes=0, width=4),
}
TRAINING: Charge = RecordMechanism(clip=1.0, noise_multiplier=2.0).sampled(0.1, steps=100)
EPSILON = epsilon(TRAINING, 1e-5)


def statement(**changes):
    values = {
        "epsilon": EPSILON,
        "delta": 1e-5,
        "adjacency": Adjacency.ADD_OR_REMOVE_ONE.value,
        "unit": "record",
        "accountant": "pld",
        "charges": [TRAINING.to_json()],
        "ledger_digest": "0123456789abcdef" * 4,
        "mechanism": "record",
        "published_epsilon": None,
        "size_is_public": True,
        "noise": SecureNoise.description,
        "seeded": False,
        "notes": ("The weights are an average over steps.",),
    }
    return PrivacyStatement(**{**values, **changes})


def not_private():
    charge = NonPrivate().sampled(0.1, steps=100)
    return statement(epsilon=math.inf, charges=[charge.to_json()], mechanism="none")


def trained(config, seed=0):
    generator = build_generator(config, seed=seed)
    draws = torch.Generator().manual_seed(seed)

    def draw():
        labels = draw_labels(16, [1 / config.classes] * config.classes, draws) if config.classes else None
        return draw_latents(16, config.latent, draws), labels

    recompute_batch_statistics(generator, draw, batches=3)
    return generator


def write_small_release(folder, **changes):
    """A private release of an MLP with three classes, with names."""
    arguments = {
        "label_probabilities": [0.5, 0.2, 0.3],
        "privacy": statement(),
        "about": About(title="Small digits"),
        "class_names": ["zero", "one", "two | <b>"],
        "releasable": True,
    }
    write_release(folder, trained(CONFIGS["mlp"]), **{**arguments, **changes})
