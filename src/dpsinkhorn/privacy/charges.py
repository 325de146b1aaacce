"""Mechanisms, as frozen values; what they do to the data, as events; and charges, which the ledger keeps.

An event is one of dp-accounting's immutable trees, and a charge is an event with the adjacency it is
counted under. Throughout this package a noise multiplier is **noise standard deviation (or Laplace scale) /
sensitivity under the charge's own adjacency**. dp-accounting's PLD accountant counts replace-one in another
unit, half the sensitivity; the translation is made in one place only, `_pld`.

A mechanism says how large its `sensitivity` is under its `adjacency`, how much noise goes on every released
coordinate (`noise_std`), and which `event` one use costs. Nobody re-derives a privacy cost elsewhere:
`mechanism.sampled(rate, steps)` and `mechanism.charge(uses)` hand out the `Charge` that the accountants and
the ledger read. Proofs: `docs/proofs/`.
"""

from __future__ import annotations

import enum
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import dp_accounting as dp  # type: ignore[import-untyped]

from dpsinkhorn.errors import MixedAdjacencyError, UnsupportedEventError

Event: TypeAlias = dp.DpEvent
"""What was done with private data, as `dp_accounting` writes it: its accountants say what that costs."""


@dataclass(frozen=True)
class Part:
    """A leaf of an event tree, and how often it happens."""

    event: Event
    count: int


def flatten(event: Event) -> tuple[Part, ...]:
    """Multiply out an event tree into its leaves; equal leaves are counted together, no-ops dropped.

    The order of adaptive composition does not matter for any accountant here, so the tree is a multiset.

    >>> import dp_accounting as dp
    >>> step = dp.PoissonSampledDpEvent(0.1, dp.GaussianDpEvent(2.0))
    >>> flatten(dp.ComposedDpEvent([step, dp.SelfComposedDpEvent(step, 9)]))[0].count
    10
    """
    parts: dict[str, Part] = {}

    def visit(node: Event, times: int) -> None:
        match node:
            case dp.SelfComposedDpEvent():
                visit(node.event, times * _times(node.count))
            case dp.ComposedDpEvent():
                for child in node.events:
                    visit(child, times)
            case dp.NoOpDpEvent():
                pass
            case dp.DpEvent():
                if times:
                    # repr shows every float in full, and works for events that hold lists, which do not hash
                    key = repr(node)
                    parts[key] = Part(node, times + (parts[key].count if key in parts else 0))
            case _:
                raise UnsupportedEventError(f"not an event of dp-accounting: {node!r}")

    visit(event, 1)
    return tuple(parts.values())


def _times(count: Any) -> int:
    """Return how often an event happens, as a whole number; never rounded, which could lose a part of it."""
    try:
        whole = int(count)
    except (OverflowError, TypeError, ValueError):
        whole = -1
    if whole < 0 or whole != count:
        raise UnsupportedEventError(f"an event cannot happen {count!r} times")
    return whole


def halve_noise(event: Event) -> Event:
    """Return the event with every noise multiplier halved: the same noise beside twice the sensitivity."""
    match event:
        case dp.GaussianDpEvent() | dp.LaplaceDpEvent():
            return type(event)(event.noise_multiplier / 2)
        case dp.PoissonSampledDpEvent():
            return dp.PoissonSampledDpEvent(event.sampling_probability, halve_noise(event.event))
        case dp.SelfComposedDpEvent():
            return dp.SelfComposedDpEvent(halve_noise(event.event), event.count)
        case dp.ComposedDpEvent():
            return dp.ComposedDpEvent([halve_noise(child) for child in event.events])
        case dp.NoOpDpEvent() | dp.NonPrivateDpEvent():
            return event
    raise UnsupportedEventError(f"no conversion between adjacencies is proved for {event!r}")


