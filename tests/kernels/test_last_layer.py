"""The GPU kernels of a generator's last layer and tanh beside PyTorch in float64.

On a CUDA device, else in Triton's interpreter, in a process of its own.
"""

from __future__ import annotations

import gc
import weakref
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from dpsinkhorn.generators import DCGANConfig, build_generator, networks
from dpsinkhorn.kernels import last_layer
from dpsinkhorn.kernels.last_layer import LastTiling, fused_last, last_supported
from support.kernels import (
    DEVICE,
    compile_for_a_gpu,
    needs_compiler,
    needs_cuda,
    runs_kernels,
)

SMALL = LastTiling(side=4, pixels=16, parts=3)  # several squares and tiles for each of several programs


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def make_layer(
    channels: int, outputs: int, dtype: torch.dtype = torch.float32, scale: float = 0.3
) -> nn.ConvTranspose2d:
    layer = nn.ConvTranspose2d(channels, outputs, 3, padding=1)
    with torch.no_grad():
        layer.weight.copy_(scale * draw(*layer.weight.shape, seed=1))
        layer.bias.copy_(draw(outputs, seed=2))  # type: ignore[union-attr]
    layer.weight.data = layer.weight.data.to(dtype)
    return layer.to(DEVICE, memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


def exactly(x: Tensor, layer: nn.ConvTranspose2d) -> tuple[nn.ConvTranspose2d, Tensor]:
    """The layer and its input in float64, with weights as products see them: of x's type."""
    exact = nn.ConvTranspose2d(layer.in_channels, layer.out_channels, 3, padding=1).double().to(x.device)
    with torch.no_grad():
        exact.weight.copy_(layer.weight.to(x.dtype))
        exact.bias.copy_(layer.bias)  # type: ignore[union-attr, arg-type]
    return exact, x.detach().double().requires_grad_()


def gradients(out: Tensor, x: Tensor, layer: nn.ConvTranspose2d, dy: Tensor) -> tuple[Tensor, ...]:
    return torch.autograd.grad(out, [x, layer.weight, layer.bias], dy)  # type: ignore[list-item]


def assert_near(got: Tensor, expected: Tensor, relative: float, rounding: float = 0.0) -> None:
    """Within ``relative`` of the largest entry, and of what rounding does to each."""
    atol = relative * float(expected.detach().abs().max()) + 1e-30
    torch.testing.assert_close(got.detach().double(), expected.detach(), rtol=rounding, atol=atol)


def assert_alike(
    x: Tensor, layer: nn.ConvTranspose2d, size: tuple[int, int], tiling: LastTiling | None
) -> None:
    exact, other = exactly(x, layer)
    mine = x.clone().requires_grad_()
    dy = draw(len(x), layer.out_channels, *size, seed=100)
    out = fused_last(mine, layer, size, tiling)
    assert out.dtype == torch.float32
    assert out.shape == dy.shape
    assert out.is_contiguous()
    top, left = (x.shape[2] - size[0]) // 2, (x.shape[3] - size[1]) // 2
    expected = torch.tanh(exact(other))[:, :, top : top + size[0], left : left + size[1]]
    assert_near(out, expected, 5e-6)  # of products whose factors are those of `exact`, whatever x's type
    got, wanted = gradients(out, mine, layer, dy), gradients(expected, other, exact, dy.double())
    # The gradient before tanh is rounded to x's type, once for each of nine uses; the interpreter cuts off.
    rounds = 1e-5 if x.dtype == torch.float32 else 2.0**-7
    for found, by, at in zip(got, wanted, (mine, layer.weight, layer.bias), strict=True):
        assert at is not None
        assert found.dtype == at.dtype
        assert found.shape == at.shape
        reduced = at is not layer.bias and torch.bfloat16 in (x.dtype, at.dtype)
        assert_near(found, by, rounds if at is not layer.bias else 1e-5, 2.0**-7 if reduced else 0.0)
    assert got[1].stride() == layer.weight.stride()


@runs_kernels
@pytest.mark.parametrize(
    ("shape", "outputs", "size", "tiling", "dtype"),
    [
        ((3, 8, 4, 4), 1, (4, 4), SMALL, torch.float32),
        ((2, 16, 5, 7), 1, (5, 7), SMALL, torch.float32),
        ((2, 16, 5, 7), 3, (5, 7), SMALL, torch.bfloat16),
        ((2, 16, 8, 4), 3, (7, 3), SMALL, torch.float32),  # cropped, unevenly
        ((2, 24, 12, 16), 1, (9, 14), LastTiling(side=8, pixels=32, parts=2), torch.bfloat16),
        ((1, 5, 1, 1), 1, (1, 1), SMALL, torch.float32),  # one pixel, fewer channels than a product takes
        ((1, 4, 1, 9), 3, (1, 9), SMALL, torch.float32),
        ((2, 16, 4, 4), 2, (4, 2), SMALL, torch.float32),
        ((2, 16, 4, 4), 4, (2, 4), SMALL, torch.bfloat16),
        ((2, 80, 4, 3), 3, (4, 3), SMALL, torch.float32),  # two blocks of channels, one of them not full
        ((1, 130, 3, 3), 1, (3, 3), SMALL, torch.bfloat16),
        ((2, 64, 28, 28), 1, (28, 28), None, torch.bfloat16),
        ((1, 64, 32, 32), 3, (32, 32), None, torch.float32),
        ((1, 64, 20, 16), 1, (18, 13), None, torch.float32),
    ],
)
def test_same_as_pytorch(
    shape: tuple[int, ...], outputs: int, size: tuple[int, int], tiling: LastTiling | None, dtype: torch.dtype
):
    layer = make_layer(shape[1], outputs)
    layer.weight.data = layer.weight.data.to(
        dtype
    ).float()  # exact in both: the interpreter rounds by its own rule
    assert_alike(draw(*shape).to(dtype), layer, size, tiling)


@runs_kernels
@pytest.mark.parametrize("outputs", [1, 3])
def test_weights_in_bfloat16(outputs: int):
    layer = make_layer(16, outputs, torch.bfloat16)
    assert_alike(draw(2, 16, 5, 4).bfloat16(), layer, (5, 4), SMALL)


@runs_kernels
def test_every_size():
    for height in range(1, 6):
        for width in (1, 2, 3, 6):
            x, layer = draw(2, 8, height, width, seed=height), make_layer(8, 1)
            with torch.no_grad():
                found = fused_last(x, layer, (height, width), SMALL)
                exact, other = exactly(x, layer)
                assert_near(found, torch.tanh(exact(other)), 2e-6)


@runs_kernels
def test_tanh_of_all_sizes():
    """The bias alone: tiny and large, relatively."""
    values = torch.tensor([0.0, -0.0, 1e-30, -1e-10, 1e-4, 0.01, -0.1, 0.2499, 0.25, -0.2501, 0.5, 1.0])
    values = torch.cat([values, torch.tensor([-2.0, 5.0, -9.0, 20.0, 1e3, -1e30, torch.inf, -torch.inf])])
    layer = make_layer(4, 4, scale=0.0)
    for bias in values.view(-1, 4):
        layer.bias.data.copy_(bias)  # type: ignore[union-attr]
        found = fused_last(draw(1, 4, 1, 1), layer, (1, 1), SMALL).flatten()
        torch.testing.assert_close(
            found.double().cpu(), torch.tanh(bias.double()), rtol=1e-6, atol=0, check_stride=False
        )
    layer.bias.data.fill_(torch.nan)  # type: ignore[union-attr]
    assert fused_last(draw(1, 4, 1, 1), layer, (1, 1), SMALL).isnan().all()


@runs_kernels
def test_nothing_comes_from_beyond_what_is_there():
    """Neighbours in memory, images before and after, are not neighbours in the image."""
    x, layer = torch.full((3, 8, 4, 5), 1e6, device=DEVICE), make_layer(8, 3)
    x[1] = 1.0
    out = fused_last(x, layer, (4, 5), SMALL)
    exact, other = exactly(x[1:2], layer)
    assert_near(out[1:2], torch.tanh(exact(other)), 2e-6)


@runs_kernels
def test_any_memory_layout():
    x, dy = draw(2, 8, 5, 4), draw(2, 3, 5, 4, seed=1)
    results = []
    for layout in (torch.contiguous_format, torch.channels_last):
        for of in (dy.contiguous(memory_format=layout), dy[:1, :1, :1, :1].expand_as(dy)):
            layer = make_layer(8, 3).to(memory_format=layout)  # type: ignore[call-overload]
            own = x.clone(memory_format=layout).requires_grad_()
            out = fused_last(own, layer, (5, 4), SMALL)
            results.append((out.detach(), *gradients(out, own, layer, of)))
            assert results[-1][2].stride() == layer.weight.stride()
    for found, expected in zip(results[:2], results[2:], strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=0)


@runs_kernels
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_same_bits_again(dtype: torch.dtype):
    x, dy, layer = draw(3, 16, 6, 6).to(dtype).requires_grad_(), draw(3, 3, 6, 6, seed=1), make_layer(16, 3)
    runs = []
    for _ in range(2):
        out = fused_last(x, layer, (6, 6), SMALL)
        runs.append((out.detach(), *gradients(out, x, layer, dy)))
    torch.testing.assert_close(*runs, rtol=0, atol=0)


@runs_kernels
def test_frozen_weights_and_inputs():
    x, dy, layer = draw(2, 8, 4, 4), draw(2, 1, 4, 4, seed=1), make_layer(8, 1)
    own = x.clone().requires_grad_()
    whole = gradients(fused_last(own, layer, (4, 4), SMALL), own, layer, dy)
    fused_last(x, layer, (4, 4), SMALL).backward(dy)
    torch.testing.assert_close(layer.weight.grad, whole[1], rtol=0, atol=0)
    layer.requires_grad_(False)
    (of_x,) = torch.autograd.grad(fused_last(own, layer, (4, 4), SMALL), [own], dy)
    torch.testing.assert_close(of_x, whole[0], rtol=0, atol=0)


@runs_kernels
def test_without_gradients_nothing_is_kept():
    x = draw(2, 8, 4, 4).contiguous(memory_format=torch.channels_last)
    with torch.no_grad():
        out = fused_last(x, make_layer(8, 1), (4, 4), SMALL)
    assert not out.requires_grad
    kept = weakref.ref(x)
    del x
    gc.collect()
    assert kept() is None


@runs_kernels
def test_autocast_changes_nothing():
    layer, dy = make_layer(8, 1), draw(2, 1, 4, 4, seed=1)
    results = []
    for on in (False, True):
        x = draw(2, 8, 4, 4).requires_grad_()
        with torch.autocast(DEVICE, torch.bfloat16, enabled=on):
            out = fused_last(x, layer, (4, 4), SMALL)
        results.append((out.detach(), *gradients(out, x, layer, dy)))
    torch.testing.assert_close(*results, rtol=0, atol=0)


@runs_kernels
@pytest.mark.parametrize(("shape", "batch_norm"), [((1, 9, 14), True), ((3, 8, 8), False)])
def test_a_generator_with_them(
    shape: tuple[int, int, int], batch_norm: bool, monkeypatch: pytest.MonkeyPatch
):
    """Its images and gradients, beside those of the same generator in float64 without them."""
    config = DCGANConfig(image_shape=shape, classes=0, width=8, batch_norm=batch_norm)
    generator = build_generator(config, seed=0).to(DEVICE)
    exact = build_generator(config, seed=0).double()
    monkeypatch.setattr(networks, "_fused", lambda *_: False)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    used = []

    def spied(*arguments):
        used.append(arguments)
        return fused_last(*arguments)

    monkeypatch.setattr(networks, "fused_last", spied)
    monkeypatch.setattr(networks, "_fused_last", last_supported)  # in float32 as well, to compare closely
    latents, dy = draw(3, config.latent), draw(3, *shape, seed=1)
    results = []
    for network, kind in ((generator, torch.float32), (exact, torch.float64)):
        given = latents.to(kind) if network is generator else latents.to(kind).cpu()
        images = network(given)
        assert images.dtype == kind
        assert images.shape == dy.shape
        parameters = list(network.parameters())
        results.append([images, *torch.autograd.grad(images, parameters, dy.to(images))])
        assert len(used) == 1  # float64 goes the plain way
    for found, expected in zip(*results, strict=True):
        assert_near(found.cpu(), expected, 1e-4)


@needs_cuda
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("shape", "outputs", "size"),
    [((70, 64, 28, 28), 1, (28, 28)), ((500, 64, 32, 32), 3, (32, 32)), ((33, 40, 20, 64), 3, (18, 61))],
)
def test_same_as_pytorch_at_full_size(
    shape: tuple[int, ...], outputs: int, size: tuple[int, int], dtype: torch.dtype
):
    assert_alike(draw(*shape).to(dtype), make_layer(shape[1], outputs, scale=0.05), size, None)


