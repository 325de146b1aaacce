"""Adam in one kernel beside PyTorch's: on a CUDA device, else in Triton's interpreter."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from dpsinkhorn.kernels import adam
from dpsinkhorn.kernels.adam import FlatAdam
from support.kernels import DEVICE, compile_for_a_gpu, needs_compiler, runs_kernels

OPTIONS = {"betas": (0.9, 0.999), "weight_decay": 2e-5}


def networks() -> tuple[nn.Module, nn.Module]:
    """Two copies of a network with weights in several orders in memory."""
    torch.manual_seed(0)
    first = nn.Sequential(nn.Conv2d(3, 5, 3), nn.Conv2d(5, 7, 2), nn.Flatten(), nn.Linear(7, 3))
    first = first.to(DEVICE).to(memory_format=torch.channels_last)
    return first, copy.deepcopy(first)


def set_gradients(network: nn.Module, seed: int) -> None:
    random = torch.Generator().manual_seed(seed)
    for parameter in network.parameters():
        given = torch.randn(parameter.shape, generator=random) * 10.0 ** -(seed % 5)
        parameter.grad = torch.empty_like(parameter).copy_(given)


def stored(optimizer: torch.optim.Optimizer) -> dict[int, dict[str, torch.Tensor]]:
    """A state as a checkpoint has it: every tensor by itself."""
    entries = optimizer.state_dict()["state"].items()
    return {index: {name: value.clone() for name, value in entry.items()} for index, entry in entries}


@runs_kernels
@pytest.mark.parametrize("betas", [(0.9, 0.999), (0.0, 0.9)])
def test_the_same_steps_as_pytorch(betas):
    ours, theirs = networks()
    options = {**OPTIONS, "betas": betas}
    rate = torch.tensor(1e-2, device=DEVICE)
    flat = FlatAdam(list(ours.parameters()), rate, **options)
    plain = torch.optim.Adam(theirs.parameters(), lr=1e-2, **options)
    for step in range(12):
        if step == 6:
            rate.fill_(3e-3)
            plain.param_groups[0]["lr"] = 3e-3
        for network in (ours, theirs):
            set_gradients(network, step)
        flat.step()
        plain.step()
    for found, expected in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert found.stride() == expected.stride()
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


@runs_kernels
def test_its_state_goes_to_pytorch_and_back():
    ours, theirs = networks()
    flat = FlatAdam(list(ours.parameters()), torch.tensor(1e-2, device=DEVICE), **OPTIONS)
    for step in range(3):
        set_gradients(ours, step)
        flat.step()
    theirs.load_state_dict(ours.state_dict())
    plain = torch.optim.Adam(theirs.parameters(), lr=1e-2, **OPTIONS)
    plain.load_state_dict({**plain.state_dict(), "state": stored(flat)})
    again, _ = networks()
    resumed = FlatAdam(list(again.parameters()), torch.tensor(1e-2, device=DEVICE), **OPTIONS)
    resumed.load_state_dict({**resumed.state_dict(), "state": stored(plain)})
    again.load_state_dict(ours.state_dict())
    for network, optimizer in ((ours, flat), (theirs, plain), (again, resumed)):
        set_gradients(network, 7)
        optimizer.step()
    for one, two, three in zip(ours.parameters(), theirs.parameters(), again.parameters(), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-6)
        assert torch.equal(one, three)


@runs_kernels
def test_leading_parameters_are_cast_and_take_gradients_of_that_type():
    ours, theirs = networks()
    leading = [ours[1].weight, ours[3].weight]  # with parameters of other sizes before and in between
    rate = torch.tensor(1e-2, device=DEVICE)
    flat = FlatAdam(list(ours.parameters()), rate, leading, **OPTIONS)
    plain = torch.optim.Adam(theirs.parameters(), lr=1e-2, **OPTIONS)
    first = {id(parameter) for parameter in leading}
    for step in range(4):
        for copy_of, parameter in zip(flat.cast(torch.bfloat16), leading, strict=True):
            assert copy_of.is_leaf
            assert copy_of.requires_grad
            assert copy_of.stride() == parameter.stride()
            assert torch.equal(copy_of, parameter.to(torch.bfloat16))
        set_gradients(ours, step)
        gradients = [
            parameter.grad.to(torch.bfloat16) if id(parameter) in first else parameter.grad
            for parameter in ours.parameters()
        ]
        flat.take(gradients, rate)
        for parameter, gradient in zip(theirs.parameters(), gradients, strict=True):
            parameter.grad = gradient.float()
        plain.step()
    for found, expected in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


@runs_kernels
def test_a_gradient_for_each_parameter():
    network, _ = networks()
    flat = FlatAdam(list(network.parameters()), torch.tensor(1e-2, device=DEVICE))
    with pytest.raises(ValueError, match="gradients: expected 6, got 0"):
        flat.step()


def test_parameters_begin_at_whole_256_bytes():
    network, _ = networks()
    before = [parameter.detach().clone() for parameter in network.parameters()]
    flat = FlatAdam(list(network.parameters()), torch.tensor(1e-2, device=DEVICE), [network[3].weight])
    assert network[3].weight.data_ptr() == flat.flat.data_ptr()
    for parameter, kept in zip(network.parameters(), before, strict=True):
        assert (parameter.data_ptr() - flat.flat.data_ptr()) % 256 == 0
        assert torch.equal(parameter, kept)


@needs_compiler
def test_compile_for_a_gpu(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    kernel = adam.adam_kernel
    tensors = ("parameters", "others", "means", "squares", "step", "rate")
    numbers = ("first", "second", "first_log", "second_log", "decay", "least")
    types = dict.fromkeys(tensors, "*fp32") | dict.fromkeys(numbers, "fp32")
    whole = {"split": "i32", "count": "i32"}
    for leading in ("*fp32", "*bf16"):
        compile_for_a_gpu(kernel, {**types, **whole, "leading": leading}, {"BLOCK": 1024})
