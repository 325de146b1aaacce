"""`datalens`: what teachers vote, and how much one record turns round."""

from __future__ import annotations

import math

import pytest
import torch

from dpsinkhorn.data import load_dataset
from dpsinkhorn.generators import MLPConfig
from dpsinkhorn.mechanisms.datalens import Votes
from dpsinkhorn.mechanisms.shared.base import Sample
from dpsinkhorn.mechanisms.shared.taught import PartCritics, part_of
from dpsinkhorn.mechanisms.shared.terms import Facts, Terms
from dpsinkhorn.privacy import GaussianMechanism, epsilon
from dpsinkhorn.training import TrainingError, facts_of, load_recipe, make_plan

PARTS, PIXELS, IMAGES, K = 5, 16, 6, 3


def barrier(entries=K):
    config = MLPConfig(image_shape=(1, 4, 4), classes=0)
    facts = Facts((1, 4, 4), 0, 40, 40)
    return Votes(Terms(facts, entries, 1.0, 1 / PARTS, 1, IMAGES, config))


def some(count, seed=0):
    return torch.rand(count, PIXELS, generator=torch.Generator().manual_seed(seed)) * 2 - 1


def taught(points):
    critics = PartCritics(Sample(points), PARTS, 0, IMAGES, torch.Generator().manual_seed(1))
    for _ in range(5):
        critics.learn(some(IMAGES, 2), None)
    return critics


def draws(seed=3):
    return torch.rand(PARTS, IMAGES, PIXELS, generator=torch.Generator().manual_seed(seed))


class TestVotes:
    def test_they_are_drawn_by_the_largest_entries(self):
        critics, images = taught(some(40)), some(IMAGES, 4)
        slopes, expected = critics.slopes(images, None), torch.zeros(IMAGES, PIXELS)
        for teacher in range(PARTS):
            for row in range(IMAGES):
                entries = slopes[teacher, row]
                largest = min(float(entries.abs().max()), 0.1 / math.sqrt(PIXELS))
                for place in entries.abs().argsort(descending=True)[:K].tolist():
                    chance = (1 + entries[place] / largest) / 2
                    expected[row, place] += 1 if draws()[teacher, row, place] < chance else -1
        found = barrier().clipped(critics, images, None, draws())
        assert found.dtype == torch.float64
        assert torch.equal(found, expected.double())

    def test_they_are_right_on_average(self):
        critics, images, built = taught(some(40)), some(IMAGES, 4), barrier(PIXELS)
        critics.layers[-2].mul_(0.1)  # slopes on either side of what goes by its sign
        slopes = critics.slopes(images, None)
        largest = slopes.abs().amax(2, keepdim=True).clamp(max=0.1 / math.sqrt(PIXELS))
        assert 0.1 < float((slopes.abs() > largest).float().mean()) < 0.9
        mean = sum(built.clipped(critics, images, None, draws(seed)) for seed in range(2000)) / 2000
        expected = (slopes / largest).clamp(-1, 1).sum(0).double()
        assert float((mean - expected).abs().max()) < 6 * math.sqrt(PARTS / 2000)

    @pytest.mark.parametrize("value", [math.nan, math.inf, -1e30, 0.0])
    def test_each_teacher_has_as_many_whatever_it_learnt(self, value):
        critics = taught(torch.full((3, PIXELS), value))
        for layer in critics.layers:
            layer.data[0] = value  # and whatever became of it
        for teacher in range(PARTS):
            votes = barrier().votes(critics, some(IMAGES, 4), None, draws())[teacher]
            assert torch.equal(votes.abs().sum(1), torch.full((IMAGES,), float(K)))

    def test_one_record_turns_round_no_more_than_a_teacher_has(self):
        points, images, built = some(40), some(IMAGES, 4), barrier()
        first = built.clipped(taught(points), images, None, draws())
        moves = [
            float(
                (first - built.clipped(taught(points[torch.arange(40) != row]), images, None, draws())).norm()
            )
            for row in range(4)
        ]
        assert 0 < max(moves) <= built.mechanism.sensitivity == 2 * math.sqrt(IMAGES * K)
        part = int(part_of(Sample(points), PARTS)[0])
        slopes = [taught(each).slopes(images, None) for each in (points, points[1:])]
        assert [torch.equal(*pair) for pair in zip(*slopes, strict=True)] == [
            place != part for place in range(PARTS)
        ]


class TestPlans:
    def plan(self, **privacy):
        recipe = load_recipe("datalens").replace(privacy={"clip": 20, "steps": 100, **privacy})
        return make_plan(recipe, facts_of(load_dataset("digits")), budget_epsilon=5.0)

    def test_a_step_costs_a_gaussian_on_all_records(self):
        plan = self.plan()
        expected = GaussianMechanism(1.0, plan.noise_multiplier).charge(100)
        assert plan.epsilon == pytest.approx(epsilon(expected, plan.delta))
        assert 4.99 < plan.epsilon <= 5.0

    @pytest.mark.parametrize("entries", [0.5, 2.5])
    def test_votes_are_on_a_whole_number_of_entries(self, entries):
        with pytest.raises(TrainingError, match=f"a whole number, not {entries}"):
            self.plan(clip=entries)

    def test_small_images_have_fewer_entries(self):
        found = [self.plan(clip=entries).mechanism.sensitivity for entries in (200, 64, 63)]
        assert found == [2 * math.sqrt(15 * entries) for entries in (64, 64, 63)]
