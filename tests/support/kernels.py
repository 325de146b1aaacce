"""Tests of Triton kernels: on a GPU or in Triton's interpreter, and by its compiler."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch

try:
    import triton
except ImportError:
    triton = None

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
runs_kernels = pytest.mark.skipif(
    triton is None or (DEVICE == "cpu" and not INTERPRETED),
    reason="needs Triton, and a CUDA device or the interpreter (TRITON_INTERPRET=1)",
)
needs_cuda = pytest.mark.skipif(DEVICE == "cpu" or INTERPRETED, reason="needs a CUDA device")
needs_compiler = pytest.mark.skipif(triton is None or INTERPRETED, reason="needs Triton's compiler")


def compile_for_a_gpu(kernel: Any, types: dict[str, str], constants: dict[str, Any], warps: int = 4) -> None:
    """Compile for an H100 or H200: the interpreter takes code that the compiler does not.

    `types` are those of the arguments that are no constants.
    """
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    signature = {name: "constexpr" if name in constants else types[name] for name in kernel.arg_names}
    indexed = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
    built = triton.compile(
        ASTSource(kernel, signature, indexed), target=GPUTarget("cuda", 90, 32), options={"num_warps": warps}
    )
    assert ".local" not in built.asm["ptx"], f"{kernel.__name__} does not fit into registers"
