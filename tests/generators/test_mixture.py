"""Images of a mixture: what the format says they are, and what is kept between calls."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import scipy.fft
import scipy.optimize
import scipy.special
import torch

from dpsinkhorn.generators import Mixture, MixtureConfig, build_generator, draw_latents
from dpsinkhorn.generators.mixture import attainable

GREY = MixtureConfig(image_shape=(1, 8, 8), classes=10, components=3, frequencies=6)
VARIANTS = {
    "grey": GREY,
    "colour": dataclasses.replace(GREY, image_shape=(3, 8, 8)),
    "unconditional": dataclasses.replace(GREY, classes=0),
    "odd size": dataclasses.replace(GREY, image_shape=(1, 9, 14)),
    "all frequencies": dataclasses.replace(GREY, frequencies=15),
}


@pytest.fixture(params=VARIANTS)
def variant(request):
    return VARIANTS[request.param]


def inputs_of(config, count):
    draws = torch.Generator().manual_seed(5)
    labels = torch.randint(config.classes, (count,), generator=draws) if config.classes else None
    return draw_latents(count, config.latent, draws), labels


NODES = tuple(
    part / 2 + shift for part, shift in zip(np.polynomial.legendre.leggauss(200), (0.5, 0), strict=True)
)


def lifelike(config):
    """A mixture that has dark, bright and grey pixels, still and lively ones."""
    generator = build_generator(config, seed=0)
    draws = torch.Generator().manual_seed(3)
    with torch.no_grad():
        generator.weights.uniform_(0.2, 1, generator=draws)
        generator.centres.normal_(0, 0.5, generator=draws)
        generator.centres[:, :, 0] += 0.3 * config.points**0.5
        generator.factors.normal_(0, 0.3 / config.coefficients**0.5, generator=draws)
    return generator


def pixels_of(generator, label):
    """Centres (K, ...) and columns of the factor (k, ...) of a class, as images, by SciPy's transform."""
    config = generator.config
    channels, height, width = config.image_shape
    low = [(i, j) for i in range(height) for j in range(width) if i + j < config.frequencies]

    def image(coefficients):
        spectrum = np.zeros(config.image_shape)
        for channel, own in enumerate(np.split(coefficients, channels)):
            for (i, j), value in zip(low, own, strict=True):
                spectrum[channel, i, j] = value
        return scipy.fft.idctn(spectrum, axes=(1, 2), norm="ortho")

    centres = generator.centres[label].detach().double().numpy()
    factor = generator.factors[label].detach().double().numpy()
    return np.stack([image(centre) for centre in centres]), np.stack([image(column) for column in factor.T])


def by_the_format(generator, uniform, label):
    """One image, in [-1, 1], as docs/release-format.md has it."""
    shares = generator.weights[label].detach().double().numpy()
    component = int((np.cumsum(shares) / shares.sum() <= uniform[0]).sum())
    means, spreads = pixels_of(generator, label)
    deviation = np.tensordot(scipy.special.ndtri(uniform[1:]), spreads, axes=1)
    wanted = (spreads**2).sum(0)
    image = np.empty(generator.config.image_shape)
    for at in np.ndindex(*image.shape):
        m = min(max(means[component][at], 0), 1)
        q = m * (1 - m)
        v = 0 if min(m, 1 - m) < 1e-4 else min(wanted[at], 0.8 * q * q / (q + 0.01))
        a, b = solved(m, v) if v else (m, 0.0)
        image[at] = min(max(a + b * deviation[at] / np.sqrt(wanted[at]), 0), 1)
    return 2 * image - 1


def solved(m, v):
    """a and b by SciPy: E x is the integral of P(x > t) over [0, 1], E x² that of 2 t P(x > t)."""
    t, weight = NODES

    def off(at):
        b = np.exp(at[1])
        tail = scipy.special.ndtr((at[0] - t) / b)
        mean = weight @ tail
        return mean - m, np.sqrt(max(2 * (weight * t) @ tail - mean**2, 0)) - np.sqrt(v)

    for start in ((m, np.log(v) / 2), (0.5, 0.0), (-0.3, -1.0), (1.3, -1.0), (-0.1, -2.0), (1.1, -2.0)):
        found = scipy.optimize.root(off, start, tol=1e-12)
        if np.abs(off(found.x)).max() < 1e-9:
            return found.x[0], np.exp(found.x[1])
    raise AssertionError(f"SciPy finds nothing for {m}, {v}")


