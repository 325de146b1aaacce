"""Clipping and noising as GPU kernels: on a CUDA device, else in Triton's interpreter."""

from __future__ import annotations

import pytest
import torch

from dpsinkhorn.mechanisms.batch import Batch
from dpsinkhorn.mechanisms.image import Image
from dpsinkhorn.mechanisms.shared import _clip_triton
from dpsinkhorn.mechanisms.shared.clipping import within
from dpsinkhorn.ot import SquaredEuclidean
from dpsinkhorn.privacy import BatchMechanism, ImageMechanism
from dpsinkhorn.privacy.noise import SeededNoise, _lattice_triton, normal_cells
from dpsinkhorn.privacy.noise.lattice import LARGEST, _on_lattice
from support.kernels import DEVICE, compile_for_a_gpu, needs_compiler, run_in_interpreter, runs_kernels

N, EXTRA, PIXELS = 5, 3, 20


def values_of(scale: float) -> torch.Tensor:
    values = torch.randn(N + EXTRA, PIXELS, generator=torch.Generator().manual_seed(0)) * scale
    values[0, 0], values[1, 2], values[6, 1] = float("nan"), float("inf"), -float("inf")
    return values.to(DEVICE)


def sanitizers():
    yield Batch(BatchMechanism(0.5, 1.1), SquaredEuclidean(), 1.0, debias=EXTRA / N)
    yield Image(ImageMechanism(0.5, 1.5, rows=N), SquaredEuclidean(), 1.0, debias=EXTRA / N)


def test_in_the_interpreter():
    run_in_interpreter(__file__)


@runs_kernels
@pytest.mark.parametrize("sanitizer", sanitizers(), ids=["batch", "image"])
@pytest.mark.parametrize("scale", [0.0, 1e-3, 1.0, 1e30])
def test_the_kernels_release_the_same(sanitizer, scale, monkeypatch):
    values = values_of(scale)
    cells = normal_cells(SeededNoise(1), (N, PIXELS), device=DEVICE)
    found = sanitizer._released_at_once(values, N, EXTRA, cells)
    monkeypatch.setattr(_clip_triton, "available", lambda _: False)
    monkeypatch.setattr(_lattice_triton, "AVAILABLE", False)
    expected = sanitizer._released(values, cells=cells)
    assert found.dtype == expected.dtype == torch.float64
    torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-9)


@runs_kernels
@pytest.mark.parametrize("whole", [True, False])
def test_the_bound_is_kept_to_the_last_bit(whole):
    """Without noise, what comes out has a norm of at most the bound, and all but reaches it."""
    values = values_of(100.0)
    zero = torch.zeros(0, PIXELS, dtype=torch.int64, device=DEVICE)
    bound = within(0.3, PIXELS + len(values))
    out = _clip_triton.clip_and_noise(
        values, zero, noised_rows=0, bounds=(bound, bound), whole=whole, step=1.0, largest=LARGEST
    ).cpu()
    norms = out.norm()[None] if whole else out.norm(dim=1)
    assert (norms <= 0.3).all()
    assert (norms > 0.3 * (1 - 1e-12)).all()


@runs_kernels
def test_the_lattice_is_the_same(monkeypatch):
    values = torch.randn(3000, dtype=torch.float64, generator=torch.Generator().manual_seed(3)).to(DEVICE)
    values[:4] = torch.tensor([float("nan"), float("inf"), -float("inf"), 1e300])
    cells = normal_cells(SeededNoise(2), (3000,), device=DEVICE)
    step = 2.0**-30 * 1.7
    found = _lattice_triton.on_lattice(values, cells, step, LARGEST)
    monkeypatch.setattr(_lattice_triton, "AVAILABLE", False)
    assert torch.equal(found, _on_lattice(values, cells, step))


@needs_compiler
def test_compile_for_a_gpu(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    pixels = {"D": 784, "PIXELS": 1024}
    bits = dict.fromkeys(("first_bound_bits", "second_bound_bits", "step_bits", "largest_bits"), "i64")
    compile_for_a_gpu(
        _lattice_triton._kernel,
        {
            "values": "*fp64",
            "cells": "*i64",
            "out": "*fp64",
            "step_bits": "i64",
            "largest_bits": "i64",
            "count": "i32",
        },
        {"BLOCK": 1024, "FAST": True},
    )
    compile_for_a_gpu(_clip_triton._squares_kernel, {"values": "*fp32", "squares": "*fp64"}, pixels)
    for whole in (True, False):
        compile_for_a_gpu(
            _clip_triton._release_kernel,
            {"values": "*fp32", "squares": "*fp64", "cells": "*i64", "out": "*fp64", **bits},
            {"WHOLE": whole, "N": 50, "EVERY": 70, "ROWS": 128, "FAST": True, **pixels},
        )
