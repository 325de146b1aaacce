"""Record and replay: what a mechanism shows to the privacy barrier, on a data set and on a neighbour of it.

A `Recorder` stands at the barrier while a mechanism runs on a data set D: it keeps the private values that
ask for noise, the sensitivity that is claimed of them, the public state that went into them, and what was
released. A `Replayer` stands there while
the same mechanism runs on a neighbour D': it measures how far the values moved, over the claimed sensitivity,
and hands back what was released on D. So all that follows is the same on both sides, and must not differ.

The values that are released under one charge are measured together: relative moves of their parts add up by
squares for Gaussian noise, and as they are for Laplace noise, and the total may not exceed 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeAlias

import dp_accounting as dp  # type: ignore[import-untyped]
import numpy as np
import torch
from torch import Tensor

from dpsinkhorn.privacy.charges import Charge, Event, flatten
from dpsinkhorn.privacy.noise import NoiseSource, ObservedNoise, Query

_ROUNDING = 1e-12  # of adding up moves in float64
_SAME = 1e-9  # relative distance of multipliers that were computed in two ways


class ReplayDivergedError(Exception):
    """The neighbour asks for noise of another kind, number, order, shape or size than the data did."""


@dataclass(frozen=True, eq=False)
class _Sample:
    units: int
    rate: float
    taken: Tensor


@dataclass(frozen=True, eq=False)
class _Answer:
    query: Query
    values: Tensor
    released: Tensor


_Public: TypeAlias = dict[str, bytes]
_Entry: TypeAlias = _Sample | _Public | _Answer


@dataclass(frozen=True)
class _Release:
    """Values that are noised under one charge."""

    first: Query
    sample: _Sample | None
    parts: tuple[_Answer, ...]

    @property
    def rate(self) -> float:
        return 1.0 if self.sample is None else self.sample.rate


@dataclass(frozen=True, eq=False)
class Recording:
    """All that passed the barrier on the data, in its order."""

    entries: tuple[_Entry, ...]

    @property
    def values(self) -> list[Tensor]:
        """The private values, one by one."""
        return [entry.values for entry in self.entries if isinstance(entry, _Answer)]

    def differences(self, charge: Charge) -> tuple[str, ...]:
        """Return what of the recorded noise is not as it was charged: one line each."""
        try:
            releases = self._releases()
        except ReplayDivergedError as error:
            return (str(error),)
        noised = sorted((entry.first.noise, entry.rate, entry.first.multiplier) for entry in releases)
        charged = sorted(_charged(charge))
        if len(noised) != len(charged):
            return (f"{len(charged)} releases are charged, and {len(noised)} were noised",)
        lines = [
            f"charged as {_in_words(*theirs)}, and noised as {_in_words(*ours)}"
            for ours, theirs in zip(noised, charged, strict=True)
            if ours[0] != theirs[0]
            or not all(math.isclose(a, b, rel_tol=_SAME) for a, b in zip(ours[1:], theirs[1:], strict=True))
        ]
        return tuple(dict.fromkeys(lines))

    def _releases(self) -> list[_Release]:
        """The answers put together as they are charged, each with the rate of the sample before it."""
        found: list[_Release] = []
        open_parts: list[_Answer] = []
        sample: _Sample | None = None
        for entry in self.entries:
            if isinstance(entry, _Sample):
                sample = entry
            if not isinstance(entry, _Answer) or not entry.values.numel():
                continue
            open_parts.append(entry)
            first, numbers = open_parts[0].query, sum(part.values.numel() for part in open_parts)
            kinds = {(each.noise, each.multiplier, each.together) for each in (first, entry.query)}
            if numbers > first.together or len(kinds) > 1:  # they are no parts of one release
                raise ReplayDivergedError(_incomplete(first, numbers - entry.values.numel()))
            if numbers == first.together:
                found.append(_Release(first, sample, tuple(open_parts)))
                open_parts, sample = [], None
        if open_parts:
            first = open_parts[0].query
            raise ReplayDivergedError(_incomplete(first, sum(part.values.numel() for part in open_parts)))
        return found


@dataclass(frozen=True, eq=False)
class Shared:
    """Which units of privacy a data set shares with its neighbour."""

    places: Tensor  # (units of D,), the unit of D' that each unit of D is, or -1 where D' has none
    units: int  # how many D' has

    @classmethod
    def all_and(cls, units: int, more: int = 0) -> Shared:
        """All units of D in their places, and some more behind them."""
        return cls(torch.arange(units), units + more)

    def taken(self, recorded: Tensor, *, others: bool) -> Tensor:
        """The sample of D' that goes with one of D; `others` are units of D' alone: all of them, or none."""
        chosen = torch.full((self.units,), others)
        chosen[self.places[self.places >= 0]] = False
        taken = self.places[recorded]
        chosen[taken[taken >= 0]] = True
        return chosen.nonzero().flatten()


class Recorder(ObservedNoise):
    """Hands on the noise of another source, and keeps all that passes the barrier.

    >>> from dpsinkhorn.privacy.noise import SeededNoise, add_gaussian
    >>> def sums(points, noise):
    ...     return add_gaussian(points.sum(0), sensitivity=1.0, noise_multiplier=2.0, noise=noise)
    >>> points = torch.full((5, 2), 0.5)
    >>> recorder = Recorder(SeededNoise(0))
    >>> first = sums(points, recorder)
    >>> replayer = Replayer(recorder.recording, SeededNoise(0), Shared.all_and(5, more=1))
    >>> second = sums(torch.cat([points, torch.tensor([[3.0, 4.0]])]), replayer)
    >>> replayer.finish(), bool((first == second).all())
    (5.0, True)
    """

    def __init__(self, source: NoiseSource) -> None:
        super().__init__(source)
        self._entries: list[_Entry] = []

    @property
    def recording(self) -> Recording:
        """What passed so far."""
        return Recording(tuple(self._entries))

    def public(self, arguments: dict[str, Tensor | float | None]) -> None:
        self._entries.append(_bits(arguments))

    def release(self, query: Query, values: Tensor, noised: Tensor) -> Tensor:
        self._entries.append(_Answer(query, _seen(values), noised.detach().clone()))
        return noised

    def sample(self, units: int, rate: float, taken: Tensor) -> Tensor:
        self._entries.append(_Sample(units, rate, taken.cpu().clone()))
        return taken


class Replayer(ObservedNoise):
    """Answers a neighbour's requests by what was recorded, and measures how far its values have moved.

    Units that the data do not have are taken into every sample, which is the worst case, but for one: there
    they are left out, and nothing may move at all: that is what sampling is credited with. Which one goes by
    the `turn`, so that over several neighbours every sample is seen with and without them.
    """

    def __init__(self, recording: Recording, source: NoiseSource, shared: Shared, turn: int = 0) -> None:
        super().__init__(source)
        self._recording, self._shared = recording, shared
        self._next = 0
        samples = [entry for entry in recording.entries if isinstance(entry, _Sample) and entry.rate < 1]
        samples.sort(key=lambda sample: -len(sample.taken))  # among many records a change shows most
        # An empty sample shows nothing of what others do. With a single one both cases have their turns.
        choices: list[_Sample | None] = [sample for sample in samples if len(sample.taken)]
        choices = [*choices, None] if len(choices) == 1 else choices
        self._without = choices[turn % len(choices)] if choices else None
        self._finite = True
        self.values: list[Tensor] = []
        """The neighbour's private values, one by one."""
        self.differences: tuple[str, ...] = ()
        """What is wrong beside a move that is too large, once it is finished: one line each."""

    def public(self, arguments: dict[str, Tensor | float | None]) -> None:
        entry, now = self._entry(), _bits(arguments)
        if not isinstance(entry, dict):
            raise ReplayDivergedError(f"{_asked(entry)} on the data, and {_asked(now)} on the neighbour")
        if names := [name for name in {**entry, **now} if entry.get(name) != now.get(name)]:
            raise ReplayDivergedError(f"changes what must be public of a release: {', '.join(names)}")

    def release(self, query: Query, values: Tensor, noised: Tensor) -> Tensor:
        entry = self._entry()
        if not isinstance(entry, _Answer) or entry.query != query:
            raise ReplayDivergedError(f"{_asked(entry)} on the data, and {_in_short(query)} on the neighbour")
        self.values.append(_seen(values))
        self._finite = self._finite and bool(torch.isfinite(values).all())
        return entry.released.clone().to(noised)

    def sample(self, units: int, rate: float, taken: Tensor) -> Tensor:
        entry = self._entry()
        if not isinstance(entry, _Sample) or entry.rate != rate:
            raise ReplayDivergedError(f"{_asked(entry)} on the data, and a sample on the neighbour")
        if (entry.units, units) != (len(self._shared.places), self._shared.units):
            raise ReplayDivergedError(
                f"samples of {entry.units} and of {units} units: not what the data hold"
            )
        return self._shared.taken(entry.taken, others=entry is not self._without).to(taken)

    def finish(self) -> float:
        """Return the largest move of a release over its sensitivity; refuse where requests were left out."""
        if self._next != len(self._recording.entries):
            left = len(self._recording.entries) - self._next
            raise ReplayDivergedError(f"the neighbour asked for noise {left} times less than the data did")
        values, farthest = (each for each in self.values if each.numel()), 0.0
        if not self._finite:
            self.differences = ("asks for noise on what is not finite",)
        for release in self._recording._releases():
            move = _move(release.first, [(part, next(values)) for part in release.parts])
            if move and self._without is not None and release.sample is self._without:
                self.differences += (f"moves what is noised, by {move:.4g}, where no sample has it",)
            farthest = max(farthest, move)
        return farthest

    def outcome(
        self, name: str, run: Callable[[], Iterable[str]], refusals: type[Exception] | tuple[()] = ()
    ) -> Outcome:
        """Say what becomes of a neighbour.

        Args:
            run: runs on it, with this source of noise, and returns what else differs.
            refusals: by which it may be refused, before anything is asked for.
        """
        try:
            others = run()
            move = self.finish()
        except refusals as error:
            lines = (f"ends with an error: {error}",) if self._next else ()
            return Outcome(name, refused=not lines, differences=lines)
        except ReplayDivergedError as error:
            return Outcome(name, differences=(str(error),))
        return Outcome(name, move=move, differences=(*self.differences, *others))

    def _entry(self) -> _Entry:
        if self._next == len(self._recording.entries):
            raise ReplayDivergedError("the neighbour asks for noise more often than the data did")
        self._next += 1
        return self._recording.entries[self._next - 1]


