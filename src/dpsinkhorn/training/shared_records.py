"""Records that several ranks hold: how rank 0 asks about them, and how the others answer.

Every rank reads the same data and holds a part of them, with all records of a person in one part. Rank 0
trains as if it were alone; what it knows of the others' records are sums that are about to be noised, or,
for a mechanism that needs a step's whole sample, that sample.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from dpsinkhorn.data import Dataset
from dpsinkhorn.errors import TrainingError
from dpsinkhorn.mechanisms.shared import class_counts
from dpsinkhorn.mechanisms.shared.base import Sample
from dpsinkhorn.mechanisms.shared.class_counts import Labels
from dpsinkhorn.privacy import SecureNoise, SeededNoise, poisson_sample
from dpsinkhorn.privacy.noise import NoiseSource
from dpsinkhorn.ranks import Others, Ranks
from dpsinkhorn.training.plan import Plan
from dpsinkhorn.training.records import StoredRecords, records_of
from dpsinkhorn.training.state import TrainingState, check_float64, computed_by

_MOST_RANKS = 64  # whose sums may be added up in any order: docs/proofs/record-rounding.md


class _Part:
    """The records that one rank holds, and the mechanism that sums over them."""

    def __init__(self, dataset: Dataset, device: torch.device, ranks: Ranks, plan: Plan) -> None:
        own, self._first = dataset.part(ranks.rank, ranks.count)
        self.plan, self.records, self._ranks = plan, records_of(own, device), ranks
        self._every, self._own, self._device = dataset.units, own.units, device
        self._mechanism = plan.build()
        self._drawn: Sample | None = None

    def check_device(self) -> None:
        """Refuse a device that the guarantee, or the mechanism, refuses; rank 0 sees to its own by itself."""
        check_float64(self._device)
        self._mechanism.check_device(TrainingState(self.plan, self._device))

    def ready(self) -> list[str]:
        """Say by what sums are computed here; rank 0 hears it of all ranks, once they are ready."""
        return self._ranks.words(computed_by(self.plan.kind.learns_on(self._device)))

    def draw(self, rate: float, noise: NoiseSource) -> Sample:
        """A Poisson sample of the units here; at rank 0 of all units, where it takes the whole sample.

        A seeded run takes the same units on any number of ranks: each rank draws from all units, and keeps
        those that it holds.
        """
        if noise.secure:
            sample = self.records.draw(rate, noise)
        else:
            units = poisson_sample(self._every, rate, noise, device=self._device) - self._first
            sample = self.records.sample_of(units[(units >= 0) & (units < self._own)])
        if sample.groups is not None:
            sample = dataclasses.replace(sample, groups=sample.groups + self._first)
        self._drawn = sample if self.plan.kind.sums_over_records else self._gathered(sample)
        return self._drawn

    def sum(self, what: str, method: str, public: dict[str, Any]) -> Any:
        """What the records here add to a sum that rank 0 asks for."""
        records: Any = self._drawn
        if what != "sample":
            records = self.records.every() if what == "every" else self.records.labels()
        owners = (*self._mechanism.summing, class_counts)
        with torch.no_grad():
            return next(getattr(each, method) for each in owners if hasattr(each, method))(records, **public)

    def _gathered(self, sample: Sample) -> Sample:
        """Parts follow each other as units do, so this is the order in which one rank alone has them."""
        present = [each for each in (sample.points, sample.labels, sample.groups) if each is not None]
        whole = iter(self._ranks.gathered(present))
        return Sample(
            next(whole),
            None if sample.labels is None else next(whole),
            None if sample.groups is None else next(whole),
        )


@dataclass(frozen=True)
class _OfAllRanks:
    """What one rank has of something that all have."""

    own: Iterable[Any]
    others: Others

    def __iter__(self) -> Iterator[Any]:
        return iter(self.own)


class SharedRecords:
    """The records of all ranks, as rank 0 sees them. Begins by telling the others what they are for."""

    def __init__(self, ranks: Ranks, plan: Plan, dataset: Dataset, device: torch.device) -> None:
        if ranks.count > _MOST_RANKS and not plan.kind.sums_are_exact:
            raise TrainingError(
                f"the mechanism {plan.kind.name} is proved for at most {_MOST_RANKS} ranks, not {ranks.count}"
            )
        self._ranks, self._sums = ranks, plan.kind.sums_over_records
        if not (self._sums or plan.kind.takes_samples):
            raise TrainingError(f"the mechanism {plan.kind.name} takes all records on one rank alone")
        ranks.ask("hold", {"plan": plan.to_json(), "same": dataset.layout_digest()})
        self._part = _Part(dataset, device, ranks, plan)
        found = self._part.ready()  # before anything is charged
        if not self._sums:
            found = found[:1]
        self.computed_by = found[0]
        """What decides on the last bits of what is computed, which a replay must find again."""
        if len(set(found)) > 1:
            self.computed_by = ", ".join(found)
        if len(found) > 1 and not plan.kind.sums_are_exact:  # which parts there are, and their order, matter
            self.computed_by += f" on {len(found)} ranks, by {ranks.carrier}"

    def draw(self, rate: float, noise: NoiseSource) -> Sample:
        """A Poisson sample."""
        state = noise.state() if isinstance(noise, SeededNoise) else None
        self._ranks.ask("draw", {"rate": rate, "state": state})
        sample = self._part.draw(rate, noise)
        return dataclasses.replace(sample, others=Others(self._ranks, "sample")) if self._sums else sample

    def stored(self, classes: int, *, on_the_grid: bool) -> StoredRecords | None:  # noqa: ARG002
        """No rank holds all of them."""
        return None

    def every(self) -> Iterable[Sample]:
        """Those of rank 0, and whom to ask for the others."""
        if not self._sums:  # it would see those of rank 0 only
            raise TrainingError("this mechanism reads all records in one place; train it on one rank")
        return _OfAllRanks(self._part.records.every(), Others(self._ranks, "every"))

    def labels(self) -> Labels:
        """Those of rank 0, and whom to ask for the others."""
        return _OfAllRanks(self._part.records.labels(), Others(self._ranks, "labels"))


def answer(
    ranks: Ranks, data: Dataset | Callable[[dict[str, Any]], Dataset], device: torch.device
) -> tuple[Plan | None, dict[str, Any]]:
    """Hold records and answer rank 0's questions about them, until it says that the training is over.

    Args:
        data: the whole data set, or what reads it from where rank 0 says that it is.

    Returns:
        The plan of the training, and what rank 0 gave out at the end.
    """
    part: _Part | None = None
    while True:
        question, values = ranks.asked(device)
        if question == "end":
            return None if part is None else part.plan, values
        if question == "load":
            assert not isinstance(data, Dataset)
            data = data(values["source"])
        elif question == "wait":
            continue
        elif question == "hold":
            assert isinstance(data, Dataset)
            if data.layout_digest() != values["same"]:
                raise TrainingError(
                    "the data read here are not those of rank 0; all ranks read the same data, of which "
                    "each takes its part by itself"
                )
            part = _Part(data, device, ranks, Plan.from_json(values["plan"]))
            part.check_device()
            part.ready()
        elif part is not None and question == "draw":
            state = values["state"]
            part.draw(values["rate"], SecureNoise() if state is None else SeededNoise.restore(state))
        elif part is not None:
            what, _, method = question.partition(".")
            ranks.added_up(part.sum(what, method, values))
