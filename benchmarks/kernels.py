"""The three GPU kernels of a training step at the papers' setting: time of each, and what it reaches.

n = 50, n' = 20, about 50 records, d = 784 + 10, c_m with m = 1, λ = 0.05. Times are of replays of a CUDA
graph that holds many launches. Beside it: the plain path (float64, a host loop), and GeomLoss where it is
installed. Needs a CUDA device and Triton; a kernel that does not compile is reported in full, the rest runs.

    python benchmarks/kernels.py
    python benchmarks/kernels.py --iterations 60 78 120 --relaxation 1.74 1.77 --counts 43 50 58 70
"""

from __future__ import annotations

import argparse
import statistics
import time
import traceback
import warnings
from collections.abc import Callable

import torch
from torch import Tensor

from dpsinkhorn.kernels.launch import available
from dpsinkhorn.kernels.transport import Schedule, Step, eq6_gradient
from dpsinkhorn.ot import L1L2, Problem, solve
from graph_time import microseconds
from workloads import CLASSES, LABEL_WEIGHT, images, synthetic_images

REGULARIZATION, GENERATED, RESAMPLED = 0.05, 50, 20
COST = {"absolute": 1.0, "classes": CLASSES, "label_cost": LABEL_WEIGHT**2 + LABEL_WEIGHT}
LAUNCHES = 50  # in a graph


def clouds(total: int, seed: int, blur: float) -> tuple[Tensor, Tensor]:
    """Images and labels; smooth noise and random classes where scikit-learn is missing."""
    try:
        both = images(total, seed, blur)
    except ImportError:
        labels = torch.randint(0, CLASSES, (total,), generator=torch.Generator().manual_seed(seed))
        return synthetic_images(total, seed), labels
    return both[:, :-CLASSES].contiguous(), both[:, -CLASSES:].argmax(1)


def make_step(count: int, capacity: int, seed: int, blur: float) -> Step:
    x, labels = (part.cuda() for part in clouds(GENERATED + RESAMPLED, seed, blur))
    y, y_labels = (part.cuda() for part in clouds(capacity, seed + 1000, 0.0))
    y[count:] = float("nan")
    number = torch.tensor([count], dtype=torch.int32, device="cuda")
    return Step(x, labels, y, y_labels, number, RESAMPLED, **COST)


def report(name: str, launch: Callable[[], object]) -> None:
    """Print the time, or the error in full."""
    try:
        print(f"  {name:44s} {microseconds(launch, LAUNCHES):9.1f} µs", flush=True)
    except Exception:
        print(f"  {name:44s} FAILED", flush=True)
        traceback.print_exc()


def exact(step: Step) -> tuple[Tensor, float]:
    """The plain path's gradient of Eq. 6, in float64, and its time in ms."""
    count, n = int(step.count), step.rows
    assert step.labels is not None
    assert step.y_labels is not None

    def with_labels(points: Tensor, labels: Tensor) -> Tensor:
        onehot = torch.nn.functional.one_hot(labels, CLASSES) * LABEL_WEIGHT
        return torch.cat([points, onehot], dim=1).double()

    x, y = with_labels(step.x, step.labels), with_labels(step.y[:count], step.y_labels[:count])
    torch.cuda.synchronize()
    started = time.perf_counter()
    gradient = torch.zeros_like(x)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        own = solve(Problem(x[:n], x[step.resampled :], L1L2(1.0)), REGULARIZATION, tolerance=1e-6)
        first, second = own.gradients()
        gradient[:n] -= first
        gradient[step.resampled :] -= second
        if count:
            cross = solve(Problem(x[:n], y, L1L2(1.0)), REGULARIZATION, tolerance=1e-6)
            gradient[:n] += 2 * cross.gradients(wrt_y=False)[0]
    torch.cuda.synchronize()
    return gradient[:, : step.x.shape[1]], (time.perf_counter() - started) * 1e3


