"""A module of the user's own as a generator.

A config names the module's class, for people only: nothing is ever imported or called by that name. Whoever
builds the generator hands over the class, or has handed it to `register_module` before.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from dpsinkhorn import _checks
from dpsinkhorn.errors import GeneratorError
from dpsinkhorn.generators.base import Generator, ModuleClass, draw_latents
from dpsinkhorn.generators.configs import LARGEST_LATENT, LARGEST_PARAMETERS, Config, checked, whole

_ACTIVATIONS_PER_PIXEL = 64  # a guess, from which batches of samples get their size
_TRIED = 4  # images that a new module is tried on
_registered: dict[str, ModuleClass] = {}


def _table(value: Any, name: str, error: type[Exception]) -> None:
    try:
        plain = isinstance(value, dict) and json.loads(json.dumps(value, allow_nan=False)) == value
    except (TypeError, ValueError, RecursionError):
        plain = False
    if not plain:
        raise error(f"{name} must be plain JSON by name: text, numbers, true, false, null, lists and tables")


@dataclass(frozen=True)
class CustomConfig(Config):
    """A module of the user's own: `module` names its class, which is called with `settings`."""

    kind: ClassVar[str] = "custom"

    module: str = checked(_checks.text, "", longest=200)
    settings: Mapping[str, Any] = checked(_table, None)
    latent: int = whole(1, LARGEST_LATENT, 0)
    parameters: int = whole(1, LARGEST_PARAMETERS, 0)

    @property
    def activations(self) -> int:
        return _ACTIVATIONS_PER_PIXEL * self.points


class Custom(Generator, makes=CustomConfig):
    """Calls the user's module, and sees to it that its images have the shape and the range of others."""

    config: CustomConfig

    def __init__(self, config: CustomConfig, module_class: ModuleClass | None = None) -> None:
        super().__init__(config)
        found = module_class or _registered.get(config.module)
        if found is None:
            raise GeneratorError(
                f"this generator is {config.module!r}, a class of its maker's own: it is trained in Python, "
                "by DPSinkhorn(generator=...) or after register_module"
            )
        self.module_class = found
        self.module = _made(found, config.settings, "cpu")
        _check_fit(self.module, config)

    @property
    def stored(self) -> nn.Module:
        return self.module

    def images(self, latents: Tensor, labels: Tensor | None) -> Tensor:
        images = self.module(latents) if labels is None else self.module(latents, labels)
        expected = (len(latents), *self.config.image_shape)
        if not isinstance(images, Tensor) or images.shape != expected:
            found = tuple(images.shape) if isinstance(images, Tensor) else type(images).__name__
            raise GeneratorError(f"{self.config.module} must return images of shape {expected}, not {found}")
        return images.to(latents.dtype).clamp(-1, 1)


def register_module(
    module_class: ModuleClass,
    settings: Mapping[str, Any] | None = None,
    *,
    image_shape: tuple[int, int, int],
    classes: int,
) -> dict[str, Any]:
    """Try out a class of the user's own, and keep it for the trainings of this process.

    Returns:
        The `generator` section of a recipe that trains it.

    Raises:
        GeneratorError: It cannot be built with these settings, or its images are not what is needed.

    >>> class Net(nn.Module):
    ...     latent = 3
    ...     def __init__(self, size=8):
    ...         super().__init__()
    ...         self.layer = nn.Linear(3, size * size)
    ...         self.size = size
    ...     def forward(self, latents):
    ...         return torch.tanh(self.layer(latents)).view(-1, 1, self.size, self.size)
    >>> register_module(Net, {"size": 4}, image_shape=(1, 4, 4), classes=0)["parameters"]
    64
    """
    if isinstance(module_class, nn.Module) or not callable(module_class):
        raise GeneratorError("generator must be a class of modules, such as MyNet: not a module, MyNet()")
    name = f"{module_class.__module__}.{getattr(module_class, '__qualname__', type(module_class).__name__)}"
    values = {} if settings is None else dict(settings)
    _table(values, "the settings of a generator", GeneratorError)
    with torch.random.fork_rng(devices=[]):
        made = _made(module_class, values, "meta")
        latent = getattr(made, "latent", None)
        _checks.whole(latent, f"the attribute latent of {name}", GeneratorError, least=1, most=LARGEST_LATENT)
        section: dict[str, Any] = {"module": name, "settings": values, "latent": latent}
        section["parameters"] = _count(made, name)
        _try(Custom(CustomConfig(image_shape, classes, **section), module_class))
    _registered[name] = module_class
    return {"kind": CustomConfig.kind, **section}


def outline(config: CustomConfig, module_class: ModuleClass) -> nn.Module:
    """Return the module without memory for its tensors, to see what a stranger's settings ask for."""
    with torch.random.fork_rng(devices=[]):
        made = _made(module_class, config.settings, "meta")
    _check_fit(made, config)
    return made


def _made(module_class: ModuleClass, settings: Mapping[str, Any], device: str) -> nn.Module:
    name = getattr(module_class, "__qualname__", type(module_class).__name__)
    try:
        with torch.device(device):
            made = module_class(**settings)
    except Exception as error:  # whatever the user's own code raises
        raise GeneratorError(f"{name} cannot be built with these settings: {_reason(error)}") from error
    if not isinstance(made, nn.Module):
        raise GeneratorError(f"{name} must make a torch.nn.Module, not {type(made).__name__}")
    return made


def _check_fit(made: nn.Module, config: CustomConfig) -> None:
    found = {"latent": getattr(made, "latent", None), "parameters": _count(made, config.module)}
    for name, value in found.items():
        if value != getattr(config, name):
            wanted = getattr(config, name)
            raise GeneratorError(f"{type(made).__name__} has {name} {value!r:.40}, and the config {wanted}")


def _count(made: nn.Module, name: str) -> int:
    try:
        sizes = [parameter.numel() for parameter in made.parameters()]
    except (ValueError, RuntimeError) as error:  # lazy layers
        raise GeneratorError(f"{name} must state the sizes of all its layers: {_reason(error)}") from error
    for key, value in made.state_dict().items():
        if value.dtype not in (torch.float32, torch.int64):
            raise GeneratorError(f"{name} has {key} in {value.dtype}; float32 and int64 can be stored")
    return sum(sizes)


def _try(generator: Custom) -> None:
    """Refuse images of another shape or range, and parameters that no gradient reaches."""
    name, classes = generator.config.module, generator.config.classes
    latents = draw_latents(_TRIED, generator.config.latent)
    labels = (torch.linspace(0, classes - 1, _TRIED).round().long(),) if classes else ()
    for training in (False, True):
        generator.train(training)
        try:
            raw = generator.module(latents, *labels)
        except Exception as error:
            raise GeneratorError(
                f"{name} fails on latents (n, latent), and labels (n,): {_reason(error)}"
            ) from error
        generator(latents, *labels)
        if not raw.abs().max() <= 1 + 1e-6:
            raise GeneratorError(f"{name} must return images from -1 to 1; end it in tanh")
    for key, parameter in generator.module.named_parameters():
        reached = raw.requires_grad and parameter.requires_grad
        if reached:
            found = torch.autograd.grad(raw.sum(), parameter, retain_graph=True, allow_unused=True)
            reached = found[0] is not None
        if not reached:
            raise GeneratorError(f"{name} has a parameter {key} that gets no gradient; a buffer needs none")


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"
