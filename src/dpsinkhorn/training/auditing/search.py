"""A search over neighbours for every training mechanism, by record and replay.

Recipes are small, and clip so much that every record moves what is noised by all that it may. Each mechanism
is replayed with uniform and with released class frequencies, and with persons where it takes them.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from dpsinkhorn.data import KNOWN, DataError, Dataset, load_dataset
from dpsinkhorn.mechanisms import find_mechanism, private_names
from dpsinkhorn.privacy import SeededNoise
from dpsinkhorn.privacy.audit import Outcome, Recorder, Replayed, Replayer, Shared
from dpsinkhorn.training.auditing.hostile_files import FileCase, made_up_cases, own_cases
from dpsinkhorn.training.auditing.replay import (
    TrainingReplay,
    first_units,
    joined,
    neighbours_by_class,
    some_rows,
    worst_neighbours,
)
from dpsinkhorn.training.plan import Plan, make_plan
from dpsinkhorn.training.recipe import Recipe, load_recipe
from dpsinkhorn.training.records import Records, facts_of

Watch: TypeAlias = Callable[[str], None]

REPLAYED_RECORDS = 1500
"""The most records of a data set that are replayed."""
_PER_PERSON = 4  # records of made-up persons, about
_NOISE = 5.0


def replay_training(
    source: str = "digits",
    mechanisms: Sequence[str] | None = None,
    *,
    files: bool = True,
    watch: Watch | None = None,
    **options: Any,
) -> list[Replayed]:
    """Replay trainings on neighbours of a data set, by its name or its path; `options` are `load_dataset`'s.

    All private mechanisms are replayed unless some are named.

    `files` tries the readers too: a known data set in every format, another one in its own, each with one
    record more that is hostile. `watch` is told what comes next.

    >>> found = replay_training("digits", ["batch"], files=False)
    >>> [(each.mechanism, each.neighbours > 10, each.violations) for each in found]
    [('batch', True, ()), ('batch, labels released', True, ()), ('batch, made-up persons', True, ())]
    """
    data = load_dataset(source, **options)
    if data.units < 2:
        raise DataError("a replay needs two units of privacy at least: one is left out, to be added again")
    cases = partial(_cases, source, options) if files else None
    found = []
    for mechanism in private_names() if mechanisms is None else mechanisms:
        for name, each, plan in _settings(data, mechanism):
            if watch is not None:
                watch(name)
            found.append(Replayed.of(name, _outcomes(cases, each, plan)))
    return found


def replay_plan(data: Dataset, mechanism: str, *, labels: str = "uniform") -> Plan:
    """A small plan for the data, seeded, whose number of records is declared."""
    return make_plan(
        _recipe(mechanism, data),
        facts_of(data, records=data.records),
        delta=1e-5,
        accountant="rdp",  # the quickest, and ε is not what is audited
        labels=labels,
        seed=0,
    )


_PlanFor: TypeAlias = Callable[[Dataset], Plan]


def _settings(data: Dataset, mechanism: str) -> Iterator[tuple[str, Dataset, _PlanFor]]:
    """Names, data and plans of what is replayed with a mechanism."""
    named = data.groups is not None
    if named and not find_mechanism(mechanism).takes_persons:
        data = replace(data, groups=None)
    of_persons = ", persons" if data.groups is not None else ""
    yield f"{mechanism}{of_persons}", data, lambda each: replay_plan(each, mechanism)
    if data.classes:
        released = f"{mechanism}{of_persons}, labels released"
        yield released, data, lambda each: replay_plan(each, mechanism, labels="released")
    if not named and find_mechanism(mechanism).takes_persons:
        persons = np.arange(data.records) // _PER_PERSON
        labels = "released" if data.classes else "uniform"
        name, grouped = f"{mechanism}, made-up persons", replace(data, groups=persons)
        yield name, grouped, lambda each: replay_plan(each, mechanism, labels=labels)


def _cases(source: str, options: dict[str, Any], data: Dataset, folder: Path) -> Iterator[FileCase]:
    """The data in files: a known set in every format, another one in its own."""
    if source in KNOWN:
        return made_up_cases(data, folder)
    kept = options if data.groups is not None else {**options, "groups": None}
    return own_cases(Path(source).expanduser(), REPLAYED_RECORDS, folder, kept)


def _outcomes(
    cases: Callable[[Dataset, Path], Iterator[FileCase]] | None, data: Dataset, plan: _PlanFor
) -> Iterator[Outcome]:
    base = first_units(data, REPLAYED_RECORDS)
    settled = plan(base)
    game = TrainingReplay(settled, base)
    if game.own.violations:
        yield game.own
    if settled.labels == "released" and data.groups is None:
        yield from game.against(neighbours_by_class(base))
        return
    yield from game.against(worst_neighbours(base, data))
    yield from exact_outcomes(settled, data)
    if cases is None:
        return
    with tempfile.TemporaryDirectory() as folder:
        for case in cases(base, Path(folder)):
            read = case.read()
            if (read.groups is None) != (data.groups is None):
                continue  # persons that are not in the file, or that a mechanism does not protect
            yield from TrainingReplay(plan(read), read).against(case.neighbours)


def _recipe(mechanism: str, data: Dataset) -> Recipe:
    kind = find_mechanism(mechanism)
    settings = kind.audit_settings(data.records)
    settings["privacy"]["noise_multiplier"] = _NOISE
    return load_recipe(kind.audit_recipe).replace(**settings)


# ---- whether sums over records are exact, where that is claimed, under public state chosen to break them
#
# A sum that is rounded depends on its order and on all of its terms, so that one record changes, by a last
# bit, what others add to it; and a last bit can decide which of two sums a record goes to. In a training this
# is as rare as it is hard to see. So the sums themselves are looked at, one by one.

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
