"""Mechanisms by which critics on disjoint parts of the records teach a generator, step by step.

Critics are Wasserstein critics that learn without noise, each from its own part. All of them are private. A
record's part is a function of its own bytes, so a record more or less changes one critic and no other. All
critics learn in every step, side by side, in shapes that no record changes: docs/proofs/gs-wgan.md.
"""

from __future__ import annotations

import hashlib
import itertools
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, Protocol, TypeAlias

import torch
from torch import Tensor

from dpsinkhorn.generators import Generator, draw_latents
from dpsinkhorn.mechanisms.shared.base import TRANSPORT, Sample, TrainingMechanism, WorstCase, pulled_back
from dpsinkhorn.mechanisms.shared.clipping import tidy
from dpsinkhorn.mechanisms.shared.steps import AllRecords, Learner, NetworkLearner, Steps
from dpsinkhorn.mechanisms.shared.terms import Terms, one_pixel
from dpsinkhorn.privacy import SeededNoise, poisson_sample
from dpsinkhorn.privacy.charges import ImageMechanism, Mechanism, VoteMechanism, parts_of
from dpsinkhorn.privacy.noise import NoiseSource, announce

_HIDDEN = 128  # numbers in each of two layers
_RATE, _BETAS = 1e-3, (0.5, 0.9)  # of Adam
_PENALTY = 10.0  # on slopes other than 1, as published
_DRIFT = 1e-3  # on scores of real images, as in the authors' code
_SLOPE = 0.2  # of a leaky ReLU below 0
_LABEL_WEIGHT = 0.5  # of a one-hot label beside an image, relative to the length of a white one


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
            tensor.repeat(parts, 1, 1)  # the same first weights for all, so that critics agree on more
            for ins, outs in itertools.pairwise(sizes)
            for tensor in (
                torch.randn(1, ins, outs, generator=random, device=records.device) * (2 / ins) ** 0.5,
                torch.zeros(1, 1, outs, device=records.device),
            )
        ]
        self._optimizer = torch.optim.Adam(self.layers, lr=_RATE, betas=_BETAS, fused=True)

    def inputs(self, points: Tensor, labels: Tensor | None) -> Tensor:
        """Return images beside their one-hot labels, (b, d + classes); no class is all zeros."""
        pixels = tidy(points).float()
        if labels is None or not self._classes:
            return pixels
        kinds = labels[:, None] == torch.arange(self._classes, device=points.device)
        # as long as images are: else critics would hardly notice what class they are shown
        return torch.cat([pixels, kinds.float() * (_LABEL_WEIGHT * pixels.shape[1] ** 0.5)], dim=1)

    def learn(self, points: Tensor, labels: Tensor | None) -> None:
        """Take a step with every critic, on real images of its part and on these generated ones."""
        device = self._records.device
        draws = torch.rand(len(self._counts), self._batch, generator=self._random, device=device)
        counts = self._counts.clamp(min=1)[:, None]
        rows = (draws.double() * counts).long().clamp_(max=counts - 1) + self._starts[:, None]
        real = self._records[rows]  # (parts, batch, d + classes)
        generated = self.inputs(points, labels).expand_as(real)
        shares = torch.rand(1, self._batch, 1, generator=self._random, device=device)
        inputs = torch.cat([real, generated, torch.lerp(generated, real, shares)], dim=1)
        with _reduced_products():
            gradients = _gradients(self.layers, inputs, points.shape[1])
        for layer, gradient in zip(self.layers, gradients, strict=True):
            layer.grad = gradient
        self._optimizer.step()

    def slopes(self, points: Tensor, labels: Tensor | None, parts: slice = slice(None)) -> Tensor:
        """Return gradients in some images, (critics, n, d), of how little some critics take them for real."""
        layers = [layer[parts] for layer in self.layers]
        inputs = self.inputs(points, labels).expand(len(layers[0]), -1, -1)
        with _reduced_products():
            passed = _Pass(layers, inputs)
            _, back = passed.back(torch.full_like(inputs[..., :1], -1.0))
            slopes = torch.bmm(back, layers[0].transpose(1, 2))
        return slopes[..., : points.shape[1]]


