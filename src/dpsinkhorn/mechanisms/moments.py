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
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

from dpsinkhorn.generators import CustomConfig, MixtureConfig
from dpsinkhorn.generators.mixture import cosines, places
from dpsinkhorn.mechanisms.shared.base import Sample, TrainingMechanism, WorstCase, rows_of_classes
from dpsinkhorn.mechanisms.shared.clipping import DIGITS, LARGEST_MARGIN, grid_bits, on_grid
from dpsinkhorn.mechanisms.shared.persons import Weighing, first_records
from dpsinkhorn.mechanisms.shared.steps import AllRecords, Learner, Steps
from dpsinkhorn.mechanisms.shared.terms import Terms, one_pixel
from dpsinkhorn.privacy.charges import MomentsMechanism
from dpsinkhorn.privacy.noise import NoiseSource, announce, gaussian_std
from dpsinkhorn.ranks import over_ranks

_SLACK = 2.0**-40  # more than the roundings in scaling a vector
_CACHED = 2048  # records whose images are transformed together
_TABLE = 2**23  # products of records and centres at a time
_PIXELS = 784  # of the image that the clipping bound is stated for
_LEAST_RADIUS, _LARGEST_RADIUS = 1e-30, 2e30  # so that neither it nor its inverse overflows
_MOST_STEPS = 100
_LEAST_MAX_RECORDS = 2**20  # for as many sums are exact at least
_MAP_BITS = 26  # binary digits after the point that W keeps

COUNT_WEIGHT = 0.3  # of a count beside a vector of norm 1, τ: less weight is less noise on the vector
DEVIATION_SENSITIVITY = math.sqrt(1 + COUNT_WEIGHT**2)
COUNT_SENSITIVITY = DEVIATION_SENSITIVITY / COUNT_WEIGHT
"""Noise on sums of deviations, and on counts, is as much times the noise multiplier."""
SQUARE_COUNT_WEIGHT = 0.1  # of a count beside squares of persons
SQUARE_SENSITIVITY = math.sqrt(1 + SQUARE_COUNT_WEIGHT**2)
SQUARE_COUNT_SENSITIVITY = SQUARE_SENSITIVITY / SQUARE_COUNT_WEIGHT
"""The same for sums of squares, and for the counts beside them, where persons are protected."""

Summed: TypeAlias = Literal["deviations", "squares", "squares over all classes"]


@dataclass(frozen=True)
class Sums:
    """What a step on deviations releases, noised: in units of the radius, and of records."""

    deviations: Tensor  # (classes, K, k)
    counts: Tensor  # (classes, K)


@dataclass(frozen=True)
class Squares:
    """What a step on squares releases, noised: in units of the squared radius, and of records."""

    matrices: Tensor  # (classes, k, k), or (1, k, k)
    counts: Tensor | None  # (classes,), or (1,); none where the unit of privacy is a record


@dataclass(frozen=True)
class Clipped:
    """Clipped deviations of some records that have a class."""

    rows: Tensor  # (n,), of these records in their sample
    kinds: Tensor  # (n,), their classes
    nearest: Tensor  # (n,), the places of their centres
    units: Tensor  # (n, k), over the radius: of norm at most 1
    weights: Tensor  # (n,): 1, or less where persons are protected
    weighted: Tensor  # (n, k), the units times their weights


