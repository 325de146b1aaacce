"""`dp_merf`: exact sums of vectors of norm 1, released once; a generator that learns from that alone."""

from __future__ import annotations

import dataclasses
import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from scipy import stats

from dpsinkhorn.data import load_dataset
from dpsinkhorn.generators import MLPConfig
from dpsinkhorn.mechanisms.dp_merf import (
    COUNT_SENSITIVITY,
    EMBEDDING_SENSITIVITY,
    EmbeddingSteps,
    MeanEmbeddings,
)
from dpsinkhorn.mechanisms.shared.base import Sample
from dpsinkhorn.privacy import GaussianMechanism, SeededNoise, epsilon
from dpsinkhorn.training import DPSinkhorn, TrainingError, facts_of, load_recipe, make_plan
from dpsinkhorn.training.state import TrainingState
from support.barriers import terms

CLASSES = 3
ODD = {
    "no number": torch.full((1, 16), torch.nan),
    "infinite": torch.full((1, 16), torch.inf),
    "huge": torch.full((1, 16), -1e30),
    "grey": torch.zeros(1, 16),
    "least": torch.full((1, 16), 2.0**-40),
}


def embedder(sigma=1.0, classes=CLASSES, features=200, pixels=16):
    shape = MLPConfig(image_shape=(1, 1, pixels), classes=classes)
    return MeanEmbeddings(terms(1.0, sigma, shape, classes=classes), features=features)


def some(count=50, seed=0):
    draws = torch.Generator().manual_seed(seed)
    return Sample(
        torch.rand(count, 16, generator=draws) * 2 - 1, torch.randint(CLASSES, (count,), generator=draws)
    )


def rows(sample, places):
    return Sample(sample.points[places], sample.labels[places])


def squared(sums, counts):
    """The squared norm of released sums and counts over their sensitivities, as fractions."""
    length = sums.shape[1] // 2
    own = sum(Fraction(value) ** 2 for value in sums.flatten().tolist()) / length
    weight = Fraction(EMBEDDING_SENSITIVITY / COUNT_SENSITIVITY)
    return (own + sum(Fraction(value) ** 2 for value in counts.tolist()) * weight**2) / (1 + weight**2)


class TestSensitivity:
    def test_no_phase_has_a_longer_vector(self):
        table = embedder()._table
        whole = (table * 2.0**24).long()
        assert torch.equal(whole.double() * 2.0**-24, table)
        lengths = whole.square().sum(1)
        assert int(lengths.max()) <= 2**48
        assert int(lengths.min()) > (1 - 1e-6) * 2**48

    @pytest.mark.parametrize("name", ODD)
    def test_a_record_more(self, name):
        built, before = embedder(), some()
        after = Sample(torch.cat([before.points, ODD[name]]), torch.cat([before.labels, torch.tensor([1])]))
        (sums, counts), (more, counted) = built.clipped([before]), built.clipped([after])
        assert Fraction(999, 1000) < squared(more - sums, counted - counts) <= 1

    @pytest.mark.parametrize("label", [-1, CLASSES, 10**12])
    def test_labels_of_no_class_add_nothing(self, label):
        sums, counts = embedder().clipped([Sample(torch.zeros(1, 16), torch.tensor([label]))])
        assert not sums.any()
        assert not counts.any()

    def test_in_any_company_and_order(self, monkeypatch):
        built, sample = embedder(), some(300)
        sums, counts = built.clipped([sample])
        order = torch.randperm(300, generator=torch.Generator().manual_seed(1))
        alone = [built.clipped([rows(sample, [place])]) for place in order.tolist()]
        assert torch.equal(sums, sum(each for each, _ in alone))
        assert torch.equal(counts, sum(each for _, each in alone))
        monkeypatch.setattr("dpsinkhorn.mechanisms.dp_merf._AT_ONCE", 7 * 200)
        again, _ = built.clipped([rows(sample, order[:99]), rows(sample, order[99:])])
        assert torch.equal(sums, again)

    def test_they_are_random_fourier_features(self):
        built, sample = embedder(features=2000), some(5)
        sums, _ = built.clipped([rows(sample, [2])])
        phases = built.frequencies.numpy() @ sample.points[2].double().numpy() * 2 * np.pi / 2**14
        expected = np.stack([np.cos(phases), np.sin(phases)], axis=1).ravel()
        np.testing.assert_allclose(sums[sample.labels[2]].numpy(), expected, atol=3e-4)
        assert phases.std() == pytest.approx(  # a kernel of variance d/7, of pixels from 0 to 1
            float(sample.points[2].norm()) / 2 * math.sqrt(7 / 16), rel=0.1
        )

    def test_as_many_records_as_are_exact(self):
        terms = plan().terms
        many = dataclasses.replace(terms, facts=dataclasses.replace(terms.facts, records=2**27 + 1))
        with pytest.raises(ValueError, match="exact sums for up to 536,870,912 records"):
            MeanEmbeddings.check(many)


