"""Wasserstein critics that learn without noise, each from its own part of the records. All of it is private.

A record's part is a function of its own bytes, so a record more or less changes one critic and no other. All
critics learn in every step, side by side, in shapes that no record changes: docs/proofs/gs-wgan.md.
"""

from __future__ import annotations

import hashlib
import itertools

import torch
from torch import Tensor
from torch.nn import functional

from dpsinkhorn.mechanisms.shared.base import tidy
from dpsinkhorn.mechanisms.shared.steps import Sample

_HIDDEN = 128  # numbers in each of two layers
_RATE, _BETAS = 1e-3, (0.5, 0.9)  # of Adam
_PENALTY = 10.0  # on slopes other than 1, as published
_DRIFT = 1e-3  # on scores of real images, as in the authors' code
_SLOPE = 0.2  # of a leaky ReLU below 0


def part_of(sample: Sample, parts: int) -> Tensor:
    """Return the part that each record belongs to: (b,), from 0 to `parts` - 1.

    >>> black = torch.full((3, 4), -1.0)
    >>> part_of(Sample(black), 1000).unique().numel()
    1
    """
    rows = tidy(sample.points).float().cpu().numpy()
    kinds = torch.zeros(len(rows)) if sample.labels is None else sample.labels.cpu()
    found = [
        int.from_bytes(hashlib.blake2b(row.tobytes() + kind.tobytes(), digest_size=8).digest(), "little")
        for row, kind in zip(rows, kinds.long().numpy(), strict=True)
    ]
    return torch.tensor([each % parts for each in found], dtype=torch.int64, device=sample.points.device)


class PartCritics:
    """A critic for each part: a perceptron on an image beside its one-hot label.

    Args:
        sample: all records.
        parts: how many parts and critics there are. A part without records has a black image instead.
        classes: 0 where there are none.
        batch: real and generated images in an iteration.
        random: draws weights and batches, in shapes that do not depend on the records.
    """

    def __init__(self, sample: Sample, parts: int, classes: int, batch: int, random: torch.Generator) -> None:
        self._classes, self._batch, self._random = classes, batch, random
        places = part_of(sample, parts)
        self._counts = torch.bincount(places, minlength=parts)
        self._starts = self._counts.cumsum(0) - self._counts
        self._starts[self._counts == 0] = len(places)
        records = self.inputs(sample.points, sample.labels)[torch.argsort(places, stable=True)]
        black = torch.zeros_like(records[:1]) if len(records) else records.new_zeros(1, records.shape[1])
        black[:, : sample.points.shape[1]] = -1
        self._records = torch.cat([records, black])
        sizes = (records.shape[1], _HIDDEN, _HIDDEN, 1)
        self.layers = [
            tensor.requires_grad_()
            for ins, outs in itertools.pairwise(sizes)
            for tensor in (
                torch.randn(parts, ins, outs, generator=random, device=records.device) * (2 / ins) ** 0.5,
                torch.zeros(parts, 1, outs, device=records.device),
            )
        ]
        self._optimizer = torch.optim.Adam(self.layers, lr=_RATE, betas=_BETAS, foreach=True)

    def inputs(self, points: Tensor, labels: Tensor | None) -> Tensor:
        """Return images beside their one-hot labels, (b, d + classes); no class is all zeros."""
        pixels = tidy(points).float()
        if labels is None or not self._classes:
            return pixels
        kinds = labels[:, None] == torch.arange(self._classes, device=points.device)
        return torch.cat([pixels, kinds.float()], dim=1)

    def learn(self, points: Tensor, labels: Tensor | None) -> None:
        """Take a step with every critic, on real images of its part and on these generated ones."""
        device = self._records.device
        draws = torch.rand(len(self._counts), self._batch, generator=self._random, device=device)
        counts = self._counts.clamp(min=1)[:, None]
        rows = (draws.double() * counts).long().clamp_(max=counts - 1) + self._starts[:, None]
        real = self._records[rows]  # (parts, batch, d + classes)
        generated = self.inputs(points, labels).expand_as(real)
        shares = torch.rand(1, self._batch, 1, generator=self._random, device=device)
        with torch.enable_grad():
            between = torch.lerp(generated, real, shares).requires_grad_()
            (slopes,) = torch.autograd.grad(_scores(self.layers, between).sum(), between, create_graph=True)
            penalty = ((slopes.square().sum(2) + 1e-12).sqrt() - 1).square()
            scores = _scores(self.layers, real)
            losses = _scores(self.layers, generated) - scores + _PENALTY * penalty + _DRIFT * scores.square()
            gradients = torch.autograd.grad(losses.mean(1).sum(), self.layers)
        for layer, gradient in zip(self.layers, gradients, strict=True):
            layer.grad = gradient
        self._optimizer.step()

    def slopes(self, points: Tensor, labels: Tensor | None, parts: slice = slice(None)) -> Tensor:
        """Return gradients in some images, (critics, n, d), of how little some critics take them for real."""
        layers = [layer.detach()[parts].clone() for layer in self.layers]
        inputs = self.inputs(points, labels).repeat(len(layers[0]), 1, 1).requires_grad_()
        with torch.enable_grad():
            (slopes,) = torch.autograd.grad(-_scores(layers, inputs).sum(), inputs)
        return slopes[..., : points.shape[1]]


def _scores(layers: list[Tensor], inputs: Tensor) -> Tensor:
    """How much each critic takes its inputs for real: (parts, b) from (parts, b, d + classes)."""
    first, first_bias, second, second_bias, last, last_bias = layers
    hidden = functional.leaky_relu(torch.baddbmm(first_bias, inputs, first), _SLOPE)
    hidden = functional.leaky_relu(torch.baddbmm(second_bias, hidden, second), _SLOPE)
    return torch.baddbmm(last_bias, hidden, last).squeeze(2)
