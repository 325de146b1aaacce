"""Rectified normals: normal numbers clamped to [0, 1], of a wanted mean and variance.

Pixels end at black and white. A normal number of a pixel's mean and variance has, once it is clamped, another
mean and less variance: near black it is too bright. So the normal number is chosen otherwise, such that what
is left after clamping has both.
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

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
