"""What a generator is made of: one small frozen config per kind; and the variation that sampling adds.

A config may come from a stranger's file, so every field is declared with the values that it may take, and the
parameters and activations that it asks for are checked, before anything is allocated.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from dpsinkhorn import _checks
from dpsinkhorn.errors import GeneratorError

# ---- what sampling adds to images: small random changes by public numbers, of which nothing is learned


_CELL = 7  # pixels between the points of the grid that a displacement is drawn on


@dataclass(frozen=True)
class Variation:
    """Random changes to every image, drawn for each anew.

    A generator's images are smoother than real ones and vary less, and classifiers that never saw anything
    else stumble over both. All of it is public, so it costs no privacy.

    Args:
        warp: standard deviation, in pixels, of a smooth random displacement.
        sharpen: largest strength of sharpening (unsharp masking); each image's is uniform up to it.
        grain: largest standard deviation of white noise on pixels in [-1, 1]; each image's is uniform up to
            it.

    >>> images = torch.zeros(2, 1, 28, 28)
    >>> Variation(grain=0.2)(images, torch.Generator().manual_seed(0)).std() > 0
    tensor(True)
    >>> torch.equal(Variation()(images, torch.Generator()), images)
    True
    """

    warp: float = 0.0
    sharpen: float = 0.0
    grain: float = 0.0

    def __post_init__(self) -> None:
        for name, most in (("warp", 8), ("sharpen", 16), ("grain", 1)):
            _checks.number(getattr(self, name), name, GeneratorError, least=0, most=most)

    def __bool__(self) -> bool:
        return bool(self.values)

    @property
    def values(self) -> dict[str, float]:
        return {name: value for name, value in vars(self).items() if value}

    def __call__(self, images: Tensor, random: torch.Generator) -> Tensor:
        """Change images, (n, channels, height, width) in [-1, 1]; grain can take them out of that range."""
        if self.warp:
            images = _warped(images, self.warp, random)
        if self.sharpen:
            images = images + self._strengths(images, self.sharpen, random) * (images - _blurred(images))
            images = images.clamp(-1, 1)
        if self.grain:
            noise = torch.randn(images.shape, generator=random, device=images.device)
            images = images + self._strengths(images, self.grain, random) * noise
        return images

    @staticmethod
    def _strengths(images: Tensor, most: float, random: torch.Generator) -> Tensor:
        return most * torch.rand(len(images), 1, 1, 1, generator=random, device=images.device)


def _warped(images: Tensor, size: float, random: torch.Generator) -> Tensor:
    """Displace each image by a smooth field: normal numbers on a coarse grid, interpolated."""
    count, _, height, width = images.shape
    cells = [math.ceil(side / _CELL) + 1 for side in (height, width)]
    coarse = size * torch.randn(count, 2, *cells, generator=random, device=images.device)
    field = functional.interpolate(coarse, size=(height, width), mode="bicubic", align_corners=True)
    # from pixels to the units of grid_sample, in which an image reaches from -1 to 1
    scale = torch.tensor([2 / width, 2 / height], device=images.device)
    place = torch.eye(2, 3, device=images.device).expand(count, 2, 3)
    grid = functional.affine_grid(place, list(images.shape), align_corners=False)
    return functional.grid_sample(
        images, grid + field.permute(0, 2, 3, 1) * scale, padding_mode="border", align_corners=False
    )


def _blurred(images: Tensor) -> Tensor:
    """Blur images by the binomial kernel of 3 x 3."""
    channels = images.shape[1]
    line = torch.tensor([0.25, 0.5, 0.25], device=images.device)
    kernel = torch.outer(line, line).expand(channels, 1, 3, 3)
    padded = functional.pad(images, (1, 1, 1, 1), mode="replicate")
    return functional.conv2d(padded, kernel, groups=channels)


# ---- what a generator is made of


LARGEST_LATENT = 3 * 512 * 512
LARGEST_PARAMETERS = 2**28  # 1 GiB of float32

_LARGEST_CENTRES = 2**27  # pixels of all components of a mixture: sampling keeps two numbers for each
_LARGEST_SIDE = 512
_LARGEST_ACTIVATIONS = 2**26  # of one layer and one image, in numbers


def checked(check: Callable[..., object], default: Any = dataclasses.MISSING, **bounds: Any) -> Any:
    """Declare a field whose value is checked by `check(value, name, GeneratorError, **bounds)`."""
    metadata = {"check": partial(check, error=GeneratorError, **bounds)}
    return dataclasses.field(default=default, metadata=metadata)


def whole(least: int, most: int, default: Any = dataclasses.MISSING) -> Any:
    """Declare a field that is a whole number within bounds."""
    return checked(_checks.whole, default, least=least, most=most)


def _shape(value: Any, name: str, error: type[Exception]) -> None:
    if type(value) is not tuple or len(value) != 3 or not all(type(size) is int for size in value):
        raise error(f"{name} must be three whole numbers: channels, height, width")
    channels, height, width = value
    if channels not in (1, 3):
        raise error(f"images have 1 or 3 channels, not {channels}")
    if not (1 <= height <= _LARGEST_SIDE and 1 <= width <= _LARGEST_SIDE):
        raise error(f"images are from 1 x 1 to {_LARGEST_SIDE} x {_LARGEST_SIDE}, not {height} x {width}")


def _sizes(value: Any, name: str, error: type[Exception]) -> None:
    if type(value) is not tuple or not 1 <= len(value) <= 16:
        raise error(f"{name} must be a list of 1 to 16 layer sizes")
    for size in value:
        _checks.whole(size, f"a size in {name}", error, least=1, most=65536)


_KINDS: dict[str, type[Config]] = {}


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

    def __init_subclass__(cls) -> None:
        if "kind" in vars(cls):
            _KINDS[cls.kind] = cls

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
        """Return what sampling adds to images."""
        return Variation(self.warp, self.sharpen, self.grain)

    @property
    def points(self) -> int:
        """Numbers per image: channels x height x width."""
        return math.prod(self.image_shape)

    @property
    def latent(self) -> int:
        """Return how many numbers, uniform on (0, 1), an image is made from."""
        raise NotImplementedError

    @property
    def parameters(self) -> int:
        """Return how many numbers are trained."""
        raise NotImplementedError

    @property
    def activations(self) -> int:
        """Return how many numbers the largest layer has per image: what decides the memory of a batch."""
        raise NotImplementedError


@dataclass(frozen=True)
class NetworkConfig(Config):
    """What every network has: a latent, the label's embedding, and what stands between layers."""

    latent: int = whole(1, LARGEST_LATENT, 12)
    embedding: int = whole(1, 4096, 4)
    batch_norm: bool = checked(_checks.truth, True)
    activation: str = checked(_checks.choice, "relu", choices=("relu", "leaky_relu"))

    @property
    def inputs(self) -> int:
        """Numbers per image that enter the network: the latent and, with classes, the embedded label."""
        return self.latent + (self.embedding if self.classes else 0)

    @property
    def parameters(self) -> int:
        return self.classes * self.embedding + self._network_parameters

    @property
    def _network_parameters(self) -> int:
        raise NotImplementedError


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

    @property
    def start(self) -> tuple[int, int]:
        """Return height and width after the first layer."""
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

    @property
    def upsamplings(self) -> int:
        """Return how many blocks double the size: as many as leave a start of 4 or more."""
        side = min(self.image_shape[1:])
        return max(times for times in range(self.blocks + 1) if times == 0 or math.ceil(side / 2**times) >= 4)

    @property
    def start(self) -> tuple[int, int]:
        """Return height and width after the linear layer; a larger result loses its border."""
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