@dataclass(frozen=True)
class Outcome:
    """What became of one neighbour."""

    neighbour: str
    refused: bool = False
    """Whether it was refused before anything was asked of it."""
    move: float = 0.0
    """The largest move over the claimed sensitivity."""
    differences: tuple[str, ...] = ()
    """What else differs: one line each."""

    @property
    def violations(self) -> tuple[str, ...]:
        """All that must not be: one line each."""
        far = self.move > 1 + _ROUNDING
        moved = (f"moves what is noised by {self.move:.4g} times its sensitivity",) if far else ()
        return tuple(f"{self.neighbour}: {line}" for line in (*moved, *self.differences))


@dataclass(frozen=True)
class Replayed:
    """What a search over neighbours showed of one mechanism."""

    mechanism: str
    neighbours: int
    refused: int
    move: float
    """The largest move over the claimed sensitivity, and the neighbour that made it."""
    farthest: str
    violations: tuple[str, ...]

    @classmethod
    def of(cls, mechanism: str, outcomes: Iterable[Outcome]) -> Replayed:
        """Sum up what became of the neighbours."""
        every = list(outcomes)
        farthest = max(every, key=lambda outcome: outcome.move, default=Outcome(""))
        return cls(
            mechanism,
            neighbours=len(every),
            refused=sum(outcome.refused for outcome in every),
            move=farthest.move,
            farthest=farthest.neighbour if farthest.move else "",
            violations=tuple(line for outcome in every for line in outcome.violations),
        )


