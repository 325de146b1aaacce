"""What all GPU kernels share: Triton, where it is installed, and the arithmetic of their launches."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch import Tensor

__all__ = ["AVAILABLE", "available", "ceil_div", "channels_last", "jit", "on", "power_of_2", "tl"]


class _Absent:
    """Stands for the language of kernels where there is no Triton: they are defined there, and never run."""

    def __getattr__(self, name: str) -> Any:
        return self

    def __call__(self, value: Any) -> Any:
        return value


try:
    import triton  # type: ignore[import-not-found, import-untyped, unused-ignore]
    import triton.language as tl  # type: ignore[import-not-found, import-untyped, unused-ignore]
except ImportError:  # torch for the CPU comes without it, and kernels must import everywhere
    AVAILABLE, tl = False, _Absent()
else:
    AVAILABLE = True


def jit(kernel: Any) -> Any:
    """Have Triton compile a kernel, or a part of one, for the GPU."""
    return triton.jit(kernel) if AVAILABLE else kernel


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


def channels_last(images: Tensor) -> Tensor:
    """Return images ``(n, C, height, width)`` as ``(n, height, width, C)``, contiguous."""
    return images.permute(0, 2, 3, 1).contiguous()
