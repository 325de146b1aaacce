"""A contract that every generator meets, and the papers' shapes."""

from __future__ import annotations

import copy
import json

import pytest
import torch
from safetensors.torch import load, save
from torch import nn

from dpsinkhorn.generators import (
    BigGANConfig,
    DCGANConfig,
    GeneratorError,
    MixtureConfig,
    MLPConfig,
    build_generator,
    config_from_json,
    config_to_json,
    draw_latents,
    frozen_copy,
    recompute_batch_statistics,
)


def trained(config, seed=0):
    """A generator whose buffers have seen some batches."""
    generator = build_generator(config, seed=seed)
    draws = torch.Generator().manual_seed(seed)
    recompute_batch_statistics(generator, lambda: inputs_of(config, 8, draws), batches=2)
    return generator


def inputs_of(config, count, draws=None):
    draws = draws or torch.Generator().manual_seed(5)
    labels = torch.randint(config.classes, (count,), generator=draws) if config.classes else None
    return draw_latents(count, config.latent, draws), labels


class GeneratorContract:
    """Inherit, and set `config`."""

    config = None

    @pytest.fixture(params=["grey", "colour", "unconditional", "odd size", "no BatchNorm", "leaky"])
    def variant(self, request):
        changes = {
            "grey": {},
            "colour": {"image_shape": (3, *self.config.image_shape[1:])},
            "unconditional": {"classes": 0},
            "odd size": {"image_shape": (1, 9, 14)},
            "no BatchNorm": {"batch_norm": False},
            "leaky": {"activation": "leaky_relu"},
        }
        return config_from_json({**config_to_json(self.config), **changes[request.param]})

    def test_images(self, variant):
        generator = build_generator(variant, seed=0)
        images = generator(*inputs_of(variant, 6))
        assert images.shape == (6, *variant.image_shape)
        assert images.dtype == torch.float32
        assert images.abs().max() <= 1
        assert images.std(0).max() > 1e-3  # latents matter

    def test_a_batch_of_one(self, variant):
        """In eval mode an image depends on its own latent and label only."""
        generator = trained(variant).eval()
        latents, labels = inputs_of(variant, 5)
        together = generator(latents, labels)
        for index in range(5):
            rows = slice(index, index + 1)
            alone = generator(latents[rows], None if labels is None else labels[rows])
            torch.testing.assert_close(alone, together[rows], rtol=1e-4, atol=1e-5)

    def test_labels_matter(self):
        generator = trained(self.config).eval()
        latents = draw_latents(1, self.config.latent).expand(2, -1)
        first, second = generator(latents, torch.tensor([0, 1]))
        assert (first - second).abs().max() > 1e-3

    def test_parameters_are_as_many_as_the_config_says(self, variant):
        generator = build_generator(variant)
        assert sum(parameter.numel() for parameter in generator.parameters()) == variant.parameters

    def test_every_parameter_gets_a_gradient(self, variant):
        generator = build_generator(variant, seed=0)
        latents, labels = inputs_of(variant, 40)
        target = torch.rand(40, *variant.image_shape, generator=torch.Generator().manual_seed(3))
        ((generator(latents, labels) - target) ** 2).sum().backward()
        for name, parameter in generator.named_parameters():
            assert parameter.grad is not None, name
            assert parameter.grad.abs().max() > 0, name

    def test_config_through_json(self, variant):
        assert config_from_json(json.loads(json.dumps(config_to_json(variant)))) == variant

    def test_state_through_safetensors(self, variant):
        generator = trained(variant).eval()
        state = load(save(generator.state_dict()))
        other = build_generator(variant, seed=1)
        assert set(state) == set(other.state_dict())
        other.load_state_dict(state)
        inputs = inputs_of(variant, 3)
        assert torch.equal(other.eval()(*inputs), generator(*inputs))

    def test_a_copy_is_independent(self, variant):
        generator = build_generator(variant, seed=0)
        generator(*inputs_of(variant, 4)).sum().backward()
        twin = copy.deepcopy(generator)
        before = {name: value.clone() for name, value in generator.state_dict().items()}
        with torch.no_grad():
            for parameter in twin.parameters():
                parameter += 1
        twin(*inputs_of(variant, 4))
        for name, value in generator.state_dict().items():
            assert torch.equal(value, before[name]), name

    def test_eval_changes_nothing(self, variant):
        generator = trained(variant).eval()
        before = {name: value.clone() for name, value in generator.state_dict().items()}
        first, second = generator(*inputs_of(variant, 4)), generator(*inputs_of(variant, 4))
        assert torch.equal(first, second)
        assert all(torch.equal(value, before[name]) for name, value in generator.state_dict().items())

    def test_channels_last(self, variant):
        generator = trained(variant).eval()
        inputs = inputs_of(variant, 4)
        usual = generator(*inputs)
        other = generator.to(memory_format=torch.channels_last)(*inputs)
        torch.testing.assert_close(other, usual, rtol=1e-4, atol=1e-5)
        assert other.flatten(1).shape == (4, variant.points)
        torch.testing.assert_close(other.flatten(1), usual.flatten(1), rtol=1e-4, atol=1e-5)

    def test_frozen_copy(self, variant):
        """The same images, from a network without BatchNorm before activations or spectral norms."""
        generator = trained(variant)
        before = {name: value.clone() for name, value in generator.state_dict().items()}
        frozen = frozen_copy(generator)
        assert all(torch.equal(value, before[name]) for name, value in generator.state_dict().items())
        assert not any("parametrizations" in name for name in frozen.state_dict())
        inputs = inputs_of(variant, 4)
        torch.testing.assert_close(frozen(*inputs), generator.eval()(*inputs), rtol=1e-4, atol=1e-5)
        assert not any(parameter.requires_grad for parameter in frozen.parameters())

    def test_seeds(self):
        state = torch.random.get_rng_state()
        first, second, third = (build_generator(self.config, seed=seed).state_dict() for seed in (0, 0, 1))
        assert all(torch.equal(first[name], second[name]) for name in first)
        assert any(not torch.equal(first[name], third[name]) for name in first)
        assert torch.equal(torch.random.get_rng_state(), state)

    def test_bad_input(self):
        generator = build_generator(self.config)
        latents, labels = inputs_of(self.config, 4)
        for bad in [
            (latents, None),
            (latents[:, 1:], labels),
            (latents[0], labels),
            (latents, labels[:3]),
            (latents, labels[:, None]),
        ]:
            with pytest.raises(GeneratorError) as error:
                generator(*bad)
            assert "\n" not in str(error.value)
        unconditional = build_generator(config_from_json({**config_to_json(self.config), "classes": 0}))
        with pytest.raises(GeneratorError):
            unconditional(latents, labels)


