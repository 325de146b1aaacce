"""Latents, labels, and BatchNorm's statistics."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats

from dpsinkhorn.generators import (
    GeneratorError,
    MLPConfig,
    build_generator,
    check_probabilities,
    draw_labels,
    draw_latents,
    recompute_batch_statistics,
)


def seeded(seed):
    return torch.Generator().manual_seed(seed)


class TestLatents:
    def test_uniform(self):
        latents = draw_latents(4000, 5, seeded(0))
        assert latents.shape == (4000, 5)
        assert latents.dtype == torch.float32
        assert stats.kstest(latents.numpy().ravel(), "uniform").pvalue > 1e-4

    def test_seed(self):
        assert torch.equal(draw_latents(3, 4, seeded(1)), draw_latents(3, 4, seeded(1)))
        assert not torch.equal(draw_latents(3, 4), draw_latents(3, 4))


class TestLabels:
    def test_frequencies(self):
        probabilities = [0.0, 0.5, 0.0, 0.2, 0.3, 0.0]
        labels = draw_labels(20_000, probabilities, seeded(0))
        assert labels.dtype == torch.int64
        counts = np.bincount(labels.numpy(), minlength=6)
        assert (counts[[0, 2, 5]] == 0).all()
        seen = [1, 3, 4]
        expected = 20_000 * np.array(probabilities)[seen]
        assert stats.chisquare(counts[seen], expected).pvalue > 1e-4

    def test_none(self):
        assert draw_labels(0, [1.0]).shape == (0,)

    @pytest.mark.parametrize(
        "bad",
        [[], [0.5, 0.4], [1.5, -0.5], [math.nan, 1.0], [math.inf], ["a"], [None], [True], ["1.0"], [10**400]],
    )
    def test_not_a_distribution(self, bad):
        with pytest.raises(GeneratorError):
            draw_labels(1, bad)

    def test_one_per_class(self):
        assert check_probabilities([0.25, 0.75], 2) == (0.25, 0.75)
        with pytest.raises(GeneratorError):
            check_probabilities([0.25, 0.75], 3)


class TestBatchStatistics:
    def test_against_the_definition(self):
        """Means over batches of each batch's mean and unbiased variance, whatever was there before."""
        config = MLPConfig(image_shape=(1, 4, 4), classes=3, hidden=(7,))
        generator = build_generator(config, seed=0).eval()
        linear, norm = generator.layers[0], generator.layers[1]
        norm.running_mean.fill_(99)
        norm.running_var.fill_(99)
        batches = [(draw_latents(16, 12), draw_labels(16, [0.2, 0.3, 0.5])) for _ in range(5)]
        weights = [parameter.clone() for parameter in generator.parameters()]
        source = iter(batches)
        recompute_batch_statistics(generator, lambda: next(source), batches=5)

        inputs = [torch.cat([latents, generator.embedding(labels)], 1) for latents, labels in batches]
        hidden = torch.stack([linear(rows) for rows in inputs])
        torch.testing.assert_close(norm.running_mean, hidden.mean(1).mean(0))
        torch.testing.assert_close(norm.running_var, hidden.var(1).mean(0))
        assert norm.num_batches_tracked == 5
        assert norm.momentum == 0.1
        assert not any(module.training for module in generator.modules())
        assert all(torch.equal(a, b) for a, b in zip(weights, generator.parameters(), strict=True))

    def test_modes_return_after_an_error(self):
        generator = build_generator(MLPConfig(image_shape=(1, 4, 4), classes=0)).eval()
        with pytest.raises(GeneratorError):
            recompute_batch_statistics(generator, lambda: (torch.zeros(2, 3), None))
        assert not generator.training
        assert generator.layers[1].momentum == 0.1