@dataclass(frozen=True)
class MLPConfig(NetworkConfig):
    """Fully connected layers, for small images such as 8 x 8 digits.

    >>> MLPConfig(image_shape=(1, 8, 8), classes=10, hidden=(128,)).parameters
    10600
    """

    kind: ClassVar[str] = "mlp"

    hidden: tuple[int, ...] = checked(_sizes, (256, 256))

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
    to [0, 1] in a way that keeps their means and variances, see `latent_normal`.

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
        """Return how many numbers are needed: one chooses the component, the others the deviation."""
        return self.coefficients + 1

    @property
    def parameters(self) -> int:
        k = self.coefficients
        return self.kinds * (self.components + (self.components + 1 + k) * k)

    @property
    def activations(self) -> int:
        return 4 * max(self.points, self.latent, self.components)


@dataclass(frozen=True)
class FlowConfig(Config):
    """A flow from normal noise to images, by a U-Net that knows the class.

    The network works on blocks of 2 x 2 pixels, with `channels` channels there and twice as many at half that
    resolution. Sampling calls it once less than `evaluations` for an image.

    >>> FlowConfig(image_shape=(1, 28, 28), classes=10).parameters
    1442628
    """

    kind: ClassVar[str] = "flow"

    channels: int = whole(4, 512, 64)
    evaluations: int = whole(2, 1000, 20)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.evaluations % 2:
            raise GeneratorError("evaluations must be even: each step of the integration takes two")

    @property
    def latent(self) -> int:
        """Return how many numbers are needed: one for each of an image."""
        return self.points

    @property
    def parameters(self) -> int:
        c, pixels = self.channels, 4 * self.image_shape[0]
        condition = 2 * c * (64 + max(1, self.classes)) + 2 * c + (2 * c + 1) * 2 * c

        def block(before: int, after: int) -> int:
            shortcut = 0 if before == after else (before + 1) * after
            return (9 * before + 9 * after + 2) * after + (2 * c + 1) * 2 * after + shortcut

        blocks = [(c, c), (c, c), (c, 2 * c), (2 * c, 2 * c), (2 * c, 2 * c), (3 * c, c), (2 * c, c)]
        ends = (9 * pixels + 1) * c + (9 * c + 1) * pixels
        return condition + sum(block(*sizes) for sizes in blocks) + ends

    @property
    def activations(self) -> int:
        _, height, width = self.image_shape
        return 3 * self.channels * math.ceil(height / 2) * math.ceil(width / 2)


