"""What a training step takes on this machine, and where the time goes.

    python benchmarks/steps.py --recipe grey --data mnist --set loss.generated_per_class=50
    python benchmarks/steps.py --recipe paper-first-mnist --profile

Times whole steps as training takes them (captured in a graph on a GPU) and, for comparison, one by one. Runs
on made-up images of MNIST's shape unless data are named. `--profile` lists the kernels of a captured step.
"""

from __future__ import annotations

import json
import time
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from typing import Any

import numpy as np
import torch

from dpsinkhorn.cli.train import parse_changes
from dpsinkhorn.data import Dataset, from_arrays, load_dataset
from dpsinkhorn.training import Plan, facts_of, load_recipe, make_plan
from dpsinkhorn.training.records import Records
from dpsinkhorn.training.state import TrainingState
from dpsinkhorn.training.steps import PlainSteps, Steps, make_steps


def main() -> None:
    """Run the command."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", action="append", default=[])
    parser.add_argument("--data", help="a name or a path; made-up images otherwise")
    parser.add_argument("--records", type=int, default=60_000, help="of made-up images")
    parser.add_argument("--size", type=int, default=28, help="of made-up images, in pixels")
    parser.add_argument("--epsilon", type=float, default=10.0)
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.NAME=VALUE")
    parser.add_argument("--steps", type=int, default=512, help="that are timed")
    parser.add_argument("--plain-steps", type=int, default=20)
    parser.add_argument("--profile", action="store_true")
    arguments = parser.parse_args()
    data = load_dataset(arguments.data) if arguments.data else made_up(arguments.records, arguments.size)
    for name in arguments.recipe or ["grey", "paper-first-mnist", "paper-final-mnist"]:
        found = measure(
            name,
            data,
            parse_changes(arguments.set),
            steps=arguments.steps,
            plain_steps=arguments.plain_steps,
            profiled=arguments.profile,
        )
        print(json.dumps({"recipe": name, **found}), flush=True)


def made_up(records: int, size: int) -> Dataset:
    """Images of noise, in ten classes."""
    random = np.random.default_rng(0)
    images = random.integers(0, 256, (records, size, size), dtype=np.uint8)
    return from_arrays(images, random.integers(0, 10, records), classes=10)


def measure(
    name: str,
    data: Dataset,
    settings: dict[str, dict[str, Any]],
    *,
    steps: int = 512,
    plain_steps: int = 0,
    profiled: bool = False,
) -> dict[str, Any]:
    """Milliseconds of a step and peak memory."""
    recipe = load_recipe(name).replace(**settings)
    if recipe.privacy.noise_multiplier is None:
        recipe = recipe.replace(privacy={"noise_multiplier": 5.0})  # calibration takes no part in this
    plan = make_plan(recipe, facts_of(data), budget_epsilon=None, seed=0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    result: dict[str, Any] = {"device": device_name(device), "generated": plan.generated}
    before = 0
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()  # by an earlier measurement, such as libraries' workspaces
    taken = stepping(plan, data, device, captured=True)
    unit = taken.multiple
    taken.take(unit)
    wait(device)
    wanted = max(1, steps // unit) * unit
    started = time.perf_counter()
    taken.take(wanted)
    wait(device)
    result["ms"] = round((time.perf_counter() - started) / wanted * 1e3, 4)
    result["kind"] = type(taken).__name__
    if device.type == "cuda":
        result["peak_mb"] = round((torch.cuda.max_memory_allocated() - before) / 2**20)
        result["drawing_ms"] = drawing(taken)
        if profiled:
            profile(taken)
    if plain_steps:
        plain = stepping(plan, data, device, captured=False)
        plain.take(3)
        wait(device)
        started = time.perf_counter()
        plain.take(plain_steps)
        wait(device)
        result["plain_ms"] = round((time.perf_counter() - started) / plain_steps * 1e3, 3)
    return result


def stepping(plan: Plan, data: Dataset, device: torch.device, *, captured: bool) -> Steps:
    """A way of taking steps, from the start of a training."""
    state = TrainingState(plan, device)
    classes = plan.facts.classes
    given = (plan, state, Records(data, device), plan.build(), (1 / classes,) * classes)
    state.generator.train()
    horizon = 10**9
    return make_steps(*given, horizon=horizon) if captured else PlainSteps(*given, horizon=horizon)


def drawing(steps: Any) -> float | None:
    """Milliseconds a step that drawing ahead takes by itself."""
    if not hasattr(steps, "_drawn"):
        return None
    torch.cuda.synchronize()
    started = time.perf_counter()
    steps._drawn(steps.multiple)
    torch.cuda.synchronize()
    return round((time.perf_counter() - started) / steps.multiple * 1e3, 4)


def profile(steps: Any) -> list[tuple[str, float, float]]:
    """The kernels of captured steps, printed: name, microseconds and launches a step, the longest first."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiler

    block = steps._draw(steps.multiple)
    steps._load(block)
    torch.cuda.synchronize()
    count = min(20, steps.multiple)
    with profiler(activities=[ProfilerActivity.CUDA]) as seen:
        for _ in range(count):
            steps._steps(1)
        torch.cuda.synchronize()
    rows = [
        (row.key, row.self_device_time_total / count, row.count / count)
        for row in seen.key_averages()
        if row.self_device_time_total
    ]
    rows.sort(key=lambda row: -row[1])
    total, every = (sum(row[part] for row in rows) for part in (1, 2))
    print(f"  kernels: {total:.1f} us in {every:.0f} launches a step")
    for name, time_taken, launches in rows[:25]:
        print(f"  {time_taken:8.1f} us  {launches:5.1f} x  {name[:100]}")
    return rows


def device_name(device: torch.device) -> str:
    """The machine's name of it."""
    if device.type == "cuda":
        return torch.cuda.get_device_name()
    return f"cpu, {torch.get_num_threads()} threads"


def wait(device: torch.device) -> None:
    """Until the device is done."""
    if device.type == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
