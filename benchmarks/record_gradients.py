"""Sums of clipped per-record gradients in the weights of `flow`'s network: ours, Opacus, torch.func.

    pip install opacus
    python benchmarks/record_gradients.py --records 512
    python benchmarks/record_gradients.py --records 4096 --draws 4 --profile   # ours alone, as trained
    python benchmarks/record_gradients.py --count                              # operations and bytes by layer

One draw for each record, since Opacus knows no other, all in bfloat16 on a GPU and float32 on a CPU. A JSON
line each: milliseconds (median of `--times`), peak memory, how far the sum is from torch.func's in float32,
relative to its norm, and beside ours what counting operations says is needed. With more draws all
are held against ours. Ours comes twice: as it is, and with cuDNN's own search for the fastest
convolutions. `--profile` lists its kernels.
"""

from __future__ import annotations

import argparse
import copy
import importlib.util
import json
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.profiler import ProfilerActivity

from dpsinkhorn.generators import Flow, FlowConfig
from dpsinkhorn.kernels import pixel_norm
from dpsinkhorn.mechanisms.shared import record_gradients
from dpsinkhorn.mechanisms.shared.record_gradients import Drawn, RecordGradients, flow_loss
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
    parser.add_argument("--draws", type=int, default=1, help="K; with more than one there are no peers")
    parser.add_argument("--profile", action="store_true", help="list the kernels of ours")
    parser.add_argument("--count", action="store_true", help="count operations and bytes, and run nothing")
    parser.add_argument(
        "--others",
        type=Path,
        nargs="*",
        default=[],
        help="files of other `products` and `add_on_grid`, run beside",
    )
    arguments = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    flow = made_up(
        FlowConfig(image_shape=(1, arguments.side, arguments.side), classes=10, channels=arguments.channels)
    )
    if arguments.count:
        count(flow, arguments.records, arguments.draws)
        return
    flow.to(device, memory_format=torch.channels_last)  # as in a training on a GPU
    inputs = drawn(arguments.records, arguments.draws, arguments.side, device)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    peers = arguments.draws == 1
    every = list(ways(flow, inputs, dtype, peers))
    precise = dict(ways(flow, inputs, torch.float32, peers))
    reference = precise["torch.func"]() if peers else every[0][1]()
    torch.cuda.empty_cache()
    every[1:1] = [(file.name, with_functions(file, every[0][1])) for file in arguments.others]
    for name, way in every:
        line: dict[str, Any] = {"device": device_name(device), "records": arguments.records}
        line |= {"draws": arguments.draws, "way": name}
        try:
            line |= measured(way, reference, device, arguments.times)
        except Exception as error:  # a peer that cannot is a finding
            line["failed"] = " ".join(str(error).split())[:200]
        if name == "ours" and device.type == "cuda":
            images = arguments.records * arguments.draws
            line["floor_ms"] = round(images * 3 * operations(flow, inputs) / _BFLOAT16 * 1e3, 2)
        print(json.dumps(line), flush=True)
    if arguments.profile:
        profile(every[0][1], device)


def made_up(config: FlowConfig) -> Flow:
    """A network none of whose gradients is 0."""
    torch.manual_seed(0)
    flow = Flow(config)
    for parameter in flow.parameters():
        nn.init.normal_(parameter, std=0.5 / parameter[0].numel() ** 0.5)
    return flow


def drawn(records: int, draws: int, side: int, device: torch.device) -> tuple[Tensor, ...]:
    """Images, labels, times and noises: of each record so many of the last two."""
    random = torch.Generator().manual_seed(0)
    images = torch.randn(records, 1, side, side, generator=random).clamp(-1, 1)
    noises = torch.randn(records * draws, 1, side, side, generator=random)
    labels, times = (
        torch.randint(10, (records,), generator=random),
        torch.rand(records, draws, generator=random),
    )
    return tuple(part.to(device) for part in (images, labels, times, noises))


