"""`datalens` and `g_pate`: what teachers vote, what is released of it, and how much one record moves."""

from __future__ import annotations

import math

import pytest
import torch

from dpsinkhorn.data import load_dataset
from dpsinkhorn.generators import MLPConfig
from dpsinkhorn.mechanisms.datalens import Votes
from dpsinkhorn.mechanisms.g_pate import Ballots
from dpsinkhorn.mechanisms.shared.base import Sample
from dpsinkhorn.mechanisms.shared.taught import part_of
from dpsinkhorn.mechanisms.shared.terms import Facts, Terms
from dpsinkhorn.privacy import GaussianMechanism, SeededNoise, epsilon
from dpsinkhorn.training import TrainingError, facts_of, load_recipe, make_plan

PARTS, PIXELS, IMAGES = 5, 16, 6
ENTRIES, DIRECTIONS, BINS = 3, 10, 10  # of `datalens`; of `g_pate`
CLIPS = {Votes: ENTRIES, Ballots: 0.3}
KINDS = pytest.mark.parametrize("kind", [Votes, Ballots])


def barrier(kind, clip=None):
    config, facts = MLPConfig(image_shape=(1, 4, 4), classes=0), Facts((1, 4, 4), 0, 40, 40)
    return kind(Terms(facts, clip or CLIPS[kind], 1.0, 1 / PARTS, 1, IMAGES, config))


def some(count, seed=0):
    return torch.rand(count, PIXELS, generator=torch.Generator().manual_seed(seed)) * 2 - 1


def taught(points):
    critics = barrier(Votes).critics(Sample(points), torch.Generator().manual_seed(1))
    for _ in range(5):
        critics.learn(some(IMAGES, 2), None)
    return critics


def draws(kind, seed=3):
    return barrier(kind).draw(some(IMAGES), torch.Generator().manual_seed(seed), SeededNoise(0))


class TestSensitivity:
    @KINDS
    @pytest.mark.parametrize("value", [math.nan, math.inf, -1e30, 0.0])
    def test_each_teacher_has_as_many_votes_whatever_it_learnt(self, kind, value):
        critics = taught(torch.full((3, PIXELS), value))
        for layer in critics.layers:
            layer.data[0] = value  # and whatever became of it
        votes = barrier(kind).votes(critics, some(IMAGES, 4), None, draws(kind))
        each = torch.full((PARTS, IMAGES), float(ENTRIES if kind is Votes else DIRECTIONS))
        assert torch.equal(votes.abs().flatten(2).sum(2), each)
        assert set(votes.unique().tolist()) <= ({-1.0, 0.0, 1.0} if kind is Votes else {0.0, 1.0})
        if kind is Ballots:
            assert torch.equal(votes.sum(3), torch.ones(PARTS, IMAGES, DIRECTIONS))

    @KINDS
    def test_one_record_changes_the_votes_of_its_teacher_alone(self, kind):
        points, images, drawn, built = some(40), some(IMAGES, 4), draws(kind), barrier(kind)
        moves = []
        for row in range(4):
            part = int(part_of(Sample(points), PARTS)[row])
            worlds = [taught(each) for each in (points, points[torch.arange(40) != row])]
            slopes = [critics.slopes(images, None) for critics in worlds]
            same = [torch.equal(*pair) for pair in zip(*slopes, strict=True)]
            assert same == [place != part for place in range(PARTS)]
            first, second = (built.clipped(critics, images, None, drawn) for critics in worlds)
            moves.append(float((first - second).norm()))
        of_a_row = 4 * ENTRIES if kind is Votes else DIRECTIONS * (2 * 36 + 1)
        assert 0 < max(moves) <= built.mechanism.sensitivity == math.sqrt(IMAGES * of_a_row)


class TestSigns:
    def test_they_are_drawn_by_the_largest_entries(self):
        critics, images, drawn = taught(some(40)), some(IMAGES, 4), draws(Votes)
        slopes, expected = critics.slopes(images, None), torch.zeros(IMAGES, PIXELS)
        for teacher in range(PARTS):
            for row in range(IMAGES):
                entries = slopes[teacher, row]
                largest = min(float(entries.abs().max()), 0.1 / math.sqrt(PIXELS))
                for place in entries.abs().argsort(descending=True)[:ENTRIES].tolist():
                    chance = (1 + entries[place] / largest) / 2
                    expected[row, place] += 1 if drawn[teacher, row, place] < chance else -1
        found = barrier(Votes).clipped(critics, images, None, drawn)
        assert found.dtype == torch.float64
        assert torch.equal(found, expected.double())

    def test_they_are_right_on_average(self):
        critics, images, built = taught(some(40)), some(IMAGES, 4), barrier(Votes, PIXELS)
        critics.layers[-2].mul_(0.1)  # slopes on either side of what goes by its sign
        slopes = critics.slopes(images, None)
        largest = slopes.abs().amax(2, keepdim=True).clamp(max=0.1 / math.sqrt(PIXELS))
        assert 0.1 < float((slopes.abs() > largest).float().mean()) < 0.9
        mean = sum(built.clipped(critics, images, None, draws(Votes, seed)) for seed in range(2000)) / 2000
        expected = (slopes / largest).clamp(-1, 1).sum(0).double()
        assert float((mean - expected).abs().max()) < 6 * math.sqrt(PARTS / 2000)


