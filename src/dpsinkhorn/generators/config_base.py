"""What all configs of generators share: their fields are declared with the values that they may take."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from dpsinkhorn import _checks
from dpsinkhorn.generators.errors import GeneratorError
from dpsinkhorn.generators.variation import Variation

__all__ = [
    "LARGEST_LATENT",
    "LARGEST_PARAMETERS",
    "Config",
    "NetworkConfig",
    "checked",
    "nonlinearity",
    "truth",
    "whole",
]

LARGEST_LATENT = 4096
LARGEST_PARAMETERS = 2**28  # 1 GiB of float32

_LARGEST_SIDE = 512
_LARGEST_ACTIVATIONS = 2**26  # of one layer and one image, in numbers


def checked(check: Callable[..., object], default: Any = dataclasses.MISSING, **bounds: Any) -> Any:
    """Declare a field whose value is checked by `check(value, name, GeneratorError, **bounds)`."""
    metadata = {"check": partial(check, error=GeneratorError, **bounds)}
    return dataclasses.field(default=default, metadata=metadata)


def whole(least: int, most: int, default: Any = dataclasses.MISSING) -> Any:
    """Declare a field that is a whole number within bounds."""
    return checked(_checks.whole, default, least=least, most=most)


def truth(default: bool) -> Any:
    """Declare a field that is true or false."""
    return checked(_checks.truth, default)


def nonlinearity() -> Any:
    """Declare the field for the nonlinearity of a network."""
    return checked(_checks.choice, "relu", choices=("relu", "leaky_relu"))


def _shape(value: Any, name: str, error: type[Exception]) -> None:
    if type(value) is not tuple or len(value) != 3 or not all(type(size) is int for size in value):
        raise error(f"{name} must be three whole numbers: channels, height, width")
    channels, height, width = value
    if channels not in (1, 3):
        raise error(f"images have 1 or 3 channels, not {channels}")
    if not (1 <= height <= _LARGEST_SIDE and 1 <= width <= _LARGEST_SIDE):
        raise error(f"images are from 1 x 1 to {_LARGEST_SIDE} x {_LARGEST_SIDE}, not {height} x {width}")


@dataclass(frozen=True)
class Config:
    """What every config has. `image_shape` is (channels, height, width); 0 classes is unconditional.

    `warp`, `sharpen` and `grain` are what sampling adds to images, see `Variation`: public numbers, nothing
    of it is learned.
    """

    kind: ClassVar[str]

    image_shape: tuple[int, int, int] = checked(_shape)
    classes: int = whole(0, 2**16)
    warp: float = 0.0
    sharpen: float = 0.0
    grain: float = 0.0

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            if check := field.metadata.get("check"):
                check(getattr(self, field.name), field.name)
        _ = self.variation  # which checks its fields
        _checks.whole(self.latent, "latent", GeneratorError, least=1, most=LARGEST_LATENT)
        if self.parameters > LARGEST_PARAMETERS:
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
    def latent(self) -> int:
        """How many numbers, uniform on (0, 1), an image is made from."""
        raise NotImplementedError

    @property
    def parameters(self) -> int:
        """How many numbers are trained."""
        raise NotImplementedError

    @property
    def activations(self) -> int:
        """How many numbers the largest layer has per image: what decides the memory of a batch."""
        raise NotImplementedError


@dataclass(frozen=True)
class NetworkConfig(Config):
    """What every network has: a latent, and beside it the label's embedding."""

    latent: int = whole(1, LARGEST_LATENT, 12)
    embedding: int = whole(1, 4096, 4)

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
