"""The kinds of generators: which config makes which module, and configs as JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch

from dpsinkhorn.errors import GeneratorError
from dpsinkhorn.generators.base import Generator, ModuleClass
from dpsinkhorn.generators.configs import (
    BigGANConfig,
    Config,
    DCGANConfig,
    FlowConfig,
    MixtureConfig,
    MLPConfig,
)
from dpsinkhorn.generators.custom import Custom, CustomConfig
from dpsinkhorn.generators.flow import Flow
from dpsinkhorn.generators.mixture import Mixture
from dpsinkhorn.generators.networks import DCGAN, MLP, BigGAN

_MODULES: dict[type[Config], type[Generator]] = {
    DCGANConfig: DCGAN,
    BigGANConfig: BigGAN,
    MLPConfig: MLP,
    MixtureConfig: Mixture,
    FlowConfig: Flow,
    CustomConfig: Custom,
}
_CONFIGS = {config.kind: config for config in _MODULES}


def build_generator(
    config: Config, seed: int | None = None, module_class: ModuleClass | None = None
) -> Generator:
    """Build the generator of a config, on the CPU, in training mode.

    With a seed the initial weights depend on it alone, and PyTorch's global random state stays as it was.
    For a config of kind `custom`, `module_class` is the user's own.

    >>> build_generator(MLPConfig(image_shape=(1, 8, 8), classes=10)).config.classes
    10
    """
    given = () if module_class is None else (module_class,)
    if seed is None:
        return _MODULES[type(config)](config, *given)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return _MODULES[type(config)](config, *given)


def config_to_json(config: Config) -> dict[str, Any]:
    """Return plain JSON values, every field included.

    >>> config_to_json(MLPConfig(image_shape=(1, 8, 8), classes=10))["kind"]
    'mlp'
    """
    fields = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    plain = {name: list(value) if isinstance(value, tuple) else value for name, value in fields.items()}
    return {"kind": config.kind, **plain}


def config_from_json(data: Any) -> Config:
    """Read back `config_to_json`. Unknown fields, wrong types and absurd sizes raise `GeneratorError`.

    Fields that have a default may be left out.

    >>> config_from_json({"kind": "dcgan", "image_shape": [1, 28, 28], "classes": 10}).width
    64
    >>> config_from_json({"kind": "dcgan", "heads": 8})  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    dpsinkhorn.errors.GeneratorError: a dcgan has no field 'heads'; it has activation, ...
    """
    if not isinstance(data, Mapping):
        raise GeneratorError("the config of a generator must be a table of fields")
    kind = data.get("kind")
    if not isinstance(kind, str) or kind not in _CONFIGS:
        raise GeneratorError(f"kind must be one of {', '.join(_CONFIGS)}")
    fields = {field.name: field for field in dataclasses.fields(_CONFIGS[kind])}
    values: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in data.items()
    }
    del values["kind"]
    for name in values.keys() - fields.keys():
        known = ", ".join(sorted(fields.keys() - {"image_shape", "classes"}))
        raise GeneratorError(f"a {kind} has no field {str(name)[:40]!r}; it has {known}")
    for name, field in fields.items():
        if name not in values and field.default is dataclasses.MISSING:
            raise GeneratorError(f"the config of a {kind} needs {name}")
    return _CONFIGS[kind](**values)
