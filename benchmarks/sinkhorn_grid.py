"""Loss and gradient over a grid of sizes, dimensions, regularizations and clouds, beside entropic peers.

Everyone goes from the same points x and y to the cost under |x - y|^2, entropic or <C, P>, and its gradient
in x, at the same λ (relative to the mean cost), to the same L1 error of the marginals: 1e-3 in float32, 1e-6
in float64. Errors are recomputed in float64 from everyone's plan. Who misses twice the error, or takes more
than `--patience` times our time, has failed. Peers are the ten lines of plain scaling below in torch, POT's
`sinkhorn` and, up to n = 200, `sinkhorn_log`, OTT-JAX up to n = 1,000 (compiled beforehand, 2,000 iterations
at most). POT stops by the L2 norm of what is wrong with a marginal, which is given so that the L1 norm is
right. POT's `emd`, exact transport, stands beside them.

`--exact` compares exact transport alone, twice: plan, value, potentials and gradient by `solve` and by POT's
`emd` in NumPy, and a loss with `backward()` by `transport_loss` and by POT's `emd2` on tensors.

They take turns in one process, on one thread, of at least 10 ms each. Times are seconds of the CPU, not of
the clock: whatever else the machine does then matters little.

    python benchmarks/sinkhorn_grid.py --patience 10 --output benchmarks/results/sinkhorn_grid.json
    python benchmarks/sinkhorn_grid.py --sizes 500 --dims 10
    python benchmarks/sinkhorn_grid.py --exact --sizes 50 100 200 500 1000 2000
    python benchmarks/sinkhorn_grid.py --show benchmarks/results/sinkhorn_grid.json
"""

from __future__ import annotations

import itertools
import json
import math
import os
import statistics
import time
import warnings
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1 inter_op_parallelism_threads=1",
)

import numpy as np
import torch
from torch import Tensor

from dpsinkhorn.ot import Problem, solve, transport_loss

KINDS = ("gaussian", "mixture", "heavy", "grid", "colours", "words", "digits")
RELATIVE = (1.0, 0.1, 0.01, 0.001, 0.0001)  # the last is about the papers'
TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-6}
ENTROPIC = ("ten lines", "POT", "POT log", "OTT")
TURNS, TURN_SECONDS = 5, 0.01
_PIVOTS = 10**8  # the default of POT stops short of the optimum from some 2,000 points on

Plan = Any  # (n, m), of any library
Entrant = Callable[[Tensor, Tensor, float, float, float], Plan]  # x, y, λ, tolerance, seconds at most


def clouds(kind: str, n: int, d: int, dtype: torch.dtype, seed: int) -> tuple[Tensor, Tensor]:
    """Two clouds of n points: the second one is shifted, and differs in shape."""
    rng = np.random.default_rng(seed)
    if kind == "gaussian":
        x, y = rng.normal(size=(n, d)), 0.8 * rng.normal(size=(n, d)) + 0.3
    elif kind == "mixture":
        centres = 3 * rng.normal(size=(2, 5, d))
        x, y = (centre[rng.integers(0, 5, n)] + 0.3 * rng.normal(size=(n, d)) for centre in centres)
    elif kind == "heavy":
        x, y = rng.standard_t(3, size=(n, d)), rng.standard_t(3, size=(n, d)) + 0.5
    elif kind == "grid":
        x, y = rng.integers(0, 16, size=(n, d)) / 15, rng.random((n, d)) ** 2
    elif kind == "colours":  # few levels, along a line from dark to light, many repeated
        light = rng.beta(2, (2, 4), size=(n, 2))
        x, y = (
            np.round(255 * (part[:, None] ** (1 + rng.random(d)) + 0.05 * rng.normal(size=(n, d)))) / 255
            for part in light.T
        )
    elif kind == "words":  # directions with a falling spectrum, some common to many, as in embeddings
        spectrum, shift = np.arange(1, d + 1) ** -0.5, rng.normal(size=(2, d)) / d**0.5
        x, y = (rng.normal(size=(n, d)) * spectrum + each for each in shift)
        x, y = (each / np.linalg.norm(each, axis=1, keepdims=True) for each in (x, y))
    else:  # ink on white: most coordinates are exactly 0
        strokes = rng.normal(size=(2, 12, d))
        x, y = (np.maximum(rng.normal(size=(n, 12)) @ each - 4, 0) / 4 for each in strokes)
    return torch.tensor(x, dtype=dtype), torch.tensor(y, dtype=dtype)


