"""Mechanism `dp_cgan`: a generator against a discriminator that sees records through noised gradients.

From R. Torkzadehmahani, P. Kairouz, B. Paten, "DP-CGAN: Differentially Private Synthetic Data and Label
Generation", 2019. The discriminator's gradients of the loss on real images and on generated ones are clipped
apart, image by image; noise is added to the former. Everything else, the generator's training included, sees
the discriminator alone: docs/proofs/dp-cgan.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from dpsinkhorn.generators import Generator, MLPConfig, draw_latents
from dpsinkhorn.generators.networks import MLP
from dpsinkhorn.mechanisms.shared.base import TRANSPORT, Sample, TrainingMechanism, WorstCase, rows_of_classes
from dpsinkhorn.mechanisms.shared.clipping import DIGITS, exact_weights, tidy
from dpsinkhorn.mechanisms.shared.steps import AllRecords, NetworkLearner, Steps
from dpsinkhorn.mechanisms.shared.terms import Terms, one_pixel
from dpsinkhorn.privacy import GaussianMechanism
from dpsinkhorn.privacy.noise import NoiseSource, announce

_HIDDEN = 128  # of the discriminator, as published
_RATE, _LAST_RATE, _FALLING = 0.1, 0.052, 10_000  # of its gradient descent; over how many steps it falls


class Discriminator(TrainingMechanism):
    """Noised sums of clipped gradients in the weights of a discriminator."""

    name = "dp_cgan"
    summary = "each record's gradient in a discriminator is clipped, and noise is added to the sum"
    recipe = "dp-cgan"
    takes_persons = False
    unused_settings = TRANSPORT | {"flow", "loss.iterations"}

    def __init__(self, terms: Terms) -> None:
        super().__init__(terms)
        self.gradients = ClippedGradients(
            terms.clip, terms.facts.classes, max(terms.largest_sample, terms.generated)
        )

    @classmethod
    def releases(cls, terms: Terms) -> GaussianMechanism:
        return GaussianMechanism(1.0, terms.noise_multiplier)

    @classmethod
    def companion(cls, terms: Terms) -> MLPConfig:
        """Return the discriminator: an image and its one-hot label go in, a logit comes out."""
        return MLPConfig(
            image_shape=(1, 1, 1),
            classes=0,
            latent=terms.facts.pixels + terms.facts.classes,
            hidden=(_HIDDEN,),
            batch_norm=False,
        )

    @classmethod
    def worst_case(cls, noise_multiplier: float, rows: int = 4) -> WorstCase:  # noqa: ARG003
        """No data or one record of one pixel: a clipped gradient of norm 1."""
        built, random = cls(one_pixel(noise_multiplier)), torch.Generator().manual_seed(0)
        critic = Critic(*(torch.randn(shape, generator=random) for shape in ((8, 1), (8,), (8,), (1,))))
        return WorstCase.of_record(
            built.mechanism,
            lambda sample: built.clipped(critic, [sample]),
            lambda sample, noise: built.released(critic, [sample], noise),
        )

    def exact_releases(self, record: Tensor) -> dict[str, Callable[..., object]]:
        """Weights of any size, and those of no number; a first layer that follows the record."""
        random, inputs = torch.Generator().manual_seed(0), record.shape[1] + self.terms.facts.classes
        first = torch.randn(_HIDDEN, inputs, generator=random)
        first[:, : record.shape[1]] *= record.sign()
        others = [torch.randn(shape, generator=random) for shape in ((_HIDDEN,), (_HIDDEN,), (1,))]
        broken = first.clone()
        broken[0, 0], broken[1, 0] = torch.nan, torch.inf
        critics = {
            "usual": first / inputs**0.5,
            "large": 1e3 * first,
            "larger than all": 1e30 * first,
            "tiny": 1e-30 * first,
            "some no number": broken,
        }

        def release(records: Iterable[Sample], noise: NoiseSource, critic: Critic) -> Tensor:
            return self.released(critic, records, noise)

        return {
            f"gradients, weights: {words}": partial(release, critic=Critic(weights, *others))
            for words, weights in critics.items()
        }

    def prepare(self, learner: NetworkLearner, records: AllRecords) -> None:  # noqa: ARG002
        """Draw the discriminator's first weights, which are public."""
        assert learner.companion is not None
        for parameter in learner.companion.parameters():
            nn.init.zeros_(parameter)  # biases
            if parameter.ndim > 1:
                std = math.sqrt(2 / parameter.shape[1])
                nn.init.normal_(parameter, std=std, generator=learner.random)

    def own_steps(self, learner: NetworkLearner, records: AllRecords, *, horizon: int) -> Steps:
        return _CriticSteps(learner, records, self, horizon=horizon)

    def released(self, critic: Critic, records: Iterable[Sample], noise: NoiseSource) -> Tensor:
        """Return the noised sum of clipped gradients, in units of the clipping bound."""
        announce(noise, **vars(critic))
        return self.noised(self.clipped(critic, records), noise)

    def clipped(self, critic: Critic, records: Iterable[Sample]) -> Tensor:
        """Return what is noised, in float64. Private: for audits."""
        total = torch.zeros(critic.numbers, dtype=torch.float64, device=critic.first.device)
        for sample in records:
            total += self.gradients.sums(critic, sample.points, sample.labels, real=True)
        return total