def _seen(values: Tensor) -> Tensor:
    """Values as the lattice takes them: in float64, and 0 where they are not finite."""
    return torch.nan_to_num(values.detach().double(), nan=0.0, posinf=0.0, neginf=0.0).cpu().clone()


def _bits(arguments: dict[str, Tensor | float | None]) -> _Public:
    """Public arguments, bit for bit."""
    arrays = {
        name: np.asarray(value.detach().cpu() if isinstance(value, Tensor) else value)
        for name, value in arguments.items()
        if value is not None
    }
    return {name: array.tobytes() for name, array in arrays.items()}


def _move(first: Query, parts: Iterable[tuple[_Answer, Tensor]]) -> float:
    """How far the parts of a release moved together, over the sensitivities that are claimed of them."""
    scaled = torch.cat([(now - part.values).flatten() / part.query.sensitivity for part, now in parts])
    return float(torch.linalg.vector_norm(scaled, ord=1 if first.noise == "laplace" else 2))


def _incomplete(query: Query, numbers: int) -> str:
    return f"{query.together} numbers are released under one charge, and {numbers} of them were noised"


def _charged(charge: Charge) -> Iterable[tuple[str, float, float]]:
    """Noise, sampling rate and multiplier of each release that a charge stands for."""
    for part in flatten(charge.event):
        event: Event = part.event
        rate = 1.0
        if isinstance(event, dp.PoissonSampledDpEvent):
            rate, event = event.sampling_probability, event.event
        if isinstance(event, dp.SampledWithoutReplacementDpEvent):  # a part that is drawn is all of a sample
            event = event.event
        noise = {dp.GaussianDpEvent: "gaussian", dp.LaplaceDpEvent: "laplace"}.get(type(event), "no")
        yield from [(noise, float(rate), float(getattr(event, "noise_multiplier", 0.0)))] * part.count


def _in_words(noise: str, rate: float, multiplier: float) -> str:
    sampled = "on all units" if rate == 1 else f"on samples of rate {rate:.4g}"
    return f"{noise} noise of multiplier {multiplier:.4g} {sampled}"


def _asked(entry: _Entry) -> str:
    if isinstance(entry, dict):
        return f"a release with {', '.join(entry)}"
    return f"a sample at rate {entry.rate:.6g}" if isinstance(entry, _Sample) else _in_short(entry.query)


def _in_short(query: Query) -> str:
    return f"{query.noise} noise of {query.multiplier:.6g} x {query.sensitivity!r} on shape {query.shape}"