def ours(x: Tensor, y: Tensor, regularization: float, tolerance: float, seconds: float) -> Plan:  # noqa: ARG001
    points = x.clone().requires_grad_()
    transport_loss(points, y, regularization, tolerance=tolerance).backward()
    return lambda: solve(Problem(x, y), regularization, tolerance=tolerance).plan


def ours_exact(x: Tensor, y: Tensor, regularization: float, tolerance: float, seconds: float) -> Plan:  # noqa: ARG001
    result = solve(Problem(x, y), 0.0)
    result.gradients(wrt_y=False)
    return lambda: result.plan


def pot_backward(x: Tensor, y: Tensor, regularization: float, tolerance: float, seconds: float) -> Plan:  # noqa: ARG001
    import ot

    points = x.clone().requires_grad_()
    a, b = (torch.full((len(each),), 1 / len(each), dtype=x.dtype) for each in (x, y))
    ot.emd2(a, b, ot.dist(points, y), numItermax=_PIVOTS).backward()
    return lambda: ot.emd(a, b, ot.dist(x, y), numItermax=_PIVOTS)


def ten_lines(x: Tensor, y: Tensor, regularization: float, tolerance: float, seconds: float) -> Plan:
    """Plain scaling, as anyone would write it; every tenth time it looks at the error."""
    start, points = time.process_time(), x.clone().requires_grad_()
    squares = points.square().sum(1)[:, None] + y.square().sum(1)
    C = (squares - 2 * points @ y.T).clamp(min=0)
    K = torch.exp(-C.detach() / regularization)
    a, b = K.new_full((len(x),), 1 / len(x)), K.new_full((len(y),), 1 / len(y))
    v = torch.ones_like(b)
    for i in itertools.count(1):
        u = a / (K @ v)
        sums = K.T @ u
        if i % 10 == 0 and not (v * sums - b).abs().sum() > tolerance:
            break
        if i % 10 == 0 and time.process_time() - start > seconds:
            return None
        v = b / sums
    P = u[:, None] * K * v
    (P * C).sum().backward()
    return P


def by_pot(method: str) -> Entrant:
    def run(x: Tensor, y: Tensor, regularization: float, tolerance: float, seconds: float) -> Plan:
        import ot

        first, second = x.numpy(), y.numpy()
        C = ot.dist(first, second)
        a, b = (np.full(len(each), 1 / len(each), C.dtype) for each in (x, y))
        if method == "emd":
            P, found = ot.emd(a, b, C, log=True, numItermax=_PIVOTS)
            assert {"u", "v", "cost"} <= found.keys()  # potentials and value, as of ours
        else:
            most = max(20, int(seconds / (1e-9 * C.size * (2 if method == "sinkhorn" else 20))))
            P = ot.sinkhorn(
                a, b, C, regularization, method=method, stopThr=tolerance / len(b) ** 0.5, warn=False,
                numItermax=min(most, 5000),
            )  # fmt: skip
        _ = 2 * (P.sum(1, keepdims=True) * first - P @ second)
        return P

    return run


def by_ott() -> Entrant:
    import jax
    import jax.numpy as jnp
    from ott.geometry import pointcloud
    from ott.problems.linear import linear_problem
    from ott.solvers.linear import sinkhorn

    jax.config.update("jax_enable_x64", True)

    def loss(points: Any, y: Any, regularization: Any, threshold: float) -> Any:
        geometry = pointcloud.PointCloud(points, y, epsilon=regularization)
        solver = sinkhorn.Sinkhorn(threshold=threshold, max_iterations=2000)
        out = solver(linear_problem.LinearProblem(geometry))
        return out.reg_ot_cost, (out.f, out.g)

    step = jax.jit(jax.value_and_grad(loss, has_aux=True), static_argnums=3)

    def run(x: Tensor, y: Tensor, regularization: float, tolerance: float, seconds: float) -> Plan:  # noqa: ARG001
        (_, (f, g)), gradient = step(
            jnp.asarray(x.numpy()), jnp.asarray(y.numpy()), regularization, tolerance
        )
        gradient.block_until_ready()

        def plan() -> Tensor:
            potentials = (torch.from_numpy(np.array(each, np.float64)) for each in (f, g))
            first, second = potentials
            C = (x.double()[:, None] - y.double()).square().sum(-1) if x.shape[1] < 20 else None
            C = torch.cdist(x.double(), y.double()).square() if C is None else C
            return torch.exp((first[:, None] + second - C) / regularization)

        return plan

    return run


