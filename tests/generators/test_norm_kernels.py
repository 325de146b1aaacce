"""The GPU kernels of BatchNorm and activation beside PyTorch in float64.

On a CUDA device, else in Triton's interpreter, in a process of its own.
"""

from __future__ import annotations

import copy
import gc
import itertools
import weakref
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from dpsinkhorn.generators import GeneratorError
from dpsinkhorn.generators.kernels import Tiling, available, fused_norm, supported
from dpsinkhorn.generators.kernels._triton import AVAILABLE
from support.kernels import (
    DEVICE,
    compile_for_a_gpu,
    needs_compiler,
    needs_cuda,
    run_in_interpreter,
    runs_kernels,
)

COARSE = Tiling(programs=1)
SMALL = Tiling(elements=64, parts=3, programs=1)  # several tiles for each of several programs
ROUNDING = {torch.float32: 0.0, torch.bfloat16: 2.0**-7}  # the interpreter cuts bfloat16 off


def test_in_the_interpreter():
    run_in_interpreter(__file__)


def make_norm(channels: int, seed: int = 0, **options: object) -> nn.BatchNorm2d:
    """Some weights negative or 0, and running statistics that are no longer the first ones."""
    norm = nn.BatchNorm2d(channels, **options)  # type: ignore[arg-type]
    of = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        norm.weight.normal_(generator=of)
        norm.weight[0] = 0
        norm.bias.normal_(generator=of)
        if norm.running_mean is not None and norm.running_var is not None:
            norm.running_mean.normal_(generator=of)
            norm.running_var.uniform_(0.1, 2, generator=of)
    return norm.to(DEVICE)


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def assert_near(got: Tensor, expected: Tensor, relative: float, rounding: float = 0.0) -> None:
    """Within ``relative`` of the largest entry, and of what rounding does to each."""
    got, expected = got.detach().double(), expected.detach()
    atol = relative * float(expected.abs().max()) + 1e-30
    torch.testing.assert_close(got, expected, rtol=rounding, atol=atol)


def assert_alike(x: Tensor, norm: nn.BatchNorm2d, slope: float, tiling: Tiling, steps: int = 1) -> None:
    exact = copy.deepcopy(norm).double()
    rounding = ROUNDING[x.dtype]
    for step in range(steps):
        dy = draw(*x.shape, seed=100 + step).to(x.dtype)
        mine, other = x.clone().requires_grad_(), x.double().requires_grad_()
        norm.zero_grad()
        exact.zero_grad()
        y, z = fused_norm(mine, norm, slope, tiling), exact(other)
        expected = functional.leaky_relu(z, slope)
        assert y.dtype == x.dtype
        assert y.shape == x.shape
        assert y.permute(0, 2, 3, 1).is_contiguous()
        assert_near(y, expected, 1e-5, rounding)
        y.backward(dy)
        expected.backward(dy.double())
        for got, wanted in ((mine, other), (norm.weight, exact.weight), (norm.bias, exact.bias)):
            assert got.grad is not None
            assert wanted.grad is not None
            assert got.grad.dtype == got.dtype
            assert got.grad.shape == wanted.grad.shape
            there = z.abs() > 1e-5 if got is mine else slice(None)  # at 0 rounding decides on the slope
            assert_near(got.grad[there], wanted.grad[there], 1e-4, rounding if got is mine else 0.0)
    for name, got in norm.named_buffers():
        assert_near(got, exact.get_buffer(name).double(), 1e-6)


@runs_kernels
@pytest.mark.parametrize(
    ("shape", "slope", "tiling", "dtype"),
    [
        ((5, 8, 3, 3), 0.2, SMALL, torch.float32),
        ((5, 8, 3, 3), 0.0, SMALL, torch.bfloat16),
        ((1, 8, 2, 1), 0.0, SMALL, torch.float32),  # two rows, the fewest
        ((2, 24, 5, 3), 0.0, Tiling(elements=128, parts=3, programs=1), torch.float32),  # padded channels
        ((2, 40, 4, 4), 0.2, Tiling(elements=512, parts=2, programs=1), torch.float32),  # all tiles full
        ((3, 64, 5, 5), 0.2, Tiling(elements=1024, parts=2, programs=1), torch.bfloat16),
        ((1, 256, 7, 7), 0.0, COARSE, torch.float32),
        ((1, 512, 3, 3), 0.2, COARSE, torch.bfloat16),
        ((2, 8, 4, 3), 0.2, Tiling(), torch.float32),  # fewer rows than programs wanted
    ],
)
def test_same_as_pytorch(shape: tuple[int, ...], slope: float, tiling: Tiling, dtype: torch.dtype):
    assert_alike((2 * draw(*shape) + 1).to(dtype), make_norm(shape[1]), slope, tiling)


