"""Sums of clipped gradients, one for each image, in the weights of a small discriminator, free of rounding.

The discriminator is a network of one hidden layer on an image beside its one-hot label. A gradient in a
layer's weights is the outer product of a slope and an input. Inputs, weights and hidden numbers are rounded
to public grids, so coarse that float64 holds all products and sums exactly; slopes are cut off on another one
after they are scaled by the norm. So what an image adds is the same bits in whatever company, and its norm
is at most what it should be: docs/proofs/dp-cgan.md.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from dpsinkhorn.mechanisms.shared.base import tidy
from dpsinkhorn.mechanisms.shared.clipping import DIGITS, exact_weights

_PIXEL_BITS = 10  # binary digits after the point of pixels
_LOGIT_BITS = 10  # of a logit, whose slope is read off a table
_LARGEST_LOGIT = 32
_SLACK = 2.0**-40  # more than the roundings of a norm and of scaling by it
_AT_ONCE = 4096  # images


@dataclass(frozen=True, eq=False)
class Critic:
    """Weights and biases of both layers: (h, d), (h,), (h,), (1,). Public.

    The inputs are d numbers: those of an image, then the one-hot label.
    """

    first: Tensor
    first_bias: Tensor
    second: Tensor
    second_bias: Tensor

    @property
    def numbers(self) -> int:
        """How many there are."""
        return sum(part.numel() for part in vars(self).values())


class ClippedGradients:
    """Sums over images of their gradients of the logistic loss, each scaled to a norm of at most 1.

    Args:
        clip: C. A gradient is divided by C, or by its own norm where that is more.
        classes: 0 where there are none.
        most_images: for as many sums are exact.
    """

    def __init__(self, clip: float, classes: int, most_images: int) -> None:
        self._clip, self._classes = clip, classes
        self._bits = DIGITS - most_images.bit_length()  # binary digits after the point of what is added
        count = 2 * _LARGEST_LOGIT * 2**_LOGIT_BITS + 1
        self._sigmoid = torch.sigmoid(
            torch.arange(count, dtype=torch.float64) * 2.0**-_LOGIT_BITS - _LARGEST_LOGIT
        )

    def sums(self, critic: Critic, images: Tensor, labels: Tensor | None, *, real: bool) -> Tensor:
        """Return the sum, in the order of the critic's fields, as one vector, in float64.

        Args:
            images: (n, pixels), in [-1, 1].
            labels: (n,), or none where there are no classes. Images of no class add nothing.
            real: whether the loss asks to take them for real images, or for generated ones.
        """
        images, labels = self._known(images, labels)
        total = torch.zeros(critic.numbers, dtype=torch.float64, device=images.device)
        for begin in range(0, len(images), _AT_ONCE):
            rows = slice(begin, begin + _AT_ONCE)
            inputs = self._inputs(images[rows], None if labels is None else labels[rows])
            slopes, hidden, last = self._of_some(critic, inputs, real)
            first = slopes.T @ inputs
            sums = [first[:, :-1].flatten(), first[:, -1], hidden.sum(0), last.sum(0)]
            total += torch.cat(sums).mul_(-1 if real else 1)
        return total

    def rows(self, critic: Critic, images: Tensor, labels: Tensor | None) -> Tensor:
        """Return what each real image adds, (n, numbers), all of which are of some class: for audits."""
        inputs = self._inputs(images, labels)
        slopes, hidden, last = self._of_some(critic, inputs, real=True)
        first = slopes[:, :, None] * inputs[:, None, :]
        return -torch.cat([first[..., :-1].flatten(1), first[..., -1], hidden, last], dim=1)

    def _known(self, images: Tensor, labels: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Leave out images of no class."""
        if not self._classes:
            return images, labels
        assert labels is not None
        known = ((labels >= 0) & (labels < self._classes)).nonzero().flatten()
        return images[known], labels[known]

    def _inputs(self, images: Tensor, labels: Tensor | None) -> Tensor:
        """Return pixels from 0 to 1 on a grid, one-hot labels, and a 1 for the bias, side by side."""
        grid = 2.0**_PIXEL_BITS
        pixels = tidy(images).add_(1).mul_(grid / 2).round_().mul_(1 / grid)
        parts = [pixels, torch.ones_like(pixels[:, :1])]
        if labels is not None:
            parts.insert(1, functional.one_hot(labels.long(), self._classes).double())
        return torch.cat(parts, dim=1)

    def _of_some(self, critic: Critic, inputs: Tensor, real: bool) -> tuple[Tensor, Tensor, Tensor]:
        """Return what inputs are multiplied with in the first layer, (b, h), and what the others add."""
        # ---- forwards: hidden numbers, of which squares add up exactly, and a logit
        first, e = exact_weights(torch.cat([critic.first, critic.first_bias[:, None]], dim=1), _PIXEL_BITS)
        e = max(e, 0)
        bits = (DIGITS - len(first).bit_length() - 2 * e) // 2 - 1
        hidden = (inputs @ first.T).clamp_(min=0).mul_(2.0**bits).round_().mul_(2.0**-bits)
        second, _ = exact_weights(critic.second[None], bits + e)
        logits = hidden @ second[0] + torch.nan_to_num(critic.second_bias.double())
        # ---- how steep the loss is in the logit
        turned = (-logits if real else logits).clamp_(-_LARGEST_LOGIT, _LARGEST_LOGIT)
        places = (turned + _LARGEST_LOGIT).mul_(2.0**_LOGIT_BITS).round_().long()
        steep = self._sigmoid.to(places.device)[places]
        # ---- the norm: of an outer product in the first layer, and of hidden numbers and a 1 in the second
        squares, most = exact_weights(second.square(), 0)
        squares += 2.0 ** (most - DIGITS)  # no less than they are
        active = (hidden > 0).double()
        lengths = (active @ squares[0]) * (inputs * inputs).sum(1)
        norms = ((hidden * hidden).sum(1) + 1 + lengths).sqrt_() * steep
        factors = ((1 - _SLACK) / norms).clamp_(max=1 / self._clip) * steep
        # ---- backwards: cut off towards 0, so that nothing grows
        slopes = _cut(active * second * factors[:, None], self._bits - _PIXEL_BITS)
        return slopes, _cut(hidden * factors[:, None], self._bits), _cut(factors[:, None], self._bits)


def _cut(values: Tensor, bits: int) -> Tensor:
    return values.mul_(2.0**bits).trunc_().mul_(2.0**-bits)