def error_of(plan: Plan) -> float:
    if plan is None:
        return float("inf")
    plan = plan() if callable(plan) else plan
    plan = torch.as_tensor(plan).double()
    n, m = plan.shape
    error = (plan.sum(0) - 1 / m).abs().sum() + (plan.sum(1) - 1 / n).abs().sum()
    return float(error) if torch.isfinite(error) else float("inf")


def timed(run: Callable[[], Plan]) -> tuple[float, Plan]:
    start = time.process_time()
    plan = run()
    return time.process_time() - start, plan


def cell(
    entrants: dict[str, Entrant], x: Tensor, y: Tensor, regularization: float, patience: float
) -> dict[str, Any]:
    """Medians of the seconds of everyone that reaches the error, in turns; None for who does not."""
    tolerance = TOLERANCE[x.dtype]
    entrants = dict(entrants)
    taken: dict[str, list[float]] = {}
    errors: dict[str, float] = {}
    timed(lambda: ours(x, y, regularization, tolerance, 0.0))
    limit = patience * max(timed(lambda: ours(x, y, regularization, tolerance, 0.0))[0], 1e-3)

    def run(entrant: Entrant) -> Plan:
        return entrant(x, y, regularization, tolerance, limit)

    for name, entrant in list(entrants.items()):  # who warms up, compiles, and gets there at all
        seconds, plan = timed(lambda e=entrant: run(e))
        errors[name] = error_of(plan)
        late = name in ENTROPIC and seconds > limit and timed(lambda e=entrant: run(e))[0] > limit
        if errors[name] > 2 * tolerance or late:
            del entrants[name]
    for turn in range(TURNS):
        for name, entrant in entrants.items():
            end = time.process_time() + TURN_SECONDS
            while len(taken.get(name, [])) <= turn or time.process_time() < end:
                seconds, _ = timed(lambda e=entrant: run(e))
                taken.setdefault(name, []).append(seconds)
    return {
        name: {"seconds": statistics.median(taken[name]) if name in taken else None, "error": errors[name]}
        for name in errors
    }


