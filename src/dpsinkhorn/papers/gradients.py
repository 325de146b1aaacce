"""Bias and variance of the semi-debiased gradient over p: Section 5.2, Figure 4c.

For a generator with parameters θ, G_p is the gradient in θ of the semi-debiased Sinkhorn loss on one batch
of real and one of generated images. Over many batches,

    bias(p) = |E G_p - E G_1|,      variance(p) = E |G_p - E G_p|²,

G_1 being unbiased; the variance is shown relative to that of G_0. All p see the same batches, the same
latents and the same labels, so that differences between them are not those of the draws, and the square of
what chance alone leaves in the mean difference is taken off the square of the bias.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dpsinkhorn.data import Dataset
from dpsinkhorn.generators import Generator, draw_labels, draw_latents
from dpsinkhorn.ot import transport_loss, with_labels
from dpsinkhorn.ot.divergence import count_resampled
from dpsinkhorn.training import Plan

DEBIAS = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
_TOLERANCE = 1e-4  # of the solver: its error must not show


@dataclass(frozen=True)
class GradientSpread:
    """Bias and variance of one generator's gradient at one p."""

    debias: float
    bias: float  # relative to the length of the mean of G_1
    variance: float  # relative to that of G_0


def gradient_spread(
    generator: Generator,
    plan: Plan,
    data: Dataset,
    *,
    batches: int,
    seed: int,
    debias: Sequence[float] = DEBIAS,
    progress: Callable[[int], object] | None = None,
) -> list[GradientSpread]:
    """Bias and variance over p, 0 and 1 among them, of a generator that was trained by a plan."""
    assert debias[0] == 0.0
    assert debias[-1] == 1.0
    device = next(generator.parameters()).device
    random = torch.Generator(device).manual_seed(seed)
    generator.requires_grad_(True).train()
    size = sum(parameter.numel() for parameter in generator.parameters())
    moments = [_Moments(size, device) for _ in debias]  # of G_p
    apart = [_Moments(size, device) for _ in debias]  # of G_p - G_1
    for done in range(batches):
        gradients = _gradients(generator, plan, data, debias, random)
        for k, gradient in enumerate(gradients):
            moments[k].add(gradient)
            apart[k].add(gradient - gradients[-1])
        if progress is not None:
            progress(done + 1)
    length, reference = float(moments[-1].mean.norm()), moments[0].variance
    spreads = []
    for p, own, difference in zip(debias, moments, apart, strict=True):
        squared = float(difference.mean.square().sum()) - difference.variance / batches
        bias = math.sqrt(max(squared, 0.0)) / length
        spreads.append(GradientSpread(p, bias, own.variance / reference))
    return spreads


def _gradients(
    generator: Generator, plan: Plan, data: Dataset, debias: Sequence[float], random: torch.Generator
) -> list[Tensor]:
    """G_p on one batch for every p."""
    device, classes, n = random.device, plan.facts.classes, plan.generated
    loss = plan.recipe.loss
    weight, cost, regularization = loss.label_weight, loss.ground_cost, loss.regularization
    rows = torch.randint(data.records, (n,), generator=random, device=device).cpu().numpy()
    real = data.points(rows).to(device)
    probabilities = (1.0 / classes,) * classes
    labels = draw_labels(n, probabilities, random, device)
    latents = draw_latents(2 * n, generator.config.latent, random, device)
    images = generator(latents, torch.cat([labels, labels])).flatten(1)
    assert data.labels is not None
    y = with_labels(real, torch.from_numpy(data.labels[rows]).to(device), classes, weight)
    points = images.detach().requires_grad_()
    x = with_labels(points, torch.cat([labels, labels]), classes, weight)

    def in_points(times: int, against: Tensor) -> Tensor:
        value = times * transport_loss(x[:n], against, regularization, cost=cost, tolerance=_TOLERANCE)
        gradient: Tensor = torch.autograd.grad(value, points, retain_graph=True)[0]
        return gradient

    cross, parameters = in_points(2, y), list(generator.parameters())
    gradients = []
    for extra in (count_resampled(n, p) for p in debias):
        own = in_points(1, x[extra : n + extra])
        parts = torch.autograd.grad(images, parameters, cross - own, retain_graph=True)
        gradients.append(torch.cat([part.flatten() for part in parts]).double())
    return gradients


class _Moments:
    """Mean and summed variance of vectors that come one at a time (Welford)."""

    def __init__(self, size: int, device: torch.device) -> None:
        self.count = 0
        self.mean = torch.zeros(size, dtype=torch.float64, device=device)
        self._squares = 0.0

    def add(self, vector: Tensor) -> None:
        self.count += 1
        before = vector - self.mean
        self.mean += before / self.count
        self._squares += float((before * (vector - self.mean)).sum())

    @property
    def variance(self) -> float:
        """Sum of the sample variances of all coordinates."""
        return self._squares / (self.count - 1)