def ways(
    flow: Flow, inputs: tuple[Tensor, ...], dtype: torch.dtype, peers: bool
) -> Iterator[tuple[str, Callable[[], Tensor]]]:
    """Functions that return the clipped sum, in the order of the parameters."""
    images, labels, times, noises = inputs
    count, draws = times.shape
    rows = torch.arange(count, device=images.device).unsqueeze(1).expand(-1, draws)
    engine = RecordGradients(flow, CLIP, 2**20, draws=draws, chunk=count, precision=dtype)
    plan = Drawn(rows, times, torch.arange(count * draws, device=images.device).view(count, draws))
    yield "ours", lambda: engine.clipped_sum(images, labels, plan, noises)

    def searched() -> Tensor:
        torch.backends.cudnn.benchmark = True
        try:
            return engine.clipped_sum(images, labels, plan, noises)
        finally:
            torch.backends.cudnn.benchmark = False

    yield "ours, convolutions searched for", searched
    if not peers:
        return
    inputs = images, labels, times.flatten(), noises
    times = inputs[2]
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


def with_functions(file: Path, way: Callable[[], Tensor]) -> Callable[[], Tensor]:
    """The same by the `products` and `add_on_grid` of another file."""
    found = importlib.util.spec_from_file_location("others", file)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)

    def run() -> Tensor:
        names = ("products", "add_on_grid")
        kept = {name: getattr(record_gradients, name) for name in names}
        try:
            for name in names:
                setattr(record_gradients, name, getattr(module, name))
            return way()
        finally:
            for name in names:
                setattr(record_gradients, name, kept[name])

    return run


def profile(way: Callable[[], Tensor], device: torch.device) -> None:
    """Print what takes the time."""
    kinds = [ProfilerActivity.CUDA if device.type == "cuda" else ProfilerActivity.CPU]
    with torch.profiler.profile(activities=kinds) as seen:
        way()
        wait(device)
    order = f"self_{device.type}_time_total"
    print(seen.key_averages().table(sort_by=order, row_limit=40, max_name_column_width=90))


def count(flow: Flow, records: int, draws: int) -> None:
    """Print, for every layer, what it must multiply and move in bfloat16, for all records together.

    Forward and backward through a convolution read and write its inputs and outputs once; the records'
    products read both once more and write a gradient for each record, which the sum reads.
    """
    seen: list[tuple[str, nn.Module, Tensor, Tensor]] = []
    for name, layer in flow.network.named_modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            layer.register_forward_hook(
                lambda layer, given, out, name=name: seen.append((name, layer, given[0], out))
            )
    with torch.no_grad():
        flow.network(
            *(part[:1] for part in drawn(1, 1, flow.config.image_shape[1], torch.device("cpu"))[:1]),
            torch.zeros(1),
            torch.zeros(1, dtype=torch.int64),
        )
    images, total = records * draws, dict.fromkeys(("operations", "activations", "gradients"), 0.0)
    print(f"{'layer':>24} {'GFLOP':>8} {'moved, MB':>10} {'gradients, MB':>14}")
    for name, layer, given, out in seen:
        weights = sum(parameter.numel() for parameter in layer.parameters())
        places = out[0].numel() // out.shape[1]
        own = {
            "operations": 6.0 * images * places * weights,
            "activations": 2.0 * images * 3 * (given[0].numel() + out[0].numel()),
            "gradients": 2.0 * 2 * records * weights,
        }
        total = {key: total[key] + own[key] for key in total}
        print(
            f"{name:>24} {own['operations'] / 1e9:8.0f} {own['activations'] / 1e6:10.0f} "
            f"{own['gradients'] / 1e6:14.0f}"
        )
    print(
        f"{'all':>24} {total['operations'] / 1e9:8.0f} {total['activations'] / 1e6:10.0f} "
        f"{total['gradients'] / 1e6:14.0f}"
    )


def operations(flow: Flow, inputs: tuple[Tensor, ...]) -> float:
    """Multiplications and additions of one image's way forward; back it takes twice as many."""
    from torch.utils.flop_counter import FlopCounterMode

    images, labels, times = inputs[0][:1], inputs[1][:1], inputs[2].flatten()[:1]
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        flow.network(images, times, labels)
    return float(counter.get_total_flops())


if __name__ == "__main__":
    main()