def event_to_json(event: Event) -> dict[str, Any]:
    """Return an event as plain JSON values; `event_from_json` reads it back.

    >>> import dp_accounting as dp
    >>> event_to_json(dp.PoissonSampledDpEvent(0.5, dp.GaussianDpEvent(2.0)))
    {'type': 'PoissonSampled', 'sampling_rate': 0.5, 'event': {'type': 'Gaussian', 'noise_multiplier': 2.0}}
    """
    match event:
        case dp.GaussianDpEvent():
            return {"type": "Gaussian", "noise_multiplier": float(event.noise_multiplier)}
        case dp.LaplaceDpEvent():
            return {"type": "Laplace", "noise_multiplier": float(event.noise_multiplier)}
        case dp.PoissonSampledDpEvent():
            rate = float(event.sampling_probability)
            return {"type": "PoissonSampled", "sampling_rate": rate, "event": event_to_json(event.event)}
        case dp.SampledWithoutReplacementDpEvent(sample_size=1):
            parts = _times(event.source_dataset_size)
            return {"type": "OneOfParts", "parts": parts, "event": event_to_json(event.event)}
        case dp.SelfComposedDpEvent():
            return {"type": "SelfComposed", "count": _times(event.count), "event": event_to_json(event.event)}
        case dp.ComposedDpEvent():
            return {"type": "Composed", "events": [event_to_json(child) for child in event.events]}
        case dp.NoOpDpEvent():
            return {"type": "NoOp"}
        case dp.NonPrivateDpEvent():
            return {"type": "NonPrivate"}
    raise UnsupportedEventError(f"no JSON form for {event!r}")


def event_from_json(value: Mapping[str, Any]) -> Event:
    """Read back what `event_to_json` wrote. Anything else raises `UnsupportedEventError`.

    >>> import dp_accounting as dp
    >>> event = dp.SelfComposedDpEvent(dp.LaplaceDpEvent(2.0), 3)
    >>> event_from_json(event_to_json(event)) == event
    True
    """
    try:
        match value["type"]:
            case "Gaussian":
                return dp.GaussianDpEvent(float(value["noise_multiplier"]))
            case "Laplace":
                return dp.LaplaceDpEvent(float(value["noise_multiplier"]))
            case "PoissonSampled":
                inner = event_from_json(value["event"])
                return dp.PoissonSampledDpEvent(float(value["sampling_rate"]), inner)
            case "OneOfParts":
                inner = event_from_json(value["event"])
                return dp.SampledWithoutReplacementDpEvent(_times(value["parts"]), 1, inner)
            case "SelfComposed":
                return dp.SelfComposedDpEvent(event_from_json(value["event"]), _times(value["count"]))
            case "Composed":
                return dp.ComposedDpEvent([event_from_json(child) for child in value["events"]])
            case "NoOp":
                return dp.NoOpDpEvent()
            case "NonPrivate":
                return dp.NonPrivateDpEvent()
    except (KeyError, TypeError, ValueError) as error:
        raise UnsupportedEventError(f"not an event: {value!r}") from error
    raise UnsupportedEventError(f"not an event: {value!r}")


class Adjacency(enum.Enum):
    """When two data sets count as neighbours. The value is the name used in files and on the command line."""

    ADD_OR_REMOVE_ONE = "add-or-remove-one"
    """One data set has one record more than the other: training."""
    REPLACE_ONE = "replace-one"
    """The same number of records, one of them different: transport, where that number is public."""

    @property
    def relation(self) -> Any:
        """Return the same as dp-accounting's `NeighboringRelation`."""
        return dp.NeighboringRelation[self.name]


