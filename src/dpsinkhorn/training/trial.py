"""What a plan will take, in seconds and bytes, found by a few steps on made-up data of the same shape."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

if sys.platform == "win32":
    import psutil  # type: ignore[import-untyped]
else:
    import resource

from dpsinkhorn.mechanisms.shared.base import Sample
from dpsinkhorn.privacy import poisson_sample
from dpsinkhorn.privacy.noise import NoiseSource
from dpsinkhorn.training.plan import Plan
from dpsinkhorn.training.records import StoredRecords, at_a_time, has_room
from dpsinkhorn.training.state import TrainingState
from dpsinkhorn.training.steps import Steps, make_steps

_WARM_UP, _TIMED = 1, 3
_LONG = 5.0  # seconds, after which no step more is timed
_PART = 2**13  # records; steps over all records are timed on as many, and on twice as many
_SOME = 6  # of such steps


@dataclass(frozen=True)
class Estimate:
    """About what a run will take on this machine."""

    seconds: float
    memory_bytes: int | None
    """None where it cannot be told without telling how many records there are."""


def try_plan(plan: Plan, device: torch.device) -> Estimate:
    """Time a few steps of a plan on uniform noise in place of the data: nothing private is touched.

    They are taken as in a training: on a GPU where they can be captured, by the hundred.
    """
    seconds = (_sampled_seconds if plan.kind.takes_samples else _all_seconds)(plan, device)
    # On a CPU it is that of the process, and the data were read before.
    known = plan.facts.size_is_public or device.type == "cuda"
    return Estimate(seconds, _peak_memory(device) if known else None)


def _sampled_seconds(plan: Plan, device: torch.device) -> float:
    if plan.kind.splits_records:
        return _taught_seconds(plan, device)
    steps = _steps(plan, device)
    tries = _WARM_UP + (_TIMED if steps.multiple == 1 else 1)
    step = _least(steps.take, steps.multiple, tries, device) / steps.multiple
    update = _least(steps.update, 1, tries, device) if steps.updates else 0.0
    return plan.steps * step + steps.updates * update


def _taught_seconds(plan: Plan, device: torch.device) -> float:
    """Time a step in which critics learn, and those until the next; first iterations take no more."""
    every, before = plan.kind.learns_every, plan.recipe.loss.iterations or 0
    steps = _steps(_with(plan, plan.facts.records, 1), device)
    learning, others = math.inf, math.inf
    for _ in range(_WARM_UP + 1):
        learning = min(learning, _seconds(steps.take, 1, device))
        others = min(others, _seconds(steps.take, every - 1, device))
    return before * learning + plan.steps / every * (learning + others)


def _least(do: Callable[[int], None], count: int, tries: int, device: torch.device) -> float:
    """Return the least time after the first; where that one took long, its own."""
    times: list[float] = []
    while len(times) < tries and sum(times) < _LONG:
        times.append(_seconds(do, count, device))
    return min(times[_WARM_UP:] or times)


def _all_seconds(plan: Plan, device: torch.device) -> float:
    """Time steps over all records on few of them, and on twice as many: the time grows with their number.

    Where an optimizer goes on with what a step released (`loss.iterations`), a few of its steps are timed.
    """
    records, count, iterations = plan.facts.records, min(plan.steps, _SOME), plan.recipe.loss.iterations
    sizes = min(_PART, records), min(2 * _PART, records)

    def seconds(size: int, fewer: int = 1) -> float:
        return _seconds(_steps(_with(plan, size, iterations and fewer), device).take, count, device)

    _, less, more = (seconds(size) for size in (sizes[0], *sizes))
    # no more than in proportion: on a busy machine the difference of two times says little
    growth = min(max(more - less, 0.0) / _PART, more / sizes[1])
    total = more + growth * (records - sizes[1])
    if iterations:
        total += iterations * max(seconds(sizes[0], 1 + _SOME) - less, 0.0) / _SOME
    return plan.steps / count * total


def _with(plan: Plan, records: int, iterations: int | None) -> Plan:
    units = max(1, plan.facts.units * records // plan.facts.records)
    facts, recipe = replace(plan.facts, records=records, units=units), plan.recipe
    return replace(plan, facts=facts, recipe=recipe.replace(loss={"iterations": iterations}))


def _steps(plan: Plan, device: torch.device) -> Steps:
    tried = replace(plan, seed=0)
    state = TrainingState(tried, device)
    classes = plan.facts.classes
    uniform = (1.0 / classes,) * classes if classes else ()
    state.generator.train()
    made_up = _MadeUp(plan, device)
    return make_steps(tried, state, made_up, plan.build(), uniform, horizon=plan.steps)


def _seconds(do: Callable[[int], None], count: int, device: torch.device) -> float:
    _wait(device)
    started = time.monotonic()
    do(count)
    _wait(device)
    return time.monotonic() - started


class _MadeUp:
    """Uniform noise in the place of private records, as many as there are."""

    def __init__(self, plan: Plan, device: torch.device) -> None:
        self._facts, self._device = plan.facts, device
        self._pixels = math.prod(plan.facts.image_shape)
        self._of_each = max(1, round(plan.facts.records / plan.facts.units))

    def draw(self, rate: float, noise: NoiseSource) -> Sample:
        facts = self._facts
        units = poisson_sample(facts.units, rate, noise, device=self._device)
        owners = units.repeat_interleave(self._of_each)
        return Sample(
            points=self._points(len(owners)),
            labels=self._labels(len(owners)) if facts.classes else None,
            groups=owners if facts.grouped else None,
        )

    def stored(self, classes: int, *, on_the_grid: bool) -> StoredRecords | None:
        """All records, where they are no persons' and fit into memory."""
        if self._facts.grouped or not has_room(self._facts.units, self._pixels, 4, self._device):
            return None
        points = self._points(self._facts.units)
        kinds = self._labels(len(points)).sort().values if classes else torch.zeros_like(points[:, 0]).long()
        return StoredRecords(points, kinds, torch.float64 if on_the_grid else torch.float32)

    def every(self) -> Iterator[Sample]:
        """All records, some at a time, each person's together."""
        facts, of_each = self._facts, self._of_each
        many = max(1, at_a_time(facts.image_shape) // of_each) * of_each
        for rows in torch.split(torch.arange(facts.records, device=self._device), many):
            labels = self._labels(len(rows)) if facts.classes else None
            yield Sample(self._points(len(rows)), labels, rows // of_each if facts.grouped else None)

    def _points(self, count: int) -> Tensor:
        return torch.rand(count, self._pixels, device=self._device) * 2 - 1

    def _labels(self, count: int) -> Tensor:
        return torch.randint(self._facts.classes, (count,), device=self._device)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _peak_memory(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    if sys.platform == "win32":
        return int(psutil.Process().memory_info().peak_wset)
    else:  # noqa: RET505 - so that type checkers of either system skip the other's branch
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
