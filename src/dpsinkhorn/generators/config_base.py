"""What all configs of generators share, and the checks of their fields."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

from dpsinkhorn.generators.errors import GeneratorError
from dpsinkhorn.generators.variation import Variation

__all__ = ["ACTIVATIONS", "Config", "NetworkConfig", "check_activation", "check_bool", "check_int"]

ACTIVATIONS = ("relu", "leaky_relu")

_LARGEST_SIDE = 512
_LARGEST_LATENT = 4096
_LARGEST_PARAMETERS = 2**28  # 1 GiB of float32
_LARGEST_ACTIVATIONS = 2**26  # of one layer and one image, in numbers


@dataclass(frozen=True)
class Config:
    """What every config has. `image_shape` is (channels, height, width); 0 classes is unconditional.

    `warp`, `sharpen` and `grain` are what sampling adds to images, see `Variation`: public numbers, nothing
    of it is learned.
    """

    kind: ClassVar[str]

    image_shape: tuple[int, int, int]
    classes: int
    warp: float = 0.0
    sharpen: float = 0.0
    grain: float = 0.0

    def __post_init__(self) -> None:
        _check_shape(self.image_shape)
        check_int(self, "classes", 0, 2**16)
        _ = self.variation  # which checks its fields
        self._check_own_fields()
        check_int(self, "latent", 1, _LARGEST_LATENT)
        if self.parameters > _LARGEST_PARAMETERS:
            raise GeneratorError(
                f"this {self.kind} would have {self.parameters:,} parameters; make it smaller"
            )
        if self.activations > _LARGEST_ACTIVATIONS:
            raise GeneratorError(f"this {self.kind} would need too much memory per image; make it smaller")

    @property
    def variation(self) -> Variation:
        """What sampling adds to images."""
        return Variation(self.warp, self.sharpen, self.grain)

    @property
    def points(self) -> int:
        """Numbers per image: channels x height x width."""
        return math.prod(self.image_shape)

    @property
    def parameters(self) -> int:
        """How many numbers are trained."""
        raise NotImplementedError

    @property
    def activations(self) -> int:
        """How many numbers the largest layer has per image: what decides the memory of a batch."""
        raise NotImplementedError

    def _check_own_fields(self) -> None:
        raise NotImplementedError


@dataclass(frozen=True)
class NetworkConfig(Config):
    """What every network has: a latent, and beside it the label's embedding."""

    latent: int = 12
    embedding: int = 4

    @property
    def inputs(self) -> int:
        """Numbers per image that enter the network: the latent and, with classes, the embedded label."""
        return self.latent + (self.embedding if self.classes else 0)

    @property
    def parameters(self) -> int:
        """How many numbers are trained."""
        return self.classes * self.embedding + self._network_parameters

    @property
    def _network_parameters(self) -> int:
        raise NotImplementedError

    def _check_own_fields(self) -> None:
        check_int(self, "latent", 1, _LARGEST_LATENT)
        check_int(self, "embedding", 1, 4096)
        self._check_network()

    def _check_network(self) -> None:
        raise NotImplementedError


def _check_shape(shape: Any) -> None:
    if type(shape) is not tuple or len(shape) != 3 or not all(type(size) is int for size in shape):
        raise GeneratorError("image_shape must be three whole numbers: channels, height, width")
    channels, height, width = shape
    if channels not in (1, 3):
        raise GeneratorError(f"images have 1 or 3 channels, not {channels}")
    if not (1 <= height <= _LARGEST_SIDE and 1 <= width <= _LARGEST_SIDE):
        raise GeneratorError(
            f"images are from 1 x 1 to {_LARGEST_SIDE} x {_LARGEST_SIDE}, not {height} x {width}"
        )


def check_int(config: Config, name: str, least: int, most: int) -> None:
    """Refuse a field that is not a whole number within bounds."""
    value = getattr(config, name)
    if type(value) is not int or not least <= value <= most:
        raise GeneratorError(f"{name} must be a whole number from {least} to {most}, not {str(value)[:40]}")


def check_bool(config: Config, name: str) -> None:
    """Refuse a field that is neither true nor false."""
    if type(getattr(config, name)) is not bool:
        raise GeneratorError(f"{name} must be true or false")


def check_activation(value: Any) -> None:
    """Refuse an unknown nonlinearity."""
    if not isinstance(value, str) or value not in ACTIVATIONS:
        raise GeneratorError(f"activation must be one of {', '.join(ACTIVATIONS)}")
