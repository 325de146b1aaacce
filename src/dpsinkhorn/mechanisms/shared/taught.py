"""Mechanisms by which critics on disjoint parts of the records teach a generator, step by step."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar, Protocol, TypeAlias

import torch
from torch import Tensor

from dpsinkhorn.generators import Generator, draw_latents
from dpsinkhorn.mechanisms.shared.base import TRANSPORT, Sample, TrainingMechanism, WorstCase, pulled_back
from dpsinkhorn.mechanisms.shared.part_critics import PartCritics
from dpsinkhorn.mechanisms.shared.steps import AllRecords, Learner, NetworkLearner, Steps
from dpsinkhorn.mechanisms.shared.terms import Terms, one_pixel
from dpsinkhorn.privacy import SeededNoise, poisson_sample
from dpsinkhorn.privacy.mechanisms import ImageMechanism, VoteMechanism, parts_of
from dpsinkhorn.privacy.noise import NoiseSource, announce

Drawn: TypeAlias = "Tensor | int"
"""What a step draws beside its noise; a number is a secret."""


class TaughtBarrier(Protocol):
    """What lets critics teach, under privacy."""

    terms: Terms
    learns_every: int

    def critics(self, sample: Sample, random: torch.Generator) -> PartCritics:
        """Return critics that have learnt nothing yet."""
        ...

    def gradient(
        self, critics: PartCritics, points: Tensor, labels: Tensor | None, learner: Learner
    ) -> Tensor:
        """Return what a generator descends on, (n, d), given generated images and their labels."""
        ...


class TaughtMechanism(TrainingMechanism):
    """Releases, in each step, something of the gradients that critics have in generated images.

    Args:
        terms: public numbers.
    """

    takes_persons = False
    splits_records = True
    learns_in_private = True
    unused_settings = TRANSPORT | {"flow"}
    worst_clip: ClassVar[float] = 1e-3
    """The setting `clip` of its worst case."""

    mechanism: ImageMechanism | VoteMechanism

    @classmethod
    @abstractmethod
    def releases(cls, terms: Terms) -> ImageMechanism | VoteMechanism: ...

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
