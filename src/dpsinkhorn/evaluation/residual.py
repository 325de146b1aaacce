"""Residual networks for small images, of the sizes that DPImageBench's figures are of.

ResNet by He et al. (2016), WideResNet by Zagoruyko and Komodakis (2016), ResNeXt by Xie et al. (2017).
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

Shape = tuple[int, int, int]
_DROPPED = 0.3  # of a wide block's maps
_GROUPS = 8


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
