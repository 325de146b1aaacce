"""Mechanism `flow`: gradients of each record in a network's weights, clipped, summed, noised.

Before the first step a sketch of all records is released, by a few steps of `moments`, and the network learns
the flow from noise to samples of it, which costs nothing. Every step then takes a Poisson sample, and for
each record in it the gradient of the flow-matching loss, the mean over some times and noises, clipped as a
whole. Sketch and steps have one budget: docs/proofs/flow.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from dpsinkhorn.generators import Flow as FlowGenerator
from dpsinkhorn.generators import FlowConfig, MixtureConfig, draw_latents
from dpsinkhorn.mechanisms.moments import Moments
from dpsinkhorn.mechanisms.shared.base import Sample, TrainingMechanism, WorstCase, rows_of_classes
from dpsinkhorn.mechanisms.shared.moment_steps import MomentSteps
from dpsinkhorn.mechanisms.shared.record_gradients import Drawn, RecordGradients, StepDraws, flow_loss
from dpsinkhorn.mechanisms.shared.steps import AllRecords, NetworkLearner, Steps
from dpsinkhorn.mechanisms.shared.terms import FlowSettings, Terms, one_pixel
from dpsinkhorn.privacy import Charge
from dpsinkhorn.privacy.charges import RecordMechanism
from dpsinkhorn.privacy.noise import NoiseSource, announce
from dpsinkhorn.ranks import over_ranks

_LEAST_CHUNK = 32  # units that go through the network together; fewer take other ways through products
_BYTES = 40  # of a channel of a pixel of a draw, as measured
_MEMORY_SHARE = 8  # an eighth of the memory is for them
_MOST_IMAGES = 2**15  # that go through together: a launch takes 65,535 along one dimension
_UPDATE_BATCH, _BATCHES_AT_ONCE = 256, 16  # samples of the sketch in an update, and drawn together
_LEAST_SKETCH_STEPS = 4
_LARGEST_LOSS = 50.0  # 1/σ²: above it the weight of a step overflows


class Flow(TrainingMechanism):
    """Noised sums of clipped gradients, one for each record, in all weights of a flow's network.

    Args:
        terms: public numbers.
    """

    name = "flow"
    summary = "each record's gradient in the weights of a network is clipped, and noise is added to the sum"
    summary_of_persons = (
        "each person's gradient in the weights of a network is clipped, and noise is added to the sum"
    )
    recipe = "flow"
    sums_over_records = True
    audit_recipe = "flow"
    unused_settings = frozenset({"loss"})

    mechanism: RecordMechanism

    def __init__(self, terms: Terms) -> None:
        super().__init__(terms)
        self._engine: RecordGradients | None = None
        self._precision = torch.float32
        self._moments = Moments(_terms_of_sketch(terms))

    @classmethod
    def releases(cls, terms: Terms) -> RecordMechanism:
        return RecordMechanism(terms.clip, terms.noise_multiplier)

    @classmethod
    def check(cls, terms: Terms) -> None:
        super().check(terms)
        if not isinstance(terms.generator, FlowConfig):
            raise ValueError(
                "the mechanism flow trains a generator of kind flow, not a "
                f"{getattr(terms.generator, 'kind', 'module of your own')}; leave the generator out"
            )
        if terms.flow.sketch_steps < _LEAST_SKETCH_STEPS:
            raise ValueError(f"flow.sketch_steps: a sketch takes at least {_LEAST_SKETCH_STEPS} steps")
        cls.companion(terms)  # refuses what cannot be

    @classmethod
    def companion(cls, terms: Terms) -> MixtureConfig:
        facts = terms.facts
        return MixtureConfig(
            image_shape=facts.image_shape,
            classes=facts.classes,
            components=terms.flow.components,
            frequencies=terms.flow.frequencies,
        )

    @classmethod
    def preparation(cls, terms: Terms) -> Charge:
        return Moments.releases(_terms_of_sketch(terms)).sampled(1.0, terms.flow.sketch_steps)

    @classmethod
    def worst_case(cls, noise_multiplier: float, rows: int = 4) -> WorstCase:  # noqa: ARG003
        """No data or one record of one pixel: a clipped gradient of full norm."""
        config = FlowConfig(image_shape=(1, 1, 1), classes=0, channels=4)
        built = cls(one_pixel(noise_multiplier, generator=config, flow=FlowSettings(draws=1)))
        network, draws = FlowGenerator(config), StepDraws((1, 1, 1), 1, torch.Generator().manual_seed(0))
        return WorstCase.of_record(
            built.mechanism,
            lambda sample: built.clipped(network, sample, draws),
            lambda sample, noise: built.released(network, sample, draws, noise),
        )

    @classmethod
    def audit_settings(cls, records: int) -> dict[str, dict[str, Any]]:
        return {
            "privacy": {"sampling_rate": min(1.0, 2 / records), "batch": None, "steps": 4, "clip": 1e-3},
            "generator": {"channels": 4},
            "optimizer": {"learning_rate": 1e-3, "warm_up": 0},
            "flow": {"share": 0.2, "components": 3, "frequencies": 4, "sketch_steps": 5, "updates": 2},
        }

    def check_device(self, learner: NetworkLearner) -> None:
        self._precision = torch.bfloat16 if learner.reduced else torch.float32
        self._gradients(_network(learner)).check_places()

    def prepare(self, learner: NetworkLearner, records: AllRecords) -> None:
        """Fit the sketch, as `moments` does."""
        assert learner.companion is not None
        steps = self.terms.flow.sketch_steps
        parameters = list(learner.companion.parameters())
        fitted = _Fitted(learner.companion, parameters, learner.device, learner.random, learner.noise)
        MomentSteps(fitted, records, self._moments, horizon=steps).take(steps)

    @property
    def summing(self) -> tuple[object, ...]:
        return (self, self._moments)

    def own_steps(self, learner: NetworkLearner, records: AllRecords, *, horizon: int) -> Steps:
        return _FlowSteps(learner, records, self, horizon=horizon)

    def released(
        self, network: FlowGenerator, sample: Sample, draws: StepDraws, noise: NoiseSource
    ) -> Tensor:
        """Return the noised sum, (P,), in the order of the parameters."""
        return self.noised(self.clipped(network, sample, draws), noise)

    def clipped(self, network: FlowGenerator, sample: Sample, draws: StepDraws) -> Tensor:
        """Return what is noised, (P,), in float64. Private: for audits."""
        gradients = self._gradients(network)
        if sample.others is None:
            return gradients.clipped_sum(*self._inputs(sample, draws))
        return self.sum_of_gradients(sample, _flat(network.parameters()), draws.state)

    @over_ranks
    def sum_of_gradients(self, sample: Sample, weights: Tensor, random: Tensor) -> Tensor:
        """The same, of this rank's records, for a network of these weights, and random numbers of a step."""
        assert self._engine is not None  # since the device was checked
        network = self._engine.network
        for parameter, part in zip(network.parameters(), _parts(weights, network.parameters()), strict=True):
            parameter.detach().copy_(part)
        generator = torch.Generator(sample.points.device)
        generator.set_state(random.cpu())
        draws = StepDraws(self.terms.facts.image_shape, self.terms.flow.draws, generator)
        return self.clipped(network, replace(sample, others=None), draws)

    def clipped_rows(self, network: FlowGenerator, sample: Sample, draws: StepDraws) -> Tensor:
        """Return what each unit adds to that, (b, P). Private: for audits."""
        return self._gradients(network).clipped_rows(*self._inputs(sample, draws))

    def _inputs(self, sample: Sample, draws: StepDraws) -> tuple[Tensor, Tensor | None, Drawn, Tensor]:
        known = _known(sample, self.terms.facts.classes)
        images = torch.nan_to_num(known.points, nan=0.0).clamp(-1, 1)
        return images.view(-1, *self.terms.facts.image_shape), known.labels, draws(known), draws.noises

    def _gradients(self, network: FlowGenerator) -> RecordGradients:
        if self._engine is None or self._engine.network is not network:
            self._engine = RecordGradients(
                network,
                self.mechanism.clip,
                self.terms.largest_sample,
                draws=self.terms.flow.draws,
                chunk=self._chunk(network),
                precision=self._precision,
            )
        return self._engine

    def _chunk(self, network: FlowGenerator) -> int:
        """Return how many units go through the network together: nearly every sample fills all chunks."""
        expected, most = self.terms.sampling_rate * self.terms.facts.units, _LEAST_CHUNK
        device = next(network.parameters()).device
        if device.type == "cuda":
            numbers = self.terms.flow.draws * self.terms.facts.pixels * network.config.channels
            memory = torch.cuda.get_device_properties(device).total_memory // _MEMORY_SHARE
            most = max(most, min(memory // (_BYTES * numbers), _MOST_IMAGES // self.terms.flow.draws))
        enough = expected + 4 * math.sqrt(expected)
        return _LEAST_CHUNK * math.ceil(enough / math.ceil(enough / most) / _LEAST_CHUNK)


class _FlowSteps(Steps):
    """Updates by samples of the sketch, then steps by noised gradients."""

    def __init__(self, learner: NetworkLearner, records: AllRecords, barrier: Flow, *, horizon: int) -> None:
        self._learner, self._records, self._barrier, self._horizon = learner, records, barrier, horizon
        self._terms = barrier.terms
        self.updates = self._terms.flow.updates

    def update(self, count: int) -> None:
        """Learn from samples of the sketch; after the last update the optimizer forgets their gradients."""
        learner = self._learner
        while count:
            batches = min(count, _BATCHES_AT_ONCE)
            for images, labels in self._of_sketch(batches):
                learner.update(self._update_rate(learner.updates), self._gradients(images, labels))
                learner.updates += 1
            count -= batches
        if learner.updates == self.updates:
            learner.restart_optimizer()

    def take(self, count: int) -> None:
        """Take `count` steps."""
        learner, barrier, facts = self._learner, self._barrier, self._terms.facts
        network = _network(learner)
        for _ in range(count):
            sample = self._records.draw(self._terms.sampling_rate, learner.noise)
            draws = StepDraws(facts.image_shape, self._terms.flow.draws, learner.random)
            announce(learner.noise, weights=_flat(learner.parameters))
            noised = barrier.released(network, sample, draws, learner.noise)
            noised /= self._terms.sampling_rate * facts.units
            gradients = _parts(noised.float(), learner.parameters)
            learner.update(learner.rate_at(learner.step, self._horizon), gradients)
            learner.step += 1

    def _of_sketch(self, batches: int) -> Iterator[tuple[Tensor, Tensor | None]]:
        """Hand out samples of the sketch, in batches, whose classes are even."""
        learner, classes = self._learner, self._terms.facts.classes
        assert learner.companion is not None
        count, labels = batches * _UPDATE_BATCH, None
        if classes:
            labels = torch.randint(classes, (count,), generator=learner.random, device=learner.device)
        latent = self._barrier.companion(self._terms).latent
        images = learner.companion(draw_latents(count, latent, learner.random, learner.device), labels)
        for rows in torch.split(torch.arange(count, device=learner.device), _UPDATE_BATCH):
            yield images[rows], None if labels is None else labels[rows]

    def _gradients(self, images: Tensor, labels: Tensor | None) -> list[Tensor]:
        """Return the gradients of the loss of some images, in the parameters."""
        learner = self._learner
        times = torch.sigmoid(torch.randn(len(images), generator=learner.random, device=learner.device))
        noises = torch.randn(images.shape, generator=learner.random, device=learner.device)
        with (
            torch.enable_grad(),
            torch.autocast(learner.device.type, torch.bfloat16, enabled=learner.reduced),
        ):
            loss = flow_loss(_network(learner).network, images, labels, times, noises).mean()
        return list(torch.autograd.grad(loss, list(learner.parameters)))

    def _update_rate(self, update: int) -> float:
        settings = self._terms.flow
        return settings.update_rate * 0.5 * (1 + math.cos(math.pi * update / settings.updates))


@dataclass
class _Fitted:
    """A mixture in the hands of `MomentSteps`."""

    generator: nn.Module
    parameters: Sequence[nn.Parameter]
    device: torch.device
    random: torch.Generator
    noise: NoiseSource
    step: int = 0
    gradients: list[Tensor] = field(default_factory=list)


def _flat(parameters: Iterable[Tensor]) -> Tensor:
    return torch.cat([each.detach().flatten() for each in parameters])


def _parts(numbers: Tensor, parameters: Iterable[Tensor]) -> list[Tensor]:
    """Undo `_flat`."""
    shapes = [each.shape for each in parameters]
    parts = torch.split(numbers, [shape.numel() for shape in shapes])
    return [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]


def _network(learner: NetworkLearner) -> FlowGenerator:
    assert isinstance(learner.generator, FlowGenerator)
    return learner.generator


def _terms_of_sketch(terms: Terms) -> Terms:
    """Return the terms of the sketch's steps, whose noise is such that they have their share.

    The privacy loss of k releases with noise s has the variance k / s², and that of T sampled steps about
    T q² (exp(1 / σ²) - 1): shares of the sum of both.
    """
    settings, sigma = terms.flow, terms.noise_multiplier
    steps = terms.steps * terms.sampling_rate**2 * math.expm1(min(1 / sigma**2, _LARGEST_LOSS))
    ratio = settings.share / (1 - settings.share)
    return replace(
        terms,
        clip=settings.sketch_clip,
        noise_multiplier=math.sqrt(settings.sketch_steps / (ratio * steps)),
        generator=Flow.companion(terms),
    )


def _known(sample: Sample, classes: int) -> Sample:
    """Leave out records whose label is no class; a person keeps the others."""
    if not classes or sample.labels is None:
        return sample
    known, _ = rows_of_classes(sample, classes)
    groups = None if sample.groups is None else sample.groups[known]
    return Sample(sample.points[known], sample.labels[known], groups)
