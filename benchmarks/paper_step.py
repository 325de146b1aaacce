"""The papers' training step, ours beside the same step in eager PyTorch with GeomLoss, in one run.

    python benchmarks/paper_step.py                       # on a GPU where there is one, else on the CPU
    python benchmarks/paper_step.py --output benchmarks/results/paper_step-h200.json

n = 50 generated images, p = 0.4, d = 784 and 10 one-hot entries, c_m with m = 1, λ = 0.05, a Poisson sample
of 50 records on average, DCGAN, Adam: `batch`. The eager step is written as the papers describe theirs:
GeomLoss (tensorized, default scaling), autograd, torch.randn for noise. Ours draws exact noise and samples
besides. Times are medians; marginal errors are L1 errors of the cross plan (GeomLoss: both marginals,
recomputed in float64; our kernels: the columns, the rows being exact).
"""

from __future__ import annotations

import json
import statistics
import time
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from dpsinkhorn.generators import build_generator
from dpsinkhorn.mechanisms.shared.base import GradientMechanism, Sample
from dpsinkhorn.mechanisms.shared.steps import FixedStep, Setting
from dpsinkhorn.ot import L1L2
from dpsinkhorn.training import Plan, facts_of, load_recipe, make_plan
from dpsinkhorn.training.records import Records
from dpsinkhorn.training.state import TrainingState
from dpsinkhorn.training.steps import make_steps
from steps import device_name, drawing, made_up, profile, wait

N, CLASSES, LAMBDA, ALPHA = 50, 10, 0.05, 15.0
# What an H200 does in a second at best: bytes, operations in float32 and on bfloat16 matrices.
_BYTES, _FLOAT32, _BFLOAT16 = 4.8e12, 6.7e13, 9.9e14


