"""Steps one by one: Algorithm 1 as it reads. And the generated images of any step, with their labels."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dpsinkhorn.generators import draw_labels, draw_latents
from dpsinkhorn.mechanisms.shared.base import GradientBarrier
from dpsinkhorn.mechanisms.shared.steps import Steps
from dpsinkhorn.privacy.noise import announce
from dpsinkhorn.training.plan import Plan
from dpsinkhorn.training.records import Drawable
from dpsinkhorn.training.state import TrainingState


@dataclass(eq=False)
class PlainSteps(Steps):
    """Each step draws, generates, sanitizes and updates by itself. Works everywhere."""

    plan: Plan
    state: TrainingState
    records: Drawable
    barrier: GradientBarrier
    probabilities: tuple[float, ...]
    horizon: int

    def take(self, count: int) -> None:
        for _ in range(count):
            self._step()

    def _step(self) -> None:
        plan, state, barrier, n = self.plan, self.state, self.barrier, self.plan.generated
        # ---- line 2: a Poisson sample of the private records
        sample = self.records.draw(plan.sampling_rate, state.noise)

        # ---- lines 3 to 5: n generated images, and n' more with the labels of the first n'
        labels = training_labels(plan, n, self.probabilities, state.random, state.device)
        points, labels = generate(state, barrier, n, labels)

        # ---- lines 6 to 10: the privacy barrier, and back through the generator
        announce(state.noise, images=points, labels=labels)
        barrier.backward(points, labels, sample, state.parameters, state.noise)

        # ---- line 11: post-processing from here on
        state.update(state.rate_at(state.step, self.horizon))
        state.step += 1


def generate(
    state: TrainingState, barrier: GradientBarrier, n: int, labels: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """The images of a step as points, (n + n', d), and their labels."""
    extra = barrier.resampled(n)
    latents = draw_latents(n + extra, state.generator.config.latent, state.random, state.device)
    every = with_resampled(labels, extra)
    return render(state, barrier, n, latents, every), every


def render(
    state: TrainingState,
    barrier: GradientBarrier,
    n: int,
    latents: Tensor,
    labels: Tensor | None,
    weights: dict[str, Tensor] | None = None,
) -> Tensor:
    """The points of latents: a graph is kept of those whose gradient is used.

    With `weights`, the generator computes with these in place of its parameters.
    """
    parts = [slice(None)]
    if len(latents) > n and not barrier.resampled_learn:
        parts = [slice(0, n), slice(n, None)]
    points: list[Tensor] = []
    for rows in parts:
        with torch.set_grad_enabled(not points), state.precision():
            given = (latents[rows], None if labels is None else labels[rows])
            images: Tensor = torch.func.functional_call(state.generator, weights or {}, given)
        points.append(images.flatten(1))
    return points[0] if len(points) == 1 else torch.cat(points)


def with_resampled(labels: Tensor | None, extra: int) -> Tensor | None:
    """Labels of all images of a step: the resampled ones have those of the first."""
    return None if labels is None else torch.cat([labels, labels[..., :extra]], dim=-1)


def labels_are_fixed(plan: Plan) -> bool:
    """Whether the generated images have the same labels at every step."""
    return not plan.facts.classes or plan.kind.labels_are_fixed


def training_labels(
    plan: Plan, count: int, probabilities: tuple[float, ...], random: torch.Generator, device: torch.device
) -> Tensor | None:
    """Labels of the images of a step, public: every class as often for `record`, else drawn."""
    classes = plan.facts.classes
    if not classes:
        return None
    if labels_are_fixed(plan):
        return torch.arange(count, device=device) % classes
    return draw_labels(count, probabilities, random, device)
