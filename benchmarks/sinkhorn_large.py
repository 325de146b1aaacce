"""Large clouds: time and peak memory of streamed and stored solves, and of peers on a GPU.

    python benchmarks/sinkhorn_large.py --device cpu  --size 10000
    python benchmarks/sinkhorn_large.py --device cuda --size 60000

Images of 784 pixels. Marginal errors are computed from the potentials alone, for every library alike.
Peers on the GPU (squared L2 only): flash-sinkhorn, and GeomLoss's online backend where KeOps runs.
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
from workloads import synthetic_images

COSTS: dict[str, Cost] = {"sqeuclidean": SquaredEuclidean(), "l1l2": L1L2(1.0)}


def marginal_error(x: Tensor, y: Tensor, f: Tensor, g: Tensor, cost: Cost, regularization: float) -> float:
    n, m = len(x), len(y)
    rows, columns = [], torch.zeros(m, dtype=torch.float64, device=x.device)
    for at in range(0, n, 1000):
        block = slice(at, at + 1000)
        exponent = (f[block, None].double() + g.double() - cost.pairwise(x[block], y)) / regularization
        plan = exponent.exp_() / (n * m)
        rows.append(plan.sum(1))
        columns += plan.sum(0)
    return float((torch.cat(rows) - 1 / n).abs().sum() + (columns - 1 / m).abs().sum())


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


def run(name: str, arguments: Namespace) -> dict[str, Any]:
    x, y = (synthetic_images(arguments.size, seed, arguments.device) for seed in (0, 1))
    regularization, tolerance = arguments.regularization, arguments.tolerance
    method, _, variant = name.partition(":")
    cost = COSTS["l1l2" if variant.startswith("l1l2") else "sqeuclidean"]
    calls: dict[str, Any] = {
        "ours": lambda x, y: ours(x, y, regularization, tolerance, cost, variant.rpartition("-")[2]),
        "flash-sinkhorn": lambda x, y: flash(
            x, y, regularization, float(variant.split("-")[0]), "tf32" in variant
        ),
        "geomloss-online": lambda x, y: geomloss_online(x, y, regularization, float(variant)),
    }
    cuda = arguments.device == "cuda"
    if cuda:
        # compiles and tunes kernels, which peers do per size
        calls[method](*((x[:512], y[:512]) if method == "ours" else (x, y)))
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    start = time.perf_counter()
    f, g, note = calls[method](x, y)
    if cuda:
        torch.cuda.synchronize()
    seconds = time.perf_counter() - start
    if cuda:
        peak = torch.cuda.max_memory_allocated() / 2**20
    else:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    error = marginal_error(x, y, f.flatten(), g.flatten(), cost, regularization)
    return {"name": name, "seconds": seconds, "peak_mb": peak, "error": error, "note": note}


def main() -> None:
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--size", type=int, default=10_000)
    parser.add_argument("--regularization", type=float, default=1.0)
    parser.add_argument("--tolerance", type=float, default=1e-2)
    parser.add_argument("--only", nargs="+", help="names of rows to run")
    parser.add_argument("--row", help=SUPPRESS)
    arguments = parser.parse_args()
    if arguments.row:
        print(json.dumps(run(arguments.row, arguments)))
        return
    names = ["ours:sqeuclidean-streamed", "ours:l1l2-dense"]
    if arguments.device == "cuda":
        names = [
            "ours:sqeuclidean-streamed",
            "flash-sinkhorn:0.9-tf32",
            "flash-sinkhorn:0.9-float32",
            "geomloss-online:0.9",
        ]
    print(f"{arguments.size} x {arguments.size}, d = 784, λ = {arguments.regularization}, {arguments.device}")
    print(f"{'':28s}{'time':>10s}{'peak':>10s}{'error':>10s}")
    for name in arguments.only or names:
        done = subprocess.run(
            [sys.executable, __file__, *sys.argv[1:], "--row", name],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            reason = (done.stderr.strip().splitlines() or ["killed"])[-1]
            print(f"{name:28s} did not run: {reason[:200]}", flush=True)
            continue
        row = json.loads(done.stdout.splitlines()[-1])
        print(
            f"{name:28s}{row['seconds']:8.2f} s{row['peak_mb']:7.0f} MB{row['error']:10.1e}  {row['note']}",
            flush=True,
        )


if __name__ == "__main__":
    main()
