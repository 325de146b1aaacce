"""`g_pate`: what teachers vote, what is released of it, and how much one record moves."""

from __future__ import annotations

import math

import pytest
import torch

from dpsinkhorn.data import load_dataset
from dpsinkhorn.generators import MLPConfig
from dpsinkhorn.mechanisms.g_pate import Ballots
from dpsinkhorn.mechanisms.shared.base import Sample
from dpsinkhorn.mechanisms.shared.taught import part_of
from dpsinkhorn.mechanisms.shared.terms import Facts, Terms
from dpsinkhorn.privacy import GaussianMechanism, SeededNoise, epsilon
from dpsinkhorn.training import facts_of, load_recipe, make_plan

PARTS, PIXELS, IMAGES, K, BINS = 5, 16, 6, 10, 10


def barrier(clip=0.3):
    config = MLPConfig(image_shape=(1, 4, 4), classes=0)
    facts = Facts((1, 4, 4), 0, 40, 40)
    return Ballots(Terms(facts, clip, 1.0, 1 / PARTS, 1, IMAGES, config))


def some(count, seed=0):
    return torch.rand(count, PIXELS, generator=torch.Generator().manual_seed(seed)) * 2 - 1


def taught(points, built=None):
    critics = (built or barrier()).critics(Sample(points), torch.Generator().manual_seed(1))
    for _ in range(5):
        critics.learn(some(IMAGES, 2), None)
    return critics


def directions(seed=3):
    return barrier().draw(some(IMAGES), torch.Generator().manual_seed(seed), SeededNoise(0))


class TestVotes:
    def test_what_is_noised_are_counts_and_the_most_of_them(self):
        critics, images, drawn = taught(some(40)), some(IMAGES, 4), directions()
        slopes = critics.slopes(images, None)
        expected = torch.zeros(IMAGES, K, BINS + 1, dtype=torch.float64)
        for row in range(IMAGES):
            for place in range(K):
                for teacher in range(PARTS):
                    along = float(slopes[teacher, row] @ drawn[row, :, place])
                    expected[row, place, min(BINS - 1, max(0, math.floor((along + 0.3) / 0.06)))] += 6
                expected[row, place, BINS] = expected[row, place].max() / 6
        assert torch.equal(barrier().clipped(critics, images, None, drawn), expected)
        assert int((expected[..., :BINS] > 0).sum(2).max()) > 1

    def test_where_enough_agree_the_fullest_bin_is_followed(self):
        drawn, released = directions(), torch.zeros(IMAGES, K, BINS + 1)
        released[..., 7] = 3.0
        released[0, 2, 7] = -1.0
        released[0, 2, 0] = 5.0
        released[0, :3, BINS] = PARTS  # the others do not agree
        found = barrier().followed(released, drawn)
        middle, first = 0.3 * 0.5, 0.3 * -0.9
        expected = middle * (drawn[0, :, 0] + drawn[0, :, 1]) + first * drawn[0, :, 2]
        torch.testing.assert_close(found[0], expected)
        assert torch.equal(found[1:], torch.zeros(IMAGES - 1, PIXELS))

    def test_without_noise_it_points_along_the_gradient(self):
        critics, images = taught(some(40)), some(IMAGES, 4)
        built = barrier(1.0)
        # all teachers alike, so that they agree
        for layer in critics.layers:
            layer.data[:] = layer.data[:1].clone()
        found = torch.zeros(IMAGES, PIXELS)
        for seed in range(200):
            drawn = directions(seed)
            found += built.followed(built.clipped(critics, images, None, drawn), drawn) / 200
        slopes = critics.slopes(images, None)[0]
        assert float(torch.cosine_similarity(found, slopes).min()) > 0.97
        torch.testing.assert_close(found.norm(dim=1), slopes.norm(dim=1), rtol=0.2, atol=0.02)

    @pytest.mark.parametrize("value", [math.nan, math.inf, -1e30, 0.0])
    def test_each_teacher_has_one_vote_whatever_it_learnt(self, value):
        critics = taught(torch.full((3, PIXELS), value))
        for layer in critics.layers:
            layer.data[0] = value  # and whatever became of it
        votes = barrier().votes(critics, some(IMAGES, 4), None, directions())
        assert torch.equal(votes.sum(3), torch.ones(PARTS, IMAGES, K))
        assert torch.equal(votes.unique(), torch.tensor([0.0, 1.0]))

    def test_one_record_changes_the_votes_of_its_teacher(self):
        points, images, drawn, built = some(40), some(IMAGES, 4), directions(), barrier()
        part = int(part_of(Sample(points), PARTS)[0])
        first, second = (built.votes(taught(each), images, None, drawn) for each in (points, points[1:]))
        assert [bool((first[j] != second[j]).any()) for j in range(PARTS)] == [
            j == part for j in range(PARTS)
        ]
        moves = [
            float((built.clipped(taught(points), images, None, drawn) - other).norm())
            for row in range(4)
            for other in [built.clipped(taught(points[torch.arange(40) != row]), images, None, drawn)]
        ]
        assert 0 < max(moves) <= built.mechanism.sensitivity == math.sqrt(IMAGES * K * (2 * 36 + 1))


class TestPlans:
    def plan(self, **privacy):
        recipe = load_recipe("g-pate").replace(privacy={"steps": 100, **privacy})
        return make_plan(recipe, facts_of(load_dataset("digits")), budget_epsilon=5.0)

    def test_a_step_costs_a_gaussian_on_all_records(self):
        plan = self.plan()
        expected = GaussianMechanism(1.0, plan.noise_multiplier).charge(100)
        assert plan.epsilon == pytest.approx(epsilon(expected, plan.delta))
        assert 4.99 < plan.epsilon <= 5.0
        assert plan.published_epsilon is None

    def test_the_published_noise(self):
        """Of 100 on counts and 600 on the most votes: in parts of a vote 600 on both."""
        recipe = load_recipe("g-pate").replace(privacy={"noise_multiplier": 4.0544, "steps": 65})
        plan = make_plan(recipe, Facts((1, 28, 28), 10, 60_000, 60_000))
        assert plan.mechanism.noise_std == pytest.approx(600, rel=1e-4)
        assert 9.9 < plan.epsilon < 10
