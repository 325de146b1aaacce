"""Sums of clipped per-record gradients in the weights of `flow`'s network: ours, Opacus, torch.func.

    pip install opacus
    python benchmarks/record_gradients.py --records 512

One draw for each record, since Opacus knows no other, all in bfloat16 on a GPU and float32 on a CPU. A JSON
line each: milliseconds (median of `--times`), peak memory, how far the sum is from torch.func's in float32,
relative to its norm, and beside ours what counting operations says is needed.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from dpsinkhorn.generators import Flow, FlowConfig
from dpsinkhorn.kernels import pixel_norm
from dpsinkhorn.mechanisms.shared.draws import Drawn
from dpsinkhorn.mechanisms.shared.record_gradients import RecordGradients, flow_loss
from steps import device_name, wait

CLIP = 1.0
_BFLOAT16 = 9.9e14  # operations a second of an H200, by its data sheet


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--records", type=int, default=512)
    parser.add_argument("--channels", type=int, default=64)
    parser.add_argument("--side", type=int, default=28)
    parser.add_argument("--times", type=int, default=5)
    arguments = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    flow = made_up(
        FlowConfig(image_shape=(1, arguments.side, arguments.side), classes=10, channels=arguments.channels)
    )
    flow.to(device)
    inputs = drawn(arguments.records, arguments.side, device)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    reference = dict(ways(flow, inputs, torch.float32))["torch.func"]()
    for name, way in ways(flow, inputs, dtype):
        line: dict[str, Any] = {"device": device_name(device), "records": arguments.records, "way": name}
        try:
            line |= measured(way, reference, device, arguments.times)
        except Exception as error:  # a peer that cannot is a finding
            line["failed"] = " ".join(str(error).split())[:200]
        if name == "ours" and device.type == "cuda":
            line["floor_ms"] = round(arguments.records * 3 * operations(flow, inputs) / _BFLOAT16 * 1e3, 2)
        print(json.dumps(line), flush=True)


def made_up(config: FlowConfig) -> Flow:
    """A network none of whose gradients is 0."""
    torch.manual_seed(0)
    flow = Flow(config)
    for parameter in flow.parameters():
        nn.init.normal_(parameter, std=0.5 / parameter[0].numel() ** 0.5)
    return flow


def drawn(records: int, side: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Images, labels, times and noises."""
    random = torch.Generator().manual_seed(0)
    images, noises = torch.randn(2, records, 1, side, side, generator=random)
    labels, times = torch.randint(10, (records,), generator=random), torch.rand(records, generator=random)
    return tuple(part.to(device) for part in (images.clamp(-1, 1), labels, times, noises))  # type: ignore[return-value]


def ways(
    flow: Flow, inputs: tuple[Tensor, ...], dtype: torch.dtype
) -> Iterator[tuple[str, Callable[[], Tensor]]]:
    """Functions that return the clipped sum, in the order of the parameters."""
    images, labels, times, noises = inputs
    count = len(images)
    rows = torch.arange(count, device=images.device).unsqueeze(1)
    engine = RecordGradients(flow, CLIP, 2**20, draws=1, chunk=count, precision=dtype)
    plan = Drawn(rows, times.unsqueeze(1), rows)
    yield "ours", lambda: engine.clipped_sum(images, labels, plan, noises)

    network = flow.network
    weights = {name: parameter.detach() for name, parameter in network.named_parameters()}
    reduced = torch.autocast(images.device.type, dtype, enabled=dtype != torch.float32)

    def loss_of_one(weights: dict[str, Tensor], *one: Tensor) -> Tensor:
        image, label, at, noise = (part.unsqueeze(0) for part in one)
        return flow_loss(lambda *given: functional_call(network, weights, given), image, label, at, noise)[0]

    def by_func() -> Tensor:
        with plain_norms(), reduced:
            found = vmap(grad(loss_of_one), in_dims=(None, 0, 0, 0, 0))(weights, *inputs)
        return clipped([found[name] for name in weights])

    yield "torch.func", by_func
    try:
        from opacus.grad_sample import GradSampleModule
        from opacus.grad_sample.grad_sample_module_fast_gradient_clipping import (
            GradSampleModuleFastGradientClipping,
        )
    except ImportError:
        return
    channels_first = copy.deepcopy(network)
    for layer in channels_first.modules():
        if isinstance(layer, nn.Conv2d):  # with channels last Opacus 1.6 reads the wrong numbers
            layer.register_forward_pre_hook(lambda _, given: (given[0].contiguous(),))
    hooked = GradSampleModule(copy.deepcopy(channels_first), loss_reduction="sum")

    def by_hooks() -> Tensor:
        hooked.zero_grad()
        with plain_norms(), reduced:
            flow_loss(hooked, images, labels, times, noises).sum().backward()
        return clipped([parameter.grad_sample for parameter in hooked.parameters()])

    yield "Opacus, hooks", by_hooks
    ghost = GradSampleModuleFastGradientClipping(
        channels_first, loss_reduction="sum", max_grad_norm=CLIP, use_ghost_clipping=True
    )

    def by_ghosts() -> Tensor:
        ghost.zero_grad()
        ghost.enable_hooks()
        with plain_norms():
            with reduced:
                losses = flow_loss(ghost, images, labels, times, noises)
            losses.sum().backward(retain_graph=True)
            ghost.disable_hooks()
            factors = (CLIP / ghost.get_norm_sample()).clamp(max=1.0)
            ghost.zero_grad()
            (factors * losses).sum().backward()
        return torch.cat([parameter.grad.flatten().double() for parameter in ghost.parameters()])

    yield "Opacus, ghost clipping", by_ghosts


@contextmanager
def plain_norms() -> Iterator[None]:
    """Within it norms are computed without kernels, through which peers cannot differentiate."""
    kept = pixel_norm.available
    pixel_norm.available = lambda device: False  # noqa: ARG005
    try:
        yield
    finally:
        pixel_norm.available = kept


def clipped(parts: list[Tensor]) -> Tensor:
    """The sum of rows, (b, ...) of every parameter, each row clipped."""
    squares = sum(part.flatten(1).float().square().sum(1) for part in parts)
    factors = (CLIP / torch.as_tensor(squares).sqrt()).clamp(max=1.0)
    return torch.cat(
        [torch.einsum("b,b...->...", factors, part.float()).flatten() for part in parts]
    ).double()


def measured(
    way: Callable[[], Tensor], reference: Tensor, device: torch.device, times: int
) -> dict[str, Any]:
    """Milliseconds, memory, and the distance to the reference."""
    found = way()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    taken = []
    for _ in range(times):
        wait(device)
        started = time.perf_counter()
        way()
        wait(device)
        taken.append(time.perf_counter() - started)
    line = {"ms": round(statistics.median(taken) * 1e3, 2)}
    if device.type == "cuda":
        line["peak_mb"] = round(torch.cuda.max_memory_allocated() / 2**20)
    return line | {"apart": float(f"{float((found - reference).norm() / reference.norm()):.2g}")}


def operations(flow: Flow, inputs: tuple[Tensor, ...]) -> float:
    """Multiplications and additions of one image's way forward; back it takes twice as many."""
    from torch.utils.flop_counter import FlopCounterMode

    images, labels, times, _ = (part[:1] for part in inputs)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        flow.network(images, times, labels)
    return float(counter.get_total_flops())


if __name__ == "__main__":
    main()
