"""What goes into a generator: latents uniform on (0, 1), and labels of a public distribution."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from dpsinkhorn.generators.errors import GeneratorError

__all__ = ["check_probabilities", "draw_labels", "draw_latents"]


def draw_latents(
    count: int,
    latent: int,
    generator: torch.Generator | None = None,
    device: torch.device | str = "cpu",
) -> Tensor:
    """Draw latents (count, latent), float32, uniform on (0, 1).

    They are drawn on the generator's device and moved, so that a seed means the same on every device.

    >>> draw_latents(2, 3, torch.Generator().manual_seed(0)).shape
    torch.Size([2, 3])
    """
    where = device if generator is None else generator.device
    return torch.rand(count, latent, generator=generator, device=where).to(device)


def draw_labels(
    count: int,
    probabilities: Sequence[float],
    generator: torch.Generator | None = None,
    device: torch.device | str = "cpu",
) -> Tensor:
    """Draw labels (count,), int64, of the given distribution; a class of probability 0 is never drawn.

    >>> draw_labels(4, [0.0, 1.0, 0.0]).tolist()
    [1, 1, 1, 1]
    """
    weights = torch.tensor(check_probabilities(probabilities), dtype=torch.float64)
    ends = weights.cumsum(0)
    where = device if generator is None else generator.device
    uniform = torch.rand(count, generator=generator, device=where, dtype=torch.float64)
    ends = (ends / ends[-1]).to(where)
    return torch.searchsorted(ends, uniform, right=True).to(device)


def check_probabilities(probabilities: Sequence[float], classes: int | None = None) -> tuple[float, ...]:
    """Return the probabilities as floats; refuse what is no distribution on the classes."""
    values = tuple(probabilities)
    if not values or (classes is not None and len(values) != classes):
        need = "at least one probability" if classes is None else f"{classes} probabilities, one per class"
        raise GeneratorError(f"a distribution of labels needs {need}, not {len(values)}")
    if any(isinstance(value, (bool, str)) for value in values):
        raise GeneratorError("probabilities of labels must be numbers")
    try:
        values = tuple(float(value) for value in values)
    except (TypeError, ValueError, OverflowError):
        raise GeneratorError("probabilities of labels must be numbers") from None
    if not all(0 <= value <= 1 for value in values) or not math.isclose(math.fsum(values), 1, abs_tol=1e-6):
        raise GeneratorError("probabilities of labels must be from 0 to 1 and add up to 1")
    return values
