"""A mixture of Gaussians for each class, on the low frequencies of images; its pixels are rectified normals.

Pixels end at black and white. A normal number of a pixel's mean and variance has, once it is clamped to [0,
1], another mean and less variance: near black it is too bright. So the normal number is chosen otherwise,
such that what is left after clamping has both.
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from dpsinkhorn.generators.base import Generator
from dpsinkhorn.generators.configs import MixtureConfig

_LARGEST_SHARE = 0.8  # of m (1 - m), the variance that nothing but black and white would have
_DOUBT = 0.01  # where m (1 - m) is less than this, most of a variance is noise
_LEAST_ROOM = 1e-4  # between m and black or white: below it, which is far less than a grey level, no spread
_FAR = 6.0  # standard deviations within which nothing is clamped, but for a part of 1e-9
_ROWS, _COLUMNS = 65, 65  # of the table: with them, two steps of Newton are exact to 1e-9
_CHUNK = 2**15  # numbers at a time: what a CPU's caches hold


def rectified_moments(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and variance of clamp(x, 0, 1), x normal of mean a and deviation b > 0; in float64.

    >>> mean, variance = rectified_moments(torch.tensor(0.0), torch.tensor(0.1))
    >>> print(f"{mean:.4f} {variance:.5f}")  # 0.1 / sqrt(2 pi), and 0.01 (1 / 2 - 1 / (2 pi))
    0.0399 0.00341
    """
    a, b = a.double(), b.double()
    upper = a > 0.5  # seen from white, where a small variance is not lost beside a mean near 1
    parts = _parts(torch.where(upper, 1 - a, a), b)
    return torch.where(upper, 1 - parts.mean, parts.mean), parts.variance


