"""Figure 4c: the gradients against autograd of the loss, and how bias and variance move with p."""

from __future__ import annotations

import math

import pytest
import torch

from dpsinkhorn.data import load_dataset
from dpsinkhorn.generators import build_generator, draw_labels, draw_latents
from dpsinkhorn.ot import semi_debiased_loss, with_labels
from dpsinkhorn.papers import QUICK
from dpsinkhorn.papers.gradients import DEBIAS, _gradients, _Moments, gradient_spread
from dpsinkhorn.training import facts_of, load_recipe, make_plan


@pytest.fixture(scope="module")
def setting():
    data = load_dataset("digits")
    recipe = QUICK.apply(load_recipe("paper-first-mnist"))
    # an image must not depend on how many others are drawn with it
    recipe = recipe.replace(generator={"batch_norm": False})
    plan = make_plan(recipe, facts_of(data), seed=0)
    return build_generator(plan.generator_config, 0), plan, data


@pytest.mark.parametrize("debias", [0.0, 0.4, 1.0])
def test_they_are_those_of_the_semi_debiased_loss(setting, debias: float):
    generator, plan, data = setting
    found = _gradients(generator, plan, data, [debias], torch.Generator().manual_seed(5))[0]
    # the same draws, in the same order
    random = torch.Generator().manual_seed(5)
    n, loss = plan.generated, plan.recipe.loss
    rows = torch.randint(data.records, (n,), generator=random).numpy()
    labels = draw_labels(n, (0.1,) * 10, random, torch.device("cpu"))
    latents = draw_latents(2 * n, generator.config.latent, random, torch.device("cpu"))
    count = n + math.floor(n * debias)
    kinds = torch.cat([labels, labels])[:count]
    x = with_labels(generator(latents[:count], kinds).flatten(1), kinds, 10, loss.label_weight)
    y = with_labels(data.points(rows), torch.tensor(data.labels[rows]), 10, loss.label_weight)
    options = {"debias": debias, "cost": loss.ground_cost, "tolerance": 1e-6}
    value = semi_debiased_loss(x, y, loss.regularization, **options)
    expected = torch.autograd.grad(value, list(generator.parameters()))
    flat = torch.cat([part.flatten() for part in expected]).double()
    assert float((found - flat).norm()) < 1e-3 * float(flat.norm())


def test_bias_falls_and_variance_rises_with_p(setting):
    generator, plan, data = setting
    points = gradient_spread(generator, plan, data, batches=40, seed=0)
    assert [point.debias for point in points] == list(DEBIAS)
    biases, variances = [p.bias for p in points], [p.variance for p in points]
    assert biases == sorted(biases, reverse=True)
    assert biases[-1] == 0.0
    assert biases[0] > 0.02
    assert variances[0] == 1.0
    assert variances[-1] > 1.01


def test_moments_are_those_of_numpy():
    vectors = torch.randn(20, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 3
    moments = _Moments(7, torch.device("cpu"))
    for vector in vectors:
        moments.add(vector)
    assert torch.allclose(moments.mean, vectors.mean(0))
    assert moments.variance == pytest.approx(float(vectors.var(0, unbiased=True).sum()))