@dataclass(frozen=True)
class Charge:
    """What was done to the private data: an event, and the adjacency its noise multipliers refer to."""

    event: Event
    adjacency: Adjacency = Adjacency.ADD_OR_REMOVE_ONE

    def to_replace_one(self) -> Charge:
        """Return the same release, charged under replace-one.

        Replacing a record is removing one and adding another, so that every sensitivity at most doubles and
        every noise multiplier is halved; see docs/proofs/composing-adjacencies.md. The way back does not
        exist: a bound for data sets of one size says nothing of a record more.
        """
        if self.adjacency is Adjacency.REPLACE_ONE:
            return self
        return Charge(halve_noise(self.event), Adjacency.REPLACE_ONE)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values: `{"adjacency": ..., "event": {...}}`."""
        return {"adjacency": self.adjacency.value, "event": event_to_json(self.event)}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Charge:
        return cls(event_from_json(value["event"]), Adjacency(value["adjacency"]))


def compose(*charges: Charge, adjacency: Adjacency | None = None) -> Charge:
    """Return everything that was done to the same records, as one charge.

    Charges under different adjacencies raise `MixedAdjacencyError`, unless `adjacency=REPLACE_ONE` asks for
    the conversion.

    >>> training = Charge(dp.PoissonSampledDpEvent(0.1, dp.GaussianDpEvent(2.0)))
    >>> transport = Charge(dp.GaussianDpEvent(5.0), Adjacency.REPLACE_ONE)
    >>> compose(training, transport)
    Traceback (most recent call last):
    dpsinkhorn.errors.MixedAdjacencyError: ...
    >>> compose(training, transport, adjacency=Adjacency.REPLACE_ONE).adjacency
    <Adjacency.REPLACE_ONE: 'replace-one'>
    """
    found = {charge.adjacency for charge in charges}
    if adjacency is None:
        if len(found) > 1:
            raise MixedAdjacencyError(
                "charges under add-or-remove-one and replace-one do not add up; "
                "pass adjacency=Adjacency.REPLACE_ONE to convert all of them to replace-one"
            )
        adjacency = found.pop() if found else Adjacency.ADD_OR_REMOVE_ONE
    elif adjacency is Adjacency.ADD_OR_REMOVE_ONE and Adjacency.REPLACE_ONE in found:
        raise MixedAdjacencyError("a replace-one charge cannot be converted to add-or-remove-one")
    elif adjacency is Adjacency.REPLACE_ONE:
        charges = tuple(charge.to_replace_one() for charge in charges)
    return Charge(dp.ComposedDpEvent([charge.event for charge in charges]), adjacency)


# ---- mechanisms


class Mechanism(ABC):
    """What every mechanism value offers. Its fields are positive numbers, but for the adjacency."""

    adjacency: Adjacency

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if name != "adjacency" and not (value > 0 and math.isfinite(value)):
                raise ValueError(f"{name} must be a positive number, not {value}")

    @property
    @abstractmethod
    def event(self) -> Event:
        """Return the cost of one use on all of the data it sees."""

    def charge(self, uses: int = 1) -> Charge:
        """Return the cost of `uses` uses on the whole data set."""
        if uses < 0:
            raise ValueError(f"uses must not be negative, not {uses}")
        return Charge(dp.SelfComposedDpEvent(self.event, uses), self.adjacency)

    def sampled(self, sampling_rate: float, steps: int) -> Charge:
        """Return the cost of `steps` uses, each on a fresh Poisson sample of the records."""
        if not 0 < sampling_rate <= 1:
            raise ValueError(f"sampling_rate must be above 0 and at most 1, not {sampling_rate}")
        if steps < 0:
            raise ValueError(f"steps must not be negative, not {steps}")
        if self.adjacency is not Adjacency.ADD_OR_REMOVE_ONE:
            # a replace-one sensitivity does not bound what a record that is drawn adds to the sample
            raise MixedAdjacencyError("Poisson sampling is accounted for under add-or-remove-one")
        return Charge(
            dp.SelfComposedDpEvent(dp.PoissonSampledDpEvent(sampling_rate, self.event), steps), self.adjacency
        )


@dataclass(frozen=True)
class NonPrivate(Mechanism):
    """No protection at all; epsilon is infinite. A run without privacy says so instead of leaving it out."""

    adjacency: Adjacency = Adjacency.ADD_OR_REMOVE_ONE

    @property
    def event(self) -> Event:
        return dp.NonPrivateDpEvent()

    def sampled(self, sampling_rate: float, steps: int) -> Charge:
        """Sampling hides nothing reliably: still not private."""
        del sampling_rate
        return self.charge(min(steps, 1))


class _Gaussian(Mechanism):
    """A value of bounded L2 sensitivity plus independent Gaussian noise per coordinate."""

    adjacency: Adjacency = Adjacency.ADD_OR_REMOVE_ONE

    if TYPE_CHECKING:  # fields in some mechanisms, computed in others; never abstract at run time

        @property
        def sensitivity(self) -> float: ...

        @property
        def noise_multiplier(self) -> float: ...

    @property
    def noise_std(self) -> float:
        """Standard deviation of the noise on every coordinate."""
        return self.noise_multiplier * self.sensitivity

    @property
    def event(self) -> Event:
        return dp.GaussianDpEvent(self.noise_multiplier)


@dataclass(frozen=True)
class GaussianMechanism(_Gaussian):
    """A vector of L2 sensitivity `sensitivity`, plus N(0, (noise_multiplier * sensitivity)^2).

    >>> GaussianMechanism(sensitivity=2.0, noise_multiplier=3.0).noise_std
    6.0
    """

    sensitivity: float
    noise_multiplier: float
    adjacency: Adjacency = Adjacency.ADD_OR_REMOVE_ONE


@dataclass(frozen=True)
class LaplaceMechanism(Mechanism):
    """A vector of L1 sensitivity `sensitivity`, plus Laplace noise of `scale`; one use is 1 / multiplier-DP.

    >>> LaplaceMechanism(sensitivity=2.0, noise_multiplier=4.0).scale
    8.0
    """

    sensitivity: float
    noise_multiplier: float
    adjacency: Adjacency = Adjacency.ADD_OR_REMOVE_ONE

    @property
    def scale(self) -> float:
        """Scale b of the noise density exp(-|x| / b) / 2b."""
        return self.noise_multiplier * self.sensitivity

    @property
    def noise_std(self) -> float:
        """Standard deviation of the noise on every coordinate."""
        return math.sqrt(2) * self.scale

    @property
    def event(self) -> Event:
        return dp.LaplaceDpEvent(self.noise_multiplier)


@dataclass(frozen=True)
class _Clipped(_Gaussian):
    clip: float
    noise_multiplier: float


class BatchMechanism(_Clipped):
    """Mechanism `batch`: the whole gradient matrix of a step is clipped to `clip` (Algorithm 1).

    Two matrices of norm at most Δ are at most 2Δ apart, whatever the batches, the empty one included; noise
    2Δσ. Proof: docs/proofs/batch-sensitivity.md.

    >>> mechanism = BatchMechanism(clip=0.5, noise_multiplier=1.1)
    >>> mechanism.sensitivity, mechanism.noise_std
    (1.0, 1.1)
    """

    @property
    def sensitivity(self) -> float:
        return 2 * self.clip


class ParameterMechanism(BatchMechanism):
    """Mechanism `parameter`: the generator's whole parameter gradient is clipped; accounted as `batch`."""


