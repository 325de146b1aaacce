"""Mechanism `dp_cgan`: a generator against a discriminator that sees records through noised gradients.

From R. Torkzadehmahani, P. Kairouz, B. Paten, "DP-CGAN: Differentially Private Synthetic Data and Label
Generation", 2019. The discriminator's gradients of the loss on real images and on generated ones are clipped
apart, image by image; noise is added to the former. Everything else, the generator's training included, sees
the discriminator alone: docs/proofs/dp-cgan.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from dpsinkhorn.generators import Generator, MLPConfig, draw_latents
from dpsinkhorn.generators.networks import MLP
from dpsinkhorn.mechanisms.shared.base import TRANSPORT, Sample, TrainingMechanism, WorstCase
from dpsinkhorn.mechanisms.shared.critics import ClippedGradients, Critic
from dpsinkhorn.mechanisms.shared.steps import AllRecords, NetworkLearner, Steps
from dpsinkhorn.mechanisms.shared.terms import Terms, one_pixel
from dpsinkhorn.privacy import GaussianMechanism
from dpsinkhorn.privacy.noise import NoiseSource, announce

_HIDDEN = 128  # of the discriminator, as published
_RATE, _LAST_RATE, _FALLING = 0.1, 0.052, 10_000  # of its gradient descent; over how many steps it falls


class Discriminator(TrainingMechanism):
    """Noised sums of clipped gradients in the weights of a discriminator.

    Args:
        terms: public numbers.
    """

    name = "dp_cgan"
    summary = "each record's gradient in a discriminator is clipped, and noise is added to the sum"
    recipe = "dp-cgan"
    takes_persons = False
    unused_settings = TRANSPORT | {"flow", "loss.iterations"}

    mechanism: GaussianMechanism

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

        def release(sample: Sample, noise: NoiseSource) -> Tensor:
            return built.released(critic, [sample], noise)

        def clipped(sample: Sample) -> Tensor:
            return built.clipped(critic, [sample])

        return WorstCase.of_record(built.mechanism, torch.zeros(1, 1), clipped, release)

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
