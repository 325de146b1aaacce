"""`gs_wgan`: a record is in one critic alone, and what a critic that is drawn in secret costs."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import integrate, stats

from dpsinkhorn.data import load_dataset
from dpsinkhorn.errors import UnsupportedEventError
from dpsinkhorn.mechanisms.gs_wgan import _one_of
from dpsinkhorn.mechanisms.shared.base import Sample
from dpsinkhorn.mechanisms.shared.taught import PartCritics, part_of
from dpsinkhorn.privacy import Charge, GaussianMechanism, SeededNoise, epsilon, published_epsilon
from dpsinkhorn.privacy._pld import _on_one_part
from dpsinkhorn.privacy.charges import CriticMechanism, event_from_json, event_to_json, parts_of
from dpsinkhorn.training import facts_of, load_recipe, make_plan
from dpsinkhorn.training.state import TrainingState

PARTS, CLASSES, PIXELS = 4, 3, 16
BASE = "dpsinkhorn.mechanisms.shared.base"
PUBLISHED = CriticMechanism(clip=1.0, row_noise_multiplier=1.07, rows=32)


def some(count=40, seed=0):
    draws = torch.Generator().manual_seed(seed)
    points = torch.rand(count, PIXELS, generator=draws) * 2 - 1
    return Sample(points, torch.randint(CLASSES, (count,), generator=draws))


def taught(sample, iterations=5, parts=PARTS):
    random = torch.Generator().manual_seed(1)
    critics = PartCritics(sample, parts, CLASSES, 8, random)
    images = some(8, seed=2)
    for _ in range(iterations):
        critics.learn(images.points, images.labels)
    return critics


def without(sample, row):
    kept = torch.arange(len(sample.points)) != row
    return Sample(sample.points[kept], sample.labels[kept])


class TestCritics:
    @pytest.mark.parametrize("row", [0, 7, 39])
    def test_a_record_changes_its_own_critic_alone(self, row):
        sample = some()
        part, images = int(part_of(sample, PARTS)[row]), some(8, seed=3)
        first, second = taught(sample), taught(without(sample, row))
        for place in range(PARTS):
            same = [torch.equal(a[place], b[place]) for a, b in zip(first.layers, second.layers, strict=True)]
            slopes = [each.slopes(images.points, images.labels)[place] for each in (first, second)]
            assert all(same) is torch.equal(*slopes) is (place != part)

    def test_parts_go_by_the_record_alone(self):
        sample = some()
        order = torch.randperm(40, generator=torch.Generator().manual_seed(0))
        shuffled = Sample(sample.points[order], sample.labels[order])
        assert torch.equal(part_of(shuffled, 7), part_of(sample, 7)[order])
        assert int(part_of(Sample(sample.points[[5]], sample.labels[[5]]), 7)) == int(part_of(sample, 7)[5])
        assert len(part_of(some(400), 7).unique()) == 7

    def test_a_part_without_records_has_a_black_image(self):
        black = Sample(torch.full((1, PIXELS), -1.0), torch.tensor([-1]))
        nothing = Sample(torch.empty(0, PIXELS), torch.empty(0, dtype=torch.int64))
        for a, b in zip(taught(nothing, parts=1).layers, taught(black, parts=1).layers, strict=True):
            assert torch.equal(a, b)

    def test_they_learn(self):
        """White records and black images: a critic's scores rise from one to the other."""
        random = torch.Generator().manual_seed(0)
        critics = PartCritics(Sample(torch.ones(5, PIXELS)), 1, 0, 8, random)
        for _ in range(300):
            critics.learn(-torch.ones(8, PIXELS), None)
        slopes = critics.slopes(torch.zeros(1, PIXELS), None)
        assert float(slopes.sum()) < 0
        assert 0.5 < float(slopes.norm()) < 2  # the penalty holds it near 1

    @pytest.mark.parametrize("value", [math.nan, math.inf, -1e30])
    def test_odd_records_stay_finite(self, value):
        critics = taught(Sample(torch.full((3, PIXELS), value), torch.tensor([0, -5, 10**9])))
        assert all(bool(torch.isfinite(layer).all()) for layer in critics.layers)


