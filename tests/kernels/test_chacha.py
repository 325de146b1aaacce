"""The key stream by a GPU kernel beside that of a library: on a CUDA device, else in Triton's interpreter."""

from __future__ import annotations

import pytest
import torch

from dpsinkhorn.kernels import chacha
from dpsinkhorn.privacy.noise import key_stream
from support.kernels import DEVICE, compile_for_a_gpu, needs_compiler, runs_kernels

KEY = bytes(range(32))


@runs_kernels
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy's, in the interpreter: words wrap around
@pytest.mark.parametrize(("blocks", "nonce"), [(0, 0), (1, 1), (128, 2**32), (300, 2**96 - 1)])
def test_the_same_stream_as_the_library(blocks: int, nonce: int):
    found = chacha.stream(KEY, nonce, blocks, torch.device(DEVICE))
    assert torch.equal(found.cpu(), key_stream(KEY, nonce, 8 * blocks, torch.device("cpu")))


@needs_compiler
def test_compile_for_a_gpu(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    compile_for_a_gpu(chacha._kernel, {"setup": "*i32", "out": "*i32", "blocks": "i32"}, {"size": 128})
