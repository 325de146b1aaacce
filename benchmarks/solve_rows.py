"""One transport problem with its rows on one rank and on several: processor time, bytes, memory.

python benchmarks/solve_rows.py 3000
torchrun --nproc-per-node 2 benchmarks/solve_rows.py 3000
"""

from __future__ import annotations

import os
import resource
import sys
import time

import torch

from dpsinkhorn.ot import Problem, solve, solve_rows

DIMENSION, REGULARIZATION = 64, 0.1  # costs are about 10

points = int(sys.argv[1])
rank, count = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
torch.set_num_threads(1)
random = torch.Generator().manual_seed(0)
x, y = (torch.rand(points, DIMENSION, generator=random) for _ in range(2))
started = time.process_time()
if count == 1:
    found = solve(Problem(x, y), REGULARIZATION, storage="streamed")
    value, error = float(found.value), float(found.marginal_error)
else:
    found = solve_rows(x[rank * points // count : (rank + 1) * points // count], y, REGULARIZATION)
    value, error = found.value, found.marginal_error
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(
    f"rank {rank} of {count}: {points} x {points}, d = {DIMENSION}: value {value:.6f}, error {error:.1e}, "
    f"{found.iterations} evaluations, {time.process_time() - started:.1f} s of a core, {peak:.0f} MiB",
    flush=True,
)
