"""Potentials f of the generated images: what shifts the softmax that shares a record out among them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


class Potentials(Protocol):
    """Anything from public generated images to their potentials.

    It is called with generated points ``(n, d)`` and labels ``(n,)`` and returns ``(n,)``, in the units of
    the cost. It is never given a private record, and must not hold any: what it knows of the data must come
    from earlier, noised and charged releases.
    """

    def __call__(self, points: Tensor, labels: Tensor | None) -> Tensor: ...


@dataclass(frozen=True)
class ZeroPotentials:
    """f = 0: semi-relaxed transport. The records' marginal is exact, that of the generated images free.

    >>> ZeroPotentials()(torch.rand(3, 2), None)
    tensor([0., 0., 0.], dtype=torch.float64)
    """

    def __call__(self, points: Tensor, labels: Tensor | None) -> Tensor:  # noqa: ARG002
        return torch.zeros(len(points), dtype=torch.float64, device=points.device)
