"""What a generator is made of: one small frozen config per kind.

A config may come from a stranger's file, so every field is checked, and so are the parameters and
activations that it asks for, before anything is allocated.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any, ClassVar

from dpsinkhorn import _checks
from dpsinkhorn.generators.config_base import (
    LARGEST_LATENT,
    Config,
    NetworkConfig,
    checked,
    nonlinearity,
    truth,
    whole,
)
from dpsinkhorn.generators.errors import GeneratorError

__all__ = ["BigGANConfig", "DCGANConfig", "MLPConfig", "MixtureConfig"]

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

    width: int = whole(1, 1024, 64)
    batch_norm: bool = truth(True)
    activation: str = nonlinearity()

    @property
    def start(self) -> tuple[int, int]:
        """Height and width after the first layer."""
        _, height, width = self.image_shape
        return math.ceil(height / 4), math.ceil(width / 4)

    @property
    def channels(self) -> tuple[int, int, int, int]:
        """Channels after each layer."""
        return 4 * self.width, 2 * self.width, self.width, self.image_shape[0]

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

    latent: int = whole(1, LARGEST_LATENT, 32)
    depth: int = whole(1, 1024, 256)
    blocks: int = whole(1, 16, 4)
    batch_norm: bool = truth(True)
    activation: str = nonlinearity()

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


def _sizes(value: Any, name: str, error: type[Exception]) -> None:
    if type(value) is not tuple or not 1 <= len(value) <= 16:
        raise error(f"{name} must be a list of 1 to 16 layer sizes")
    for size in value:
        _checks.whole(size, f"a size in {name}", error, least=1, most=65536)


@dataclass(frozen=True)
class MLPConfig(NetworkConfig):
    """Fully connected layers, for small images such as 8 x 8 digits.

    >>> MLPConfig(image_shape=(1, 8, 8), classes=10, hidden=(128,)).parameters
    10600
    """

    kind: ClassVar[str] = "mlp"

    hidden: tuple[int, ...] = checked(_sizes, (256, 256))
    batch_norm: bool = truth(True)
    activation: str = nonlinearity()

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

    components: int = whole(1, 4096, 32)
    frequencies: int = whole(1, 4096, 20)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.kinds * self.components * self.points > _LARGEST_CENTRES:
            raise GeneratorError("this mixture would need too much memory for its centres; make it smaller")

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

    @property
    def parameters(self) -> int:
        k = self.coefficients
        return self.kinds * (self.components + (self.components + 1 + k) * k)

    @property
    def activations(self) -> int:
        return 4 * max(self.points, self.latent, self.components)