@runs_kernels
def test_every_number_of_rows():
    norm = make_norm(8)
    tilings = itertools.cycle([SMALL, Tiling(elements=32, parts=4, programs=1)])
    for rows, tiling in zip(range(3, 33, 5), tilings, strict=False):
        x = draw(1, 8, rows, 1, seed=rows)
        exact = functional.relu(
            functional.batch_norm(x.double(), None, None, *map(Tensor.double, (norm.weight, norm.bias)), True)
        )
        with torch.no_grad():
            assert_near(fused_norm(x, norm, 0.0, tiling), exact.detach(), 1e-5)


@runs_kernels
def test_running_statistics_over_steps():
    assert_alike(3 * draw(3, 16, 3, 2) - 1, make_norm(16, momentum=0.3, eps=1e-3), 0.2, SMALL, steps=3)


@runs_kernels
def test_without_running_statistics():
    assert_alike(draw(3, 8, 3, 2), make_norm(8, track_running_stats=False), 0.2, SMALL)


@runs_kernels
def test_constant_input():
    x = torch.full((4, 8, 3, 3), 0.1, device=DEVICE)
    norm = make_norm(8)
    assert_alike(x, norm, 0.2, SMALL)
    assert_near(fused_norm(x, norm, 1.0, SMALL), norm.bias[:, None, None].expand_as(x).double(), 1e-6)


@runs_kernels
@pytest.mark.parametrize("outlier", [False, True])
def test_large_offset(outlier: bool):
    x = draw(4, 8, 5, 5) + 1000
    if outlier:  # where a program starts: what it subtracts from the rest is far off
        x[-1, :, -1, :] = -1e5
        x[:, :, 2, 2] = 1e5
    norm = nn.BatchNorm2d(8, momentum=1.0).to(DEVICE)
    assert norm.running_mean is not None
    assert norm.running_var is not None
    y = fused_norm(x, norm, 1.0, SMALL)
    exact = x.double().transpose(0, 1).flatten(1)
    assert_near(norm.running_var, exact.var(1), 1e-5)
    spread = float(exact.std(1).max())
    torch.testing.assert_close(norm.running_mean.double(), exact.mean(1), rtol=1e-6, atol=1e-6 * spread)
    exact = functional.batch_norm(x.double(), None, None, training=True)
    assert_near(y.detach(), exact, 1e-4)


@runs_kernels
def test_any_memory_layout():
    norm = make_norm(8)
    x, dy = draw(2, 8, 3, 2), draw(2, 8, 3, 2, seed=1)
    results = []
    for layout in (torch.contiguous_format, torch.channels_last):
        for of in (dy.contiguous(memory_format=layout), dy[:1, :1, :1, :1].expand_as(dy)):
            own = x.clone(memory_format=layout).requires_grad_()
            y = fused_norm(own, norm, 0.2, SMALL)
            y.backward(of)
            results.append((y.detach(), own.grad))
    torch.testing.assert_close(results[:2], results[2:], rtol=0, atol=0)


@runs_kernels
def test_same_bits_again():
    x, dy = draw(2, 16, 3, 3).requires_grad_(), draw(2, 16, 3, 3, seed=1)
    runs = []
    for _ in range(2):
        y = fused_norm(x, make_norm(16), 0.2, SMALL)
        runs.append((y.detach(), *torch.autograd.grad(y, [x], dy)))
    torch.testing.assert_close(*runs, rtol=0, atol=0)


@runs_kernels
def test_frozen_weights_and_inputs():
    x, dy = draw(3, 8, 3, 3), draw(3, 8, 3, 3, seed=1)
    norm = make_norm(8)
    fused_norm(x, norm, 0.2, SMALL).backward(dy)
    whole = make_norm(8)
    fused_norm(x.clone().requires_grad_(), whole, 0.2, SMALL).backward(dy)
    torch.testing.assert_close(norm.weight.grad, whole.weight.grad, rtol=0, atol=0)
    frozen = make_norm(8).requires_grad_(False)
    own = x.clone().requires_grad_()
    fused_norm(own, frozen, 0.2, SMALL).backward(dy)
    assert own.grad is not None
    assert frozen.weight.grad is None


@runs_kernels
def test_without_gradients_nothing_is_kept():
    norm = make_norm(8)
    x = draw(3, 8, 3, 3).contiguous(memory_format=torch.channels_last)
    with torch.no_grad():
        y = fused_norm(x, norm, 0.2, SMALL)
    assert not y.requires_grad
    assert norm.num_batches_tracked == 1
    kept = weakref.ref(x)
    del x
    gc.collect()
    assert kept() is None


