"""Mechanisms as frozen values: what is clipped, to what, how much noise, under which adjacency, at what cost.

A mechanism says how large its `sensitivity` is under its `adjacency`, how much noise goes on every released
coordinate (`noise_std`), and which `event` one use costs. `noise_multiplier` is always noise / sensitivity.
Nobody re-derives a privacy cost elsewhere: `mechanism.sampled(rate, steps)` and `mechanism.charge(uses)`
hand out the `Charge` that the accountants and the ledger read. Proofs: `docs/proofs/`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

import dp_accounting as dp  # type: ignore[import-untyped]

from dpsinkhorn.errors import MixedAdjacencyError
from dpsinkhorn.privacy.charges import Adjacency, Charge, Event


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
