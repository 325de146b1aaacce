"""A generator's numbers, to and from safetensors bytes, checked against its config before they are used."""

from __future__ import annotations

from typing import Any

import numpy as np
import safetensors
import torch
from safetensors.torch import save
from torch import Tensor

from dpsinkhorn.errors import ReleaseError
from dpsinkhorn.generators import CustomConfig, Generator, GeneratorConfig, ModuleClass, build_generator
from dpsinkhorn.generators.custom import outline

_HEADER = 2**20  # bytes, ample: names, shapes and offsets of some hundred tensors
_TYPES: dict[torch.dtype, tuple[str, str]] = {torch.float32: ("F32", "<f4"), torch.int64: ("I64", "<i8")}


def size_limits(config: GeneratorConfig, module_class: ModuleClass | None = None) -> tuple[int, int]:
    """Return how small and how large the file of a config's generator can be, in bytes.

    A file within them bounds the memory that its config can make a reader take.
    """
    if isinstance(config, CustomConfig) and module_class is not None:
        state = outline(config, module_class).state_dict().values()
        least = sum(value.numel() * value.itemsize for value in state)
        return least, least + _HEADER
    return 4 * config.parameters, 8 * config.parameters + _HEADER  # with fewer buffers than parameters


def to_bytes(generator: Generator) -> bytes:
    """Return all parameters and buffers, float32 and int64, as safetensors bytes."""
    state = {}
    for name, value in generator.stored.state_dict().items():
        value = value.detach().to("cpu", torch.float32 if value.is_floating_point() else torch.int64)
        # a copy: layers may share storage or have another layout, which the format does not know
        state[name] = value.clone(memory_format=torch.contiguous_format)
    _check_values(state)
    return save(state)


def from_bytes(data: bytes, config: GeneratorConfig, module_class: ModuleClass | None = None) -> Generator:
    """Return the generator, in eval mode, without gradients.

    Names, shapes and types must be the config's own, or those of the user's module.
    """
    least, most = size_limits(config, module_class)
    if not least <= len(data) <= most:
        raise ReleaseError(f"generator.safetensors has {len(data):,} bytes; that does not fit config.json")
    try:
        found: dict[str, dict[str, Any]] = dict(safetensors.deserialize(data))  # type: ignore[no-untyped-call]
    except Exception:  # whatever the parser raises on a stranger's bytes means the same
        raise ReleaseError("generator.safetensors is damaged; get the release again") from None
    generator = build_generator(config, 0, module_class)  # with a seed, so that no random state is touched
    expected = generator.stored.state_dict()
    for name in sorted(found.keys() ^ expected.keys()):
        state = "lacks" if name in expected else "has an unknown"
        raise ReleaseError(f"generator.safetensors {state} tensor {name[:80]!r}; it does not fit config.json")
    state_dict = {}
    for name, value in expected.items():
        code, layout = _TYPES[value.dtype]
        tensor = found[name]
        if tensor["dtype"] != code or tuple(tensor["shape"]) != tuple(value.shape):
            raise ReleaseError(f"tensor {name!r} of generator.safetensors does not fit config.json")
        array = np.frombuffer(tensor["data"], dtype=layout).astype(layout[1:]).reshape(tensor["shape"])
        state_dict[name] = torch.from_numpy(array)
    _check_values(state_dict)
    generator.stored.load_state_dict(state_dict)
    return generator.eval().requires_grad_(False)


def _check_values(state: dict[str, Tensor]) -> None:
    for name, value in state.items():
        if value.is_floating_point() and not torch.isfinite(value).all():
            raise ReleaseError(f"tensor {name!r} of the generator holds numbers that are not finite")
        if name.endswith("running_var") and (value < 0).any():
            raise ReleaseError(f"tensor {name!r} of the generator holds a negative variance")
