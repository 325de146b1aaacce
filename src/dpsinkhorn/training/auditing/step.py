"""A distinguishing game on the steps of one sanitizer: no data, or one record, chosen so as to show the most.

The images are at -1/2 and 1/2, in equal numbers, of one pixel each, and the record is at 0. Without it a step
of `batch`, `image` or `parameter` sees the self term alone, which drives the images apart; with it the cross
term outweighs that, and draws them together. Both gradients are clipped, so that all of the release flips:
the distance is 2Δ, over all rows 2Δ√n, the most that there can be. In `record` the one record has a share of
the full norm C. So the pair of data sets is a worst case at any sampling rate: a sound ε is nearly reached.

The release is what `backward` leaves as gradient: the code that trains, with its noise. `moments` has no
images and no sampling; there it is a clipped deviation and a count, of one record or of none.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from dpsinkhorn.generators import MixtureConfig
from dpsinkhorn.ot import SquaredEuclidean
from dpsinkhorn.privacy import (
    BatchMechanism,
    Charge,
    ImageMechanism,
    MomentsMechanism,
    ParameterMechanism,
    RecordMechanism,
    SecureNoise,
    SeededNoise,
    epsilon,
    poisson_sample,
    published_epsilon,
)
from dpsinkhorn.privacy.audit import AuditError, PairBound, sampled_gaussian_bound, threshold_bound
from dpsinkhorn.privacy.noise import NoiseSource
from dpsinkhorn.training.sanitizers import (
    BatchSanitizer,
    ImageSanitizer,
    Moments,
    ParameterSanitizer,
    RecordSanitizer,
    Sample,
)
from dpsinkhorn.training.sanitizers.moments import COUNT_SENSITIVITY, DEVIATION_SENSITIVITY

__all__ = ["AuditedMechanism", "StepAudit", "StepGame", "StepSetting", "audit_step"]

AuditedMechanism: TypeAlias = Literal["record", "moments", "batch", "image", "parameter"]
AuditedSanitizer: TypeAlias = RecordSanitizer | Moments | BatchSanitizer | ImageSanitizer | ParameterSanitizer
Scores: TypeAlias = npt.NDArray[np.float64]
Watch: TypeAlias = Callable[[int], None]

_CLIP = 1e-3  # far below the gradients here, so that everything is clipped
_REGULARIZATION = 1.0
_ROWS = 4
_ORIGIN = torch.zeros(1, 1, 1)
_COORDINATES = torch.full((1, 1), 0.5)  # in which a deviation is clipped


@dataclass(frozen=True)
class StepSetting:
    """What is audited: steps of one sanitizer. `noise_multiplier` is that of a row for `image`."""

    mechanism: AuditedMechanism
    noise_multiplier: float
    sampling_rate: float = 1.0
    steps: int = 1
    rows: int = _ROWS
    """Generated images; an even number."""

    def __post_init__(self) -> None:
        if self.mechanism not in get_args(AuditedMechanism):
            known = ", ".join(get_args(AuditedMechanism))
            raise AuditError(f"mechanism must be one of {known}, not {self.mechanism!r}")
        if self.mechanism == "moments" and self.sampling_rate != 1:
            raise AuditError("moments takes all records in every step: its sampling rate is 1")
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
    def released(self) -> RecordMechanism | MomentsMechanism | BatchMechanism | ImageMechanism:
        """What a step releases."""
        if self.mechanism == "moments":
            return MomentsMechanism(_CLIP, self.noise_multiplier)
        if self.mechanism == "record":
            return RecordMechanism(_CLIP, self.noise_multiplier)
        if self.mechanism == "batch":
            return BatchMechanism(_CLIP, self.noise_multiplier)
        if self.mechanism == "image":
            return ImageMechanism(_CLIP, self.noise_multiplier, rows=self.rows)
        return ParameterMechanism(_CLIP, self.noise_multiplier)

    def build(self) -> AuditedSanitizer:
        """The sanitizer that is audited."""
        mechanism, cost = self.released, SquaredEuclidean()
        if isinstance(mechanism, MomentsMechanism):
            pixel = MixtureConfig(image_shape=(1, 1, 1), classes=0, components=1, frequencies=1)
            return Moments(mechanism, pixel, max_records=100)
        if isinstance(mechanism, RecordMechanism):
            return RecordSanitizer(mechanism, cost, _REGULARIZATION, expected_batch=1.0, max_sample=100)
        if isinstance(mechanism, ImageMechanism):
            return ImageSanitizer(mechanism, cost, _REGULARIZATION)
        if isinstance(mechanism, ParameterMechanism):  # a kind of BatchMechanism, so it comes first
            return ParameterSanitizer(mechanism, cost, _REGULARIZATION)
        return BatchSanitizer(mechanism, cost, _REGULARIZATION)

    @property
    def charge(self) -> Charge:
        """What a ledger would be charged."""
        return self.released.sampled(self.sampling_rate, self.steps)

    def claimed(self, delta: float) -> float:
        """The ε that our accountant proves."""
        return epsilon(self.charge, delta)

    def published(self, delta: float) -> float | None:
        """**Not a guarantee**: the ε that the paper's own count gives, for `image`."""
        if not isinstance(self.released, ImageMechanism):
            return None
        return published_epsilon(self.released, self.sampling_rate, self.steps, delta)


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
        self._mechanism, self._sanitizer = setting.released, setting.build()
        ends = torch.tensor([[-0.5], [0.5]], dtype=torch.float64)
        self._images = nn.Parameter(ends.repeat(setting.rows // 2, 1))
        self._record = torch.zeros(1, 1, dtype=torch.float64)
        # What an adversary knows who chose the record: the release without noise, in either case.
        self._without, with_it = self._quiet(self._record[:0]), self._quiet(self._record)
        self._difference = with_it - self._without

    @property
    def move(self) -> float:
        """By how much the record moves what is noised, over the sensitivity that is claimed."""
        return float(self._difference.norm()) / self._mechanism.sensitivity

    def play(
        self, repetitions: int, noise: NoiseSource, *, present: bool, watch: Watch | None = None
    ) -> Scores:
        """Scores of `repetitions` runs of all steps, on the record alone or on no data."""
        if repetitions < 1:
            raise AuditError(f"repetitions must be at least 1, not {repetitions}")
        scores = np.empty(repetitions)
        for at in range(repetitions):
            releases = [self._release(present, noise) for _ in range(self.setting.steps)]
            scores[at] = self._score(torch.stack(releases))
            if watch is not None:
                watch(1)
        return scores

    def _release(self, present: bool, noise: NoiseSource) -> Tensor:
        """One step by the real code: Poisson sample, gradient, clip, noise."""
        if isinstance(self._sanitizer, Moments):
            sums = self._sanitizer.deviations(
                [Sample(self._record[: int(present)])],
                _ORIGIN,
                self._sanitizer.radius,
                noise,
                coordinates=_COORDINATES,
            )
            return _scaled(sums.deviations, sums.counts)
        taken = poisson_sample(int(present), self.setting.sampling_rate, noise)
        images = self._images
        self._sanitizer.backward(images * 1, None, Sample(self._record[taken]), [images], noise)
        assert images.grad is not None
        return images.grad.flatten()

    def _score(self, releases: Tensor) -> float:
        """The log-likelihood ratio of all steps, if the noise is what it is said to be.

        Along the direction of the difference a step is N(0, 1) without the record; with it, N(μ, 1) with the
        probability of being sampled. Wrong noise, or a wrong clip, makes this another score, not a wrong one.
        """
        length = float(self._difference.norm())
        std, rate = self._mechanism.noise_std, self.setting.sampling_rate
        along = (releases - self._without) @ (self._difference / length) / std
        mu = length / std
        ratio = (mu * along - mu * mu / 2).numpy()
        if rate == 1:
            return float(ratio.sum())
        return float(np.logaddexp(math.log1p(-rate), math.log(rate) + ratio).sum())

    def _quiet(self, record: Tensor) -> Tensor:
        if isinstance(self._sanitizer, Moments):
            radius = self._sanitizer.radius
            return _scaled(
                *self._sanitizer.clipped_deviations([Sample(record)], _ORIGIN, radius, _COORDINATES)
            )
        images = self._images
        arguments = (images * 1, None, Sample(record))
        if isinstance(self._sanitizer, ParameterSanitizer):
            return self._sanitizer.clipped(*arguments, [images]).flatten()
        return self._sanitizer.clipped(*arguments).flatten()


def _scaled(deviations: Tensor, counts: Tensor) -> Tensor:
    """Both as one vector, of which a record changes at most 1."""
    return torch.cat([deviations.flatten() / DEVIATION_SENSITIVITY, counts.flatten() / COUNT_SENSITIVITY])


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