class TestDCGAN(GeneratorContract):
    config = DCGANConfig(image_shape=(1, 28, 28), classes=10, width=8)


class TestBigGAN(GeneratorContract):
    config = BigGANConfig(image_shape=(1, 16, 16), classes=3, depth=8)


class TestMLP(GeneratorContract):
    config = MLPConfig(image_shape=(1, 8, 8), classes=10, hidden=(16, 24))


class TestMixture(GeneratorContract):
    config = MixtureConfig(image_shape=(1, 8, 8), classes=10, components=3, frequencies=6)

    @pytest.fixture(
        params=["grey", "colour", "unconditional", "odd size", "all frequencies", "one component"]
    )
    def variant(self, request):
        changes = {
            "grey": {},
            "colour": {"image_shape": (3, 8, 8)},
            "unconditional": {"classes": 0},
            "odd size": {"image_shape": (1, 9, 14)},
            "all frequencies": {"frequencies": 15},
            "one component": {"components": 1},
        }
        return config_from_json({**config_to_json(self.config), **changes[request.param]})

    def test_every_parameter_gets_a_gradient(self, variant):
        """None does: a mixture is fitted without."""
        assert not build_generator(variant, seed=0)(*inputs_of(variant, 5)).requires_grad

    def test_a_copy_is_independent(self, variant):
        """What is kept of the parameters' images too, on either side."""
        generator = build_generator(variant, seed=0)
        inputs = inputs_of(variant, 9)
        with torch.inference_mode():
            before = generator(*inputs).clone()
        twin = copy.deepcopy(generator)
        with torch.no_grad():
            twin.centres += 1
        assert not torch.equal(twin(*inputs), before)
        assert torch.equal(generator(*inputs), before)

    def test_extreme_latents(self):
        generator = build_generator(self.config, seed=0)
        latents = torch.tensor([[0.0], [1.0], [0.5]]).expand(3, self.config.latent)
        images = generator(latents, torch.tensor([0, 9, 4]))
        assert bool(torch.isfinite(images).all())

    def test_hostile_weights(self):
        """Loading sees to it that numbers are finite; beyond that any of them render something."""
        generator = build_generator(self.config, seed=0)
        for values in (torch.zeros(10, 3), -torch.ones(10, 3), torch.full((10, 3), 3e38)):
            with torch.no_grad():
                generator.weights.copy_(values)
                assert bool(torch.isfinite(generator(*inputs_of(self.config, 9))).all())

    def test_a_batch_of_none(self):
        generator = build_generator(self.config, seed=0)
        latents, labels = torch.empty(0, self.config.latent), torch.empty(0, dtype=torch.int64)
        assert generator(latents, labels).shape == (0, 1, 8, 8)

    def test_coefficients_are_counted(self):
        for height, width, frequencies, expected in (
            (28, 28, 20, 210),
            (8, 8, 15, 64),
            (2, 9, 3, 5),
            (1, 1, 9, 1),
        ):
            config = MixtureConfig(image_shape=(1, height, width), classes=0, frequencies=frequencies)
            assert config.coefficients == expected == config.latent - 1