def main() -> None:
    """Run the command."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="MNIST; made-up images otherwise")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--seconds", type=float, default=3.0, help="for each timing")
    parser.add_argument("--profile", action="store_true", help="list the kernels of our step")
    arguments = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    data = made_up(60_000, 28)
    if arguments.data:
        from dpsinkhorn.data import load_dataset

        data = load_dataset(arguments.data)
    recipe = load_recipe("paper-first-mnist").replace(loss={"debias": 0.4, "iterations": None})
    plan = make_plan(recipe, facts_of(data), budget_epsilon=None, seed=0)
    records = Records(data, device)
    result: dict[str, Any] = {"device": device_name(device), "torch": torch.__version__}

    # ---- ours
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    state, barrier = TrainingState(plan, device), plan.build()
    state.generator.train()
    steps = make_steps(plan, state, records, barrier, (0.1,) * 10, horizon=10**9)
    block = steps.multiple
    steps.take(block)
    result["ours_step_ms"] = timed(lambda: steps.take(block), device, arguments.seconds, per=block)
    if device.type == "cuda":
        result["ours_peak_mb"] = round(torch.cuda.max_memory_allocated() / 2**20)
        result["ours_drawing_ms"] = drawing(steps)
        if arguments.profile:
            result["where_us"] = where(profile(steps), plan)

    # ---- the loss and its gradient alone, on the same clouds
    held = records.stored(CLASSES, on_the_grid=False)
    assert held is not None
    x, labels, y, kinds = clouds(state, held, device)
    fixed = barrier.fixed(Setting(N, None, 50.0, held)) if device.type == "cuda" else None
    ours_loss = our_loss(barrier, fixed, x, labels, y, kinds)
    result["ours_loss_ms"] = timed(ours_loss, device, arguments.seconds)
    result["geomloss_loss_ms"] = timed(
        lambda: eager_gradient(x.clone().requires_grad_(), labels, y, kinds), device, arguments.seconds
    )
    result["ours_marginal_error"] = our_error(fixed, x, labels, y, kinds)
    result["geomloss_marginal_error"] = geomloss_error(x[:N], labels[:N], y, kinds)

    # ---- the eager step
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    step = eager_step(plan, held.points, held.kinds, device)
    result["eager_step_ms"] = timed(step, device, arguments.seconds)
    if device.type == "cuda":
        result["eager_peak_mb"] = round(torch.cuda.max_memory_allocated() / 2**20)
    result["step_ratio"] = round(result["eager_step_ms"] / result["ours_step_ms"], 2)
    result["loss_ratio"] = round(result["geomloss_loss_ms"] / result["ours_loss_ms"], 2)
    print(json.dumps(result, indent=1))
    if arguments.output:
        arguments.output.write_text(json.dumps(result, indent=1) + "\n")


def where(kernels: list[tuple[str, float, float]], plan: Plan) -> dict[str, dict[str, float]]:
    """Where the time of a step goes, beside what counting operations and bytes says it needs (H200)."""
    groups: dict[str, tuple[str, ...]] = {
        "optimizer": ("multi_tensor_apply", "adam", "CatArray"),
        "last layer and tanh": ("last_",),
        "norms and activations": ("moments_", "apply_kernel", "sums_", "norm_gradient"),
        "transport": ("costs_kernel", "plans_kernel", "gradient_kernel"),
        "convolutions and products": ("xmma", "cutlass", "gemm", "nvjet", "splitK", "grad_"),
    }
    images, shape = N + plan.generated * 2 // 5, (28, 28)
    pixels = shape[0] * shape[1]
    config = plan.generator_config
    first, second, third, _ = config.channels  # type: ignore[union-attr]
    products = config.inputs * first * 49 + first * second * 16 * 49 + second * third * 16 * 196
    activations = (first * 49 + second * 196 + third * pixels) * images
    pairs = N * (50 + N) * pixels
    floors = {
        "transport": 3 * 3 * pairs / _FLOAT32,
        "optimizer": 7 * 4 * config.parameters / _BYTES,
        "norms and activations": 8 * 2 * activations / _BYTES,  # bfloat16: three passes forward, five back
        "last layer and tanh": 3 * 2 * third * pixels * images / _BYTES,  # its input twice, its gradient once
        "convolutions and products": 3 * 2 * products * images / _BFLOAT16,
    }
    found = {
        name: {"us": 0.0, "launches": 0.0, "floor_us": floors.get(name, 0.0) * 1e6}
        for name in [*groups, "rest"]
    }
    for kernel, taken, launches in kernels:
        name = next((name for name, parts in groups.items() if any(part in kernel for part in parts)), "rest")
        found[name]["us"] += taken
        found[name]["launches"] += launches
    for name, row in found.items():
        taken, launches, floor = row["us"], row["launches"], row["floor_us"]
        print(f"  {name:26} {taken:7.1f} us  {launches:5.1f} launches  floor {floor:6.2f} us")
    return {name: {key: round(value, 2) for key, value in row.items()} for name, row in found.items()}


def timed(run: Callable[[], Any], device: torch.device, seconds: float, per: int = 1) -> float:
    """Median milliseconds of a run, after one to warm up."""
    run()
    times = []
    end = time.monotonic() + seconds
    while time.monotonic() < end or len(times) < 3:
        wait(device)
        started = time.perf_counter()
        run()
        wait(device)
        times.append((time.perf_counter() - started) / per * 1e3)
    return round(statistics.median(times), 4)


def clouds(state: TrainingState, held: Any, device: torch.device) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Generated images and records of one step."""
    random = torch.Generator(device).manual_seed(1)
    total = N + 20
    labels = torch.randint(CLASSES, (N,), generator=random, device=device)
    labels = torch.cat([labels, labels[:20]])
    with torch.no_grad():
        latents = torch.rand(total, state.generator.config.latent, generator=random, device=device)
        x = state.generator(latents, labels).flatten(1)
    rows = torch.randint(held.count, (53,), generator=random, device=device)
    return x, labels, held.points[rows], held.kinds[rows]


def our_loss(
    barrier: GradientMechanism,
    fixed: FixedStep | None,
    x: Tensor,
    labels: Tensor,
    y: Tensor,
    kinds: Tensor,
) -> Callable[[], Any]:
    """The gradient of Eq. 6 as a step of ours takes it: captured on a GPU."""
    if fixed is None:
        return lambda: barrier._gradient(x, labels, Sample(y, kinds))  # type: ignore[attr-defined]
    from dpsinkhorn.kernels.transport import eq6_gradient

    step = kernel_step(x, labels, y, kinds)
    eq6_gradient(step, LAMBDA)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        eq6_gradient(step, LAMBDA)
    return graph.replay