def attainable(mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    """Return what is asked of a pixel: a mean within [0, 1], and a variance that fits it; in float64.

    At a mean of m the variance is at most 0.8 q² / (q + 0.01), q = m (1 - m), and 0 within 1e-4 of black and
    white: nothing in [0, 1] has more than q, and where q is small a noisy estimate is mostly noise.

    >>> mean, variance = attainable(torch.tensor([0.5, 0.5, -0.3]), torch.tensor([0.04, 9.0, 0.04]))
    >>> mean.tolist(), [round(value, 4) for value in variance.tolist()]
    ([0.5, 0.5, 0.0], [0.04, 0.1923, 0.0])
    """
    mean = mean.double().clamp(0, 1)
    room = mean * (1 - mean)
    variance = torch.minimum(variance.double().clamp(min=0), _LARGEST_SHARE * room.square() / (room + _DOUBT))
    enough = torch.minimum(mean, 1 - mean) >= _LEAST_ROOM
    return mean, variance.where(enough, 0.0)


@torch.no_grad()
def latent_normal(mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean a and deviation b of normal numbers that, clamped to [0, 1], have what is `attainable`.

    In float64, by a table and two steps of Newton's method.

    >>> mean, variance = torch.tensor([0.5, 0.05]), torch.tensor([0.001, 0.01])
    >>> a, b = latent_normal(mean, variance)
    >>> [round(value, 4) for value in a.tolist()], [round(value, 4) for value in b.tolist()]
    ([0.5, -0.1025], [0.0316, 0.2315])
    >>> [round(value, 4) for value in rectified_moments(a, b)[0].tolist()]
    [0.5, 0.05]
    """
    shape = (mean + variance).shape
    means, variances = (torch.split(part.expand(shape).flatten(), _CHUNK) for part in (mean, variance))
    found = [_latent_normal(*attainable(m, v)) for m, v in zip(means, variances, strict=True)]
    a, b = (torch.cat(parts).view(shape) for parts in zip(*found, strict=True))
    return a, b


def _latent_normal(mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    """Return `latent_normal` of what is attainable, (n,)."""
    a, b = mean.clone(), variance.sqrt()
    # black and white are alike: only the lower half is solved for
    near = torch.minimum(mean, 1 - mean)
    clamped = (_FAR * b > near).nonzero().squeeze(1)
    if not len(clamped):
        return a, b
    m, v = near[clamped], variance[clamped]
    own_a, own_b = _from_table(m, v)
    for _ in range(2):
        own_a, own_b = _newton(own_a, own_b, m, v)
    a[clamped] = torch.where(mean[clamped] > 0.5, 1 - own_a, own_a)
    b[clamped] = own_b
    return a, b


class _Parts(NamedTuple):
    """Mean and variance, and their derivatives by a and by b."""

    mean: Tensor
    variance: Tensor
    mean_a: Tensor
    mean_b: Tensor
    variance_a: Tensor
    variance_b: Tensor


def _parts(a: Tensor, b: Tensor) -> _Parts:
    low, high = -a / b, (1 - a) / b
    at_low, at_high = _density(low), _density(high)
    above = torch.special.ndtr(-high)
    inside = torch.special.ndtr(-low) - above
    # expectations of z and z² within [low, high], z standard normal
    first = at_low - at_high
    second = inside + low * at_low - high * at_high
    # and of x = a + b z and of x z
    x = a * inside + b * first
    xz = a * first + b * second
    mean = x + above
    variance = a * x + b * xz + above - mean.square()
    return _Parts(
        mean=mean,
        variance=variance.clamp(min=0),
        mean_a=inside,
        mean_b=first,
        variance_a=2 * (x - mean * inside),
        variance_b=2 * (xz - mean * first),
    )


def _density(z: Tensor) -> Tensor:
    return torch.exp(-0.5 * z.square()) / math.sqrt(2 * math.pi)


def _newton(a: Tensor, b: Tensor, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    """Take one step towards clamped numbers of that mean and variance."""
    now = _parts(a, b)
    far_mean, far_variance = mean - now.mean, variance - now.variance
    scale = now.mean_a * now.variance_b - now.mean_b * now.variance_a
    to_a = (far_mean * now.variance_b - far_variance * now.mean_b) / scale
    to_b = (far_variance * now.mean_a - far_mean * now.variance_a) / scale
    return a + to_a, b + to_b


def _from_table(mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    """Return a and b nearly, for means of at most 1/2."""
    deviation = variance.sqrt()
    across = 1 - torch.logit(mean) / _logit(_LEAST_ROOM)
    least, most = _relative_deviations(mean)
    down = (torch.log(deviation / mean) - least) / (most - least)
    places = torch.stack([2 * across - 1, 2 * down - 1], dim=-1).view(1, 1, -1, 2)
    table = _table().to(mean.device)
    found = functional.grid_sample(table, places, padding_mode="border", align_corners=True)[0, :, 0]
    b = deviation * found[1].exp()
    return found[0] * b, b


@functools.cache
def _table() -> Tensor:
    """a / b and log(b / deviation), (1, 2, rows, columns).

    Columns go by the logit of the mean, up to 1/2; rows by the logarithm of the deviation, as a part of the
    mean, from where nothing is clamped to the largest. Each row is found from the one before.
    """
    with torch.inference_mode(False):  # it is kept, and may be wanted outside
        mean = torch.sigmoid(torch.linspace(_logit(_LEAST_ROOM), 0, _COLUMNS, dtype=torch.float64))
        least, most = _relative_deviations(mean)
        a, b = mean, mean * math.exp(least)
        rows = []
        before = b
        for part in torch.linspace(0, 1, _ROWS, dtype=torch.float64):
            deviation = mean * torch.exp(least + part * (most - least))
            a, b = a * (deviation / before), b * (deviation / before)
            for _ in range(4):
                a, b = _newton(a, b, mean, deviation.square())
            rows.append(torch.stack([a / b, torch.log(b / deviation)]))
            before = deviation
        return torch.stack(rows, dim=1).unsqueeze(0)


def _relative_deviations(mean: Tensor) -> tuple[float, Tensor]:
    """Return the logarithms of the least and the largest deviation / mean in the table."""
    largest = attainable(mean, torch.ones_like(mean))[1]
    return -math.log(_FAR), 0.5 * torch.log(largest / mean.square())


def _logit(value: float) -> float:
    return math.log(value / (1 - value))


# ---- the generator


_AT_ONCE = 2**20  # pixels in float64
_STEP = 2.0**-24  # uniform float32 numbers are whole multiples of it, 0 included, which no normal number has


class Mixture(Generator, makes=MixtureConfig):
    """Chooses a component by the first latent, deviates from its centre by the others; see `MixtureConfig`.

    Parameters, for each class: `weights` (K,) of the components, in any unit; `centres` (K, k) and `middles`
    (k,), the components' and the whole class's, as coefficients of the cosine transform of pixels in [0, 1];
    `factors` F (k, k), with F Fᵀ the covariance within a component. Sampling has no use for `middles`:
    training has. Images are clamped to [0, 1], and rectified, so that pixels have the mean and variance of
    their component even so: see `latent_normal`. They carry no gradients: a mixture is fitted without.
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