class TestPapersShapes:
    @pytest.mark.parametrize(
        ("shape", "latent", "start"), [((1, 28, 28), 12, 7), ((3, 32, 32), 32, 8), ((1, 8, 8), 12, 2)]
    )
    def test_dcgan(self, shape, latent, start):
        config = DCGANConfig(image_shape=shape, classes=10, latent=latent, batch_norm=False)
        generator = build_generator(config)
        layers = [layer for layer in generator.modules() if isinstance(layer, nn.ConvTranspose2d)]
        assert [layer.in_channels for layer in layers] == [latent + 4, 256, 128, 64]
        assert [layer.out_channels for layer in layers] == [256, 128, 64, shape[0]]
        assert [layer.kernel_size[0] for layer in layers] == [start, 4, 4, 3]
        assert [layer.stride[0] for layer in layers] == [1, 2, 2, 1]
        assert [layer.padding[0] for layer in layers] == [0, 1, 1, 1]
        sizes = []
        for layer in layers:
            layer.register_forward_hook(lambda _m, _i, out: sizes.append(tuple(out.shape[1:])))
        generator(*inputs_of(config, 2))
        full = 4 * start
        assert sizes == [  # the first layer is taken as a matrix product
            (128, full // 2, full // 2),
            (64, full, full),
            (shape[0], full, full),
        ]
        # weights and biases, and a table of 10 embeddings of 4 numbers
        expected = (latent + 4) * 256 * start * start + 256 + 256 * 128 * 16 + 128 + 128 * 64 * 16 + 64
        expected += 64 * shape[0] * 9 + shape[0] + 10 * 4
        assert sum(parameter.numel() for parameter in generator.parameters()) == expected

    @pytest.mark.parametrize("batch_norm", [True, False])
    def test_the_first_layer_of_dcgan_is_its_transposed_convolution(self, batch_norm):
        config = DCGANConfig(image_shape=(1, 12, 20), classes=10, width=4, batch_norm=batch_norm)
        generator = build_generator(config, seed=0)
        inputs = torch.rand(5, config.inputs)
        expected = generator.layers[0](inputs[:, :, None, None])
        assert expected.shape == (5, 16, 3, 5)
        torch.testing.assert_close(generator._first(inputs), expected)

    @pytest.mark.parametrize("channels", [1, 3])
    def test_the_last_layer_of_dcgan_as_a_product(self, channels):
        """As it is taken on a GPU: the same values, and the same gradients."""
        config = DCGANConfig(image_shape=(channels, 12, 20), classes=10, width=4)
        generator = build_generator(config, seed=0)
        layer = generator.layers[-1]
        images = torch.rand(5, 4, 12, 20, requires_grad=True)
        weights = torch.rand(5, channels, 12, 20)
        results = []
        for render in (layer, lambda given: generator._last_as_product(given, layer)):
            out = render(images)
            results.append([out, *torch.autograd.grad(out, [images, layer.weight, layer.bias], weights)])
        for found, expected in zip(*results, strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)

    def test_dcgan_starts_alive_without_batch_norm(self):
        config = DCGANConfig(image_shape=(1, 28, 28), classes=10, batch_norm=False)
        images = build_generator(config, seed=0)(*inputs_of(config, 64))
        assert 0.05 < images.std() < 0.95
        assert images.std(0).mean() > 0.02

    def test_biggan(self):
        config = BigGANConfig(image_shape=(3, 32, 32), classes=2)
        generator = build_generator(config)
        assert config.latent == 32
        blocks = list(generator.blocks)
        assert len(blocks) == 4
        for block in blocks:
            convolutions = [layer for layer in block.modules() if isinstance(layer, nn.Conv2d)]
            assert len(convolutions) == 3
            assert all(layer.in_channels == layer.out_channels == 256 for layer in convolutions)
        sizes = []
        for block in blocks:
            block.register_forward_hook(lambda _m, _i, out: sizes.append(tuple(out.shape[1:])))
        generator(*inputs_of(config, 2))
        assert sizes == [(256, 8, 8), (256, 16, 16), (256, 32, 32), (256, 32, 32)]
        norms = 9 * 2 * 256
        block = 2 * (256 * 256 * 9 + 256) + 256 * 256 + 256
        expected = 2 * 4 + (36 + 1) * 256 * 16 + 4 * block + norms + 256 * 3 * 9 + 3
        assert sum(parameter.numel() for parameter in generator.parameters()) == expected

    @pytest.mark.parametrize(
        ("size", "start", "upsamplings"),
        [
            ((32, 32), (4, 4), 3),
            ((28, 28), (4, 4), 3),
            ((64, 64), (4, 4), 4),
            ((8, 8), (4, 4), 1),
            ((3, 5), (3, 5), 0),
            ((16, 64), (4, 16), 2),
            ((128, 128), (8, 8), 4),
        ],
    )
    def test_biggan_at_other_sizes(self, size, start, upsamplings):
        config = BigGANConfig(image_shape=(1, *size), classes=0, depth=4)
        assert (config.start, config.upsamplings) == (start, upsamplings)
        assert build_generator(config).eval()(*inputs_of(config, 1)).shape == (1, 1, *size)

    def test_spectral_norm_is_one(self):
        """After enough power iterations the largest singular value of every layer is 1."""
        config = BigGANConfig(image_shape=(1, 8, 8), classes=2, depth=6, blocks=1)
        generator = build_generator(config, seed=0)
        recompute_batch_statistics(generator, lambda: inputs_of(config, 4), batches=100)
        layers = [layer for layer in generator.modules() if isinstance(layer, (nn.Conv2d, nn.Linear))]
        assert len(layers) == 5
        for layer in layers:
            assert torch.linalg.matrix_norm(layer.weight.flatten(1), 2).item() == pytest.approx(1, abs=1e-2)


class TestCrop:
    def test_the_centre_is_kept(self):
        """A 9 x 14 image is the middle of the 12 x 16 image that the same weights render."""
        config = DCGANConfig(image_shape=(1, 9, 14), classes=0, width=4)
        generator = trained(config).eval()
        latents, _ = inputs_of(config, 2)
        full = torch.tanh(generator.render(latents))
        assert full.shape == (2, 1, 12, 16)
        assert torch.equal(generator(latents), full[:, :, 1:10, 1:15])
