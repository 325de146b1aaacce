"""A search over neighbours for every training mechanism, by record and replay.

Recipes are small, and clip so much that every record moves what is noised by all that it may. Each mechanism
is replayed with uniform and with released class frequencies, and with persons where it takes them.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from dpsinkhorn.data import KNOWN, DataError, Dataset, load_dataset
from dpsinkhorn.mechanisms import find_mechanism, private_names
from dpsinkhorn.privacy.audit import Outcome, Replayed
from dpsinkhorn.training.auditing.exactness import exact_outcomes
from dpsinkhorn.training.auditing.hostile_files import FileCase, made_up_cases, own_cases
from dpsinkhorn.training.auditing.neighbours import first_units, neighbours_by_class, worst_neighbours
from dpsinkhorn.training.auditing.replay import TrainingReplay
from dpsinkhorn.training.plan import Plan, make_plan
from dpsinkhorn.training.recipe import Recipe, load_recipe
from dpsinkhorn.training.records import facts_of

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
