"""The generated images of a step, and their labels."""

from __future__ import annotations

import torch
from torch import Tensor

from dpsinkhorn.generators import Generator, draw_labels, draw_latents
from dpsinkhorn.training.plan import Plan
from dpsinkhorn.training.sanitizers import Sanitizer
from dpsinkhorn.training.state import TrainingState

__all__ = ["generate", "labels_are_fixed", "render", "training_labels", "with_resampled"]


def generate(
    state: TrainingState, sanitizer: Sanitizer, n: int, labels: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """The images of a step as points, (n + n', d), and their labels."""
    extra = sanitizer.resampled(n)
    latents = draw_latents(n + extra, state.generator.config.latent, state.random, state.device)
    every = with_resampled(labels, extra)
    return render(state.generator, sanitizer, n, latents, every), every


def render(
    generator: Generator, sanitizer: Sanitizer, n: int, latents: Tensor, labels: Tensor | None
) -> Tensor:
    """The points of latents: a graph is kept of those whose gradient is used."""
    if sanitizer.resampled_learn or len(latents) == n:
        every: Tensor = generator(latents, labels).flatten(1)
        return every
    first = generator(latents[:n], None if labels is None else labels[:n]).flatten(1)
    with torch.no_grad():
        second = generator(latents[n:], None if labels is None else labels[n:]).flatten(1)
    return torch.cat([first, second])


def with_resampled(labels: Tensor | None, extra: int) -> Tensor | None:
    """Labels of all images of a step: the resampled ones have those of the first."""
    return None if labels is None else torch.cat([labels, labels[..., :extra]], dim=-1)


def labels_are_fixed(plan: Plan) -> bool:
    """Whether the generated images have the same labels at every step."""
    return not plan.facts.classes or plan.recipe.privacy.mechanism == "record"


def training_labels(
    plan: Plan,
    count: int,
    probabilities: tuple[float, ...],
    random: torch.Generator,
    device: torch.device,
) -> Tensor | None:
    """Labels of the images of a step, public: every class as often for `record`, else drawn."""
    classes = plan.facts.classes
    if not classes:
        return None
    if labels_are_fixed(plan):
        return torch.arange(count, device=device) % classes
    return draw_labels(count, probabilities, random, device)