class TestNoise:
    def test_variances(self):
        built, empty = embedder(sigma=1.7), [Sample(torch.empty(0, 16), torch.empty(0, dtype=torch.int64))]
        found = [built.embeddings(empty, SeededNoise(seed)) for seed in range(40)]
        for draws, each in (
            (torch.cat([one.sums.flatten() for one in found]), EMBEDDING_SENSITIVITY),
            (torch.cat([one.counts for one in found]), COUNT_SENSITIVITY),
        ):
            low, high = stats.chi2.interval(1 - 1e-6, len(draws))
            assert low < float((draws / (1.7 * each)).square().sum()) < high


def plan(iterations=5, **options):
    recipe = load_recipe("dp-merf").replace(loss={"iterations": iterations, "generated": 50})
    return make_plan(recipe, facts_of(load_dataset("digits")), budget_epsilon=10.0, **options)


class OnceRead:
    """Records that can be read once."""

    def __init__(self):
        data = load_dataset("digits")
        self._samples = [Sample(data.points(), torch.tensor(data.labels))]

    def every(self):
        while self._samples:
            yield self._samples.pop()


class TestTraining:
    def test_the_optimizer_costs_nothing(self):
        few, many = plan(1), plan(1000)
        assert few.step_charge == many.step_charge
        assert few.epsilon == epsilon(GaussianMechanism(1.0, few.noise_multiplier).charge(1), 1e-5)
        assert 9.9 < few.epsilon <= 10

    def test_it_learns_what_was_released(self):
        settled = plan(40, seed=1)
        state = TrainingState(settled, torch.device("cpu"))
        state.generator.train()
        built = settled.build()
        steps, seen = EmbeddingSteps(state, OnceRead(), built), []
        (released,) = [built.embeddings(OnceRead().every(), SeededNoise(1))]
        means = steps._means(released)

        def apart():
            with torch.no_grad():
                images = state.generator(torch.rand(500, 5), torch.arange(500) % 10)
            own = built.clipped([Sample(images.flatten(1), torch.arange(500) % 10)])[0] / (50 * built.length)
            return float((own - torch.stack(means, 2).flatten(1)).norm())

        seen.append(apart())
        steps.take(1)  # reads the records once
        assert state.step == 1
        assert apart() < 0.7 * seen[0]

    def test_the_slope_is_that_of_the_distance(self):
        settled = plan(1, seed=1)
        steps = EmbeddingSteps(TrainingState(settled, torch.device("cpu")), OnceRead(), settled.build())
        draws = torch.Generator().manual_seed(0)
        points = (torch.rand(30, 64, generator=draws) * 2 - 1).requires_grad_()
        means = [torch.randn(10, 5000, generator=draws) / 100 for _ in range(2)]
        kinds = torch.arange(30) % 10
        phases = points @ steps._radians.T
        loss = 0.0
        for kind in range(10):
            for own, mean in zip((phases.cos(), phases.sin()), means, strict=True):
                loss += (own[kinds == kind].mean(0) / 5000**0.5 - mean[kind]).square().sum() / 10
        (expected,) = torch.autograd.grad(loss, points)
        found = steps._slope(points.detach(), torch.nn.functional.one_hot(kinds, 10).float(), *means)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)

    def test_without_labels(self):
        images = np.random.default_rng(0).integers(0, 256, (60, 6, 6), dtype=np.uint8)
        settings = {"loss": {"iterations": 3, "generated": 8}}
        model = DPSinkhorn(8.0, 1e-4, mechanism="dp_merf", settings=settings, random_state=1, anyway=True)
        assert model.fit(images).sample(4)[0].shape == (4, 6, 6)

    @pytest.mark.parametrize(
        ("changes", "match"),
        [
            ({"privacy": {"steps": 2}}, "set privacy.steps to 1"),
            ({"privacy": {"sampling_rate": 0.5}}, "set the sampling rate to 1"),
            ({"loss": {"iterations": None}}, r"needs loss\.iterations"),
            ({"loss": {"generated": 9}}, "images of every class"),
        ],
    )
    def test_what_it_cannot_do(self, changes, match):
        recipe = load_recipe("dp-merf").replace(**changes)
        with pytest.raises(TrainingError, match=match):
            make_plan(recipe, facts_of(load_dataset("digits")), budget_epsilon=10.0)
