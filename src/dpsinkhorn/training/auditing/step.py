"""A distinguishing game on the steps of one mechanism: no data, or one record, chosen so as to show the most.

Every mechanism brings its own worst case, which is one at any sampling rate: a sound ε is nearly reached. The
release is that of the code that trains, with its noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dpsinkhorn.mechanisms import find_mechanism, private_names
from dpsinkhorn.mechanisms.shared.base import WorstCase
from dpsinkhorn.privacy import Charge, ImageMechanism, SecureNoise, SeededNoise, epsilon, published_epsilon
from dpsinkhorn.privacy.audit import AuditError, PairBound, sampled_gaussian_bound, threshold_bound
from dpsinkhorn.privacy.noise import NoiseSource

Scores: TypeAlias = npt.NDArray[np.float64]
Watch: TypeAlias = Callable[[int], None]

_ROWS = 4


@dataclass(frozen=True)
class StepSetting:
    """What is audited: steps of one mechanism. `noise_multiplier` is that of a row for `image`."""

    mechanism: str
    noise_multiplier: float
    sampling_rate: float = 1.0
    steps: int = 1
    rows: int = _ROWS
    """Generated images; an even number."""

    def __post_init__(self) -> None:
        if self.mechanism not in private_names():
            known = ", ".join(private_names())
            raise AuditError(f"mechanism must be one of {known}, not {self.mechanism!r}")
        if not find_mechanism(self.mechanism).takes_samples and self.sampling_rate != 1:
            raise AuditError(f"{self.mechanism} takes all records in every step: its sampling rate is 1")
        if not 0 < self.sampling_rate <= 1:
            raise AuditError(f"sampling_rate must be above 0 and at most 1, not {self.sampling_rate}")
        if self.steps < 1:
            raise AuditError(f"steps must be at least 1, not {self.steps}")
        if self.rows < 2 or self.rows % 2:
            raise AuditError(
                f"rows must be an even number, for half of the images lie on each side: {self.rows}"
            )
        if not (self.noise_multiplier > 0 and math.isfinite(self.noise_multiplier)):
            raise AuditError(f"noise_multiplier must be a positive number, not {self.noise_multiplier}")

    @property
    def worst_case(self) -> WorstCase:
        """Return the pair of data sets that is told apart."""
        return find_mechanism(self.mechanism).worst_case(self.noise_multiplier, self.rows)

    @property
    def charge(self) -> Charge:
        """What a ledger would be charged."""
        charge: Charge = self.worst_case.mechanism.sampled(self.sampling_rate, self.steps)
        return charge

    def claimed(self, delta: float) -> float:
        """The ε that our accountant proves."""
        return epsilon(self.charge, delta)

    def published(self, delta: float) -> float | None:
        """**Not a guarantee**: the ε that the paper's own count gives, for `image`."""
        mechanism = self.worst_case.mechanism
        if not isinstance(mechanism, ImageMechanism):
            return None
        return published_epsilon(mechanism, self.sampling_rate, self.steps, delta)


class StepGame:
    """Plays steps with and without the record, and scores what they release.

    >>> game = StepGame(StepSetting("image", 1.0))
    >>> 0.999 < game.move <= 1
    True
    >>> game.play(3, SeededNoise(0), present=True).shape
    (3,)
    """

    def __init__(self, setting: StepSetting) -> None:
        self.setting = setting
        self._case = setting.worst_case
        # What an adversary knows who chose the record: the release without noise, in either case.
        self._without = self._case.clipped(False)
        self._difference = self._case.clipped(True) - self._without
        if not self._difference.any():
            raise AuditError(f"the record moves nothing that is noised: {self._own_case}")

    @property
    def _own_case(self) -> str:
        return f"give the mechanism {self.setting.mechanism} a worst_case of its own"

    @property
    def move(self) -> float:
        """By how much the record moves what is noised, over the sensitivity that is claimed."""
        return float(self._difference.norm()) / float(self._case.mechanism.sensitivity)

    def play(
        self, repetitions: int, noise: NoiseSource, *, present: bool, watch: Watch | None = None
    ) -> Scores:
        """Scores of `repetitions` runs of all steps, on the record alone or on no data."""
        if repetitions < 1:
            raise AuditError(f"repetitions must be at least 1, not {repetitions}")
        scores = np.empty(repetitions)
        for at in range(repetitions):
            rate = self.setting.sampling_rate
            releases = [self._case.release(present, rate, noise) for _ in range(self.setting.steps)]
            scores[at] = self._score(torch.stack(releases))
            if watch is not None:
                watch(1)
        return scores

    def _score(self, releases: Tensor) -> float:
        """The log-likelihood ratio of all steps, if the noise is what it is said to be.

        Along the direction of the difference a step is N(0, 1) without the record; with it, N(μ, 1) with the
        probability of being sampled. Wrong noise, or a wrong clip, makes this another score, not a wrong one.
        """
        if releases.shape[1:] != self._without.shape:
            noised, released = self._without.numel(), releases[0].numel()
            raise AuditError(f"{noised} numbers are noised and {released} released: {self._own_case}")
        length = float(self._difference.norm())
        std, rate = self._case.mechanism.noise_std, self.setting.sampling_rate
        along = (releases - self._without) @ (self._difference / length) / std
        mu = length / std
        ratio = (mu * along - mu * mu / 2).numpy()
        if rate == 1:
            return float(ratio.sum())
        return float(np.logaddexp(math.log1p(-rate), math.log(rate) + ratio).sum())


@dataclass(frozen=True)
class StepAudit:
    """What the game on steps showed."""

    setting: StepSetting
    delta: float
    claimed: float
    """The ε of our accountant."""
    published: float | None
    """For `image`: the paper's own count, which is no guarantee."""
    threshold: PairBound
    gaussian: PairBound
    present: Scores
    absent: Scores

    @property
    def bound(self) -> float:
        """The larger of the two bounds."""
        return max(self.threshold.epsilon, self.gaussian.epsilon)


def audit_step(
    setting: StepSetting,
    *,
    delta: float,
    repetitions: int = 1000,
    confidence: float = 0.95,
    seed: int | None = None,
    watch: Watch | None = None,
) -> StepAudit:
    """Play the game and bound ε from below. Without a seed the noise is the secure one of releases.

    >>> found = audit_step(StepSetting("record", 1.0), delta=1e-5, repetitions=50, seed=0)
    >>> 0 < found.bound < found.claimed
    True
    """
    if repetitions < 8:
        raise AuditError(f"repetitions must be at least 8, not {repetitions}")
    game = StepGame(setting)
    noise: NoiseSource = SecureNoise() if seed is None else SeededNoise(seed)
    absent = game.play(repetitions, noise, present=False, watch=watch)
    present = game.play(repetitions, noise, present=True, watch=watch)
    return StepAudit(
        setting=setting,
        delta=delta,
        claimed=setting.claimed(delta),
        published=setting.published(delta),
        threshold=threshold_bound(present, absent, delta=delta, confidence=confidence),
        gaussian=sampled_gaussian_bound(
            present,
            absent,
            sampling_rate=setting.sampling_rate,
            steps=setting.steps,
            delta=delta,
            confidence=confidence,
        ),
        present=present,
        absent=absent,
    )
