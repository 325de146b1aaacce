"""Configs refuse what makes no sense, before anything is allocated."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpsinkhorn.generators import (
    BigGANConfig,
    DCGANConfig,
    GeneratorError,
    MixtureConfig,
    MLPConfig,
    config_from_json,
    config_to_json,
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
