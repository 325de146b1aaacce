"""What a generator is made of: one small frozen config per kind, and its JSON form.

A config may come from a stranger's file, so every field is checked, and so are the parameters and
activations that it asks for, before anything is allocated.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

from dpsinkhorn.generators.errors import GeneratorError
from dpsinkhorn.generators.variation import Variation

__all__ = [
    "ACTIVATIONS",
    "BigGANConfig",
    "DCGANConfig",
    "GeneratorConfig",
    "GeneratorError",
    "MLPConfig",
    "config_from_json",
    "config_to_json",
]

ACTIVATIONS = ("relu", "leaky_relu")

_LARGEST_SIDE = 512
_LARGEST_PARAMETERS = 2**28  # 1 GiB of float32
_LARGEST_ACTIVATIONS = 2**26  # of one layer and one image, in numbers


@dataclass(frozen=True)
class _Config:
    """What every config has. `image_shape` is (channels, height, width); 0 classes is unconditional.

    `warp`, `sharpen` and `grain` are what sampling adds to images, see `Variation`: public numbers, nothing
    of it is learned.
    """

    kind: ClassVar[str]

    image_shape: tuple[int, int, int]
    classes: int
    latent: int = 12
    embedding: int = 4
    warp: float = 0.0
    sharpen: float = 0.0
    grain: float = 0.0

    def __post_init__(self) -> None:
        _check_shape(self.image_shape)
        _check_int(self, "classes", 0, 2**16)
        _check_int(self, "latent", 1, 4096)
        _check_int(self, "embedding", 1, 4096)
        _ = self.variation  # which checks its fields
        self._check_own_fields()
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
    def inputs(self) -> int:
        """Numbers per image that enter the network: the latent and, with classes, the embedded label."""
        return self.latent + (self.embedding if self.classes else 0)

    @property
    def points(self) -> int:
        """Numbers per image: channels x height x width."""
        return math.prod(self.image_shape)

    @property
    def parameters(self) -> int:
        """How many numbers are trained."""
        return self.classes * self.embedding + self._network_parameters

    @property
    def activations(self) -> int:
        """How many numbers the largest layer has per image: what decides the memory of a batch."""
        raise NotImplementedError

    @property
    def _network_parameters(self) -> int:
        raise NotImplementedError

    def _check_own_fields(self) -> None:
        raise NotImplementedError


@dataclass(frozen=True)
class DCGANConfig(_Config):
    """Four transposed convolutions, as in the papers.

    The first takes latent and label to `4 width` channels at a quarter of the image's size (7 x 7 for 28 x
    28), the others have [2 width, width, channels] of them, kernels [4, 4, 3], strides [2, 2, 1] and
    paddings [1, 1, 1]. Sizes that are no multiple of 4 start at the next larger quarter and lose the border
    before tanh. The papers' networks have ReLU and are silent on BatchNorm.

    >>> DCGANConfig(image_shape=(1, 28, 28), classes=10).start
    (7, 7)
    """

    kind: ClassVar[str] = "dcgan"

    width: int = 64
    batch_norm: bool = True
    activation: str = "relu"

    @property
    def start(self) -> tuple[int, int]:
        """Height and width after the first layer."""
        _, height, width = self.image_shape
        return math.ceil(height / 4), math.ceil(width / 4)

    @property
    def channels(self) -> tuple[int, int, int, int]:
        """Channels after each layer."""
        return 4 * self.width, 2 * self.width, self.width, self.image_shape[0]

    def _check_own_fields(self) -> None:
        _check_int(self, "width", 1, 1024)
        _check_bool(self, "batch_norm")
        _check_activation(self.activation)

    @property
    def _network_parameters(self) -> int:
        first, second, third, last = self.channels
        weights = self.inputs * first * math.prod(self.start)
        weights += first * second * 16 + second * third * 16 + third * last * 9
        return weights + (2 if self.batch_norm else 1) * (first + second + third) + last

    @property
    def activations(self) -> int:
        return 16 * self.width * math.prod(self.start)


@dataclass(frozen=True)
class BigGANConfig(_Config):
    """Residual blocks in the manner of BigGAN, as the papers use for faces.

    A linear layer to `depth` channels at the start size; `blocks` blocks, each with two 3 x 3 convolutions
    and a 1 x 1 convolution as shortcut (the three convolutions of a block); a last 3 x 3 convolution to the
    image's channels; spectral normalisation on all of them. The first `upsamplings` blocks double the size.

    >>> config = BigGANConfig(image_shape=(3, 32, 32), classes=2)
    >>> config.start, config.upsamplings
    ((4, 4), 3)
    """

    kind: ClassVar[str] = "biggan"

    latent: int = 32
    depth: int = 256
    blocks: int = 4
    batch_norm: bool = True
    activation: str = "relu"

    @property
    def upsamplings(self) -> int:
        """How many blocks double the size: as many as leave a start of 4 or more."""
        side = min(self.image_shape[1:])
        return max(times for times in range(self.blocks + 1) if times == 0 or math.ceil(side / 2**times) >= 4)

    @property
    def start(self) -> tuple[int, int]:
        """Height and width after the linear layer; a larger result loses its border."""
        factor = 2**self.upsamplings
        _, height, width = self.image_shape
        return math.ceil(height / factor), math.ceil(width / factor)

    def _check_own_fields(self) -> None:
        _check_int(self, "depth", 1, 1024)
        _check_int(self, "blocks", 1, 16)
        _check_bool(self, "batch_norm")
        _check_activation(self.activation)

    @property
    def _network_parameters(self) -> int:
        channels, depth = self.image_shape[0], self.depth
        linear = (self.inputs + 1) * depth * math.prod(self.start)
        block = 19 * depth * depth + 3 * depth
        norms = (2 * self.blocks + 1) * 2 * depth if self.batch_norm else 0
        return linear + self.blocks * block + norms + 9 * depth * channels + channels

    @property
    def activations(self) -> int:
        height, width = self.start
        return self.depth * height * width * int(4**self.upsamplings)


@dataclass(frozen=True)
class MLPConfig(_Config):
    """Fully connected layers, for small images such as 8 x 8 digits.

    >>> MLPConfig(image_shape=(1, 8, 8), classes=10, hidden=(128,)).parameters
    10600
    """

    kind: ClassVar[str] = "mlp"

    hidden: tuple[int, ...] = (256, 256)
    batch_norm: bool = True
    activation: str = "relu"

    def _check_own_fields(self) -> None:
        sizes = self.hidden
        if type(sizes) is not tuple or not 1 <= len(sizes) <= 16:
            raise GeneratorError("hidden must be a tuple of 1 to 16 layer sizes")
        if not all(type(size) is int and 1 <= size <= 65536 for size in sizes):
            raise GeneratorError("hidden layer sizes must be whole numbers from 1 to 65536")
        _check_bool(self, "batch_norm")
        _check_activation(self.activation)

    @property
    def _network_parameters(self) -> int:
        sizes = (self.inputs, *self.hidden)
        hidden = sum(before * after for before, after in itertools.pairwise(sizes))
        # BatchNorm has a scale and a shift and makes the layer's own bias redundant
        hidden += (2 if self.batch_norm else 1) * sum(self.hidden)
        return hidden + (sizes[-1] + 1) * self.points

    @property
    def activations(self) -> int:
        return max(*self.hidden, self.points)


GeneratorConfig: TypeAlias = DCGANConfig | BigGANConfig | MLPConfig

_KINDS: dict[str, type[GeneratorConfig]] = {
    kind.kind: kind for kind in (DCGANConfig, BigGANConfig, MLPConfig)
}


def config_to_json(config: GeneratorConfig) -> dict[str, Any]:
    """Plain JSON values, every field included.

    >>> config_to_json(MLPConfig(image_shape=(1, 8, 8), classes=10))["kind"]
    'mlp'
    """
    fields = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    plain = {name: list(value) if isinstance(value, tuple) else value for name, value in fields.items()}
    return {"kind": config.kind, **plain}


def config_from_json(data: Any) -> GeneratorConfig:
    """Read back `config_to_json`. Unknown fields, wrong types and absurd sizes raise `GeneratorError`.

    Fields that have a default may be left out.

    >>> config_from_json({"kind": "dcgan", "image_shape": [1, 28, 28], "classes": 10}).width
    64
    >>> config_from_json({"kind": "dcgan", "image_shape": [1, 28, 28], "classes": 10, "heads": 8})
    Traceback (most recent call last):
    dpsinkhorn.generators.errors.GeneratorError: a dcgan has no field 'heads'
    """
    if not isinstance(data, Mapping):
        raise GeneratorError("the config of a generator must be a table of fields")
    kind = data.get("kind")
    if not isinstance(kind, str) or kind not in _KINDS:
        raise GeneratorError(f"kind must be one of {', '.join(_KINDS)}")
    config = _KINDS[kind]
    fields = {field.name: field for field in dataclasses.fields(config)}
    values: dict[str, Any] = {}
    for name, value in data.items():
        if name == "kind":
            continue
        if name not in fields:
            raise GeneratorError(f"a {kind} has no field {str(name)[:40]!r}")
        values[name] = tuple(value) if isinstance(value, list) else value
    for name, field in fields.items():
        if name not in values and field.default is dataclasses.MISSING:
            raise GeneratorError(f"the config of a {kind} needs {name}")
    return config(**values)


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


def _check_int(config: _Config, name: str, least: int, most: int) -> None:
    value = getattr(config, name)
    if type(value) is not int or not least <= value <= most:
        raise GeneratorError(f"{name} must be a whole number from {least} to {most}, not {str(value)[:40]}")


def _check_bool(config: _Config, name: str) -> None:
    if type(getattr(config, name)) is not bool:
        raise GeneratorError(f"{name} must be true or false")


def _check_activation(value: Any) -> None:
    if not isinstance(value, str) or value not in ACTIVATIONS:
        raise GeneratorError(f"activation must be one of {', '.join(ACTIVATIONS)}")
