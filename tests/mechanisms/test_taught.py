"""Critics on parts of the records: what they descend on, what they notice, what generators learn of them."""

from __future__ import annotations

import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch.nn import functional

from dpsinkhorn.data import load_dataset
from dpsinkhorn.mechanisms.shared.base import Sample
from dpsinkhorn.mechanisms.shared.taught import PartCritics, _gradients
from dpsinkhorn.training import facts_of, load_recipe, make_plan
from dpsinkhorn.training.state import TrainingState

PARTS, BATCH, PIXELS, CLASSES = 3, 5, 16, 4


def scores(layers, inputs):
    hidden = functional.leaky_relu(inputs @ layers[0] + layers[1], 0.2)
    hidden = functional.leaky_relu(hidden @ layers[2] + layers[3], 0.2)
    return (hidden @ layers[4] + layers[5]).squeeze(2)


def some(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_gradients_are_those_of_the_loss():
    """A Wasserstein loss, a penalty on slopes in images, and a little of one on scores of real ones."""
    sizes = ((PIXELS + CLASSES, 8), (1, 8), (8, 8), (1, 8), (8, 1), (1, 1))
    layers = [some(PARTS, *size, seed=place).requires_grad_() for place, size in enumerate(sizes)]
    real, generated, shares = (some(PARTS, BATCH, PIXELS + CLASSES, seed=seed) for seed in (6, 7, 8))
    between = torch.lerp(generated, real, shares.abs()).requires_grad_()
    (slopes,) = torch.autograd.grad(scores(layers, between).sum(), between, create_graph=True)
    penalty = 10 * (slopes[..., :PIXELS].norm(dim=2) - 1).square()
    judged = scores(layers, real)
    losses = scores(layers, generated) - judged + penalty + 1e-3 * judged.square()
    expected = torch.autograd.grad(losses.mean(1).sum(), layers)
    inputs = torch.cat([real, generated, between.detach()], dim=1)
    found = _gradients([layer.detach() for layer in layers], inputs, PIXELS)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4 * float(other.abs().max()))


def test_slopes_are_of_how_little_images_are_taken_for_real():
    points = some(40, PIXELS).clamp(-1, 1)
    critics = PartCritics(Sample(points), PARTS, 0, BATCH, torch.Generator().manual_seed(0))
    critics.learn(some(BATCH, PIXELS, seed=1).clamp(-1, 1), None)
    images = some(BATCH, PIXELS, seed=2).clamp(-1, 1).requires_grad_()
    for part in range(PARTS):
        (expected,) = torch.autograd.grad(
            -scores([layer[part : part + 1] for layer in critics.layers], images[None]).sum(), images
        )
        torch.testing.assert_close(critics.slopes(images, None)[part], expected)
        torch.testing.assert_close(critics.slopes(images, None, slice(part, part + 1))[0], expected)


def test_critics_begin_alike():
    critics = PartCritics(Sample(some(40, PIXELS)), PARTS, 0, BATCH, torch.Generator().manual_seed(0))
    assert all(torch.equal(layer, layer[:1].expand_as(layer)) for layer in critics.layers)
    critics.learn(some(BATCH, PIXELS), None)
    assert not torch.equal(critics.layers[0][0], critics.layers[0][1])


def test_critics_notice_labels():
    """Records are white in one class, and black in the other: so should generated images become."""
    labels = torch.arange(40) % 2
    records = (2.0 * labels - 1)[:, None].expand(-1, PIXELS)
    critics = PartCritics(Sample(records, labels), 2, 2, 8, torch.Generator().manual_seed(0))
    kinds = torch.arange(8) % 2
    for _ in range(100):
        critics.learn(torch.zeros(8, PIXELS), kinds)
    slopes = critics.slopes(torch.zeros(8, PIXELS), kinds).sum(2)
    assert bool((slopes[:, kinds == 1] < -1).all())
    assert bool((slopes[:, kinds == 0] > 1).all())


@pytest.mark.parametrize(
    ("recipe", "clip", "iterations", "steps"),
    [("g-pate", 0.1, 50, 300), ("datalens", 32.0, 50, 300), ("gs-wgan", 1.0, 300, 600)],
)
def test_generators_learn_where_there_is_hardly_any_noise(recipe, clip, iterations, steps):
    """Half of the digits are told right by who has only seen what was generated; by guessing a tenth is."""
    data, test = (load_dataset("digits", split=split) for split in ("train", "test"))
    chosen = load_recipe(recipe).replace(
        privacy={"noise_multiplier": 0.02, "steps": steps, "batch": 60, "clip": clip},
        loss={"iterations": iterations, "generated": 20},
        optimizer={"learning_rate": 3e-3},
    )
    chosen = chosen.with_generator({"kind": "mlp", "hidden": [64], "latent": 8, "batch_norm": True})
    plan = make_plan(chosen, facts_of(data), delta=1e-5, seed=0, accountant="rdp")
    state = TrainingState(plan, torch.device("cpu"))
    records = Sample(torch.as_tensor(data.points()), torch.tensor(data.labels))
    everything = type("Records", (), {"draw": lambda *_: records})()
    plan.build().own_steps(state, everything, horizon=steps).take(steps)
    labels = torch.arange(1000) % 10
    with torch.no_grad():
        images = state.best(torch.randn(1000, 8, generator=torch.Generator().manual_seed(0)), labels)
    learnt = LogisticRegression(max_iter=300).fit(images.flatten(1).numpy(), labels.numpy())
    assert learnt.score(test.points(), test.labels) > 0.5
