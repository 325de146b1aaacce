"""A module of the user's own: tried before it is trained, and the same function afterwards."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from dpsinkhorn.generators import (
    CustomConfig,
    GeneratorError,
    build_generator,
    config_from_json,
    config_to_json,
    draw_latents,
    frozen_copy,
    recompute_batch_statistics,
    register_module,
)
from support.modules import OwnNet

SHAPE = (1, 8, 8)


def registered(module_class=OwnNet, settings=None, classes=3):
    section = register_module(module_class, settings, image_shape=SHAPE, classes=classes)
    return config_from_json({"image_shape": list(SHAPE), "classes": classes, **section})


class TestRegister:
    def test_config(self):
        config = registered(settings={"width": 8})
        assert isinstance(config, CustomConfig)
        assert (config.module, config.settings) == ("support.modules.OwnNet", {"width": 8})
        assert config.latent == 5
        assert config.parameters == sum(p.numel() for p in OwnNet(width=8).parameters())
        assert config_from_json(config_to_json(config)) == config

    def test_a_function_that_makes_modules(self):
        def narrow():
            return OwnNet(width=2)

        assert registered(narrow).parameters == sum(p.numel() for p in OwnNet(width=2).parameters())

    def test_random_state_stays(self):
        state = torch.random.get_rng_state()
        registered()
        assert torch.equal(torch.random.get_rng_state(), state)

    def test_without_classes(self):
        class Plain(nn.Module):
            latent = 2

            def __init__(self):
                super().__init__()
                self.layer = nn.Linear(2, 64)

            def forward(self, latents):
                return torch.tanh(self.layer(latents)).view(-1, *SHAPE)

        generator = build_generator(registered(Plain, classes=0), seed=0)
        assert generator(draw_latents(3, 2)).shape == (3, *SHAPE)


class Wrong(nn.Module):
    """What `images` says, of latents that went through a layer."""

    latent = 4

    def __init__(self, images="frozen", latent=4):
        super().__init__()
        self.images, self.latent = images, latent
        self.layer = nn.Linear(4, 64)
        if images == "lazy":
            self.more = nn.LazyLinear(3)
        if images == "frozen":
            self.layer.bias.requires_grad_(False)
        if images == "unused":
            self.unused = nn.Linear(1, 1)
        if images == "double":
            self.layer.double()

    def forward(self, latents, _):
        made = torch.tanh(self.layer(latents)).view(-1, *SHAPE)
        return {
            "frozen": made,
            "unused": made,
            "flat": made.flatten(1),
            "one more": torch.cat([made, made[:1]]),
            "large": 3 + made,
            "nan": made * float("nan"),
            "list": [made],
            "detached": made.detach(),
        }[self.images]


class TestRefused:
    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            ({"images": "flat"}, r"must return images of shape \(4, 1, 8, 8\), not \(4, 64\)"),
            ({"images": "one more"}, r"shape \(4, 1, 8, 8\), not \(5, 1, 8, 8\)"),
            ({"images": "list"}, "not list"),
            ({"images": "large"}, "from -1 to 1"),
            ({"images": "nan"}, "from -1 to 1"),
            ({"images": "detached"}, "layer.weight that gets no gradient"),
            ({"images": "frozen"}, "layer.bias that gets no gradient"),
            ({"images": "unused"}, "unused.weight that gets no gradient"),
            ({"images": "lazy"}, "sizes of all its layers"),
            ({"images": "double"}, "float64"),
            ({"images": "other"}, "fails on latents.*KeyError"),
            ({"latent": 3}, "fails on latents"),
            ({"latent": None}, "attribute latent"),
            ({"depth": 3}, "cannot be built with these settings: TypeError"),
            ({"images": ("a", "tuple")}, "plain JSON"),
            ({"images": float("nan")}, "plain JSON"),
            ({3: 4}, "plain JSON"),
        ],
        ids=str,
    )
    def test_one_line(self, settings, message):
        with pytest.raises(GeneratorError, match=message) as error:
            registered(Wrong, settings)
        assert "\n" not in str(error.value)
        assert len(str(error.value)) < 400

    def test_labels_that_it_does_not_know(self):
        with pytest.raises(GeneratorError, match=r"fails on latents.*IndexError"):
            registered(classes=7)

    def test_not_a_class(self):
        for module_class in (OwnNet(), 3, "support.modules.OwnNet"):
            with pytest.raises(GeneratorError, match="class of modules"):
                registered(module_class)
        with pytest.raises(GeneratorError, match=r"torch\.nn\.Module"):
            registered(dict)

    def test_a_name_is_never_looked_up(self):
        section = {
            "kind": "custom",
            "module": "torch.nn.Linear",
            "settings": {},
            "latent": 4,
            "parameters": 8,
        }
        config = config_from_json({"image_shape": [1, 8, 8], "classes": 0, **section})
        with pytest.raises(GeneratorError, match="in Python"):
            build_generator(config)


class TestGenerator:
    @pytest.fixture
    def generator(self):
        config = registered()
        generator = build_generator(config, seed=0)
        draws = torch.Generator().manual_seed(0)
        recompute_batch_statistics(
            generator, lambda: (draw_latents(9, 5, draws), torch.arange(9) % 3), batches=3
        )
        return generator

    def test_seeds(self):
        first, again, other = (build_generator(registered(), seed=seed).state_dict() for seed in (0, 0, 1))
        assert all(torch.equal(first[name], again[name]) for name in first)
        assert any(not torch.equal(first[name], other[name]) for name in first)

    def test_batch_statistics_are_those_of_generated_images(self, generator):
        norm = generator.module.layers[1]
        assert norm.num_batches_tracked == 3
        assert norm.running_mean.abs().max() > 0

    def test_images_stay_in_range(self, generator):
        with torch.no_grad():
            generator.module.scale += 10  # as a step of the optimizer may
        images = generator(draw_latents(6, 5), torch.arange(6) % 3)
        assert images.abs().max() == 1

    def test_copies(self, generator):
        inputs = draw_latents(4, 5), torch.tensor([0, 1, 2, 0])
        expected = generator.eval()(*inputs)
        for twin in (frozen_copy(generator), copy.deepcopy(generator)):
            torch.testing.assert_close(twin(*inputs), expected)
        assert not any(p.requires_grad for p in frozen_copy(generator).parameters())

    def test_bad_input(self, generator):
        with pytest.raises(GeneratorError, match="needs labels"):
            generator(draw_latents(2, 5))
        with pytest.raises(GeneratorError, match="latents must have shape"):
            generator(draw_latents(2, 4), torch.tensor([0, 1]))