class _Pass:
    """What critics compute on their way from inputs, (parts, b, d + classes), to scores (parts, b, 1)."""

    def __init__(self, layers: list[Tensor], inputs: Tensor) -> None:
        self._layers = layers
        first, first_bias, second, second_bias, last, last_bias = layers
        self.first, self.first_steep = _leaky(torch.baddbmm(first_bias, inputs, first))
        self.second, self.second_steep = _leaky(torch.baddbmm(second_bias, self.first, second))
        self.scores = torch.baddbmm(last_bias, self.second, last)

    def back(self, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Return gradients of weighted scores in what goes into the second leaky ReLU, and into the first."""
        second = weights * self._layers[4].transpose(1, 2) * self.second_steep
        return second, torch.bmm(second, self._layers[2].transpose(1, 2)).mul_(self.first_steep)


def _gradients(layers: list[Tensor], inputs: Tensor, pixels: int) -> list[Tensor]:
    """Return the gradient, in all layers, of each critic's mean loss.

    The networks are linear but for which side of its kink each leaky ReLU is on. So the gradients in inputs
    that the penalty is on are products of the same weights, and no second derivative is left to take.

    Args:
        inputs: (parts, 3b, d + classes): real images, generated ones, and images between. Overwritten.
    """
    first, second = layers[0], layers[2]
    count = inputs.shape[1] // 3
    judged, between = slice(0, 2 * count), slice(2 * count, None)
    passed = _Pass(layers, inputs)
    # ---- of the loss in scores; of scores themselves in images between
    weights = torch.full_like(passed.scores, 1 / count)
    weights[:, :count] = (2 * _DRIFT * passed.scores[:, :count] - 1) / count
    weights[:, between] = 1
    back_second, back_first = passed.back(weights)
    # ---- of the penalty in slopes, and from there on
    slopes = torch.bmm(back_first[:, between], first.transpose(1, 2))
    slopes[..., pixels:] = 0  # the penalty is on slopes in images
    lengths = (slopes.square().sum(2, keepdim=True) + 1e-12).sqrt_()
    slopes.mul_((2 * _PENALTY / count) * (1 - 1 / lengths))
    on_first = torch.bmm(slopes, first).mul_(passed.first_steep[:, between])
    on_second = torch.bmm(on_first, second).mul_(passed.second_steep[:, between])
    # ---- a product of each layer serves both
    biases = [each[:, judged].sum(1, keepdim=True) for each in (back_first, back_second, weights)]
    for all_of_them, of_penalty in ((inputs, slopes), (passed.first, on_first), (passed.second, on_second)):
        all_of_them[:, between] = of_penalty
    return [
        torch.bmm(inputs.transpose(1, 2), back_first),
        biases[0],
        torch.bmm(passed.first.transpose(1, 2), back_second),
        biases[1],
        torch.bmm(passed.second.transpose(1, 2), weights),
        biases[2],
    ]


def _leaky(values: Tensor) -> tuple[Tensor, Tensor]:
    """Return a leaky ReLU of what is given, and how steep it is there."""
    steep = torch.where(values > 0, 1.0, _SLOPE)
    return values.mul_(steep), steep


@contextmanager
def _reduced_products() -> Iterator[None]:
    """Within it products on a GPU may round their factors to TF32: critics are noise-free and small."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


Drawn: TypeAlias = "Tensor | int"
"""What a step draws beside its noise; a number is a secret."""


class TaughtBarrier(Protocol):
    """What lets critics teach, under privacy."""

    terms: Terms
    learns_every: int

    def critics(self, sample: Sample, random: torch.Generator) -> PartCritics:
        """Return critics that have learnt nothing yet."""

    def gradient(
        self, critics: PartCritics, points: Tensor, labels: Tensor | None, learner: Learner
    ) -> Tensor:
        """Return what a generator descends on, (n, d), given generated images and their labels."""


class TaughtMechanism(TrainingMechanism):
    """Releases, in each step, something of the gradients that critics have in generated images."""

    takes_persons = False
    splits_records = True
    learns_in_private = True
    unused_settings = TRANSPORT | {"flow"}
    worst_clip: ClassVar[float] = 1e-3
    """The setting `clip` of its worst case."""

    @classmethod
    @abstractmethod
    def releases(cls, terms: Terms) -> ImageMechanism | VoteMechanism: ...

    @classmethod
    def release_of_size(cls, noise_multiplier: float, rows: int = 1) -> Mechanism:
        return VoteMechanism(1.0, noise_multiplier, rows)

    @classmethod
    def audit_settings(cls, records: int) -> dict[str, dict[str, Any]]:
        settings = super().audit_settings(records)
        settings["privacy"]["sampling_rate"] = 1 / 6
        settings["loss"]["iterations"] = 20
        return settings

    @classmethod
    def worst_records(cls) -> tuple[Tensor, int]:
        """Return records of a pixel, (b, 1), of which the last is there or not, and the number of parts."""
        return torch.ones(1, 1), 1

    @classmethod
    def worst_case(cls, noise_multiplier: float, rows: int = 4) -> WorstCase:
        """A critic of a white record, and one of the black image that takes the place of none.

        Grey images are between the two, so that all their gradients turn round.
        """
        records, parts = cls.worst_records()
        built = cls(one_pixel(noise_multiplier, rows, clip=cls.worst_clip, sampling_rate=1 / parts))
        grey = torch.zeros(rows, 1)
        drawn = built.draw(grey, torch.Generator().manual_seed(0), SeededNoise(0))

        def taught(present: bool) -> PartCritics:
            there = records if present else records[:-1]
            critics = built.critics(Sample(there), torch.Generator().manual_seed(0))
            for _ in range(20):
                critics.learn(grey, None)
            return critics

        critics = {present: taught(present) for present in (False, True)}

        def clipped(present: bool) -> Tensor:
            return built.clipped(critics[present], grey, None, drawn).flatten()

        def release(present: bool, rate: float, noise: NoiseSource) -> Tensor:
            taken = bool(len(poisson_sample(int(present), rate, noise)))
            return built.released(critics[taken], grey, None, drawn, noise).flatten()

        return WorstCase(built.mechanism, clipped, release)

    @property
    def parts(self) -> int:
        """Into how many parts records are split, and how many critics there are."""
        return parts_of(self.terms.sampling_rate)

    def critics(self, sample: Sample, random: torch.Generator) -> PartCritics:
        """Return critics that have learnt nothing yet; all of the sample is theirs."""
        return PartCritics(sample, self.parts, self.terms.facts.classes, self.terms.generated, random)

    def own_steps(self, learner: NetworkLearner, records: AllRecords, *, horizon: int) -> Steps:
        return CriticSteps(learner, records, self, horizon=horizon)

    def gradient(
        self, critics: PartCritics, points: Tensor, labels: Tensor | None, learner: Learner
    ) -> Tensor:
        """Return what a generator descends on, (n, d), given generated images and their labels."""
        drawn = self.draw(points, learner.random, learner.noise)
        return self.followed(self.released(critics, points, labels, drawn, learner.noise), drawn)

    def released(
        self, critics: PartCritics, points: Tensor, labels: Tensor | None, drawn: Drawn, noise: NoiseSource
    ) -> Tensor:
        """Return what `clipped` does, noised."""
        announce(noise, points=points, labels=labels, drawn=None if isinstance(drawn, int) else drawn)
        return self.noised(self.clipped(critics, points, labels, drawn), noise)

    @abstractmethod
    def draw(self, points: Tensor, random: torch.Generator, noise: NoiseSource) -> Drawn:
        """Draw what else a step needs, given images (n, d): in public, or, from the noise, in secret."""

    @abstractmethod
    def clipped(self, critics: PartCritics, points: Tensor, labels: Tensor | None, drawn: Any) -> Tensor:
        """Return what is noised, in float64. Private: for audits."""

    @abstractmethod
    def followed(self, released: Tensor, drawn: Any) -> Tensor:
        """Return what a generator descends on, (n, d), given what was released. No record plays a part."""


class CriticSteps(Steps):
    """All critics learn from images of a step, then the generator from what a mechanism releases of them."""

    def __init__(
        self, learner: NetworkLearner, records: AllRecords, barrier: TaughtBarrier, *, horizon: int
    ) -> None:
        self._learner, self._barrier, self._terms = learner, barrier, barrier.terms
        self._horizon = horizon
        # Once in a run, and again in one that is resumed: they are private, and no checkpoint holds them.
        self._critics = barrier.critics(records.draw(1.0, learner.noise), learner.random)
        with torch.no_grad():
            for _ in range(self._terms.loss.iterations or 0):
                self._critics.learn(*self._images())

    def take(self, count: int) -> None:
        """Take `count` steps."""
        learner = self._learner
        for _ in range(count):
            points, labels = self._images()
            if learner.step % self._barrier.learns_every == 0:
                self._critics.learn(points.detach(), labels)
            gradient = self._barrier.gradient(self._critics, points.detach(), labels, learner)
            gradients = pulled_back(points, gradient, learner.parameters)
            learner.update(learner.rate_at(learner.step, self._horizon), gradients)
            learner.step += 1

    def _images(self) -> tuple[Tensor, Tensor | None]:
        """Return generated images, (n, d), and their labels, which are public."""
        learner, facts, count = self._learner, self._terms.facts, self._terms.generated
        generator, labels = learner.generator, None
        assert isinstance(generator, Generator)
        if facts.classes:
            labels = torch.randint(facts.classes, (count,), generator=learner.random, device=learner.device)
        latents = draw_latents(count, generator.config.latent, learner.random, learner.device)
        return generator(latents, labels).flatten(1), labels