class TestSteps:
    def steps(self, seed=1):
        recipe = load_recipe("gs-wgan").replace(
            privacy={"sampling_rate": 0.25, "steps": 5, "noise_multiplier": 1.0},
            loss={"generated": 8, "iterations": 3},
        )
        recipe = recipe.with_generator({"kind": "mlp", "hidden": [8], "latent": 2})
        data = load_dataset("digits")
        plan = make_plan(recipe, facts_of(data), delta=1e-5, seed=seed, accountant="rdp")
        state = TrainingState(plan, torch.device("cpu"))
        sample = Sample(data.points()[:60], torch.tensor(data.labels[:60]))
        records = type("Records", (), {"draw": lambda _, rate, noise: sample if rate == 1 else None})()  # noqa: ARG005
        return state, plan.build().own_steps(state, records, horizon=5)

    def test_what_critics_learn_does_not_follow_the_draws(self, monkeypatch):
        """The release, which is public, is the same; the critic that is asked is another."""
        found = []
        for asked in (0, 3):
            monkeypatch.setattr("dpsinkhorn.mechanisms.gs_wgan._one_of", lambda *_, asked=asked: asked)
            monkeypatch.setattr(f"{BASE}.add_gaussian", lambda values, **_: torch.ones_like(values))
            _, steps = self.steps()
            steps.take(3)
            found.append(steps._critics.layers)
        assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))

    def test_the_generator_follows_the_critic_that_is_asked(self, monkeypatch):
        monkeypatch.setattr(f"{BASE}.add_gaussian", lambda values, **_: values)
        found = []
        for asked in (0, 3):
            monkeypatch.setattr("dpsinkhorn.mechanisms.gs_wgan._one_of", lambda *_, asked=asked: asked)
            state, steps = self.steps()
            steps.take(1)
            found.append([part.detach().clone() for part in state.parameters])
        assert state.step == 1
        assert not all(torch.equal(a, b) for a, b in zip(*found, strict=True))

    def test_critics_are_asked_equally_often(self):
        noise = SeededNoise(0)
        counts = np.bincount([_one_of(7, noise) for _ in range(3500)], minlength=7)
        assert len(counts) == 7
        assert stats.chisquare(counts).pvalue > 1e-6
        assert _one_of(1, noise) == 0

    def test_noise_is_calibrated_to_what_is_proved(self):
        recipe = load_recipe("gs-wgan").replace(privacy={"steps": 200})
        plan = make_plan(recipe, facts_of(load_dataset("digits")), budget_epsilon=3.0)
        assert 2.99 < plan.epsilon <= 3.0


def divergence(centres, weights, others, alpha, noise):
    """H_α of one mixture of normals from another, by quadrature."""

    def density(x, places):
        return sum(w * stats.norm.pdf(x, c, noise) for w, c in zip(weights, places, strict=True))

    def excess(x):
        return max(density(x, centres) - alpha * density(x, others), 0.0)

    return integrate.quad(excess, -12, 13, limit=500, points=[-1, 0, 0.5, 1, 2])[0]


class TestCost:
    @pytest.mark.parametrize("alpha", [0.5, 0.9, 0.99, 1.0, 1.05, 1.5, 3.0])
    @pytest.mark.parametrize("rest", [0.0, 0.3, 0.5, 1.0])
    def test_no_mixture_is_told_apart_better(self, alpha, rest):
        """Critics anywhere between the two states of one of them; a worst case is attained."""
        parts, noise, interval = 4, 0.7, 2.0**-10
        loss = _on_one_part(noise, parts, math.log(1e-12), interval)
        claimed = float(loss.get_delta_for_epsilon(math.log(alpha)))
        weights = (1 - 1 / parts, 1 / parts)
        found = [
            divergence((rest, one), weights, (rest, other), alpha, noise) for one, other in ((0, 1), (1, 0))
        ]
        assert max(found) <= claimed + 1e-7
        if rest in (0.0, 1.0):
            assert max(found) > claimed - 1e-4

    def test_the_published_setting(self):
        assert published_epsilon(PUBLISHED, 1 / 1000, 20_000, 1e-5) == pytest.approx(9.99, abs=0.005)
        sound = PUBLISHED.sampled(1 / 1000, 20_000)
        assert epsilon(sound, 1e-5) == pytest.approx(346.7, abs=0.1)
        assert epsilon(sound, 1e-5) < epsilon(sound, 1e-5, "rdp")
        turns = GaussianMechanism(1.0, PUBLISHED.noise_multiplier).charge(20)
        assert epsilon(turns, 1e-5) == pytest.approx(379.4, abs=0.1)

    @pytest.mark.parametrize(("parts", "noise", "steps"), [(4, 1.0, 30), (22, 2.0, 500), (1000, 0.6, 2000)])
    def test_accountants_agree_on_the_order(self, parts, noise, steps):
        """Between the Poisson sample's, which shares the part above 1, and the whole data's."""
        mechanism = CriticMechanism(1.0, noise, rows=1)
        charge = mechanism.sampled(1 / parts, steps)
        poisson = GaussianMechanism(1.0, noise).sampled(1 / parts, steps)
        assert epsilon(poisson, 1e-5) <= epsilon(charge, 1e-5) <= epsilon(charge, 1e-5, "rdp")
        assert epsilon(charge, 1e-5) < epsilon(mechanism.charge(steps), 1e-5)

    def test_one_part_hides_nothing(self):
        assert PUBLISHED.sampled(1.0, 5) == PUBLISHED.charge(5)

    def test_rates_between_are_rounded_to_fewer_parts(self):
        assert parts_of(60 / 1347) == 22
        assert parts_of(1 / 49) == 49
        with pytest.raises(ValueError, match="sampling_rate must be"):
            PUBLISHED.sampled(1.5, 1)

    def test_as_json(self):
        event = PUBLISHED.sampled(1 / 1000, 7).event
        assert event_from_json(event_to_json(event)) == event

    def test_no_conversion_to_replace_one(self):
        """A record that is replaced may move to another part: two of them change."""
        charge = PUBLISHED.sampled(1 / 1000, 7)
        with pytest.raises(UnsupportedEventError):
            charge.to_replace_one()
        with pytest.raises(UnsupportedEventError):
            epsilon(Charge(charge.event, GaussianMechanism(1.0, 1.0).adjacency.REPLACE_ONE), 1e-5)
