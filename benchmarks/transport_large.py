"""Time and memory of the direct private cost on large clouds: `python benchmarks/transport_large.py`."""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from argparse import ArgumentParser

import numpy as np

DIMENSIONS = (2, 5, 10)


def measure(n: int, d: int, quantity: str) -> None:
    from dpsinkhorn.transport import private_cost

    rng = np.random.default_rng(d)
    x, y = rng.random((n, d)), rng.random((n, d)) ** 1.5
    bound = float(d)
    start = time.perf_counter()
    found = private_cost(
        x,
        y,
        epsilon=1,
        cost_bound=bound,
        regularization=0.05 * bound,
        debiased=quantity == "divergence",
    )
    seconds = time.perf_counter() - start
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"{quantity:<11} n {n:>6}  d {d:>3}  {seconds:6.1f} s  {memory:6.0f} MiB  "
        f"cost/bound {found.cost / bound:.4f}  predicted error/bound {found.predicted_error / bound:.1e}",
        flush=True,
    )


def main() -> None:
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--points", type=int, default=10_000)
    parser.add_argument("--dimension", type=int, help="of one measurement, in this process")
    parser.add_argument("--quantity", choices=("entropic", "divergence"), default="entropic")
    options = parser.parse_args()
    if options.dimension:
        measure(options.points, options.dimension, options.quantity)
        return
    for d in DIMENSIONS:  # a process each, so that its peak memory is its own
        command = [sys.executable, __file__, "--points", str(options.points), "--dimension", str(d)]
        subprocess.run([*command, "--quantity", options.quantity], check=True)


if __name__ == "__main__":
    main()
