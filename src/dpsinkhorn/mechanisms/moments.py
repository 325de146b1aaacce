"""Mechanism `moments`: clipped sums over all records, noised. Where its privacy barrier stands.

An image becomes the low frequencies of its cosine transform, f. In a step every record contributes its
deviation from the nearest of some public centres of its class, clipped, and a count of 1; or the product of
that deviation with itself. Where it is clipped may be other coordinates, u = W v, with a public matrix W.

All of it is computed in whole multiples of public steps, so coarse that float64 holds every sum exactly. So a
record's contribution is the same bits in whatever company, its norm is at most what it should be, and no
margin for rounding is left to prove: docs/proofs/moments.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dpsinkhorn.generators import CustomConfig, MixtureConfig
from dpsinkhorn.generators.mixture import cosines, places
from dpsinkhorn.mechanisms.shared.base import Sample, TrainingMechanism, WorstCase
from dpsinkhorn.mechanisms.shared.pairs import grid_bits, on_grid
from dpsinkhorn.mechanisms.shared.rounding import LARGEST_MARGIN
from dpsinkhorn.mechanisms.shared.steps import AllRecords, Learner, Steps
from dpsinkhorn.mechanisms.shared.terms import Terms
from dpsinkhorn.privacy.mechanisms import MomentsMechanism
from dpsinkhorn.privacy.noise import NoiseSource, add_gaussian, gaussian_std

_DIGITS = 53  # binary digits of float64
_SLACK = 2.0**-40  # more than the roundings in scaling a vector
_TABLE = 2**23  # products of records and centres at a time
_PIXELS = 784  # of the image that the clipping bound is stated for
_LEAST_RADIUS, _LARGEST_RADIUS = 1e-30, 2e30  # so that neither it nor its inverse overflows
_MOST_STEPS = 100
_WORST_CLIP = 1e-3  # of a worst case, far below its deviation
_MAP_BITS = 26  # binary digits after the point that W keeps

COUNT_WEIGHT = 0.3  # of a count beside a vector of norm 1, τ: less weight is less noise on the vector
DEVIATION_SENSITIVITY = math.sqrt(1 + COUNT_WEIGHT**2)
COUNT_SENSITIVITY = DEVIATION_SENSITIVITY / COUNT_WEIGHT
"""Noise on sums of deviations, and on counts, is as much times the noise multiplier."""


@dataclass(frozen=True)
class Sums:
    """What a step on deviations releases, noised: in units of the radius, and of records."""

    deviations: Tensor  # (classes, K, k)
    counts: Tensor  # (classes, K)


class Moments(TrainingMechanism):
    """Noised sums over all records of a data set.

    Args:
        mechanism: clip and noise.
        config: of the mixture that is fitted.
        max_records: the most records that there may be, public; sums are exact for up to as many.

    >>> from dpsinkhorn.privacy import SeededNoise
    >>> config = MixtureConfig(image_shape=(1, 4, 4), classes=0, components=1, frequencies=2)
    >>> moments = Moments(MomentsMechanism(clip=7.0, noise_multiplier=0.01), config, max_records=2**20)
    >>> black = [Sample(-torch.ones(50, 16))]
    >>> sums = moments.deviations(black, torch.zeros(1, 1, 3), moments.radius, SeededNoise(0))
    >>> sums.counts.round()
    tensor([[50.]], dtype=torch.float64)
    """

    name = "moments"
    summary = "each record's deviation, count or square is clipped, and noise is added to the sums"
    recipe = "mixture"
    takes_persons = False
    takes_samples = False
    steps_are_costly = True
    audit_recipe = "mixture"
    unused_settings = frozenset({"loss", "optimizer"})

    mechanism: MomentsMechanism

    @classmethod
    def releases(cls, terms: Terms) -> MomentsMechanism:
        return MomentsMechanism(terms.clip, terms.noise_multiplier)

    @classmethod
    def build(cls, terms: Terms) -> Moments:
        assert isinstance(terms.generator, MixtureConfig)  # as `check` saw to
        return cls(cls.releases(terms), terms.generator, terms.largest_sample)

    @classmethod
    def check(cls, terms: Terms) -> None:
        config = terms.generator
        if not isinstance(config, MixtureConfig):
            what = config.module if isinstance(config, CustomConfig) else f"a {config.kind}"
            raise ValueError(
                f"the mechanism moments cannot train {what}: moments and a generator of kind mixture belong "
                "together"
            )
        super().check(terms)
        least = 3 if config.components == 1 else 4
        problems = {
            "takes all records in every step; set the sampling rate to 1": terms.sampling_rate != 1,
            f"needs at least {least} steps: means, covariance, centres, covariances": terms.steps < least,
            "has no weights to average; leave optimizer.ema out": terms.averaged,
            f"takes at most {_MOST_STEPS} steps, each with a part of the budget; thousands are for gradients"
            " (--mechanism record)": terms.steps > _MOST_STEPS,
        }
        for problem, there in problems.items():
            if there:
                raise ValueError(f"the mechanism moments {problem}")

    @classmethod
    def worst_case(cls, noise_multiplier: float, rows: int = 4) -> WorstCase:  # noqa: ARG003
        """No data or one record of one pixel: a clipped deviation of norm 1, and its count."""
        pixel = MixtureConfig(image_shape=(1, 1, 1), classes=0, components=1, frequencies=1)
        built = cls(MomentsMechanism(_WORST_CLIP, noise_multiplier), pixel, max_records=100)
        record, origin, scaled = torch.zeros(1, 1), torch.zeros(1, 1, 1), torch.full((1, 1), 0.5)

        def joined(deviations: Tensor, counts: Tensor) -> Tensor:
            return torch.cat(
                [deviations.flatten() / DEVIATION_SENSITIVITY, counts.flatten() / COUNT_SENSITIVITY]
            )

        def clipped(present: bool) -> Tensor:
            sample = Sample(record[: int(present)])
            return joined(*built.clipped_deviations([sample], origin, built.radius, scaled))

        def release(present: bool, rate: float, noise: NoiseSource) -> Tensor:  # noqa: ARG001
            sample = Sample(record[: int(present)])
            sums = built.deviations([sample], origin, built.radius, noise, coordinates=scaled)
            return joined(sums.deviations, sums.counts)

        return WorstCase(built.mechanism, clipped, release)

    @classmethod
    def audit_settings(cls, records: int) -> dict[str, dict[str, Any]]:  # noqa: ARG003
        return {"privacy": {"steps": 5, "clip": 2.0}, "generator": {"components": 3, "frequencies": 4}}

    def own_steps(self, learner: Learner, records: AllRecords, *, horizon: int) -> Steps:
        from dpsinkhorn.mechanisms.shared.moment_steps import MomentSteps

        return MomentSteps(learner, records, self, horizon=horizon)

    def __init__(self, mechanism: MomentsMechanism, config: MixtureConfig, max_records: int) -> None:
        self.mechanism = mechanism
        self.config = config
        self.max_records = max_records
        self.radius = mechanism.clip * math.sqrt(config.points / _PIXELS)
        """R, of deviations, in pixels from 0 to 1."""
        if not 1e-30 <= self.radius <= 1e30:
            raise ValueError(f"clip: expected a number from about 1e-30 to 1e30, got {mechanism.clip}")
        # 2^half bounds the norm of an image; see the proof for the others
        self._half = ((config.points - 1).bit_length() + 1) // 2
        self._bits = 25 - self._half
        self._unit_bits = (_DIGITS - (max_records - 1).bit_length()) // 2
        self._bound = 1 - math.sqrt(config.coefficients) * 2.0 ** -(self._unit_bits + 1) - _SLACK
        if self._bound < 1 - LARGEST_MARGIN:
            raise ValueError(
                f"generator: float64 cannot keep sums of up to {max_records} records of "
                f"{config.coefficients} numbers exact; lower frequencies"
            )
        k = config.coefficients
        for numbers in (config.kinds * k * (k + 1) // 2, config.kinds * config.components * (k + 1)):
            gaussian_std(
                1.0, mechanism.noise_multiplier, numbers
            )  # raises where noise has no room for as many
        _, height, width = config.image_shape
        down, across = config.bands
        self._across_bits = _DIGITS - 1 - (grid_bits(config.points) + 1) - ((width - 1).bit_length() + 1) // 2
        self._middle_bits = (_DIGITS - 1 - self._half) // 2
        self._across = _rounded(cosines(width, across), self._across_bits)
        self._down = _rounded(cosines(height, down), self._middle_bits)
        self._places = places(config)

    # ---- what is released

    def deviations(
        self,
        records: Iterable[Sample],
        centres: Tensor,
        radius: float,
        noise: NoiseSource,
        *,
        coordinates: Tensor | None = None,
    ) -> Sums:
        """Sums of clipped deviations from the nearest of a class's centres, (classes, K, k), and counts.

        With `coordinates` W, (k, k), it is W v that is clipped to the radius and summed, not v.
        """
        sums, counts = self.clipped_deviations(records, centres, radius, coordinates)
        numbers = sums.numel() + counts.numel()
        # a record adds a vector of norm at most 1 and a count of 1, to one of the sums
        return Sums(
            self._noised(sums, DEVIATION_SENSITIVITY, numbers, noise),
            self._noised(counts, COUNT_SENSITIVITY, numbers, noise),
        )

    def squares(
        self,
        records: Iterable[Sample],
        centres: Tensor,
        radius: float,
        noise: NoiseSource,
        *,
        pooled: bool,
        coordinates: Tensor | None = None,
    ) -> Tensor:
        """Sums of w wᵀ over clipped deviations w, (classes, k, k), or (1, k, k) over all classes."""
        total = self.clipped_squares(records, centres, radius, coordinates, pooled=pooled)
        k = total.shape[-1]
        rows, columns = torch.triu_indices(k, k, 1, device=total.device)
        numbers = len(total) * k * (k + 1) // 2
        # The Frobenius norm counts what is above the diagonal twice, so half the variance belongs there.
        diagonal = self._noised(total.diagonal(dim1=1, dim2=2), 1.0, numbers, noise)
        above = self._noised(total[:, rows, columns], math.sqrt(0.5), numbers, noise)
        released = torch.diag_embed(diagonal)
        released[:, rows, columns] = above
        released[:, columns, rows] = above
        return released

    def _noised(self, values: Tensor, sensitivity: float, numbers: int, noise: NoiseSource) -> Tensor:
        return add_gaussian(
            values,
            sensitivity=sensitivity * self.mechanism.sensitivity,
            noise_multiplier=self.mechanism.noise_multiplier,
            noise=noise,
            coordinates=numbers,
        )

    # ---- exact sums over records

    def clipped_deviations(
        self, records: Iterable[Sample], centres: Tensor, radius: float, coordinates: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        centres = self.place(centres)
        sums, counts = torch.zeros_like(centres), torch.zeros_like(centres[..., 0])
        for kind, units, nearest in self.clipped_units(records, centres, radius, coordinates):
            sums[kind].index_add_(0, nearest, units)
            counts[kind].index_add_(0, nearest, torch.ones_like(units[:, 0]))
        return sums, counts

    def clipped_squares(
        self,
        records: Iterable[Sample],
        centres: Tensor,
        radius: float,
        coordinates: Tensor | None = None,
        *,
        pooled: bool,
    ) -> Tensor:
        centres = self.place(centres)
        k = centres.shape[-1]
        total = centres.new_zeros(1 if pooled else len(centres), k, k)
        for kind, units, _ in self.clipped_units(records, centres, radius, coordinates):
            total[0 if pooled else kind] += units.T @ units
        return total

    def clipped_units(
        self, records: Iterable[Sample], centres: Tensor, radius: float, coordinates: Tensor | None
    ) -> Iterator[tuple[int, Tensor, Tensor]]:
        """Classes, clipped deviations of some of their records over the radius, and their centres' places."""
        if not _LEAST_RADIUS <= radius <= _LARGEST_RADIUS:  # below 0 it would bound nothing
            raise ValueError(
                f"radius: expected a number from {_LEAST_RADIUS} to {_LARGEST_RADIUS}, got {radius}"
            )
        matrix = None if coordinates is None else self._matrix(coordinates).to(centres.device)
        for sample in records:
            coefficients = self.coefficients(sample.points)
            for kind, rows in self._by_class(sample):
                own = coefficients if rows is None else coefficients[rows]
                nearest = _nearest(own, centres[kind])
                deviations = own - centres[kind][nearest]
                if matrix is not None:
                    deviations = _rounded(deviations @ matrix.T, self._bits)
                yield kind, self._clipped(deviations, radius), nearest

    def _by_class(self, sample: Sample) -> Iterator[tuple[int, Tensor | None]]:
        """Rows of each class; a record whose label is no class is in none."""
        if not self.config.classes:
            yield 0, None
            return
        assert sample.labels is not None
        for kind in range(self.config.classes):
            rows = (sample.labels == kind).nonzero().flatten()
            if len(rows):
                yield kind, rows

    def _clipped(self, deviations: Tensor, radius: float) -> Tensor:
        """Deviations over the radius, shortened to a norm of at most 1, on a grid."""
        norms = (deviations * deviations).sum(-1, keepdim=True).sqrt()  # of exact sums
        scale = (self._bound / norms).clamp_(max=1 / radius)
        return _rounded(deviations * scale, self._unit_bits)

    def coefficients(self, points: Tensor) -> Tensor:
        """The low frequencies of images in [-1, 1], (n, k), of pixels from 0 to 1, on the grid."""
        channels, height, width = self.config.image_shape
        pixels = on_grid(points).add_(1).mul_(0.5)
        pixels = pixels.view(-1, width)
        across, down = self._across.to(pixels), self._down.to(pixels)
        half = _rounded(pixels @ across.T, self._middle_bits).view(-1, height, len(across))
        spectrum = _rounded(down @ half, self._bits).view(-1, channels, len(down) * len(across))
        return spectrum[:, :, self._places.to(pixels.device)].flatten(1)

    def place(self, centres: Tensor) -> Tensor:
        """Centres, which are public, brought to where images are, and onto their grid."""
        finite = torch.nan_to_num(centres.detach().double(), nan=0.0, posinf=0.0, neginf=0.0)
        most = 2.0**self._half
        norms = torch.linalg.vector_norm(finite, dim=-1, keepdim=True)
        return _rounded(finite * (most / norms).clamp_(max=1.0), self._bits)

    def _matrix(self, coordinates: Tensor) -> Tensor:
        """W, which is public, brought to a Frobenius norm of at most 1, and onto its grid, on the CPU."""
        k = self.config.coefficients
        if coordinates.shape != (k, k):
            raise ValueError(f"coordinates: expected a matrix of {k} x {k}, got {tuple(coordinates.shape)}")
        finite = torch.nan_to_num(coordinates.detach().cpu().double(), nan=0.0, posinf=0.0, neginf=0.0)
        norm = torch.linalg.vector_norm(finite)
        return _rounded(finite * (1 / norm).clamp_(max=1.0), _MAP_BITS)


def _nearest(points: Tensor, centres: Tensor) -> Tensor:
    """The place of the nearest centre, (n,): the first of several. Exact, so chunks do not matter."""
    if len(centres) == 1:
        return torch.zeros(len(points), dtype=torch.int64, device=points.device)
    lengths = (centres * centres).sum(1)
    parts = torch.split(points, max(1, _TABLE // len(centres)))
    return torch.cat([(2 * (part @ centres.T) - lengths).argmax(1) for part in parts])


def _rounded(values: Tensor, bits: int) -> Tensor:
    return (values * 2.0**bits).round_().mul_(2.0**-bits)