def main() -> None:
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[50, 200, 500, 1000, 2000])
    parser.add_argument("--rows", type=int, help="points of x; by default as many as of y")
    parser.add_argument("--dims", type=int, nargs="+", default=[2, 10, 784])
    parser.add_argument("--relative", type=float, nargs="+", default=RELATIVE)
    parser.add_argument(
        "--kinds", nargs="+", default=None, choices=KINDS, help="default: in turn, one a cell"
    )
    parser.add_argument("--exact", action="store_true")
    parser.add_argument("--no-ott", action="store_true")
    parser.add_argument("--patience", type=float, default=20.0)
    parser.add_argument("--output", type=Path)
    parser.add_argument(
        "--show", type=Path, nargs="+", help="run nothing; put the rows of these files together"
    )
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    summed_up = summary_of_exact if arguments.exact else summary
    if arguments.show:
        rows = [row for path in arguments.show for row in json.loads(path.read_text())]
        rows.sort(key=lambda row: (row["n"], row["d"]))
        if arguments.output:
            arguments.output.write_text("[\n" + ",\n".join(map(json.dumps, rows)) + "\n]\n")
        for row in rows:
            if (found := ratio(row)) is not None and found < 1 / 1.1:
                print(_line(row))
        summed_up(rows)
        return

    peers: dict[str, Entrant] = {
        "ten lines": ten_lines,
        "POT": by_pot("sinkhorn"),
        "POT log": by_pot("sinkhorn_log"),
    }
    if arguments.exact:
        arguments.relative, peers = (0.0,), {"POT emd2": pot_backward, "exact": ours_exact}
    elif not arguments.no_ott:
        try:
            peers["OTT"] = by_ott()
        except ImportError:
            print("OTT-JAX is not installed: without it")
    rows = []
    grid = itertools.product(
        arguments.sizes, arguments.dims, (torch.float32, torch.float64), arguments.relative
    )
    for count, (n, d, dtype, relative) in enumerate(grid):
        for kind in arguments.kinds or [KINDS[count % len(KINDS)]]:
            x, y = clouds(kind, n, d, dtype, seed=count)
            x = x[: arguments.rows]
            mean = float(x.double().square().sum(1).mean() + y.double().square().sum(1).mean())
            mean -= 2 * float(x.double().mean(0) @ y.double().mean(0))
            entrants = {"ours": ours, **peers, "POT emd": by_pot("emd")}
            if n > 200:
                entrants.pop("POT log", None)  # far behind everywhere, and slow to find that out
            if n > 1000:
                entrants.pop("OTT", None)
            if n > 2000 and len(x) > 2000:
                del entrants["POT emd"]  # takes a minute
            result = cell(entrants, x, y, relative * mean, arguments.patience)
            rows.append(
                {
                    "kind": kind,
                    "rows": len(x),
                    "n": n,
                    "d": d,
                    "dtype": str(dtype)[6:],
                    "relative": relative,
                    **result,
                }
            )
            print(_line(rows[-1]), flush=True)
            if arguments.output:
                arguments.output.write_text("[\n" + ",\n".join(map(json.dumps, rows)) + "\n]\n")
    summed_up(rows)


def ratio(row: dict[str, Any]) -> float | None:
    """The best entropic peer's time over ours; None where ours or all of them failed."""
    peers = [row[name]["seconds"] for name in ENTROPIC if name in row]
    reached = [seconds for seconds in peers if seconds is not None]
    if row["ours"]["seconds"] is None or not reached:
        return None
    return min(reached) / row["ours"]["seconds"]


def _line(row: dict[str, Any]) -> str:
    times = " ".join(
        f"{name} {value['seconds'] * 1e3:.2f}" if value["seconds"] is not None else f"{name} -"
        for name, value in row.items()
        if isinstance(value, dict)
    )
    found = ratio(row)
    return (
        f"{row['kind']:9s}{row['n']:5d} {row['d']:4d} {row['dtype']} {row['relative']:7.4f}  {times}"
        f"  | {'-' if found is None else f'{found:.2f}'}"
    )


def summary(rows: list[dict[str, Any]]) -> None:
    """By λ; where no peer got there its time counts as infinite."""
    for relative in sorted({row["relative"] for row in rows}, reverse=True):
        chosen = [row for row in rows if row["relative"] == relative]
        reached = [row for row in chosen if row["ours"]["seconds"] is not None]
        ratios = [ratio(row) or math.inf for row in reached]
        exact = [
            emd["seconds"] / row["ours"]["seconds"]
            for row in reached
            if (emd := row.get("POT emd")) is not None
        ]
        slower, alone = sum(found < 1 / 1.1 for found in ratios), ratios.count(math.inf)
        print(
            f"relative λ {relative}: best peer / ours, median {statistics.median(ratios):.2f}, least "
            f"{min(ratios):.2f}; below 1/1.1 in {slower} of {len(ratios)} cells; no peer in {alone}; "
            f"ours failed in {len(chosen) - len(reached)}; "
            f"emd / ours, median {statistics.median(exact or [math.nan]):.2f}"
        )


def summary_of_exact(rows: list[dict[str, Any]]) -> None:
    """Ours over POT's, without and with autograd."""
    for n in sorted({row["n"] for row in rows}):
        chosen = [row for row in rows if row["n"] == n]
        for mine, other in (("exact", "POT emd"), ("ours", "POT emd2")):
            found = [row[mine]["seconds"] / row[other]["seconds"] for row in chosen]
            print(f"n = {n}: {mine} / {other}, median {statistics.median(found):.2f}, most {max(found):.2f}")


if __name__ == "__main__":
    main()
