"""Whether sums over records are exact, where a mechanism claims it, under public state chosen to break them.

A sum that is rounded depends on its order and on all of its terms, so that one record changes, by a last bit,
what others add to it; and a last bit can decide which of two sums a record goes to. In a training this is as
rare as it is hard to see. So the sums themselves are looked at, one by one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from dpsinkhorn.data import Dataset
from dpsinkhorn.privacy import SeededNoise
from dpsinkhorn.privacy.audit import Outcome, Recorder, Replayer, Shared
from dpsinkhorn.training.auditing.neighbours import first_units, joined, some_rows
from dpsinkhorn.training.plan import Plan
from dpsinkhorn.training.records import Records

_RECORDS = 200  # that are looked at
_LIT = 0.9  # of the pixels of the record that public state is aimed at
_PRODUCTS = ("mm", "bmm", "mv", "dot")
_SUMS = ("sum", "index_add", "index_add_", "scatter_add", "scatter_add_")
_ADDED = "add_"  # of a tensor in place, as by total[...] += sum_of_a_chunk


class ExactSums(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Within it, every sum is noted that some order of adding could round.

    Numbers that are multiples of a step q add up exactly in any order if their absolute values add up to
    less than 2^53 q in float64. Of products, as of matrices, the step is the product of the factors'.

    >>> with ExactSums() as sums:
    ...     small, large = torch.tensor([[0.5, 3.0]]).sum(), torch.tensor([[0.1, 3.0]]) @ torch.ones(2, 1)
    >>> sums.rounded
    ['mm']
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.rounded: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name, kwargs = func.overloadpacket.__name__, kwargs or {}
        terms = [value for value in args if _is_float(value)]
        if (terms and name in _PRODUCTS + _SUMS) or (len(terms) == 2 and name == _ADDED):
            steps = [_step(each) for each in terms]
            step = math.prod(steps) if name in _PRODUCTS else min(steps)
            most = 2 / torch.finfo(terms[0].dtype).eps * step
            sizes = func(*(value.abs() if _is_float(value) else value for value in args), **kwargs)
            if not bool((sizes < most).all()):  # a sum above it may itself have been rounded to it
                self.rounded.append(name)
        return func(*args, **kwargs)


def exact_outcomes(plan: Plan, data: Dataset) -> Iterator[Outcome]:
    """Look at all releases that the plan's mechanism claims to be exact, on some data and one record more."""
    before = first_units(data, _RECORDS)
    lit = np.random.default_rng(0).random((1, *before.images.shape[1:])) < _LIT
    after = joined(before, np.where(lit, data.value_range[1], data.value_range[0]), [0])
    alone = some_rows(after, np.array([before.records]))
    worlds = [Records(each, torch.device("cpu")) for each in (before, after, alone)]
    (record,) = worlds[2].every()
    for name, release in plan.build().exact_releases(record.points).items():
        yield _outcome(name, release, *worlds, units=before.units)


def _outcome(
    name: str, release: Callable[..., object], before: Records, after: Records, alone: Records, *, units: int
) -> Outcome:
    first, own = Recorder(SeededNoise(0)), Recorder(SeededNoise(0))
    release(before.every(), noise=first)
    release(alone.every(), noise=own)
    second = Replayer(first.recording, SeededNoise(0), Shared.all_and(units, more=1))

    def released() -> list[str]:
        with ExactSums() as sums:
            release(after.every(), noise=second)
        parts = zip(first.recording.values, second.values, own.recording.values, strict=True)
        same = all(torch.equal(now - then, part) for then, now, part in parts)
        rounded = f"rounds what must be exact: {', '.join(dict.fromkeys(sums.rounded))}"
        found = {rounded: bool(sums.rounded), "a record adds something else in company than alone": not same}
        return [line for line, there in found.items() if there]

    return second.outcome(name, released)


def _is_float(value: object) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def _step(values: Tensor) -> float:
    """The largest power of two that all values are multiples of; infinite where all are 0."""
    mantissas, exponents = torch.frexp(values[values != 0].double())
    whole = (mantissas * 2.0**53).long()
    steps = torch.ldexp((whole & -whole).double(), exponents - 53)
    return float(steps.min()) if len(steps) else math.inf
