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

from dpsinkhorn.generators.config_base import (
    ACTIVATIONS,
    Config,
    NetworkConfig,
    check_activation,
    check_bool,
    check_int,
)
from dpsinkhorn.generators.errors import GeneratorError

__all__ = [
    "ACTIVATIONS",
    "BigGANConfig",
    "DCGANConfig",
    "GeneratorConfig",
    "GeneratorError",
    "MLPConfig",
    "MixtureConfig",
    "config_from_json",
    "config_to_json",
]

_LARGEST_CENTRES = 2**27  # pixels of all components of a mixture: sampling keeps two numbers for each


@dataclass(frozen=True)
class DCGANConfig(NetworkConfig):
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

    def _check_network(self) -> None:
        check_int(self, "width", 1, 1024)
        check_bool(self, "batch_norm")
        check_activation(self.activation)

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
class BigGANConfig(NetworkConfig):
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

    def _check_network(self) -> None:
        check_int(self, "depth", 1, 1024)
        check_int(self, "blocks", 1, 16)
        check_bool(self, "batch_norm")
        check_activation(self.activation)

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
class MLPConfig(NetworkConfig):
    """Fully connected layers, for small images such as 8 x 8 digits.

    >>> MLPConfig(image_shape=(1, 8, 8), classes=10, hidden=(128,)).parameters
    10600
    """

    kind: ClassVar[str] = "mlp"

    hidden: tuple[int, ...] = (256, 256)
    batch_norm: bool = True
    activation: str = "relu"

    def _check_network(self) -> None:
        sizes = self.hidden
        if type(sizes) is not tuple or not 1 <= len(sizes) <= 16:
            raise GeneratorError("hidden must be a tuple of 1 to 16 layer sizes")
        if not all(type(size) is int and 1 <= size <= 65536 for size in sizes):
            raise GeneratorError("hidden layer sizes must be whole numbers from 1 to 65536")
        check_bool(self, "batch_norm")
        check_activation(self.activation)

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


@dataclass(frozen=True)
class MixtureConfig(Config):
    """A mixture of Gaussians for each class, on the low frequencies of images: no network.

    An image is `components` K centres, of which one is chosen, and a normal deviation from it, in the
    coefficients (i, j) with i + j < `frequencies` of the cosine transform of each channel: all of them, where
    that is height + width - 1 or more. All components of a class have the same covariance. Pixels are clamped
    to [0, 1] in a way that leaves their means and variances, see `rectified`.

    >>> config = MixtureConfig(image_shape=(1, 28, 28), classes=10)
    >>> config.coefficients, config.latent
    (210, 211)
    """

    kind: ClassVar[str] = "mixture"

    components: int = 32
    frequencies: int = 20

    @property
    def kinds(self) -> int:
        """Mixtures: one for each class, one where there are none."""
        return max(1, self.classes)

    @property
    def bands(self) -> tuple[int, int]:
        """Frequencies downwards and across that occur."""
        _, height, width = self.image_shape
        return min(height, self.frequencies), min(width, self.frequencies)

    @property
    def coefficients(self) -> int:
        """Numbers that describe an image, over all channels."""
        down, across = self.bands
        return self.image_shape[0] * sum(min(across, self.frequencies - i) for i in range(down))

    @property
    def latent(self) -> int:
        """One number chooses the component, the others the deviation."""
        return self.coefficients + 1

    def _check_own_fields(self) -> None:
        check_int(self, "components", 1, 4096)
        check_int(self, "frequencies", 1, 4096)
        if self.kinds * self.components * self.points > _LARGEST_CENTRES:
            raise GeneratorError("this mixture would need too much memory for its centres; make it smaller")

    @property
    def parameters(self) -> int:
        k = self.coefficients
        return self.kinds * (self.components + (self.components + 1 + k) * k)

    @property
    def activations(self) -> int:
        return 4 * max(self.points, self.latent, self.components)


GeneratorConfig: TypeAlias = DCGANConfig | BigGANConfig | MLPConfig | MixtureConfig

_KINDS: dict[str, type[GeneratorConfig]] = {
    kind.kind: kind for kind in (DCGANConfig, BigGANConfig, MLPConfig, MixtureConfig)
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