class _CriticSteps(Steps):
    """Each step moves the discriminator by a noised gradient, then the generator against it."""

    def __init__(
        self, learner: NetworkLearner, records: AllRecords, barrier: Discriminator, *, horizon: int
    ) -> None:
        assert isinstance(learner.companion, MLP)
        self._learner, self._records, self._barrier, self._horizon = learner, records, barrier, horizon
        self._network, self._terms = learner.companion, barrier.terms

    def take(self, count: int) -> None:
        learner, terms, classes = self._learner, self._terms, self._terms.facts.classes
        generator = learner.generator
        assert isinstance(generator, Generator)
        labels: Tensor | None = None
        if classes:  # public ones: those of the sample are private
            labels = torch.arange(terms.generated, device=learner.device) % classes
        for _ in range(count):
            sample = self._records.draw(terms.sampling_rate, learner.noise)
            latents = draw_latents(terms.generated, generator.config.latent, learner.random, learner.device)
            images = generator(latents, labels).flatten(1)
            self._move_critic(sample, images.detach(), labels)
            loss = functional.softplus(-self._logits(images, labels)).mean()
            gradients = torch.autograd.grad(loss, list(learner.parameters))
            learner.update(learner.rate_at(learner.step, self._horizon), gradients)
            learner.step += 1

    @torch.no_grad()
    def _move_critic(self, sample: Sample, images: Tensor, labels: Tensor | None) -> None:
        """Take a step of gradient descent: noised on real images, as it is on generated ones."""
        terms, parameters = self._terms, list(self._network.parameters())
        first, first_bias, second, second_bias = parameters
        critic = Critic(first, first_bias, second[0], second_bias)
        noised = self._barrier.released(critic, [sample], self._learner.noise) / terms.expected_batch
        own = self._barrier.gradients.sums(critic, images, labels, real=False) / terms.generated
        rate = _RATE + (_LAST_RATE - _RATE) * min(1.0, self._learner.step / _FALLING)
        move = (noised + own).mul_(-rate * terms.clip).float()
        for parameter, part in zip(
            parameters, torch.split(move, [each.numel() for each in parameters]), strict=True
        ):
            parameter.add_(part.view_as(parameter))

    def _logits(self, images: Tensor, labels: Tensor | None) -> Tensor:
        images = (images + 1) / 2
        if labels is not None:
            kinds = functional.one_hot(labels, self._terms.facts.classes)
            images = torch.cat([images, kinds.to(images)], dim=1)
        logits: Tensor = self._network.layers(images)
        return logits


# ---- sums of clipped gradients, free of rounding
#
# The discriminator is a network of one hidden layer on an image beside its one-hot label. A gradient in a
# layer's weights is the outer product of a slope and an input. Inputs, weights and hidden numbers are rounded
# to public grids, so coarse that float64 holds all products and sums exactly; slopes are cut off on another
# one after they are scaled by the norm. So what an image adds is the same bits in whatever company, and its
# norm is at most what it should be.

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
        rows, kinds = rows_of_classes(Sample(images, labels), self._classes)
        return images[rows], kinds if self._classes else None

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
