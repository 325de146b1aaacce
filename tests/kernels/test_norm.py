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

from dpsinkhorn.kernels import _triton_norm
from dpsinkhorn.kernels.launch import AVAILABLE, available
from dpsinkhorn.kernels.norm import Cut, Tiling, fused_norm, supported
from support.kernels import (
    DEVICE,
    compile_for_a_gpu,
    needs_compiler,
    needs_cuda,
    runs_kernels,
)


def tiling(elements: int, programs: int, channels: int = 8, writers: int = 2) -> Tiling:
    writing = Cut(elements, 8, writers)
    return Tiling(Cut(elements, 8, programs), writing, writing, channels)


COARSE = tiling(4096, 1, channels=512, writers=1)
SMALL = tiling(64, 3)  # several tiles for each of several programs
ROUNDING = {torch.float32: 0.0, torch.bfloat16: 2.0**-7}  # the interpreter cuts bfloat16 off


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


def assert_alike(x: Tensor, norm: nn.BatchNorm2d, slope: float, cut: Tiling, steps: int = 1) -> None:
    exact = copy.deepcopy(norm).double()
    rounding = ROUNDING[x.dtype]
    for step in range(steps):
        dy = draw(*x.shape, seed=100 + step).to(x.dtype)
        mine, other = x.clone().requires_grad_(), x.double().requires_grad_()
        norm.zero_grad()
        exact.zero_grad()
        y, z = fused_norm(mine, norm, slope, cut), exact(other)
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
    ("shape", "slope", "cut", "dtype"),
    [
        ((5, 8, 3, 3), 0.2, SMALL, torch.float32),
        ((5, 8, 3, 3), 0.0, SMALL, torch.bfloat16),
        ((1, 8, 2, 1), 0.0, SMALL, torch.float32),  # two rows, the fewest
        ((2, 24, 5, 3), 0.0, tiling(128, 6, channels=16), torch.float32),  # padded channels
        ((2, 40, 4, 4), 0.2, tiling(128, 4, channels=32), torch.float32),  # all tiles full
        ((3, 64, 5, 5), 0.2, tiling(512, 4, channels=32, writers=6), torch.bfloat16),
        ((1, 256, 7, 7), 0.0, COARSE, torch.float32),
        ((1, 512, 3, 3), 0.2, COARSE, torch.bfloat16),
        ((2, 8, 4, 3), 0.2, Tiling(), torch.float32),  # fewer rows than programs wanted
    ],
)
def test_same_as_pytorch(shape: tuple[int, ...], slope: float, cut: Tiling, dtype: torch.dtype):
    assert_alike((2 * draw(*shape) + 1).to(dtype), make_norm(shape[1]), slope, cut)


@runs_kernels
def test_every_number_of_rows():
    norm = make_norm(8)
    cuts = itertools.cycle([SMALL, tiling(32, 4, writers=9)])
    for rows, cut in zip(range(3, 33, 5), cuts, strict=False):
        x = draw(1, 8, rows, 1, seed=rows)
        exact = functional.relu(
            functional.batch_norm(x.double(), None, None, *map(Tensor.double, (norm.weight, norm.bias)), True)
        )
        with torch.no_grad():
            assert_near(fused_norm(x, norm, 0.0, cut), exact.detach(), 1e-5)


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
def test_many_rows_beside_an_outlier():
    """A program's first row is far off; only the rows that come by its place are seen from there."""
    x = draw(1, 8, 1999, 1) + 1000
    x[:, :, -1] = -1e4
    norm = nn.BatchNorm2d(8, momentum=1.0).to(DEVICE)
    with torch.no_grad():
        fused_norm(x, norm, 1.0, tiling(256, 1))
    exact = x.double().transpose(0, 1).flatten(1)
    assert norm.running_var is not None
    assert_near(norm.running_var, exact.var(1), 1e-4)


