"""A mixture of Gaussians for each class, on the low frequencies of images."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from dpsinkhorn.generators.base import Generator
from dpsinkhorn.generators.configs import MixtureConfig
from dpsinkhorn.generators.rectified import latent_normal

_AT_ONCE = 2**20  # pixels in float64
_STEP = 2.0**-24  # uniform float32 numbers are whole multiples of it, 0 included, which no normal number has


class Mixture(Generator):
    """Chooses a component by the first latent, deviates from its centre by the others; see `MixtureConfig`.

    Parameters, for each class: `weights` (K,) of the components, in any unit; `centres` (K, k) and `middles`
    (k,), the components' and the whole class's, as coefficients of the cosine transform of pixels in [0, 1];
    `factors` F (k, k), with F Fᵀ the covariance within a component. Sampling has no use for `middles`:
    training has. Images are clamped to [0, 1], and rectified, so that pixels have the mean and variance of
    their component even so: see `rectified`. They carry no gradients: a mixture is fitted without.
    """

    config: MixtureConfig
    _down: Tensor
    _across: Tensor
    _places: Tensor

    def __init__(self, config: MixtureConfig) -> None:
        super().__init__(config)
        kinds, components, k = config.kinds, config.components, config.coefficients
        middles = 0.1 * torch.randn(kinds, k)
        self.weights = nn.Parameter(torch.ones(kinds, components))
        self.middles = nn.Parameter(middles)
        self.centres = nn.Parameter(middles.unsqueeze(1) + 0.1 * torch.randn(kinds, components, k))
        self.factors = nn.Parameter(0.1 * torch.eye(k).repeat(kinds, 1, 1))
        # public, and the same for all generators of a config: not a part of what is stored
        _, height, width = config.image_shape
        down, across = config.bands
        self.register_buffer("_down", cosines(height, down).float(), persistent=False)
        self.register_buffer("_across", cosines(width, across).float(), persistent=False)
        self.register_buffer("_places", places(config), persistent=False)
        self._cached: _Rectified | None = None

    @torch.no_grad()
    def images(self, latents: Tensor, labels: Tensor | None) -> Tensor:
        if labels is None:
            labels = torch.zeros(len(latents), dtype=torch.int64, device=latents.device)
        rows = labels * self.config.components + self._chosen(latents[:, 0], labels)
        rectified = self._rectified()
        deviations = self.to_pixels(self._deviations(latents[:, 1:], labels)).flatten(1)
        pixels = rectified.starts.index_select(0, rows) + rectified.scales.index_select(0, rows) * deviations
        return (2 * pixels.clamp(0, 1) - 1).to(latents.dtype).view(-1, *self.config.image_shape)

    def pixel_maps(self) -> tuple[Tensor, Tensor]:
        """Return means, and what deviations are scaled by, of all components' pixels: (kinds * K, points)."""
        rectified = self._rectified()
        return rectified.starts, rectified.scales

    def _rectified(self) -> _Rectified:
        """Return what images are made with, computed anew only when the parameters have changed."""
        cached = self._cached
        if cached is None or not (
            _same(cached.centres, self.centres) and _same(cached.factors, self.factors)
        ):
            cached = self._rectify(self.centres.detach().clone(), self.factors.detach().clone())
            self._cached = cached
        return cached

    def _rectify(self, centres: Tensor, factors: Tensor) -> _Rectified:
        rows = (self.config.kinds, self.config.components, self.config.points)
        starts, scales = centres.new_empty(rows), centres.new_empty(rows)
        for kind in range(self.config.kinds):
            variances = self._variances(factors[kind])
            for some, to_starts, to_scales in zip(
                *map(self._portions, (centres[kind], starts[kind], scales[kind])), strict=True
            ):
                a, b = latent_normal(self.to_pixels(some.double()).flatten(1), variances)
                to_starts.copy_(a)
                to_scales.copy_(torch.where(variances > 0, b / variances.sqrt(), 0.0))
        return _Rectified(centres, factors, starts.flatten(0, 1), scales.flatten(0, 1))

    def _variances(self, factor: Tensor) -> Tensor:
        """Return the variance of every pixel of F z, (points,): squares of F's columns, as images, added."""
        total = torch.zeros(self.config.points, dtype=torch.float64, device=factor.device)
        for columns in self._portions(factor.T):
            total += self.to_pixels(columns.double()).flatten(1).square().sum(0)
        return total

    def _portions(self, rows: Tensor) -> tuple[Tensor, ...]:
        """Split rows into parts whose images fit into little memory."""
        return torch.split(rows, max(1, _AT_ONCE // self.config.points))

    def _chosen(self, uniform: Tensor, labels: Tensor) -> Tensor:
        """Choose the component of each image, (n,), by the inverse of the weights' distribution function."""
        ends = self.weights.detach().double().clamp(min=0).cumsum(1)
        ends = ends / ends[:, -1:].clamp(min=torch.finfo(torch.float64).tiny)
        passed = ends.index_select(0, labels) <= uniform.double().unsqueeze(1)
        return passed.sum(1).clamp(max=self.config.components - 1)

    def _deviations(self, uniform: Tensor, labels: Tensor) -> Tensor:
        """Return F z of each image's class, (n, k), with z standard normal."""
        inside = uniform.float().clamp(_STEP, 1 - _STEP)
        normal = math.sqrt(2) * torch.erfinv(2 * inside - 1)
        order = torch.argsort(labels, stable=True)
        counts = torch.bincount(labels, minlength=self.config.kinds).tolist()
        parts = [
            normal[rows] @ self.factors[kind].T
            for kind, rows in enumerate(torch.split(order, counts))
            if len(rows)
        ]
        if not parts:
            return normal
        return torch.empty_like(normal).index_copy(0, order, torch.cat(parts).float())

    def to_pixels(self, coefficients: Tensor) -> Tensor:
        """Return the inverse cosine transform, (n, channels, height, width)."""
        channels = self.config.image_shape[0]
        down, across = self.config.bands
        spectrum = coefficients.new_zeros(len(coefficients), channels, down * across)
        own = coefficients.view(-1, channels, len(self._places))
        spectrum = spectrum.index_copy(2, self._places, own)
        basis_down, basis_across = self._down.to(spectrum.dtype), self._across.to(spectrum.dtype)
        return basis_down.T @ spectrum.view(-1, channels, down, across) @ basis_across


class _Rectified(NamedTuple):
    """For every component of every class and every pixel, (kinds * K, points), what images are made with."""

    centres: Tensor
    factors: Tensor
    """The parameters that it was found for, copied."""
    starts: Tensor
    """a: means of the normal numbers that are clamped."""
    scales: Tensor
    """By what a deviation's pixels are multiplied to have their standard deviation, b."""


def _same(before: Tensor, now: Tensor) -> bool:
    return before.device == now.device and torch.equal(before, now)


def cosines(size: int, count: int) -> Tensor:
    """Return the first `count` vectors of the orthonormal cosine basis (DCT-II), (count, size), in float64.

    >>> basis = cosines(8, 8)
    >>> torch.allclose(basis @ basis.T, torch.eye(8, dtype=torch.float64))
    True
    """
    at = torch.arange(size, dtype=torch.float64) + 0.5
    basis = torch.cos(math.pi / size * torch.arange(count, dtype=torch.float64).unsqueeze(1) * at)
    basis *= math.sqrt(2 / size)
    basis[0] *= math.sqrt(0.5)
    return basis


def places(config: MixtureConfig) -> Tensor:
    """Return where the coefficients (i, j), i + j < m, stand in a flattened table of the config's bands.

    >>> places(MixtureConfig(image_shape=(1, 4, 4), classes=0, frequencies=2)).tolist()
    [0, 1, 2]
    """
    down, across = config.bands
    total = torch.arange(down).unsqueeze(1) + torch.arange(across)
    return (total < config.frequencies).flatten().nonzero().flatten()


def bands(config: MixtureConfig) -> Tensor:
    """Return the frequency i + j of every coefficient, (k,).

    >>> bands(MixtureConfig(image_shape=(3, 4, 4), classes=0, frequencies=2)).tolist()
    [0, 1, 1, 0, 1, 1, 0, 1, 1]
    """
    _, across = config.bands
    at = places(config)
    frequencies = at.div(across, rounding_mode="floor") + at % across
    return frequencies.repeat(config.image_shape[0])
