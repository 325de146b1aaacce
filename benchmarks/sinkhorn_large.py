"""Large clouds: time and peak memory of stored and streamed solves, and of peers on a GPU.

    python benchmarks/sinkhorn_large.py --device cpu  --size 10000
    python benchmarks/sinkhorn_large.py --device cuda --size 60000 --points 1000000

Images of 784 pixels, and, on a GPU, points in three dimensions, at a λ relative to the mean cost. Every row
is a process of its own, which may take `--seconds`; `--only` names rows to run. Marginal errors are computed
from the potentials alone, for every library alike; of points, from 2,000 rows and as many columns. Peers on
the GPU (squared L2 only): flash-sinkhorn, and GeomLoss's online backend where KeOps runs. `parts:sqeuclidean`
times what a solve on a GPU is made of: the costs, an evaluation, a product with the Hessian.
"""

from __future__ import annotations

import json
import math
import resource
import subprocess
import sys
import time
from argparse import SUPPRESS, ArgumentParser, Namespace, RawDescriptionHelpFormatter
from typing import Any

import torch
from torch import Tensor

from dpsinkhorn.ot import L1L2, Cost, Problem, SquaredEuclidean, solve
from dpsinkhorn.ot.semidual import SemiDual
from workloads import synthetic_images

COSTS: dict[str, Cost] = {"sqeuclidean": SquaredEuclidean(), "l1l2": L1L2(1.0)}
ON_CPU = ["ours:sqeuclidean-streamed", "ours:l1l2-dense"]
ON_GPU = ["ours:sqeuclidean-auto", "ours:l1l2-auto", "ours:points-0.1", "ours:points-0.01"]
SAMPLE = 2000


def marginal_error(x: Tensor, y: Tensor, f: Tensor, g: Tensor, cost: Cost, regularization: float) -> float:
    """The error of all rows and columns, or, of many, what so many of each promise."""
    return sum(
        _error_of_rows(*sides, cost, regularization) for sides in ((x, y, f, g), (y, x, g, f))
    )  # costs here are symmetric


