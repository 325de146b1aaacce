"""Releases of `moments` under public state that is hard on their arithmetic, for audits."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from dpsinkhorn.mechanisms.moments import Moments

_LITTLE = 1e-3  # in some direction, so that every number has all its digits


def exact_releases(moments: Moments, record: Tensor) -> dict[str, Callable[..., object]]:
    """Return both kinds of release, with centres as far from a record, (1, d), as any can be.

    Coordinates W are long, not finite, or along the line between record and centre.
    """
    config, draws = moments.config, torch.Generator().manual_seed(0)
    k = config.coefficients

    def drawn(*shape: int) -> Tensor:
        return torch.randn(shape, generator=draws, dtype=torch.float64)

    own = moments.coefficients(record)[0]
    opposite = _LITTLE * drawn(config.kinds, config.components, k) - own / own.norm()
    centres = 1e6 * opposite  # which is brought to where images are
    along = torch.zeros(k, k, dtype=torch.float64)
    along[0] = _LITTLE * drawn(k) - opposite[0, 0]
    turned = torch.linalg.qr(drawn(k, k))[0] / k**0.5
    broken, infinite = turned.clone(), turned.clone()
    broken[0, 0], infinite[0, 0] = torch.nan, torch.inf
    coordinates = {
        "none": None,
        "turned": turned,
        "along a record": along,
        "a thousand times too long": 1e3 * along,
        "beyond all numbers": 1e306 * turned,
        "one no number": broken,
        "one infinite": infinite,
    }
    kinds: dict[str, Callable[..., object]] = {
        "deviations": moments.deviations,
        "squares": partial(moments.squares, pooled=False),
    }
    return {
        f"{kind}, coordinates: {words}": partial(
            release, centres=centres, radius=moments.radius, coordinates=matrix
        )
        for words, matrix in coordinates.items()
        for kind, release in kinds.items()
    }
