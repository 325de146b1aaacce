"""Noise added on a public lattice, in whole numbers, so that floating point gives nothing away.

The lattice step is g = std 2^-30. A private value v becomes the whole number u = round(v / g), the noise is
the whole number z = floor(X / g) of an exactly sampled real X, and (u + z + 1/2) g is handed back. Since u
is whole, u + z = floor((u g + X) / g): post-processing of the textbook mechanism on the query u g. All that
rounding costs is a sensitivity larger by 2 g per coordinate, and the noise here is enlarged by just as
much, so the event to charge is that of the textbook mechanism. Statement and proof:
`docs/proofs/floating-point.md`.

Private values meet randomness in three places: `add_gaussian`, `add_laplace` and `poisson_sample`. Each of
them tells an `ObservedNoise`, which is there for audits, what it was given and what it is about to hand back,
and hands back what that answers. Every other source is asked for random bits and nothing else. By
`announce` a mechanism says what else goes into a release: public state, the same whatever the records are.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from dpsinkhorn.privacy.noise.sources import LATTICE_BITS, NoiseSource, laplace_cells, normal_cells

_STEP = 2.0**-LATTICE_BITS  # lattice step / std
_ROUNDING = 2.0  # by how many steps rounding can move two neighbours apart, per coordinate
_LARGEST = 2.0**50  # lattice values are clamped to this: below it float64 division errs by less than 1/2
_UP = 1 + 2.0**-40  # more than all rounding errors in computing a scale


@dataclass(frozen=True)
class Query:
    """What noise was asked for: all of it must be public."""

    # `gaussian`, where the sensitivity is in Euclidean norm, or `laplace`, where it is in L1
    noise: Literal["gaussian", "laplace"]
    shape: tuple[int, ...]  # of the values
    sensitivity: float  # what one unit moves the values by, at most
    multiplier: float  # noise over sensitivity
    together: int  # how many numbers, these among them, are released under one bound and one charge


class ObservedNoise(ABC):
    """A source of noise that stands at the barrier. It sees private values: for audits, never for release."""

    secure = False
    description = "Noise that is recorded at the barrier, for an audit: not for release."

    def __init__(self, source: NoiseSource) -> None:
        self.words = source.words

    @abstractmethod
    def public(self, arguments: dict[str, Tensor | float | None]) -> None:
        """Take note of what the next release is computed from besides private records."""

    @abstractmethod
    def release(self, query: Query, values: Tensor, noised: Tensor) -> Tensor:
        """Return what is released for these private values; `noised` is what would be."""

    @abstractmethod
    def sample(self, units: int, rate: float, taken: Tensor) -> Tensor:
        """Return the indices of the Poisson sample of so many units; `taken` is what would be."""


def announce(noise: object, **public: Tensor | float | None) -> None:
    """Tell an audit, where one looks on, what the next release is computed from besides private records."""
    if isinstance(noise, ObservedNoise):
        noise.public(public)


def gaussian_std(sensitivity: float, noise_multiplier: float, coordinates: int) -> float:
    """The standard deviation of `add_gaussian`: noise_multiplier * sensitivity and a trifle for rounding.

    >>> gaussian_std(1.0, 2.0, 1_000_000) / 2.0
    1.0000037...
    """
    _check_positive(sensitivity=sensitivity, noise_multiplier=noise_multiplier)
    lost = _ROUNDING * _STEP * math.sqrt(coordinates) * noise_multiplier
    return _enlarged(sensitivity * noise_multiplier, lost)


def laplace_scale(sensitivity: float, epsilon: float, coordinates: int) -> float:
    """Return the Laplace scale that `add_laplace` uses: sensitivity / epsilon and a trifle for rounding."""
    _check_positive(sensitivity=sensitivity, epsilon=epsilon)
    return _enlarged(sensitivity / epsilon, _ROUNDING * _STEP * coordinates / epsilon)


def add_gaussian(
    values: torch.Tensor,
    *,
    sensitivity: float,
    noise_multiplier: float,
    noise: NoiseSource | None = None,
    coordinates: int | None = None,
    cells: torch.Tensor | None = None,
) -> torch.Tensor:
    """Apply the Gaussian mechanism: charge it as `Gaussian(noise_multiplier)`.

    `sensitivity` bounds the Euclidean distance of `values`, *as computed*, between neighbouring data sets.
    `coordinates` is the number of values released together under that bound, where `values` is only a part
    of them. `cells` are draws of `normal_cells` made beforehand and used for nothing else; with them no
    source of noise is needed, and nothing here waits for the device. Values beyond 2^20 standard deviations
    are clamped; what is not finite becomes 0.

    >>> from dpsinkhorn.privacy.noise import SeededNoise
    >>> gradient = torch.tensor([1.0, -1.0])
    >>> add_gaussian(gradient, sensitivity=1.0, noise_multiplier=0.5, noise=SeededNoise(7))
    tensor([...])
    """
    together = _count(values, coordinates)
    std = gaussian_std(sensitivity, noise_multiplier, together)
    query = Query("gaussian", tuple(values.shape), sensitivity, noise_multiplier, together)
    return _released(values, std, query, noise, cells, normal_cells)


def add_laplace(
    values: torch.Tensor,
    *,
    sensitivity: float,
    epsilon: float,
    noise: NoiseSource | None = None,
    coordinates: int | None = None,
    cells: torch.Tensor | None = None,
) -> torch.Tensor:
    """Apply the Laplace mechanism, epsilon-DP: charge it as `Laplace(1 / epsilon)`.

    As `add_gaussian`, but `sensitivity` is in the sum of absolute differences. For counts, round the result:
    that is post-processing.

    >>> from dpsinkhorn.privacy.noise import SeededNoise
    >>> add_laplace(torch.tensor(120.0), sensitivity=1.0, epsilon=1.0, noise=SeededNoise(7))
    tensor(...)
    """
    together = _count(values, coordinates)
    scale = laplace_scale(sensitivity, epsilon, together)
    query = Query("laplace", tuple(values.shape), sensitivity, 1 / epsilon, together)
    return _released(values, scale, query, noise, cells, laplace_cells)


def _released(
    values: torch.Tensor,
    scale: float,
    query: Query,
    noise: NoiseSource | None,
    cells: torch.Tensor | None,
    draw: Callable[..., torch.Tensor],
) -> torch.Tensor:
    if cells is None:
        if noise is None:
            raise TypeError("a source of noise, or cells drawn from one, must be given")
        cells = draw(noise, query.shape, device=values.device)
    released = _on_lattice(values, cells, scale * _STEP)
    return noise.release(query, values, released) if isinstance(noise, ObservedNoise) else released


def _on_lattice(values: torch.Tensor, cells: torch.Tensor, step: float) -> torch.Tensor:
    """(round(values / step) + cells + 1/2) * step: whole numbers until both are added."""
    if cells.shape != values.shape:
        raise ValueError(f"noise of shape {tuple(cells.shape)} for values of shape {tuple(values.shape)}")
    finite = torch.nan_to_num(values.double(), nan=0.0, posinf=0.0, neginf=0.0)
    # by the reciprocal, since PyTorch divides by a number in this way on a GPU, and otherwise on a CPU
    whole = (finite * (1 / step)).round_().clamp_(-_LARGEST, _LARGEST)
    # Whole numbers below 2^52, which float64 holds: sums are exact, with the half too. From here on the data
    # are seen through a whole number plus noise only: rounding is post-processing.
    released = whole.add_(cells).add_(0.5).mul_(step)
    return released.to(values.dtype if values.dtype.is_floating_point else torch.float64)


def _count(values: torch.Tensor, coordinates: int | None) -> int:
    if values.is_complex():
        raise TypeError("noise is added to real values only")
    if coordinates is None:
        return values.numel()
    if coordinates < values.numel():
        raise ValueError(f"coordinates={coordinates} is less than the {values.numel()} values given")
    return coordinates


def _check_positive(**arguments: float) -> None:
    for name, value in arguments.items():
        if not (0 < value < math.inf):
            raise ValueError(f"{name} must be a positive number, not {value}")


def _enlarged(scale: float, lost: float) -> float:
    """Return the least scale s with s (1 - lost) >= `scale`."""
    if not lost <= 0.1:
        raise ValueError("too many coordinates for so much noise: the lattice would cost over a tenth of it")
    if not 1e-200 < scale < 1e200:
        raise ValueError(f"a noise scale of {scale} is outside of what float64 can hold with its lattice")
    return scale / (1 - lost) * _UP