class Moments(TrainingMechanism):
    """Noised sums over all records of a data set.

    >>> from dpsinkhorn.mechanisms.shared.terms import Facts
    >>> from dpsinkhorn.privacy import SeededNoise
    >>> config = MixtureConfig(image_shape=(1, 4, 4), classes=0, components=1, frequencies=2)
    >>> facts = Facts((1, 4, 4), classes=0, records=50, units=50)
    >>> moments = Moments(Terms(facts, 7.0, 0.01, sampling_rate=1, steps=3, generated=1, generator=config))
    >>> black = [Sample(-torch.ones(50, 16))]
    >>> sums = moments.deviations(black, torch.zeros(1, 1, 3), moments.radius, SeededNoise(0))
    >>> sums.counts.round()
    tensor([[50.]], dtype=torch.float64)
    """

    name = "moments"
    summary = "each record's deviation, count or square is clipped, and noise is added to the sums"
    recipe = "mixture"
    summary_of_persons = (
        "a person's part of the sums of deviations, counts or squares is clipped, and noise is added to them"
    )
    takes_samples = False
    learns_on_cpu = True
    steps_are_costly = True
    sums_over_records = True
    audit_recipe = "mixture"
    unused_settings = frozenset({"loss", "optimizer", "flow"})
    trains_mixtures = True

    def __init__(self, terms: Terms) -> None:
        super().__init__(terms)
        config = terms.generator
        assert isinstance(config, MixtureConfig)  # as `check` saw to
        self.config, self.persons = config, terms.facts.grouped
        self.max_records = max(terms.largest_sample, _LEAST_MAX_RECORDS)
        self.square_sensitivity = SQUARE_SENSITIVITY if self.persons else 1.0
        self.radius = terms.clip * math.sqrt(config.points / _PIXELS)
        """R, of deviations, in pixels from 0 to 1."""
        if not 1e-30 <= self.radius <= 1e30:
            raise ValueError(f"clip: expected a number from about 1e-30 to 1e30, got {terms.clip}")
        # 2^half bounds the norm of an image; see the proof for the others
        self._half = ((config.points - 1).bit_length() + 1) // 2
        self._bits = 25 - self._half
        self._sum_bits = DIGITS - (self.max_records - 1).bit_length()
        self._unit_bits = self._sum_bits // 2
        self._bound = 1 - math.sqrt(config.coefficients) * 2.0 ** -(self._unit_bits + 1) - _SLACK
        if self._bound < 1 - LARGEST_MARGIN:
            raise ValueError(
                f"generator: float64 cannot keep sums of up to {terms.largest_sample} records of "
                f"{config.coefficients} numbers exact; lower frequencies"
            )
        k = config.coefficients
        squares = config.kinds * (k * (k + 1) // 2 + int(self.persons))
        for numbers in (squares, config.kinds * config.components * (k + 1)):
            # raises where noise has no room for as many
            gaussian_std(1.0, terms.noise_multiplier, numbers)
        _, height, width = config.image_shape
        down, across = config.bands
        self._across_bits = DIGITS - 1 - (grid_bits(config.points) + 1) - ((width - 1).bit_length() + 1) // 2
        self._middle_bits = (DIGITS - 1 - self._half) // 2
        self._across = _rounded(cosines(width, across), self._across_bits)
        self._down = _rounded(cosines(height, down), self._middle_bits)
        self._places = places(config)

    @classmethod
    def releases(cls, terms: Terms) -> MomentsMechanism:
        return MomentsMechanism(terms.clip, terms.noise_multiplier)

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
        built = cls(one_pixel(noise_multiplier, generator=pixel))
        origin, scaled = torch.zeros(1, 1, 1), torch.full((1, 1), 0.5)

        def joined(deviations: Tensor, counts: Tensor) -> Tensor:
            return torch.cat(
                [deviations.flatten() / DEVIATION_SENSITIVITY, counts.flatten() / COUNT_SENSITIVITY]
            )

        def clipped(sample: Sample) -> Tensor:
            return joined(*built.clipped_deviations([sample], origin, built.radius, scaled))

        def release(sample: Sample, noise: NoiseSource) -> Tensor:
            sums = built.deviations([sample], origin, built.radius, noise, coordinates=scaled)
            return joined(sums.deviations, sums.counts)

        return WorstCase.of_record(built.mechanism, clipped, release)

    @classmethod
    def audit_settings(cls, records: int) -> dict[str, dict[str, Any]]:  # noqa: ARG003
        return {"privacy": {"steps": 5, "clip": 2.0}, "generator": {"components": 3, "frequencies": 4}}

    def exact_releases(self, record: Tensor) -> dict[str, Callable[..., object]]:
        from dpsinkhorn.mechanisms.shared.moment_steps import exact_releases

        return exact_releases(self, record)

    def own_steps(self, learner: Learner, records: AllRecords, *, horizon: int) -> Steps:
        from dpsinkhorn.mechanisms.shared.moment_steps import MomentSteps

        return MomentSteps(learner, records, self, horizon=horizon)

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
        announce(noise, centres=centres, radius=radius, coordinates=coordinates)
        sums, counts = self.clipped_deviations(records, centres, radius, coordinates)
        numbers = sums.numel() + counts.numel()
        # a record adds a vector of norm at most 1 and a count of 1 to one sum, a person no more to all
        return Sums(
            self.noised(sums, noise, times=DEVIATION_SENSITIVITY, coordinates=numbers),
            self.noised(counts, noise, times=COUNT_SENSITIVITY, coordinates=numbers),
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
    ) -> Squares:
        """Sums of w wᵀ over clipped deviations w, for each class or over all; counts, with persons."""
        announce(noise, centres=centres, radius=radius, coordinates=coordinates)
        total, counts = self.clipped_squares(records, centres, radius, coordinates, pooled=pooled)
        k = total.shape[-1]
        rows, columns = torch.triu_indices(k, k, 1, device=total.device)
        numbers = len(total) * k * (k + 1) // 2 + (0 if counts is None else len(counts))
        each = self.square_sensitivity
        # The Frobenius norm counts what is above the diagonal twice, so half the variance belongs there.
        diagonal = self.noised(total.diagonal(dim1=1, dim2=2), noise, times=each, coordinates=numbers)
        above = self.noised(total[:, rows, columns], noise, times=each * math.sqrt(0.5), coordinates=numbers)
        released = torch.diag_embed(diagonal)
        released[:, rows, columns] = above
        released[:, columns, rows] = above
        if counts is not None:
            counts = self.noised(counts, noise, times=SQUARE_COUNT_SENSITIVITY, coordinates=numbers)
        return Squares(released, counts)

    # ---- exact sums over records

    @over_ranks
    def clipped_deviations(
        self, records: Iterable[Sample], centres: Tensor, radius: float, coordinates: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        centres = self.place(centres)
        _, components, k = centres.shape
        sums, counts = torch.zeros_like(centres), torch.zeros_like(centres[..., 0])
        for part in self.clipped_units(records, centres, radius, coordinates):
            cells = part.kinds * components + part.nearest
            sums.view(-1, k).index_add_(0, cells, part.weighted)
            counts.view(-1).index_add_(0, cells, part.weights)
        return sums, counts

    @over_ranks
    def clipped_squares(
        self,
        records: Iterable[Sample],
        centres: Tensor,
        radius: float,
        coordinates: Tensor | None = None,
        *,
        pooled: bool,
    ) -> tuple[Tensor, Tensor | None]:
        centres = self.place(centres)
        k = centres.shape[-1]
        total = centres.new_zeros(1 if pooled else len(centres), k, k)
        counts = total.new_zeros(len(total))
        summed: Summed = "squares over all classes" if pooled else "squares"
        for part in self.clipped_units(records, centres, radius, coordinates, summed):
            if pooled:
                total[0] += part.weighted.T @ part.units
                counts[0] += part.weights.sum()
                continue
            for place, own in enumerate(_by_class(part.kinds, len(centres))):
                units = part.units[own]
                weighted = units if part.weighted is part.units else part.weighted[own]
                total[place] += weighted.T @ units
            counts.index_add_(0, part.kinds, part.weights)
        return ((total + total.mT) / 2, counts) if self.persons else (total, None)

    def clipped_units(
        self,
        records: Iterable[Sample],
        centres: Tensor,
        radius: float,
        coordinates: Tensor | None,
        summed: Summed = "deviations",
    ) -> Iterator[Clipped]:
        """Clipped deviations of each sample's records; what is summed of them decides on persons' weights."""
        if not _LEAST_RADIUS <= radius <= _LARGEST_RADIUS:  # below 0 it would bound nothing
            raise ValueError(
                f"radius: expected a number from {_LEAST_RADIUS} to {_LARGEST_RADIUS}, got {radius}"
            )
        matrix = None if coordinates is None else self._matrix(coordinates).to(centres.device)
        last = -math.inf
        for sample in records:
            if (sample.groups is not None) != self.persons:
                raise ValueError("groups: a person is named for every record, or for none, as was planned")
            if sample.groups is None:
                yield self._units(sample, centres, radius, matrix)
            elif len(sample.groups):
                if int(sample.groups.min()) <= last:
                    raise ValueError(
                        "groups: all records of a person belong into one sample, persons in order"
                    )
                last = int(sample.groups.max())
                yield self._units_of_persons(sample, centres, radius, matrix, summed)

    def _units(self, sample: Sample, centres: Tensor, radius: float, matrix: Tensor | None) -> Clipped:
        """Each record by itself; one whose label is no class is left out."""
        rows, kinds = rows_of_classes(sample, self.config.classes)
        own, nearest = self.coefficients(sample.points), torch.zeros_like(kinds)
        if len(rows) < len(own):
            own = own[rows]
        _, components, k = centres.shape
        if components > 1:
            for kind, here in enumerate(_by_class(kinds, len(centres))):
                nearest[here] = _nearest(own[here], centres[kind])
        deviations = own.sub_(centres.view(-1, k)[kinds * components + nearest])
        if matrix is not None:
            deviations = _rounded(deviations @ matrix.T, self._bits)
        units = self._clipped(deviations, radius)
        return Clipped(rows, kinds, nearest, units, torch.ones_like(units[:, 0]), units)

    def _units_of_persons(
        self, sample: Sample, centres: Tensor, radius: float, matrix: Tensor | None, summed: Summed
    ) -> Clipped:
        assert sample.groups is not None
        kept, persons = first_records(sample.groups)
        labels = None if sample.labels is None else sample.labels[kept]
        found = self._units(Sample(sample.points[kept], labels), centres, radius, matrix)
        units, cells, bits = found.units, torch.zeros_like(found.kinds), self._sum_bits - 2
        if summed == "deviations":
            weighing = Weighing(COUNT_WEIGHT, bits, squared=False)
            cells = found.kinds * centres.shape[1] + found.nearest
        else:  # the digits of a product are those of a weighted unit and of a unit
            coarse = self._unit_bits - 2
            units = units.mul(2.0**coarse).trunc_().mul_(2.0**-coarse)
            weighing = Weighing(SQUARE_COUNT_WEIGHT, bits - coarse, squared=True)
            cells = found.kinds if summed == "squares" else cells
        weights, weighted = weighing(units, persons[found.rows], cells)
        return Clipped(kept[found.rows], found.kinds, found.nearest, units, weights, weighted)

    def _clipped(self, deviations: Tensor, radius: float) -> Tensor:
        """Deviations over the radius, shortened to a norm of at most 1, on a grid."""
        norms = (deviations * deviations).sum(-1, keepdim=True).sqrt()  # of exact sums
        scale = (self._bound / norms).clamp_(max=1 / radius)
        return _rounded(deviations * scale, self._unit_bits)

    def coefficients(self, points: Tensor) -> Tensor:
        """The low frequencies of images in [-1, 1], (n, k), of pixels from 0 to 1, on the grid."""
        return torch.cat([self._coefficients(part) for part in torch.split(points, _CACHED)])

    def _coefficients(self, points: Tensor) -> Tensor:
        channels, height, width = self.config.image_shape
        pixels = on_grid(points).add_(1).mul_(0.5).T.contiguous()  # records last: the quicker products
        across, down = self._across.to(pixels), self._down.to(pixels)
        half = _rounded(across @ pixels.view(channels * height, width, -1), self._middle_bits)
        spectrum = _rounded(down @ half.view(channels, height, -1), self._bits)
        spectrum = spectrum.view(channels, len(down) * len(across), -1)
        return spectrum[:, self._places.to(pixels.device)].flatten(0, 1).T

    def place(self, centres: Tensor) -> Tensor:
        """Centres, which are public, brought to where images are, and onto their grid."""
        return _rounded(_shortened(centres, 2.0**self._half), self._bits)

    def _matrix(self, coordinates: Tensor) -> Tensor:
        """W, which is public, brought to a Frobenius norm of at most 1, and onto its grid."""
        k = self.config.coefficients
        if coordinates.shape != (k, k):
            raise ValueError(f"coordinates: expected a matrix of {k} x {k}, got {tuple(coordinates.shape)}")
        return _rounded(_shortened(coordinates.flatten(), 1.0).view(k, k), _MAP_BITS)


def _nearest(points: Tensor, centres: Tensor) -> Tensor:
    """The place of the nearest centre, (n,): the first of several. Exact, so chunks do not matter."""
    if len(centres) == 1:
        return torch.zeros(len(points), dtype=torch.int64, device=points.device)
    lengths = (centres * centres).sum(1)
    parts = torch.split(points, max(1, _TABLE // len(centres)))
    return torch.cat([(2 * (part @ centres.T) - lengths).argmax(1) for part in parts])


def _by_class(kinds: Tensor, classes: int) -> tuple[Tensor, ...]:
    """The rows of each class."""
    order = torch.argsort(kinds, stable=True)
    return torch.split(order, torch.bincount(kinds, minlength=classes).tolist())


def _shortened(rows: Tensor, most: float) -> Tensor:
    """Rows, (..., n), brought to a norm of at most `most`: the same bits on every processor.

    A library would add up squares in an order of its own; here it is halves onto halves.
    """
    finite = torch.nan_to_num(rows.detach().double(), nan=0.0, posinf=0.0, neginf=0.0)
    squares = finite * finite
    while (half := squares.shape[-1] // 2) > 0:
        odd = squares[..., 2 * half :]
        squares = torch.cat([squares[..., :half] + squares[..., half : 2 * half], odd], dim=-1)
    return finite * (most / squares.sqrt_()).clamp_(max=1.0)


def _rounded(values: Tensor, bits: int) -> Tensor:
    return (values * 2.0**bits).round_().mul_(2.0**-bits)