# ---- configs as JSON


def config_to_json(config: Config) -> dict[str, Any]:
    """Return plain JSON values, every field included.

    >>> config_to_json(MLPConfig(image_shape=(1, 8, 8), classes=10))["kind"]
    'mlp'
    """
    fields = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    plain = {name: list(value) if isinstance(value, tuple) else value for name, value in fields.items()}
    return {"kind": config.kind, **plain}


def config_from_json(data: Any) -> Config:
    """Read back `config_to_json`. Unknown fields, wrong types and absurd sizes raise `GeneratorError`.

    Fields that have a default may be left out.

    >>> config_from_json({"kind": "dcgan", "image_shape": [1, 28, 28], "classes": 10}).width
    64
    >>> config_from_json({"kind": "dcgan", "heads": 8})  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    dpsinkhorn.errors.GeneratorError: a dcgan has no field 'heads'; it has activation, ...
    """
    if not isinstance(data, Mapping):
        raise GeneratorError("the config of a generator must be a table of fields")
    kind = data.get("kind")
    if not isinstance(kind, str) or kind not in _KINDS:
        raise GeneratorError(f"kind must be one of {', '.join(_KINDS)}")
    fields = {field.name: field for field in dataclasses.fields(_KINDS[kind])}
    values: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in data.items()
    }
    del values["kind"]
    for name in values.keys() - fields.keys():
        known = ", ".join(sorted(fields.keys() - {"image_shape", "classes"}))
        raise GeneratorError(f"a {kind} has no field {str(name)[:40]!r}; it has {known}")
    for name, field in fields.items():
        if name not in values and field.default is dataclasses.MISSING:
            raise GeneratorError(f"the config of a {kind} needs {name}")
    return _KINDS[kind](**values)
