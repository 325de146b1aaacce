"""What a plan will take, in seconds and bytes, found by a few steps on made-up data of the same shape."""

from __future__ import annotations

import resource
import sys
import time
from dataclasses import dataclass, replace

import torch

from dpsinkhorn.privacy import SeededNoise, poisson_sample
from dpsinkhorn.training.building import build_sanitizer
from dpsinkhorn.training.plan import Plan
from dpsinkhorn.training.sanitizers import Sample
from dpsinkhorn.training.state import TrainingState
from dpsinkhorn.training.steps import generate, training_labels

__all__ = ["Estimate", "try_plan"]

_WARM_UP, _TIMED = 1, 3


@dataclass(frozen=True)
class Estimate:
    """About what a run will take on this machine."""

    seconds: float
    memory_bytes: int


def try_plan(plan: Plan, device: torch.device) -> Estimate:
    """Time a few steps of a plan on uniform noise in place of the data: nothing private is touched."""
    state = TrainingState(replace(plan, seed=0), device)
    sanitizer = build_sanitizer(plan)
    uniform = (1.0 / plan.facts.classes,) * plan.facts.classes if plan.facts.classes else ()
    n = plan.generated
    times = []
    for _ in range(_WARM_UP + _TIMED):
        _wait(device)
        started = time.monotonic()
        sample = _made_up_sample(plan, device)
        labels = training_labels(plan, n, uniform, state.random, device)
        points, labels = generate(state, sanitizer, n, labels)
        state.optimizer.zero_grad(set_to_none=True)
        sanitizer.backward(points, labels, sample, state.parameters, state.noise)
        state.optimizer.step()
        _wait(device)
        times.append(time.monotonic() - started)
    return Estimate(plan.steps * min(times[_WARM_UP:]), _peak_memory(device))


def _made_up_sample(plan: Plan, device: torch.device) -> Sample:
    facts = plan.facts
    units = poisson_sample(facts.units, plan.sampling_rate, SeededNoise(0), device=device)
    each = max(1, round(facts.records / facts.units))
    owners = units.repeat_interleave(each)
    c, h, w = facts.image_shape
    return Sample(
        points=torch.rand(len(owners), c * h * w, device=device) * 2 - 1,
        labels=torch.randint(facts.classes, (len(owners),), device=device) if facts.classes else None,
        groups=owners if facts.grouped else None,
    )


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _peak_memory(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