def geomloss(step: Step) -> None:
    try:
        from geomloss import SamplesLoss
    except ImportError:
        print("  GeomLoss is not installed")
        return

    def cost(a: Tensor, b: Tensor) -> Tensor:
        difference = a.unsqueeze(-2) - b.unsqueeze(-3)
        return difference.square().sum(-1) + difference.abs().sum(-1)

    loss = SamplesLoss("sinkhorn", p=1, cost=cost, blur=REGULARIZATION, debias=False, backend="tensorized")
    times = []
    for _ in range(10):
        x = step.x.clone().requires_grad_()
        torch.cuda.synchronize()
        started = time.perf_counter()
        n, count = step.rows, int(step.count)
        (2 * loss(x[:n], step.y[:count]) - loss(x[:n], x[step.resampled :])).backward()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - started)
    print(f"  {'GeomLoss, eager, same step without labels':44s} {statistics.median(times) * 1e6:9.1f} µs")


def launches(step: Step, schedule: Schedule, warps: list[int]) -> None:
    costs, plans = step.buffer(), step.buffer()
    errors, out = torch.empty(2, device="cuda"), torch.empty_like(step.x)
    for number in warps:
        report(f"costs, {number} warps", lambda number=number: step.costs(costs, warps=number))
    for number in warps:

        def solve_both(number: int = number) -> None:
            step.plans(costs, REGULARIZATION, schedule, plans, errors, warps=number)

        report(f"plans, {schedule.iterations} iterations, {number} warps", solve_both)
    for number in warps:
        report(f"gradient, {number} warps", lambda number=number: step.gradient(plans, out, warps=number))
    report("all three", lambda: eq6_gradient(step, REGULARIZATION, schedule))


def accuracy(step: Step, reference: Tensor, schedule: Schedule) -> tuple[list[float], float]:
    """Marginal errors, and the gradient's distance from the exact one relative to its norm."""
    errors = torch.empty(2, device="cuda")
    got = eq6_gradient(step, REGULARIZATION, schedule, errors=errors)
    return errors.tolist(), float((got - reference).norm() / reference.norm())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--iterations", type=int, nargs="+", default=[60, 100, 160, 400])
    parser.add_argument("--relaxation", type=float, nargs="+", default=[1.77])
    parser.add_argument("--counts", type=int, nargs="+", default=[43, 50, 53, 58, 70])
    parser.add_argument("--capacity", type=int, default=128)
    parser.add_argument("--warps", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument(
        "--blur", type=float, default=0.3, help="how like their mean the generated images are"
    )
    parser.add_argument("--seeds", type=int, default=5)
    arguments = parser.parse_args()
    if not torch.cuda.is_available() or not available("cuda"):
        parser.exit(2, "needs a CUDA device and Triton\n")

    import triton

    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, Triton {triton.__version__}")
    for capacity in sorted({64, arguments.capacity}):
        step = make_step(50, capacity, 0, arguments.blur)
        print(f"time of a launch, 50 records in room for {capacity}")
        launches(step, Schedule(), arguments.warps)
    geomloss(step)

    print("accuracy (median and largest over seeds): error of the cross plan, of the self plan, gradient")
    for count in arguments.counts:
        steps = [
            make_step(count, arguments.capacity, seed, arguments.blur) for seed in range(arguments.seeds)
        ]
        references = [exact(step) for step in steps]
        fastest = min(milliseconds for _, milliseconds in references)
        print(f" {count} records (the plain path: {fastest:.0f} ms)")
        for iterations in arguments.iterations:
            for relaxation in arguments.relaxation:
                schedule = Schedule(max(1, iterations * 5 // 6), iterations, relaxation)
                name = f"{iterations} iterations, relaxation {relaxation}"
                try:
                    rows = [
                        accuracy(step, reference, schedule)
                        for step, (reference, _) in zip(steps, references, strict=True)
                    ]
                except Exception:
                    print(f"  {name:36s} FAILED", flush=True)
                    traceback.print_exc()
                    continue
                columns = zip(*((errors[0], errors[1], distance) for errors, distance in rows), strict=True)
                cells = [f"{statistics.median(column):.4f} {max(column):.4f}" for column in columns]
                print(f"  {name:36s} " + " | ".join(cells), flush=True)


if __name__ == "__main__":
    main()