@runs_kernels
def test_layers_in_turn():
    """Each on its own, all forward and then all backward, with calls in between: the same bits."""
    sizes = [(16, SMALL), (24, tiling(64, 6, channels=16)), (8, SMALL)]
    images = [draw(3, channels, 3, 3, seed=channels).requires_grad_() for channels, _ in sizes]

    def run(order: list[int], between: bool) -> dict[int, tuple[Tensor, ...]]:
        norms = {layer: make_norm(sizes[layer][0]) for layer in order}
        outputs = {}
        for layer in order:
            outputs[layer] = fused_norm(images[layer], norms[layer], 0.2, sizes[layer][1])
            if between:
                with torch.no_grad():
                    fused_norm(images[layer] + 1, make_norm(sizes[layer][0]), 0.2, sizes[layer][1])
        found = {}
        for layer in reversed(order):
            inputs = [images[layer], norms[layer].weight, norms[layer].bias]
            gradients = torch.autograd.grad(outputs[layer].square().sum(), inputs)
            found[layer] = (outputs[layer].detach(), *gradients, *norms[layer].buffers())
        return found

    together = run([0, 1, 2], between=True)
    for layer in range(3):
        torch.testing.assert_close(together[layer], run([layer], between=False)[layer], rtol=0, atol=0)


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
        y = y.detach()  # so that none of its graph's nodes, which belong to the capturing stream, lives on
    for seed in (2, 3):
        with torch.no_grad():
            x.copy_(draw(*x.shape, seed=seed) * seed)
        graph.replay()
        expected = fused_norm(x, norm, 0.2)
        torch.testing.assert_close(y, expected, rtol=0, atol=0)
        again = torch.autograd.grad(expected, [x, norm.weight], dy)
        torch.testing.assert_close(gradients, again, rtol=0, atol=0)
    assert norm.num_batches_tracked == 5


@needs_cuda
def test_the_second_kernel_waits_for_the_first():
    """It may start early; the output must still be of its own input, in a graph and without."""
    images = [draw(70, 64, 28, 28, seed=seed) * (seed + 1) for seed in range(3)]
    norm, weights = make_norm(64), [draw(70, 64, 28, 28, seed=9)]
    apart = Tiling(overlap=False)

    def run(x: Tensor, cut: Tiling) -> tuple[Tensor, ...]:
        y = fused_norm(x.requires_grad_(), norm, 0.2, cut)
        return (y.detach(), *torch.autograd.grad(y, [x, norm.weight, norm.bias], weights))

    expected = [run(x, apart) for x in images]
    got = [run(images[step % 3], Tiling()) for step in range(30)]
    for step, one in enumerate(got):
        torch.testing.assert_close(one, expected[step % 3], rtol=0, atol=0)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = [run(x, Tiling()) for x in images]
    for _ in range(10):
        graph.replay()
    torch.testing.assert_close(got, expected, rtol=0, atol=0)


@needs_cuda
def test_two_streams_at_once():
    shapes = [(70, 64, 28, 28), (70, 256, 7, 7)]
    images = [draw(*shape, seed=seed).requires_grad_() for seed, shape in enumerate(shapes)]

    norms = [[make_norm(shape[1]) for shape in shapes] for _ in range(21)]

    def run(layer: int, time: int) -> tuple[Tensor, ...]:
        x, norm = images[layer], norms[time][layer]
        y = fused_norm(x, norm, 0.2)
        return (y.detach(), *torch.autograd.grad(y, [x, norm.weight], x.detach()), *norm.buffers())

    expected = [run(layer, 20) for layer in range(2)]
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream() for _ in range(2)]
    got: list[tuple[int, tuple[Tensor, ...]]] = []
    for time in range(20):
        for layer, stream in enumerate(streams):
            with torch.cuda.stream(stream):
                got.append((layer, run(layer, time)))
    torch.cuda.synchronize()
    for layer, found in got:
        torch.testing.assert_close(found, expected[layer], rtol=0, atol=0)


@needs_compiler
@pytest.mark.parametrize(
    ("kind", "channels", "overlap"), [("bf16", 64, True), ("fp32", 256, True), ("bf16", 24, False)]
)
def test_compile_for_a_gpu(
    kind: str, channels: int, overlap: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    types = dict.fromkeys(("x", "y", "dy", "dx"), f"*{kind}") | dict.fromkeys(("count", "number"), "i32")
    types |= dict.fromkeys(("eps", "momentum", "slope"), "fp32") | {"batches": "*i64"}
    cuts = {"moments": Tiling().sums, "sums": Tiling().sums, "apply": Tiling().apply}
    cuts |= {"norm_gradient": Tiling().gradient}
    assert {f"{name}_kernel" for name in cuts} == {
        name for name in vars(_triton_norm) if name.endswith("_kernel")
    }
    columns = min(Tiling().channels, 1 << (channels - 1).bit_length())
    for name, cut in cuts.items():
        sizes = {"C": channels, "COLUMNS": columns, "ROWS": cut.elements // columns, "TRACK": True}
        sizes |= {"PARTS": 256, "SUMMED": Tiling().sums.elements // columns, "OVERLAP": overlap}
        kernel = getattr(_triton_norm, f"{name}_kernel")
        constants = {key: value for key, value in sizes.items() if key in kernel.arg_names}
        compile_for_a_gpu(kernel, dict.fromkeys(kernel.arg_names, "*fp32") | types, constants, cut.warps)


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
        with pytest.raises(ValueError, match="use the module itself"):
            fused_norm(images, norm, 0.2)  # type: ignore[arg-type]


def test_where_they_run():
    assert not available("cpu")
    assert available("cuda") == AVAILABLE
