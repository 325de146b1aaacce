"""What all GPU kernels share: Triton, where it is installed, and the arithmetic of their launches.

``tl`` and ``triton`` are there only where ``AVAILABLE`` is set: import them, and define kernels, under it.
"""

from __future__ import annotations

import contextlib

import torch
from torch import Tensor

try:
    import triton  # type: ignore[import-not-found, import-untyped, unused-ignore]
    import triton.language as tl  # type: ignore[import-not-found, import-untyped, unused-ignore]
except ImportError:  # torch for the CPU comes without it, and this module must import everywhere
    AVAILABLE = False
else:
    AVAILABLE = True

__all__ = ["AVAILABLE", "available", "ceil_div", "channels_last", "check_power", "on", "power_of_2"]

if AVAILABLE:
    __all__ += ["tl", "triton"]


def available(device: torch.device | str) -> bool:
    """Whether the kernels can run there: Triton is installed, and the device is a CUDA one.

    >>> available("cpu")
    False
    """
    return AVAILABLE and torch.device(device).type == "cuda"


def on(device: torch.device) -> contextlib.AbstractContextManager[object]:
    """Launch kernels on this device; on a CPU, where only the interpreter runs them, nothing is needed."""
    return torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()


def ceil_div(size: int, block: int) -> int:
    """How many blocks ``size`` takes, the last one maybe not full.

    >>> ceil_div(8, 4), ceil_div(9, 4)
    (2, 3)
    """
    return -(-size // block)


def power_of_2(size: int) -> int:
    """The least power of 2 that is not below a positive ``size``.

    >>> power_of_2(8), power_of_2(9)
    (8, 16)
    """
    return 1 << (size - 1).bit_length()


def check_power(name: str, value: int) -> None:
    """Refuse an argument that is no power of 2."""
    if value < 1 or value != power_of_2(value):
        raise ValueError(f"{name}: expected a power of 2, got {value}")


def channels_last(images: Tensor) -> Tensor:
    """Return images ``(n, C, height, width)`` as ``(n, height, width, C)``, contiguous."""
    return images.permute(0, 2, 3, 1).contiguous()