class TestImages:
    def test_images_as_the_format_says(self, variant):
        """Written down once more, pixel by pixel, with SciPy: docs/release-format.md."""
        generator = lifelike(variant)
        latents, labels = inputs_of(variant, 2)
        expected = [
            by_the_format(generator, latent.double().numpy(), 0 if labels is None else int(labels[row]))
            for row, latent in enumerate(latents)
        ]
        np.testing.assert_allclose(generator(latents, labels), np.stack(expected), atol=2e-5)

    def test_pixels_have_the_mean_and_variance_of_their_component(self, variant):
        """Where clamping alone would have brightened the dark: as far as `attainable` goes."""
        variant = dataclasses.replace(variant, components=1, classes=0)
        generator = lifelike(variant)
        draws = torch.Generator().manual_seed(1)
        images = (generator(torch.rand(40_000, variant.latent, generator=draws)).double() + 1) / 2
        means, spreads = pixels_of(generator, 0)
        m, v = attainable(torch.from_numpy(means[0]), torch.from_numpy((spreads**2).sum(0)))
        error = (images.flatten(1).mean(0) - m.flatten()).abs()
        assert bool((error < 5 * v.flatten().sqrt() / 200 + 1e-4).all())
        torch.testing.assert_close(images.flatten(1).var(0), v.flatten(), rtol=0.15, atol=1e-5)
        plain = np.random.default_rng(0).normal(
            means[0], np.sqrt((spreads**2).sum(0)), (4000, *means[0].shape)
        )
        assert np.abs(plain.clip(0, 1).mean(0).ravel() - m.flatten().numpy()).max() > 10 * float(error.max())

    @pytest.mark.parametrize("centres", [0.0, 1e-45, 1e-20, 1.0, 1e6, 3e38])
    @pytest.mark.parametrize("factors", [0.0, 1e-45, 1e-20, 1.0, 1e6, 1e18])
    def test_hostile_centres_and_factors(self, centres, factors):
        generator = build_generator(GREY, seed=0)
        with torch.no_grad():
            generator.centres.copy_(centres * generator.centres.sign())
            generator.factors.copy_(factors * torch.randn(generator.factors.shape).sign())
        images = generator(*inputs_of(GREY, 50))
        assert bool((images.abs() <= 1).all())


class TestWhatIsKept:
    @pytest.mark.parametrize("name", ["centres", "factors", "weights"])
    @pytest.mark.parametrize("way", ["in place", "data", "new data", "loaded", "double"])
    def test_every_change_of_parameters_is_noticed(self, name, way):
        generator, other = (build_generator(GREY, seed=0) for _ in range(2))
        inputs = inputs_of(GREY, 50)
        before = generator(*inputs)
        value = generator.get_parameter(name).detach() * 1.5
        if name == "weights":
            value = value * torch.tensor([0.0, 0.0, 1.0])
        with torch.no_grad():
            other.get_parameter(name).copy_(value)
            match way:
                case "in place":
                    generator.get_parameter(name).copy_(value)
                case "data":
                    generator.get_parameter(name).data.copy_(value)
                case "new data":
                    generator.get_parameter(name).data = value
                case "loaded":
                    generator.load_state_dict(other.state_dict())
                case "double":
                    generator.double().get_parameter(name).copy_(value)
        after = generator.float()(*inputs)
        assert not torch.equal(after, before)
        assert torch.equal(after, other(*inputs))

    def test_what_is_kept_is_no_part_of_the_state(self, variant):
        generator = build_generator(variant, seed=0)
        before = generator.state_dict().keys()
        generator(*inputs_of(variant, 3))
        assert generator.state_dict().keys() == before == {"weights", "middles", "centres", "factors"}
        generator.load_state_dict(build_generator(variant, seed=1).state_dict())

    @pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
    def test_a_move_to_another_device_is_noticed(self, variant):
        generator = lifelike(variant)
        latents, labels = inputs_of(variant, 20)
        before = generator(latents, labels)
        there = generator.cuda()(latents.cuda(), None if labels is None else labels.cuda())
        torch.testing.assert_close(there.cpu(), before, rtol=0, atol=1e-4)
        torch.testing.assert_close(generator.cpu()(latents, labels), before)

    def test_it_is_kept(self, monkeypatch):
        found = []
        original = Mixture._rectify
        monkeypatch.setattr(Mixture, "_rectify", lambda *given: found.append(1) or original(*given))
        generator = build_generator(GREY, seed=0)
        for _ in range(3):
            generator(*inputs_of(GREY, 5))
        assert len(found) == 1
