"""BatchNorm and activation in training, fused against PyTorch's own, for the DCGAN's three layers.

Forward and backward are captured in a CUDA graph together, and each apart; times are of replays. Beside
them: the bytes that must move (8 times the images), at the speed that a plain copy of them reaches here, and
how far both ways are from float64. Needs a CUDA device and Triton; what does not compile or run is reported
in full, the rest runs.

    python benchmarks/norms.py
    python benchmarks/norms.py --images 500 --sums 8192/16/132 4096/8/264 --gradient 4096/8/264 4096/8/528
"""

from __future__ import annotations

import argparse
import copy
import functools
import itertools
import sys
import traceback
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from dpsinkhorn.kernels.launch import available
from dpsinkhorn.kernels.norm import Cut, Tiling, fused_norm
from graph_time import microseconds

LAYERS = [(256, 7, 7), (128, 14, 14), (64, 28, 28)]
KINDS = {"float32": torch.float32, "bfloat16": torch.bfloat16}
PASSES = 10  # in a graph
SLOPE = 0.2

Way = Callable[[Tensor, nn.BatchNorm2d], Tensor]


def plain(x: Tensor, norm: nn.BatchNorm2d) -> Tensor:
    return functional.leaky_relu(norm(x), SLOPE)


def both(way: Way, x: Tensor, norm: nn.BatchNorm2d, dy: Tensor) -> tuple[Tensor, ...]:
    """Output, and gradients of x, weight and bias."""
    y = way(x, norm)
    return (y.detach(), *torch.autograd.grad(y, [x, norm.weight, norm.bias], dy))


def forward(way: Way, x: Tensor, norm: nn.BatchNorm2d) -> None:
    with torch.no_grad():
        way(x, norm)


def distances(way: Way, x: Tensor, norm: nn.BatchNorm2d, dy: Tensor) -> list[float]:
    """Relative to float64, in the Euclidean norm: output, three gradients, running mean and variance."""
    own, exact = copy.deepcopy(norm), copy.deepcopy(norm).double()
    got = both(way, x, own, dy)
    wanted = both(plain, x.detach().double().requires_grad_(), exact, dy.double())
    got, wanted = (*got, *list(own.buffers())[:2]), (*wanted, *list(exact.buffers())[:2])
    if not torch.equal(own.num_batches_tracked, exact.num_batches_tracked):
        raise AssertionError("num_batches_tracked differs")
    return [float((a.double() - b).norm() / b.norm()) for a, b in zip(got, wanted, strict=True)]


def measure(name: str, way: Way, x: Tensor, norm: nn.BatchNorm2d, dy: Tensor) -> float | None:
    """Print times and distances, or the error in full; the time of both passes, None where it failed."""
    try:
        errors = distances(way, x, norm, dy)
        whole = microseconds(lambda: both(way, x, norm, dy), PASSES)
        first = microseconds(lambda: forward(way, x, norm), PASSES)
    except Exception:
        print(f"  {name:48s} FAILED", flush=True)
        traceback.print_exc(file=sys.stdout)
        return None
    off = " ".join(f"{error:.0e}" for error in errors)
    limit = 1e-2 if x.dtype == torch.bfloat16 else 1e-4
    bad = "" if max(errors) < limit else "  WRONG"
    print(f"  {name:48s} {whole:8.1f} µs, forward {first:8.1f} µs, off {off}{bad}", flush=True)
    return None if bad else whole


def cut(text: str) -> Cut:
    """From elements/warps/programs."""
    elements, warps, programs = map(int, text.split("/"))
    return Cut(elements, warps, programs)


def words(of: Cut) -> str:
    return f"{of.elements}/{of.warps}/{of.programs}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    default = Tiling()
    parser.add_argument("--images", type=int, nargs="+", default=[70, 500])
    parser.add_argument("--kinds", choices=KINDS, nargs="+", default=list(KINDS))
    for name in ("sums", "apply", "gradient"):
        own = [getattr(default, name)]
        parser.add_argument(f"--{name}", type=cut, nargs="+", default=own, metavar="ELEMENTS/WARPS/PROGRAMS")
    parser.add_argument("--channels", type=int, nargs="+", default=[default.channels])
    arguments = parser.parse_args()
    if not torch.cuda.is_available() or not available("cuda"):
        parser.exit(2, "needs a CUDA device and Triton\n")

    import triton

    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, Triton {triton.__version__}")
    print("off: output, gradients of x, weight, bias, running mean, running variance; relative to float64")
    tilings = [
        Tiling(*each)
        for each in itertools.product(arguments.sums, arguments.apply, arguments.gradient, arguments.channels)
    ]
    failed = False
    for kind, images in itertools.product(arguments.kinds, arguments.images):
        totals: dict[str, float] = {}
        for layer in LAYERS:
            x, dy = (
                torch.randn(images, *layer, device="cuda")
                .mul(2)
                .add(1)
                .to(KINDS[kind])
                .contiguous(memory_format=torch.channels_last)
                for _ in range(2)
            )
            x.requires_grad_()
            norm = nn.BatchNorm2d(layer[0]).cuda()
            nn.init.normal_(norm.weight)
            nn.init.normal_(norm.bias)
            to = torch.empty_like(dy)
            least = 4 * microseconds(functools.partial(to.copy_, dy), PASSES)  # a copy moves them twice
            print(f"{kind}, {images} x {list(layer)}; as copies of the same bytes {least:.1f} µs")
            ways: dict[str, Way] = {"PyTorch": plain}
            for tiling in tilings:
                cuts = " ".join(map(words, (tiling.sums, tiling.apply, tiling.gradient)))
                name = f"fused {cuts} x {tiling.channels}"
                ways[name] = functools.partial(fused_norm, slope=SLOPE, tiling=tiling)
            for name, way in ways.items():
                time = measure(name, way, x, norm, dy)
                failed |= time is None
                totals[name] = totals.get(name, 0.0) + (float("nan") if time is None else time)
        print(f"{kind}, {images} images, all three layers")
        for name, total in totals.items():
            print(f"  {name:48s} {total:8.1f} µs, {totals['PyTorch'] / total:.2f} times as fast as PyTorch")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