@dataclass(frozen=True)
class ImageMechanism(_Gaussian):
    """Mechanism `image`: each of `rows` gradient rows is clipped to `clip` on its own.

    The papers' σ, `row_noise_multiplier`, is noise / sensitivity of one row, 2Δ. All rows see the same
    sample, so that their joint sensitivity, 2Δ√rows, is what counts. Proof: docs/proofs/image-sensitivity.md.

    >>> mechanism = ImageMechanism(clip=0.5, row_noise_multiplier=1.5, rows=9)
    >>> mechanism.sensitivity, mechanism.noise_std, mechanism.noise_multiplier
    (3.0, 1.5, 0.5)
    """

    clip: float
    row_noise_multiplier: float
    rows: int

    @property
    def sensitivity(self) -> float:
        return 2 * self.clip * math.sqrt(self.rows)

    @property
    def noise_multiplier(self) -> float:
        """Return the effective σ/√rows."""
        return self.row_noise_multiplier / math.sqrt(self.rows)


def parts_of(sampling_rate: float) -> int:
    """Return into how many parts records are split: one over the rate, rounded down.

    >>> parts_of(1 / 1000), parts_of(60 / 1347)
    (1000, 22)
    """
    if not 0 < sampling_rate <= 1:
        raise ValueError(f"sampling_rate must be above 0 and at most 1, not {sampling_rate}")
    return math.floor((1 + 1e-9) / sampling_rate)