@runs_kernels
def test_autocast_changes_nothing():
    norm, dy = make_norm(8), draw(3, 8, 3, 3, seed=1)
    results = []
    for on in (False, True):
        x = draw(3, 8, 3, 3).requires_grad_()
        with torch.autocast(DEVICE, torch.bfloat16, enabled=on):
            y = fused_norm(x, norm, 0.2, SMALL)
        results.append((y.detach(), *torch.autograd.grad(y, [x, norm.weight], dy)))
    torch.testing.assert_close(*results, rtol=0, atol=0)
    assert results[1][0].dtype == torch.float32


@runs_kernels
def test_a_changed_running_statistic_is_noticed():
    norm = make_norm(8)
    x = draw(3, 8, 3, 3).requires_grad_()
    before = (x * norm.running_mean[:, None, None]).sum()  # type: ignore[index]
    fused_norm(x, norm, 0.2, SMALL)
    with pytest.raises(RuntimeError, match="inplace"):
        before.backward()


@needs_cuda
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(70, 256, 7, 7), (500, 128, 14, 14), (500, 64, 28, 28), (33, 200, 9, 11)])
def test_same_as_pytorch_at_full_size(shape: tuple[int, ...], dtype: torch.dtype):
    assert_alike((2 * draw(*shape) + 1).to(dtype), make_norm(shape[1]), 0.2, Tiling())


@needs_cuda
def test_replays_from_a_graph():
    x, dy = draw(70, 64, 28, 28).requires_grad_(), draw(70, 64, 28, 28, seed=1)
    norm = make_norm(64)
    torch.autograd.grad(fused_norm(x, norm, 0.2), [x, norm.weight], dy)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = fused_norm(x, norm, 0.2)
        gradients = torch.autograd.grad(y, [x, norm.weight], dy)
    for seed in (2, 3):
        with torch.no_grad():
            x.copy_(draw(*x.shape, seed=seed) * seed)
        graph.replay()
        expected = fused_norm(x, norm, 0.2)
        torch.testing.assert_close(y, expected, rtol=0, atol=0)
        again = torch.autograd.grad(expected, [x, norm.weight], dy)
        torch.testing.assert_close(gradients, again, rtol=0, atol=0)
    assert norm.num_batches_tracked == 5


@needs_compiler
@pytest.mark.parametrize(
    ("kind", "channels", "rows"), [("bf16", 64, 64), ("fp32", 256, 16), ("bf16", 24, 128)]
)
def test_compile_for_a_gpu(
    kind: str, channels: int, rows: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    from dpsinkhorn.generators.kernels import _triton

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    types = dict.fromkeys(("x", "y", "dy", "dx"), f"*{kind}") | dict.fromkeys(("count", "number"), "i32")
    types |= dict.fromkeys(("eps", "momentum", "slope"), "fp32") | {"batches": "*i64"}
    sizes = {"C": channels, "COLUMNS": 1 << (channels - 1).bit_length(), "ROWS": rows}
    sizes |= {"PARTS": 512, "CHANNELS": 8, "TRACK": True}
    for name in set(_triton.__all__) - {"AVAILABLE"}:
        kernel = getattr(_triton, name)
        constants = {key: value for key, value in sizes.items() if key in kernel.arg_names}
        compile_for_a_gpu(kernel, dict.fromkeys(kernel.arg_names, "*fp32") | types, constants, warps=8)


def test_what_they_do_not_have():
    x = torch.rand(4, 16, 3, 3)
    assert supported(x, nn.BatchNorm2d(16))
    assert supported(x.bfloat16(), nn.BatchNorm2d(16, track_running_stats=False))
    for images, norm in [
        (x, nn.BatchNorm2d(16).eval()),
        (x, nn.BatchNorm2d(16, momentum=None)),
        (x, nn.BatchNorm2d(16, affine=False)),
        (x, nn.BatchNorm2d(16).double()),
        (x, nn.BatchNorm2d(16, device="meta")),
        (x, nn.BatchNorm2d(8)),
        (x, nn.SyncBatchNorm(16)),
        (x.double(), nn.BatchNorm2d(16)),
        (x[0], nn.BatchNorm2d(16)),
        (x[:, :12], nn.BatchNorm2d(12)),
        (x[:1, :, :1, :1], nn.BatchNorm2d(16)),
        (x[:0], nn.BatchNorm2d(16)),
        (torch.rand(1, 520, 2, 2), nn.BatchNorm2d(520)),
    ]:
        assert not supported(images, norm)  # type: ignore[arg-type]
        with pytest.raises(GeneratorError, match="use the module itself"):
            fused_norm(images, norm, 0.2)  # type: ignore[arg-type]


def test_bad_tilings():
    for wrong in ({"elements": 3000}, {"warps": 3}, {"parts": 0}, {"programs": -1}):
        with pytest.raises(GeneratorError, match=next(iter(wrong))):
            Tiling(**wrong)


def test_where_they_run():
    assert not available("cpu")
    assert available("cuda") == AVAILABLE
