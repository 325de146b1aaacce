"""Configs refuse what makes no sense, before anything is allocated; so do generators of their inputs."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from dpsinkhorn.generators import (
    BigGANConfig,
    DCGANConfig,
    GeneratorError,
    MixtureConfig,
    MLPConfig,
    build_generator,
    check_probabilities,
    config_from_json,
    config_to_json,
    draw_labels,
    draw_latents,
    recompute_batch_statistics,
)

GOOD = {
    "dcgan": config_to_json(DCGANConfig(image_shape=(1, 28, 28), classes=10)),
    "biggan": config_to_json(BigGANConfig(image_shape=(3, 32, 32), classes=2)),
    "mlp": config_to_json(MLPConfig(image_shape=(1, 8, 8), classes=10)),
    "mixture": config_to_json(MixtureConfig(image_shape=(1, 28, 28), classes=10)),
}
ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


@pytest.mark.parametrize("kind", GOOD)
class TestEveryKind:
    @pytest.mark.parametrize(
        "change",
        [
            {"kind": "transformer"},
            {"kind": None},
            {"kind": ["dcgan"]},
            {"classes": -1},
            {"classes": 10.0},
            {"classes": True},
            {"classes": 10**9},
            {"latent": 0},
            {"latent": "12"},
            {"latent": 10**9},
            {"embedding": 0},
            {"image_shape": [28, 28]},
            {"image_shape": [2, 28, 28]},
            {"image_shape": [1, 28, 28.0]},
            {"image_shape": [1, 0, 28]},
            {"image_shape": [1, 10**6, 10**6]},
            {"image_shape": "1x28x28"},
            {"image_shape": None},
            {"batch_norm": 1},
            {"activation": "gelu"},
            {"activation": ["relu"]},
            {"unknown": 1},
        ],
        ids=str,
    )
    def test_bad_field(self, kind, change):
        with pytest.raises(GeneratorError) as error:
            config_from_json({**GOOD[kind], **change})
        assert "\n" not in str(error.value)
        assert len(str(error.value)) < 200

    @pytest.mark.parametrize("missing", ["kind", "image_shape", "classes"])
    def test_missing_field(self, kind, missing):
        with pytest.raises(GeneratorError):
            config_from_json({name: value for name, value in GOOD[kind].items() if name != missing})

    @given(data=st.data())
    def test_anything_else_is_refused_or_sound(self, kind, data):
        field = data.draw(st.sampled_from(sorted(GOOD[kind])))
        changed = {**GOOD[kind], field: data.draw(ANY_JSON)}
        try:
            config = config_from_json(changed)
        except GeneratorError:
            return
        assert config.parameters <= 2**28
        assert config_from_json(json.loads(json.dumps(config_to_json(config)))) == config


@pytest.mark.parametrize("data", [None, [], "dcgan", 3, {}])
def test_not_a_config(data):
    with pytest.raises(GeneratorError):
        config_from_json(data)


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("dcgan", {"width": 1024, "image_shape": [3, 512, 512], "latent": 4096}),
        ("dcgan", {"width": 0}),
        ("biggan", {"depth": 1024, "blocks": 16, "image_shape": [3, 512, 512]}),
        ("biggan", {"depth": 1024, "blocks": 1, "latent": 1, "image_shape": [3, 512, 512]}),
        ("biggan", {"blocks": 0}),
        ("mlp", {"hidden": [65536] * 16}),
        ("mlp", {"hidden": []}),
        ("mlp", {"hidden": [0]}),
        ("mlp", {"hidden": [True]}),
        ("mlp", {"hidden": 256}),
        ("mixture", {"components": 0}),
        ("mixture", {"components": 10**9}),
        ("mixture", {"frequencies": 0}),
        ("mixture", {"frequencies": 1.5}),
        ("mixture", {"frequencies": 4096, "image_shape": [3, 512, 512]}),
        ("mixture", {"classes": 65536}),
        ("mixture", {"latent": 211}),
        ("mixture", {"components": 4096, "frequencies": 1, "image_shape": [1, 512, 512]}),
    ],
)
def test_absurd_sizes(kind, change):
    with pytest.raises(GeneratorError):
        config_from_json({**GOOD[kind], **change})


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