@dataclass(frozen=True)
class CriticMechanism(ImageMechanism):
    """Mechanism `gs_wgan`: as `image`, and a step sees one part of the records, drawn in secret.

    A record is in one part for good, and adding it changes that part alone. Proof: docs/proofs/gs-wgan.md.

    >>> mechanism = CriticMechanism(clip=1.0, row_noise_multiplier=2.0, rows=4)
    >>> mechanism.sampled(1 / 1000, steps=20).event.event.event.noise_multiplier
    1.0
    """

    def sampled(self, sampling_rate: float, steps: int) -> Charge:
        """Return the cost of `steps` uses, each on one of the parts."""
        whole = self.charge(steps)
        parts = parts_of(sampling_rate)
        if parts == 1:
            return whole
        one = dp.SampledWithoutReplacementDpEvent(parts, 1, self.event)
        return Charge(dp.SelfComposedDpEvent(one, steps), self.adjacency)


@dataclass(frozen=True)
class VoteMechanism(_Gaussian):
    """Mechanisms `datalens` and `g_pate`: votes on each of `rows`, summed over teachers.

    A record is in one teacher's part for good; another vote of that one moves what is released of a row by a
    vector whose square is at most `square`. All teachers vote in every use. Proofs: docs/proofs/datalens.md,
    docs/proofs/g-pate.md.

    >>> mechanism = VoteMechanism(square=16, noise_multiplier=2.0, rows=9)
    >>> mechanism.sensitivity, mechanism.noise_std, mechanism.sampled(1 / 50, 3) == mechanism.sampled(1, 3)
    (12.0, 24.0, True)
    """

    square: float
    noise_multiplier: float
    rows: int

    @property
    def sensitivity(self) -> float:
        return math.sqrt(self.square * self.rows)

    def sampled(self, sampling_rate: float, steps: int) -> Charge:
        """Return the cost of `steps` uses; the rate only says how large the parts are."""
        parts_of(sampling_rate)
        return self.charge(steps)


class RecordMechanism(_Clipped):
    """Mechanism `record`: a sum over records, each record's share clipped to `clip`.

    Proof: docs/proofs/record-sensitivity.md.

    >>> RecordMechanism(clip=3.0, noise_multiplier=2.0).noise_std
    6.0
    """

    @property
    def sensitivity(self) -> float:
        return self.clip


class MomentsMechanism(_Clipped):
    """Mechanism `moments`: a sum over all records, each one's contribution scaled to a norm of at most 1.

    What is summed differs from step to step: coefficients and counts, or squares of deviations, clipped
    before they are scaled, in the first steps at `clip`, then at a radius that follows from what is released.
    All of a step's sums together are one release, with noise σ per coordinate of the scaled sum. Nothing is
    sampled. Proof: docs/proofs/moments.md.

    >>> MomentsMechanism(clip=7.0, noise_multiplier=2.0).noise_std
    2.0
    """

    @property
    def sensitivity(self) -> float:
        return 1.0

    def sampled(self, sampling_rate: float, steps: int) -> Charge:
        """Return the cost of `steps` steps; every record is in every one of them."""
        if sampling_rate != 1:
            raise ValueError(f"moments takes all records: sampling_rate must be 1, not {sampling_rate}")
        return super().sampled(sampling_rate, steps)
