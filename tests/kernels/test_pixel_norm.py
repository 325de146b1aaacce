"""The fused normalization of pixels against PyTorch's own operations, forward and backward."""

from __future__ import annotations

import pytest
import torch

from dpsinkhorn.kernels import pixel_norm
from dpsinkhorn.kernels.pixel_norm import normed_silu
from support.kernels import DEVICE, compile_for_a_gpu, needs_compiler, runs_kernels


@runs_kernels
@pytest.mark.parametrize("modulated", [False, True])
@pytest.mark.parametrize("shape", [(3, 5, 4, 3), (2, 64, 7, 7), (1, 24, 1, 1)])
def test_as_without_kernels(shape, modulated, monkeypatch):
    random = torch.Generator().manual_seed(0)

    def draw(*size):
        return torch.randn(*size, generator=random).to(DEVICE)

    hidden, changes, slopes = draw(*shape), draw(shape[0], 2 * shape[1]), draw(*shape)
    found = {}
    for kernels in (False, True):
        monkeypatch.setattr(pixel_norm, "available", lambda device, answer=kernels: answer)  # noqa: ARG005
        inputs = [part.clone().requires_grad_() for part in ([hidden, changes] if modulated else [hidden])]
        out = normed_silu(*inputs)
        found[kernels] = [out, *torch.autograd.grad(out, inputs, slopes)]
    for plain, fused in zip(*found.values(), strict=True):
        torch.testing.assert_close(fused, plain, rtol=1e-4, atol=1e-5)


@needs_compiler
@pytest.mark.parametrize("channels", [64, 192])
def test_compiles(channels):
    rows = pixel_norm._NUMBERS // (64 if channels == 64 else 256)
    constants = {"MODULATED": True, "ROWS": rows, "CHANNELS": 64 if channels == 64 else 256}
    types = dict.fromkeys(("x", "changes", "y", "slopes", "of_x", "of_changes"), "*bf16")
    types.update({"pixels": "i32", "channels": "i32", "epsilon": "fp32"})
    compile_for_a_gpu(pixel_norm._forward_kernel, types, constants)
    compile_for_a_gpu(pixel_norm._backward_kernel, types, constants)