def kernel_step(x: Tensor, labels: Tensor, y: Tensor, kinds: Tensor) -> Any:
    """The clouds with room for 128 records."""
    from dpsinkhorn.kernels.transport import Step

    room = y.new_zeros(128, y.shape[1])
    room[: len(y)] = y
    padded = kinds.new_zeros(128)
    padded[: len(y)] = kinds
    count = torch.tensor([len(y)], dtype=torch.int32, device=y.device)
    cost = {"absolute": 1.0, "classes": CLASSES, "label_cost": ALPHA**2 + ALPHA}
    return Step(x.contiguous(), labels, room, padded, count, resampled=len(x) - N, **cost)


def augmented(points: Tensor, labels: Tensor) -> Tensor:
    """Pixels beside the scaled one-hot label."""
    return torch.cat([points, functional.one_hot(labels, CLASSES) * ALPHA], dim=1)


def c_m(a: Tensor, b: Tensor) -> Tensor:
    """The papers' cost, for GeomLoss."""
    difference = a.unsqueeze(-2) - b.unsqueeze(-3)
    return difference.square().sum(-1) + difference.abs().sum(-1)


def geomloss(potentials: bool = False) -> Any:
    """GeomLoss as the papers use it."""
    from geomloss import SamplesLoss

    return SamplesLoss(
        "sinkhorn", p=1, cost=c_m, blur=LAMBDA, debias=False, potentials=potentials, backend="tensorized"
    )


def eager_gradient(x: Tensor, labels: Tensor, y: Tensor, kinds: Tensor) -> Tensor:
    """The gradient of Eq. 6 by autograd through GeomLoss."""
    extra = len(x) - N
    points = augmented(x, labels)
    loss = geomloss()
    value = 2 * loss(points[:N], augmented(y, kinds)) - loss(points[:N], points[extra : N + extra])
    return torch.autograd.grad(value, x)[0]


def eager_step(plan: Plan, points: Tensor, kinds: Tensor, device: torch.device) -> Callable[[], None]:
    """A whole step in eager PyTorch."""
    generator = build_generator(plan.generator_config, 0).to(device)
    optimizer = torch.optim.Adam(generator.parameters(), lr=1e-5, weight_decay=2e-5)
    clip, sigma, rate = 0.5, 1.1, plan.sampling_rate

    def step() -> None:
        taken = torch.rand(len(points), device=device) < rate
        labels = torch.randint(CLASSES, (N,), device=device)
        labels = torch.cat([labels, labels[:20]])
        x = generator(torch.rand(N + 20, generator.config.latent, device=device), labels).flatten(1)
        gradient = eager_gradient(x.detach().requires_grad_(), labels, points[taken], kinds[taken])
        cross, rest = gradient[:N], gradient[N:]
        cross = cross * (clip / cross.norm()).clamp(max=1)
        cross = cross + 2 * clip * sigma * torch.randn_like(cross)
        rest = rest * (clip / rest.norm()).clamp(max=1)
        optimizer.zero_grad()
        x.backward(torch.cat([cross, rest]))
        optimizer.step()

    return step


def our_error(fixed: FixedStep | None, x: Tensor, labels: Tensor, y: Tensor, kinds: Tensor) -> float:
    """L1 error of the marginals of our cross plan."""
    if fixed is None:
        from dpsinkhorn.ot import Problem, solve

        problem = Problem(augmented(x[:N], labels[:N]).double(), augmented(y, kinds).double(), L1L2(1.0))
        return float(solve(problem, LAMBDA, tolerance=1e-6).marginal_error)
    from dpsinkhorn.kernels.transport import eq6_gradient

    errors = x.new_zeros(2)
    eq6_gradient(kernel_step(x, labels, y, kinds), LAMBDA, errors=errors)
    return float(errors[0])


def geomloss_error(x: Tensor, labels: Tensor, y: Tensor, kinds: Tensor) -> float:
    """The same of GeomLoss's potentials."""
    a, b = augmented(x, labels), augmented(y, kinds)
    f, g = geomloss(potentials=True)(a, b)
    scores = (f.double().view(-1, 1) + g.double().view(1, -1) - c_m(a.double(), b.double())) / LAMBDA
    plan = scores.exp() / (len(a) * len(b))
    rows, columns = plan.sum(1) - 1 / len(a), plan.sum(0) - 1 / len(b)
    return float(rows.abs().sum() + columns.abs().sum())


if __name__ == "__main__":
    main()
