"""Wasserstein critics that learn without noise, each from its own part of the records. All of it is private.

A record's part is a function of its own bytes, so a record more or less changes one critic and no other. All
critics learn in every step, side by side, in shapes that no record changes: docs/proofs/gs-wgan.md.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from dpsinkhorn.generators import Generator, draw_latents
from dpsinkhorn.mechanisms.shared.base import TrainingMechanism, WorstCase, pulled_back, tidy
from dpsinkhorn.mechanisms.shared.steps import AllRecords, Learner, NetworkLearner, Sample, Steps
from dpsinkhorn.mechanisms.shared.terms import Terms
from dpsinkhorn.privacy import poisson_sample
from dpsinkhorn.privacy.noise import NoiseSource

_HIDDEN = 128  # numbers in each of two layers
_RATE, _BETAS = 1e-3, (0.5, 0.9)  # of Adam
_PENALTY = 10.0  # on slopes other than 1, as published
_DRIFT = 1e-3  # on scores of real images, as in the authors' code
_SLOPE = 0.2  # of a leaky ReLU below 0


def worst_case(
    built: TrainingMechanism,
    rows: int,
    clipped: Callable[[PartCritics, Tensor], Tensor],
    release: Callable[[PartCritics, Tensor, NoiseSource], Tensor],
) -> WorstCase:
    """Return the case of a white record, in whose place its critic else has the black image.

    Grey images, (rows, 1), are between the two, so that all that the critic says of them turns round. What is
    noised, and what is released, are functions of critics and these images.
    """

    def taught(present: bool) -> PartCritics:
        random = torch.Generator().manual_seed(0)
        critics = PartCritics(Sample(torch.ones(int(present), 1)), 1, 0, rows, random)
        for _ in range(20):
            critics.learn(grey, None)
        return critics

    grey = torch.zeros(rows, 1)
    critics = {present: taught(present) for present in (False, True)}

    def sampled(present: bool, rate: float, noise: NoiseSource) -> Tensor:
        asked = bool(len(poisson_sample(int(present), rate, noise)))
        return release(critics[asked], grey, noise).flatten()

    return WorstCase(built.mechanism, lambda present: clipped(critics[present], grey).flatten(), sampled)


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


class TaughtBarrier(Protocol):
    """A mechanism that lets critics teach, under privacy."""

    terms: Terms

    def gradient(
        self, critics: PartCritics, points: Tensor, labels: Tensor | None, learner: Learner
    ) -> Tensor:
        """Return the released gradient in generated images, (n, d)."""
        ...


class CriticSteps(Steps):
    """In each step all critics learn, then the generator from what a mechanism releases of them."""

    def __init__(
        self,
        learner: NetworkLearner,
        records: AllRecords,
        barrier: TaughtBarrier,
        parts: int,
        *,
        horizon: int,
    ) -> None:
        self._learner, self._barrier, self._terms = learner, barrier, barrier.terms
        self._horizon = horizon
        # Once in a run, and again in one that is resumed: they are private, and no checkpoint holds them.
        self._critics = PartCritics(
            records.draw(1.0, learner.noise),
            parts,
            self._terms.facts.classes,
            self._terms.generated,
            learner.random,
        )
        for _ in range(self._terms.loss.iterations or 0):
            self._teach_critics()

    def take(self, count: int) -> None:
        """Take `count` steps."""
        learner = self._learner
        for _ in range(count):
            self._teach_critics()
            points, labels = self._images()
            gradient = self._barrier.gradient(self._critics, points.detach(), labels, learner)
            gradients = pulled_back(points, gradient, learner.parameters)
            learner.update(learner.rate_at(learner.step, self._horizon), gradients)
            learner.step += 1

    def _teach_critics(self) -> None:
        with torch.no_grad():
            points, labels = self._images()
        self._critics.learn(points, labels)

    def _images(self) -> tuple[Tensor, Tensor | None]:
        """Return generated images, (n, d), and their labels, which are public."""
        learner, facts, count = self._learner, self._terms.facts, self._terms.generated
        generator, labels = learner.generator, None
        assert isinstance(generator, Generator)
        if facts.classes:
            labels = torch.randint(facts.classes, (count,), generator=learner.random, device=learner.device)
        latents = draw_latents(count, generator.config.latent, learner.random, learner.device)
        return generator(latents, labels).flatten(1), labels


def _scores(layers: list[Tensor], inputs: Tensor) -> Tensor:
    """How much each critic takes its inputs for real: (parts, b) from (parts, b, d + classes)."""
    first, first_bias, second, second_bias, last, last_bias = layers
    hidden = functional.leaky_relu(torch.baddbmm(first_bias, inputs, first), _SLOPE)
    hidden = functional.leaky_relu(torch.baddbmm(second_bias, hidden, second), _SLOPE)
    return torch.baddbmm(last_bias, hidden, last).squeeze(2)
