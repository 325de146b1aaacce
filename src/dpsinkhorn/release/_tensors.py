"""A generator's numbers, to and from safetensors bytes, checked against its config before they are used."""

from __future__ import annotations

from typing import Any

import numpy as np
import safetensors
import torch
from safetensors.torch import save
from torch import Tensor

from dpsinkhorn.generators import Generator, GeneratorConfig, build_generator
from dpsinkhorn.release.errors import ReleaseError

_HEADER = 2**20  # bytes, ample: names, shapes and offsets of some hundred tensors
_TYPES: dict[torch.dtype, tuple[str, str]] = {torch.float32: ("F32", "<f4"), torch.int64: ("I64", "<i8")}


def check_size(size: int, config: GeneratorConfig) -> None:
    """Refuse a file that cannot hold the config's generator.

    After this the memory that a config can make its reader take is bounded by the file that came with it.
    """
    least = 4 * config.parameters
    if not least <= size <= most_bytes(config):
        raise ReleaseError(f"generator.safetensors has {size:,} bytes; that does not fit config.json")


def most_bytes(config: GeneratorConfig) -> int:
    """How large the file of a config's generator can be: there are fewer buffers than parameters."""
    return 8 * config.parameters + _HEADER


def to_bytes(generator: Generator) -> bytes:
    """All parameters and buffers, float32 and int64."""
    state = {}
    for name, value in generator.state_dict().items():
        value = value.detach().to("cpu", torch.float32 if value.is_floating_point() else torch.int64)
        # a copy: layers may share storage or have another layout, which the format does not know
        state[name] = value.clone(memory_format=torch.contiguous_format)
    _check_values(state)
    return save(state)


def from_bytes(data: bytes, config: GeneratorConfig) -> Generator:
    """The generator, in eval mode, without gradients. Names, shapes and types must be the config's own."""
    check_size(len(data), config)
    try:
        found: dict[str, dict[str, Any]] = dict(safetensors.deserialize(data))  # type: ignore[no-untyped-call]
    except Exception:  # whatever the parser raises on a stranger's bytes means the same
        raise ReleaseError("generator.safetensors is damaged; get the release again") from None
    generator = build_generator(config, seed=0)  # with a seed, so that no random state is touched
    expected = generator.state_dict()
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
    generator.load_state_dict(state_dict)
    return generator.eval().requires_grad_(False)


def _check_values(state: dict[str, Tensor]) -> None:
    for name, value in state.items():
        if value.is_floating_point() and not torch.isfinite(value).all():
            raise ReleaseError(f"tensor {name!r} of the generator holds numbers that are not finite")
        if name.endswith("running_var") and (value < 0).any():
            raise ReleaseError(f"tensor {name!r} of the generator holds a negative variance")