def _error_of_rows(x: Tensor, y: Tensor, f: Tensor, g: Tensor, cost: Cost, regularization: float) -> float:
    n, m = len(x), len(y)
    rows = torch.arange(n, device=x.device)
    if n > 100_000:
        rows = torch.randperm(n, generator=torch.Generator().manual_seed(0))[:SAMPLE].to(x.device)
    error = 0.0
    size = max(1, 2**26 // m)
    for block in (rows[at : at + size] for at in range(0, len(rows), size)):
        exponent = (f[block, None].double() + g.double() - cost.pairwise(x[block], y)) / regularization
        error += float((exponent.exp_().sum(1) / m - 1).abs().sum())
    return error / len(rows)


def ours(x: Tensor, y: Tensor, regularization: float, tolerance: float, cost: Cost, storage: Any) -> Any:
    result = solve(Problem(x, y, cost), regularization, tolerance=tolerance, storage=storage)
    return result.f, result.g, f"{result.iterations} evaluations"


def flash(x: Tensor, y: Tensor, regularization: float, scaling: float, tf32: bool) -> Any:
    from flash_sinkhorn import SamplesLoss

    loss = SamplesLoss(blur=math.sqrt(regularization), scaling=scaling, potentials=True, allow_tf32=tf32)
    f, g = loss(x, y)
    return f, g, f"scaling {scaling}, {'tf32' if tf32 else 'float32'}"


def geomloss_online(x: Tensor, y: Tensor, regularization: float, scaling: float) -> Any:
    from geomloss import SamplesLoss

    # GeomLoss's cost at p = 2 is half the square: λ on ours is blur^2 = λ / 2 on theirs.
    blur = math.sqrt(regularization / 2)
    loss = SamplesLoss(
        "sinkhorn", p=2, blur=blur, scaling=scaling, debias=False, potentials=True, backend="online"
    )
    f, g = loss(x, y)
    return 2 * f.flatten(), 2 * g.flatten(), f"scaling {scaling}"


def points(count: int, device: str) -> tuple[Tensor, Tensor]:
    """Two normal clouds in three dimensions, one of them shifted and smaller."""
    random = torch.Generator().manual_seed(0)
    x, y = torch.randn(count, 3, generator=random), torch.randn(count, 3, generator=random)
    return x.to(device), (0.8 * y + 0.3).to(device)


def parts(x: Tensor, y: Tensor, regularization: float, cost: Cost, stored: bool) -> dict[str, Any]:
    """Seconds of the parts of a solve, and the rate at which an evaluation's two passes read the costs."""
    start = torch.zeros(len(y), dtype=torch.float64, device=x.device)

    def timed(call: Any) -> tuple[float, Any]:
        out = call()
        torch.cuda.synchronize()
        begun = time.perf_counter()
        out = call()
        torch.cuda.synchronize()
        return time.perf_counter() - begun, out

    note = []
    for rounding in (0.1, 0.0):  # exponents in float32, and in float64
        costs, dual = timed(
            lambda rounding=rounding: SemiDual(
                Problem(x, y, cost), stored=stored, work=torch.float32, kernel_limit=0, rounding=rounding
            )
        )
        evaluation, point = timed(lambda dual=dual: dual.evaluate(start, regularization))
        product, _ = timed(lambda point=point: point.curvature.times(point.residual))
        rate = 8e-9 * len(x) * len(y) / evaluation
        note.append(
            f"costs {costs:.3f}, evaluation {evaluation:.4f} ({rate:.0f} GB/s), product {product:.4f}"
        )
        del dual, point
    return {
        "seconds": 0.0,
        "peak_mb": torch.cuda.max_memory_allocated() / 2**20,
        "error": 0.0,
        "note": "; ".join(note),
    }


def run(name: str, arguments: Namespace) -> dict[str, Any]:
    method, _, variant = name.partition(":")
    what, _, how = variant.partition("-")
    cost, regularization, tolerance = (
        COSTS.get(what, COSTS["sqeuclidean"]),
        arguments.regularization,
        arguments.tolerance,
    )
    if what == "points":
        x, y = points(arguments.points, arguments.device)
        means = x.mean(0) - y.mean(0)
        mean = x.var(0).sum() + y.var(0).sum() + means.square().sum()
        regularization, how = float(how) * float(mean), "auto"
    else:
        x, y = (synthetic_images(arguments.size, seed, arguments.device) for seed in (0, 1))
    if method == "parts":
        return {"name": name, **parts(x, y, regularization, cost, stored=what != "points")}
    calls: dict[str, Any] = {
        "ours": lambda x, y: ours(x, y, regularization, tolerance, cost, how),
        "flash-sinkhorn": lambda x, y: flash(x, y, regularization, float(what), how == "tf32"),
        "geomloss-online": lambda x, y: geomloss_online(x, y, regularization, float(what)),
    }
    cuda = arguments.device == "cuda"
    if cuda:
        warm_up(calls[method], x, y, method == "ours", what == "points", cost, regularization, tolerance)
    print("begun", file=sys.stderr, flush=True)
    start = time.perf_counter()
    f, g, note = calls[method](x, y)
    if cuda:
        torch.cuda.synchronize()
    seconds = time.perf_counter() - start
    print(f"{name}: {seconds:.2f} s, {note}", file=sys.stderr, flush=True)
    if cuda:
        peak = torch.cuda.max_memory_allocated() / 2**20
    else:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    error = marginal_error(x, y, f.flatten(), g.flatten(), cost, regularization)
    return {"name": name, "seconds": seconds, "peak_mb": peak, "error": error, "note": note}


def warm_up(
    call: Any,
    x: Tensor,
    y: Tensor,
    own: bool,
    streamed: bool,
    cost: Cost,
    regularization: float,
    tolerance: float,
) -> None:
    """Compile and tune kernels, which peers do per size."""
    if not own:
        call(x, y)
    else:
        few = x[:4096], y[:4096]
        for storage in ("dense", "streamed") if streamed else ("dense",):
            ours(*few, regularization, tolerance, cost, storage)
            ours(*few, regularization, 1e-5, cost, storage)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()


def main() -> None:
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--size", type=int, default=10_000)
    parser.add_argument("--points", type=int, default=1_000_000)
    parser.add_argument("--regularization", type=float, default=1.0)
    parser.add_argument("--tolerance", type=float, default=1e-2)
    parser.add_argument("--seconds", type=float, default=600.0, help="that a row may take, all in all")
    parser.add_argument("--only", nargs="+", help="names of rows to run")
    parser.add_argument("--row", help=SUPPRESS)
    arguments = parser.parse_args()
    if arguments.row:
        print(json.dumps(run(arguments.row, arguments)))
        return
    print(f"{arguments.size} x {arguments.size}, d = 784, λ = {arguments.regularization}, {arguments.device}")
    print(f"{'':28s}{'time':>10s}{'peak':>10s}{'error':>10s}")
    for name in arguments.only or (ON_GPU if arguments.device == "cuda" else ON_CPU):
        begun = time.perf_counter()
        try:
            done = subprocess.run(
                [sys.executable, __file__, *sys.argv[1:], "--row", name],
                stdout=subprocess.PIPE,
                text=True,
                check=False,
                timeout=arguments.seconds,
            )
        except subprocess.TimeoutExpired:
            print(f"{name:28s} took more than {arguments.seconds:.0f} s", flush=True)
            continue
        if done.returncode:
            print(f"{name:28s} did not run: see above", flush=True)
            continue
        row = json.loads(done.stdout.splitlines()[-1])
        print(
            f"{name:28s}{row['seconds']:8.2f} s{row['peak_mb']:7.0f} MB{row['error']:10.1e}  {row['note']}, "
            f"{time.perf_counter() - begun:.0f} s with the start",
            flush=True,
        )


if __name__ == "__main__":
    main()