class TestBins:
    def test_what_is_noised_are_counts_and_the_most_of_them(self):
        critics, images, drawn = taught(some(40)), some(IMAGES, 4), draws(Ballots)
        slopes = critics.slopes(images, None)
        expected = torch.zeros(IMAGES, DIRECTIONS, BINS + 1, dtype=torch.float64)
        for row in range(IMAGES):
            for place in range(DIRECTIONS):
                for teacher in range(PARTS):
                    along = float(slopes[teacher, row] @ drawn[row, :, place])
                    expected[row, place, min(BINS - 1, max(0, math.floor((along + 0.3) / 0.06)))] += 6
                expected[row, place, BINS] = expected[row, place].max() / 6
        assert torch.equal(barrier(Ballots).clipped(critics, images, None, drawn), expected)
        assert int((expected[..., :BINS] > 0).sum(2).max()) > 1

    def test_where_enough_agree_the_fullest_bin_is_followed(self):
        drawn, released = draws(Ballots), torch.zeros(IMAGES, DIRECTIONS, BINS + 1)
        released[..., 7] = 3.0
        released[0, 2, 7] = -1.0
        released[0, 2, 0] = 5.0
        released[0, :3, BINS] = PARTS  # the others do not agree
        found = barrier(Ballots).followed(released, drawn)
        middle, first = 0.3 * 0.5, 0.3 * -0.9
        expected = middle * (drawn[0, :, 0] + drawn[0, :, 1]) + first * drawn[0, :, 2]
        torch.testing.assert_close(found[0], expected)
        assert torch.equal(found[1:], torch.zeros(IMAGES - 1, PIXELS))

    def test_without_noise_it_points_along_the_gradient(self):
        critics, images = taught(some(40)), some(IMAGES, 4)
        built = barrier(Ballots, 1.0)
        # all teachers alike, so that they agree
        for layer in critics.layers:
            layer.data[:] = layer.data[:1].clone()
        found = torch.zeros(IMAGES, PIXELS)
        for seed in range(200):
            drawn = draws(Ballots, seed)
            found += built.followed(built.clipped(critics, images, None, drawn), drawn) / 200
        slopes = critics.slopes(images, None)[0]
        assert float(torch.cosine_similarity(found, slopes).min()) > 0.97
        torch.testing.assert_close(found.norm(dim=1), slopes.norm(dim=1), rtol=0.2, atol=0.02)


class TestPlans:
    def plan(self, recipe, **privacy):
        found = load_recipe(recipe).replace(privacy={"steps": 100, **privacy})
        return make_plan(found, facts_of(load_dataset("digits")), budget_epsilon=5.0)

    @pytest.mark.parametrize(("recipe", "settings"), [("datalens", {"clip": 20}), ("g-pate", {})])
    def test_a_step_costs_a_gaussian_on_all_records(self, recipe, settings):
        plan = self.plan(recipe, **settings)
        expected = GaussianMechanism(1.0, plan.noise_multiplier).charge(100)
        assert plan.epsilon == pytest.approx(epsilon(expected, plan.delta))
        assert 4.99 < plan.epsilon <= 5.0
        assert plan.published_epsilon is None

    @pytest.mark.parametrize("entries", [0.5, 2.5])
    def test_votes_are_on_a_whole_number_of_entries(self, entries):
        with pytest.raises(TrainingError, match=f"a whole number, not {entries}"):
            self.plan("datalens", clip=entries)

    def test_small_images_have_fewer_entries(self):
        found = [self.plan("datalens", clip=entries).mechanism.sensitivity for entries in (200, 64, 63)]
        assert found == [2 * math.sqrt(15 * entries) for entries in (64, 64, 63)]

    def test_the_published_noise_of_g_pate(self):
        """Of 100 on counts and 600 on the most votes: in parts of a vote 600 on both."""
        recipe = load_recipe("g-pate").replace(privacy={"noise_multiplier": 4.0544, "steps": 65})
        plan = make_plan(recipe, Facts((1, 28, 28), 10, 60_000, 60_000))
        assert plan.mechanism.noise_std == pytest.approx(600, rel=1e-4)
        assert 9.9 < plan.epsilon < 10
