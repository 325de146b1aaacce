"""`dp_cgan`: exact sums of clipped gradients of a discriminator, and a generator that sees nothing else."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch
from torch.nn import functional

from dpsinkhorn.data import load_dataset
from dpsinkhorn.mechanisms.dp_cgan import ClippedGradients, Critic
from dpsinkhorn.mechanisms.shared.base import Sample
from dpsinkhorn.mechanisms.shared.clipping import DIGITS, exact_weights
from dpsinkhorn.training import DPSinkhorn, facts_of, load_recipe, make_plan
from dpsinkhorn.training.auditing.search import ExactSums
from dpsinkhorn.training.state import TrainingState
from support.sanitizer_oracles import CountingNoise

CLASSES, PIXELS, HIDDEN, MANY = 3, 16, 8, 2**20
ODD = {
    "no number": torch.full((1, PIXELS), torch.nan),
    "infinite": torch.full((1, PIXELS), torch.inf),
    "huge": torch.full((1, PIXELS), -1e30),
    "black": torch.full((1, PIXELS), -1.0),
    "least": torch.full((1, PIXELS), 2.0**-40),
}


def critic(scale=1.0, seed=0, hidden=HIDDEN):
    random = torch.Generator().manual_seed(seed)
    shapes = ((hidden, PIXELS + CLASSES), (hidden,), (hidden,), (1,))
    return Critic(*(scale * torch.randn(shape, generator=random) for shape in shapes))


def some(count=50, seed=0):
    draws = torch.Generator().manual_seed(seed)
    points = torch.rand(count, PIXELS, generator=draws) * 2 - 1
    return points, torch.randint(CLASSES, (count,), generator=draws)


def by_autograd(weights, points, labels, *, real):
    """The sum of plain gradients, of the logistic loss of pixels from 0 to 1."""
    parts = [part.double().clone().requires_grad_() for part in vars(weights).values()]
    first, first_bias, second, second_bias = parts
    inputs = torch.cat([(points.double() + 1) / 2, functional.one_hot(labels, CLASSES).double()], dim=1)
    logits = torch.relu(inputs @ first.T + first_bias) @ second + second_bias
    loss = functional.softplus(-logits if real else logits).sum()
    return torch.cat([part.flatten() for part in torch.autograd.grad(loss, parts)])


class TestGradients:
    @pytest.mark.parametrize("real", [True, False])
    def test_against_autograd(self, real):
        points, labels = some()
        found = 50 * ClippedGradients(50.0, CLASSES, MANY).sums(critic(), points, labels, real=real)
        expected = by_autograd(critic(), points, labels, real=real)
        torch.testing.assert_close(found, expected, rtol=0, atol=0.02)

    @pytest.mark.parametrize("real", [True, False])
    def test_they_are_clipped_one_by_one(self, real):
        points, labels = some()
        found = ClippedGradients(0.7, CLASSES, MANY).sums(critic(), points, labels, real=real)
        expected = torch.zeros_like(found)
        for place in range(len(points)):
            own = by_autograd(critic(), points[place : place + 1], labels[place : place + 1], real=real)
            expected += own / max(0.7, float(own.norm()))
        torch.testing.assert_close(found, expected, rtol=0, atol=0.05)

    @pytest.mark.parametrize("scale", [1e-30, 1e-3, 1.0, 1e3, 1e30, float("nan"), float("inf")])
    @pytest.mark.parametrize("name", ODD)
    def test_no_norm_is_above_one(self, name, scale):
        gradients = ClippedGradients(1e-3, CLASSES, MANY)
        found = gradients.sums(critic(scale), ODD[name], torch.tensor([1]), real=True)
        assert sum(Fraction(value) ** 2 for value in found.tolist()) <= 1
        assert bool(torch.isfinite(found).all())

    def test_full_norms_are_used(self):
        points, labels = some(20)
        gradients = ClippedGradients(1e-3, CLASSES, MANY)
        for place in range(20):
            own = gradients.sums(critic(), points[place : place + 1], labels[place : place + 1], real=False)
            assert 0.9999 < float(own.norm()) <= 1

    @pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
    def test_in_any_company_order_and_chunk(self, scale, monkeypatch):
        points, labels = some(300)
        gradients, weights = ClippedGradients(0.3, CLASSES, MANY), critic(scale, hidden=128)
        total = gradients.sums(weights, points, labels, real=True)
        order = torch.randperm(300, generator=torch.Generator().manual_seed(1))
        alone = [gradients.sums(weights, points[[at]], labels[[at]], real=True) for at in order.tolist()]
        assert torch.equal(total, sum(alone))
        monkeypatch.setattr("dpsinkhorn.mechanisms.dp_cgan._AT_ONCE", 7)
        assert torch.equal(total, gradients.sums(weights, points[order], labels[order], real=True))

    @pytest.mark.parametrize("label", [-1, CLASSES, 10**12])
    def test_labels_of_no_class_add_nothing(self, label):
        gradients = ClippedGradients(1.0, CLASSES, MANY)
        assert not gradients.sums(critic(), ODD["black"], torch.tensor([label]), real=True).any()

    def test_every_sum_is_exact(self, monkeypatch):
        """By the size and the digits of its terms; and it is noticed where weights are not on a grid."""
        points, labels = some(300)

        def rounded():
            with ExactSums() as sums:
                ClippedGradients(0.3, CLASSES, MANY).sums(critic(), points, labels, real=True)
            return set(sums.rounded)

        assert rounded() == set()
        monkeypatch.setattr(
            "dpsinkhorn.mechanisms.dp_cgan.exact_weights", lambda weights, _: (weights.double() / 3, 6)
        )
        assert "mm" in rounded()


@pytest.mark.parametrize("bits", [0, 10, 20])
@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_weights_on_a_grid(bits, scale):
    weights, e = exact_weights(scale * torch.randn(5, 300, generator=torch.Generator().manual_seed(0)), bits)
    assert float(weights.abs().sum(1).max()) < 2.0**e
    steps = weights * 2.0 ** (DIGITS - bits - e)
    assert torch.equal(steps, steps.round())


def settled(**privacy):
    recipe = load_recipe("dp-cgan").replace(
        privacy={"batch": 100, "steps": 5, "noise_multiplier": 1.0, **privacy}, loss={"generated": 20}
    )
    return make_plan(recipe, facts_of(load_dataset("digits")), delta=1e-5, seed=1, accountant="rdp")


class SeenOnce:
    """Records of which a step may draw one sample."""

    def __init__(self, sample):
        self._samples = [sample]

    def draw(self, rate, noise):  # noqa: ARG002
        return self._samples.pop()


class TestSteps:
    def state(self):
        plan = settled()
        state = TrainingState(plan, torch.device("cpu"))
        built = plan.build()
        built.prepare(state, SeenOnce(None))
        return state, built

    def test_a_step_is_that_of_the_clipped_gradients(self, monkeypatch):
        """With the noise taken away, and records of which each adds a known vector."""
        monkeypatch.setattr("dpsinkhorn.mechanisms.shared.base.add_gaussian", lambda values, **_: values)
        state, built = self.state()
        data = load_dataset("digits")
        sample = Sample(data.points()[:90], torch.tensor(data.labels[:90]))
        before = torch.cat([part.detach().flatten() for part in state.companion.parameters()])
        first, first_bias, second, second_bias = (
            part.detach().clone() for part in state.companion.parameters()
        )
        weights = Critic(first, first_bias, second[0], second_bias)
        real = built.gradients.sums(weights, sample.points, sample.labels, real=True)
        random = state.random.clone_state()
        built.own_steps(state, SeenOnce(sample), horizon=5).take(1)
        assert state.step == 1
        state.random.set_state(random.get_state())
        fresh = TrainingState(settled(), torch.device("cpu")).generator
        labels = torch.arange(20) % 10
        images = fresh(torch.rand(20, 100, generator=state.random), labels).flatten(1)
        own = built.gradients.sums(weights, images, labels, real=False)
        expected = before - (0.1 * 1.1 * (real / 100 + own / 20)).float()
        after = torch.cat([part.detach().flatten() for part in state.companion.parameters()])
        torch.testing.assert_close(after, expected, rtol=1e-5, atol=1e-6)

    def test_the_generator_learns_from_the_discriminator(self):
        state, built = self.state()
        before = [part.detach().clone() for part in state.parameters]
        empty = Sample(torch.empty(0, 64), torch.empty(0, dtype=torch.int64))
        built.own_steps(state, SeenOnce(empty), horizon=5).take(1)
        assert not any(torch.equal(a, b) for a, b in zip(before, state.parameters, strict=True))

    def test_labels_of_records_reach_the_noised_sum_alone(self):
        """Two samples that differ in labels, under noise that drowns everything: all draws are the same."""
        found = []
        for labels in ([0] * 30, [9] * 30):
            state, built = self.state()
            state.noise = CountingNoise(3)
            sample = Sample(load_dataset("digits").points()[:30], torch.tensor(labels))
            built.own_steps(state, SeenOnce(sample), horizon=5).take(1)
            found.append((state.noise.requests, state.random.get_state()))
        assert found[0][0] == found[1][0]
        assert torch.equal(found[0][1], found[1][1])

    def test_without_labels(self):
        images = np.random.default_rng(0).integers(0, 256, (60, 6, 6), dtype=np.uint8)
        settings = {"privacy": {"steps": 3, "batch": 20}, "loss": {"generated": 8}}
        model = DPSinkhorn(8.0, 1e-4, mechanism="dp_cgan", settings=settings, random_state=1, anyway=True)
        assert model.fit(images).sample(4)[0].shape == (4, 6, 6)