@needs_cuda
def test_replays_from_a_graph():
    x, dy = draw(70, 64, 28, 28).bfloat16().requires_grad_(), draw(70, 1, 28, 28, seed=1)
    layer = make_layer(64, 1)
    gradients(fused_last(x, layer, (28, 28)), x, layer, dy)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = fused_last(x, layer, (28, 28))
        found = gradients(out, x, layer, dy)
        out = out.detach()  # so that no node of its graph, of the capturing stream, lives on
    for seed in (2, 3):
        with torch.no_grad():
            x.copy_(draw(*x.shape, seed=seed) * seed)
        graph.replay()
        expected = fused_last(x, layer, (28, 28))
        torch.testing.assert_close(out, expected, rtol=0, atol=0)
        torch.testing.assert_close(found, gradients(expected, x, layer, dy), rtol=0, atol=0)


@needs_compiler
@pytest.mark.parametrize(
    ("kind", "channels", "outputs", "weight"),
    [("bf16", 64, 1, "bf16"), ("bf16", 64, 3, "fp32"), ("fp32", 64, 1, "fp32"), ("fp32", 200, 3, "fp32")],
)
def test_compile_for_a_gpu(
    kind: str, channels: int, outputs: int, weight: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    tiling = LastTiling()
    types = dict.fromkeys(("images", "of_images"), f"*{kind}") | dict.fromkeys(("count", "number"), "i32")
    types |= dict.fromkeys(("weight", "of_weight"), f"*{weight}")
    sizes = {"HEIGHT": 28, "WIDTH": 28, "OUT_HEIGHT": 27, "OUT_WIDTH": 26, "TOP": 0, "LEFT": 1}
    sizes |= {
        "S_C": 9 * outputs,
        "S_OUT": 1,
        "S_Y": 3 * outputs,
        "S_X": outputs,
        "C": channels,
        "OUT": outputs,
    }
    sizes |= {
        "COLUMNS": 16 if outputs == 1 else 32,
        "BLOCK": 64,
        "SIDE": tiling.side,
        "PIXELS": tiling.pixels,
    }
    sizes |= {"ROUNDS": 4, "PARTS": 512, "ENTRIES": 8, "REDUCED": kind == "bf16"}
    warps = {
        "last_kernel": tiling.warps,
        "last_gradient_kernel": tiling.gradient_warps,
        "last_totals_kernel": 8,
    }
    for name, number in warps.items():
        kernel = getattr(last_layer, name)
        constants = {key: value for key, value in sizes.items() if key in kernel.arg_names}
        compile_for_a_gpu(kernel, dict.fromkeys(kernel.arg_names, "*fp32") | types, constants, warps=number)


def test_what_they_do_not_have():
    x, layer = torch.rand(4, 16, 3, 3), nn.ConvTranspose2d(16, 3, 3, padding=1)
    assert last_supported(x, layer)
    assert last_supported(x.bfloat16(), layer)
    half = nn.ConvTranspose2d(16, 3, 3, padding=1)
    half.weight.data = half.weight.data.bfloat16()
    assert last_supported(x.bfloat16(), half)
    for images, other in [
        (x, nn.ConvTranspose2d(16, 3, 3, padding=1, bias=False)),
        (x, nn.ConvTranspose2d(16, 3, 3)),
        (x, nn.ConvTranspose2d(16, 3, 5, padding=1)),
        (x, nn.ConvTranspose2d(16, 3, 3, stride=2, padding=1)),
        (x, nn.ConvTranspose2d(16, 3, 3, padding=1, dilation=2)),
        (x, nn.ConvTranspose2d(16, 4, 3, padding=1, groups=2)),
        (x, nn.ConvTranspose2d(16, 5, 3, padding=1)),
        (x, nn.ConvTranspose2d(8, 3, 3, padding=1)),
        (x, nn.ConvTranspose2d(16, 3, 3, padding=1).double()),
        (x, nn.ConvTranspose2d(16, 3, 3, padding=1).bfloat16()),
        (x, nn.ConvTranspose2d(16, 3, 3, padding=1, device="meta")),
        (x, nn.utils.parametrizations.weight_norm(nn.ConvTranspose2d(16, 3, 3, padding=1))),
        (x.double(), layer),
        (x.half(), layer),
        (x[0], layer),
        (x[:0], layer),
        (torch.empty(2**17, 16, 32, 32, device="meta"), layer.to("meta")),
    ]:
        assert not last_supported(images, other)
        with pytest.raises(ValueError, match="use the module itself"):
            fused_last(images, other, (3, 3))


@pytest.mark.parametrize("size", [(4, 3), (3, 4), (0, 3)])
def test_sizes_that_are_not_there(size: tuple[int, int]):
    with pytest.raises(ValueError, match="size: expected at most 3 x 3"):
        fused_last(torch.rand(4, 16, 3, 3), nn.ConvTranspose2d(16, 3, 3, padding=1), size)
