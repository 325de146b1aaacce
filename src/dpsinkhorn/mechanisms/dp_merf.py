"""Mechanism `dp_merf`: the classes' mean embeddings in random Fourier features, released once.

From F. Harder, K. Adamczewski, M. Park, "DP-MERF: Differentially Private Mean Embeddings with Random Features
for Practical Privacy-Preserving Data Generation", 2021. An image x becomes the cosines and sines of D/2
public random phases <w, x>, of norm 1 together; each class's sum of these, and its count, are released with
noise. All else, the training of a generator towards them, is post-processing.

Phases are computed without rounding, then cosines are read off a public table, in whole multiples of a public
step. So a record's contribution is the same bits in whatever company, sums are exact in any order, and no
margin is left to prove: docs/proofs/dp-merf.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from dpsinkhorn.generators import Generator, draw_latents
from dpsinkhorn.mechanisms.shared.base import (
    TRANSPORT,
    Sample,
    TrainingMechanism,
    WorstCase,
    pulled_back,
    rows_of_classes,
)
from dpsinkhorn.mechanisms.shared.clipping import DIGITS, exact_weights, grid_bits, on_grid
from dpsinkhorn.mechanisms.shared.steps import AllRecords, NetworkLearner, Steps
from dpsinkhorn.mechanisms.shared.terms import Terms, one_pixel
from dpsinkhorn.privacy import GaussianMechanism
from dpsinkhorn.privacy.noise import NoiseSource, announce, gaussian_std
from dpsinkhorn.ranks import over_ranks

_FEATURES = 10_000  # D, as published
_PIXELS_A_VARIANCE = 7  # σ² of the kernel is d/7: 112 at 28 x 28; published are 105 (MNIST) and 127 (Fashion)
_TURN_BITS = 14  # a turn is cut into 2^14 phases
_VALUE_BITS = 24  # binary digits after the point of cosines
_MOST_RECORDS = 2 ** (DIGITS - _VALUE_BITS)  # for as many sums are exact
_AT_ONCE = 2**22  # phases at a time
_COUNT_WEIGHT = 0.3  # of a count beside an embedding of norm 1, τ
EMBEDDING_SENSITIVITY = math.sqrt(1 + _COUNT_WEIGHT**2)
COUNT_SENSITIVITY = EMBEDDING_SENSITIVITY / _COUNT_WEIGHT
"""Noise on sums of embeddings, and on counts, is as much times the noise multiplier."""


@dataclass(frozen=True)
class Embeddings:
    """What is released: sums over the records of each class, noised."""

    sums: Tensor  # (classes, D), of vectors of norm 1
    counts: Tensor  # (classes,)


class MeanEmbeddings(TrainingMechanism):
    """Noised sums of random Fourier features over the records of each class.

    Args:
        terms: public numbers.
        features: D, an even number.

    >>> from dpsinkhorn.mechanisms.shared.terms import one_pixel
    >>> from dpsinkhorn.privacy import SeededNoise
    >>> embedder = MeanEmbeddings(one_pixel(0.01), features=100)
    >>> released = embedder.embeddings([Sample(-torch.ones(50, 1))], SeededNoise(0))
    >>> released.counts.round(), released.sums.norm().round()
    (tensor([50.], dtype=torch.float64), tensor(50., dtype=torch.float64))
    """

    name = "dp_merf"
    summary = "each record has random Fourier features of norm 1, and their sums by class are noised, once"
    recipe = "dp-merf"
    takes_samples = False
    sums_over_records = True
    takes_persons = False
    steps_are_costly = True
    unused_settings = TRANSPORT | {"flow", "privacy.clip"}

    def __init__(self, terms: Terms, *, features: int = _FEATURES) -> None:
        super().__init__(terms)
        self.classes, self.features = terms.facts.classes, features
        self.iterations, self.generated = terms.loss.iterations or 1, terms.generated
        # raises where noise has no room for as many
        gaussian_std(1.0, terms.noise_multiplier, self.kinds * (features + 1))
        self.turn_bits = _TURN_BITS
        self.frequencies = _frequencies(terms.facts.pixels, features // 2)
        turn = torch.arange(2**_TURN_BITS, dtype=torch.float64) * (2 * math.pi / 2**_TURN_BITS)
        self._table = torch.stack([turn.cos(), turn.sin()], dim=1)
        # towards 0, by more than a cosine errs: no entry is larger than the true one
        self._table.mul_((1 - 2.0**-40) * 2.0**_VALUE_BITS).trunc_().mul_(2.0**-_VALUE_BITS)

    @classmethod
    def releases(cls, terms: Terms) -> GaussianMechanism:
        return GaussianMechanism(1.0, terms.noise_multiplier)

    @classmethod
    def check(cls, terms: Terms) -> None:
        super().check(terms)
        least = max(1, terms.facts.classes)
        problems = {
            "takes all records at once; set the sampling rate to 1": terms.sampling_rate != 1,
            "releases once, and takes one step; set privacy.steps to 1": terms.steps != 1,
            "needs loss.iterations, steps of the optimizer after the release": terms.loss.iterations is None,
            f"has exact sums for up to {_MOST_RECORDS:,} records": terms.largest_sample > _MOST_RECORDS,
            "needs images of every class in a step; raise loss.generated": terms.generated < least,
        }
        for problem, there in problems.items():
            if there:
                raise ValueError(f"the mechanism dp_merf {problem}")

    @classmethod
    def worst_case(cls, noise_multiplier: float, rows: int = 4) -> WorstCase:  # noqa: ARG003
        """No data or one record: an embedding of norm 1, and its count."""
        built = cls(one_pixel(noise_multiplier), features=100)

        def joined(sums: Tensor, counts: Tensor) -> Tensor:
            return torch.cat([sums.flatten() / EMBEDDING_SENSITIVITY, counts / COUNT_SENSITIVITY])

        def clipped(sample: Sample) -> Tensor:
            sums, counts = built.clipped([sample])
            return joined(sums / built.length, counts)

        def release(sample: Sample, noise: NoiseSource) -> Tensor:
            found = built.embeddings([sample], noise)
            return joined(found.sums, found.counts)

        return WorstCase.of_record(built.mechanism, clipped, release)

    @classmethod
    def audit_settings(cls, records: int) -> dict[str, dict[str, Any]]:  # noqa: ARG003
        return {
            "privacy": {"mechanism": cls.name, "sampling_rate": 1.0, "steps": 1},
            "loss": {"generated_per_class": 2, "generated": 12, "iterations": 2},
            "generator": {"hidden": [16]},
        }

    def exact_releases(self, record: Tensor) -> dict[str, Callable[..., object]]:  # noqa: ARG002
        return {"embeddings": self.embeddings}

    def own_steps(self, learner: NetworkLearner, records: AllRecords, *, horizon: int) -> Steps:  # noqa: ARG002
        return EmbeddingSteps(learner, records, self)

    def embeddings(self, records: Iterable[Sample], noise: NoiseSource) -> Embeddings:
        """Release the sums and the counts."""
        announce(noise, frequencies=self.frequencies)
        sums, counts = self.clipped(records)
        together, of_sums = self.kinds * (self.features + 1), EMBEDDING_SENSITIVITY * self.length
        return Embeddings(
            # sums are of vectors of norm √(D/2)
            self.noised(sums, noise, times=of_sums, coordinates=together) / self.length,
            self.noised(counts, noise, times=COUNT_SENSITIVITY, coordinates=together),
        )

    @over_ranks
    def clipped(self, records: Iterable[Sample]) -> tuple[Tensor, Tensor]:
        """Return exact sums (classes, D) of vectors of norm √(D/2), and counts (classes,)."""
        total: tuple[Tensor, Tensor] | None = None
        for sample in records:
            if total is None:
                place = sample.points.device
                total = (
                    torch.zeros(self.kinds, self.features, dtype=torch.float64, device=place),
                    torch.zeros(self.kinds, dtype=torch.float64, device=place),
                )
            self._add(sample, *total)
        if total is None:
            raise ValueError("records: expected a sample at least, if an empty one")
        return total

    def vectors(self, points: Tensor) -> Tensor:
        """Return each image's cosines and sines, (b, D), of norm √(D/2)."""
        phases = on_grid(points) @ self.frequencies.to(points.device).T  # in parts of a turn, exact
        places = phases.round_().long().bitwise_and_(2**_TURN_BITS - 1)
        return self._table.to(points.device)[places].flatten(1)

    @property
    def kinds(self) -> int:
        """Sums: one for each class, one where there are none."""
        return max(1, self.classes)

    @property
    def length(self) -> float:
        """The norm of a record's cosines and sines together: √(D/2)."""
        return math.sqrt(self.features / 2)

    def _add(self, sample: Sample, sums: Tensor, counts: Tensor) -> None:
        rows, kinds = rows_of_classes(sample, self.classes)
        for part in torch.split(
            torch.arange(len(rows), device=sums.device), max(1, _AT_ONCE // self.features)
        ):
            sums.index_add_(0, kinds[part], self.vectors(sample.points[rows[part]]))
        counts.index_add_(0, kinds, torch.ones_like(kinds, dtype=torch.float64))


def _frequencies(pixels: int, count: int) -> Tensor:
    """Normal frequencies (count, d), the same ones always: phases of pixels in [-1, 1], in parts of a turn.

    They are multiples of a step so coarse that phases are exact.
    """
    draws = torch.randn(count, pixels, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    # the kernel is of pixels from 0 to 1
    draws *= 2.0**_TURN_BITS / (2 * math.pi) / 2 * math.sqrt(_PIXELS_A_VARIANCE / pixels)
    return exact_weights(draws, grid_bits(pixels))[0]


_LEAST_COUNT = 4.0  # of a class, in standard deviations of its noise


class EmbeddingSteps(Steps):
    """Takes the one step of a plan by `dp_merf`: a release, and a generator that is trained towards it.

    Nothing after the release sees a record, so the optimizer may take as many steps as it likes.

    Args:
        state: whose generator is trained.
        records: all of which are read.
        embedder: the noised sums.
    """

    def __init__(self, state: NetworkLearner, records: AllRecords, embedder: MeanEmbeddings) -> None:
        self._state, self._records, self._embedder = state, records, embedder
        scale = 2 * math.pi / 2**embedder.turn_bits
        self._radians = (embedder.frequencies * scale).float().to(state.device)

    def take(self, count: int) -> None:
        for _ in range(count):
            released = self._embedder.embeddings(self._records.every(), self._state.noise)
            self._fit(self._means(released))
            self._state.step += 1

    def _means(self, released: Embeddings) -> tuple[Tensor, Tensor]:
        """Return each class's mean cosines and sines, (classes, D/2), of a length that means can have."""
        least = max(1.0, _LEAST_COUNT * COUNT_SENSITIVITY * self._embedder.mechanism.noise_multiplier)
        means = (released.sums / released.counts.clamp(min=least).unsqueeze(1)).float()
        return means[:, ::2].contiguous(), means[:, 1::2].contiguous()

    def _fit(self, means: tuple[Tensor, Tensor]) -> None:
        """Descend on the squared distance of generated mean embeddings from the released ones."""
        state, embedder = self._state, self._embedder
        assert isinstance(state.generator, Generator)
        kinds = torch.arange(embedder.generated, device=state.device) % embedder.kinds
        labels = kinds if embedder.classes else None
        members = functional.one_hot(kinds, embedder.kinds).float()
        for iteration in range(embedder.iterations):
            latents = draw_latents(
                embedder.generated, state.generator.config.latent, state.random, state.device
            )
            points = state.generator(latents, labels).flatten(1)
            gradients = pulled_back(points, self._slope(points.detach(), members, *means), state.parameters)
            state.update(state.rate_at(iteration, embedder.iterations), gradients)

    def _slope(self, points: Tensor, members: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
        """Return the gradient, in images (n, d), of the mean over classes of the squared distance.

        Features are as the barrier has them, but for its rounding. `members` (n, classes) says whose.
        """
        weights = members / members.sum(0) / self._embedder.length
        phases = points @ self._radians.T
        own_cosines, own_sines = phases.cos(), phases.sin_()
        apart = weights.T @ own_cosines - cosines, weights.T @ own_sines - sines
        slope = own_cosines.mul_(weights @ apart[1]).sub_(own_sines.mul_(weights @ apart[0]))
        gradient: Tensor = slope @ self._radians * (2 / len(cosines))
        return gradient
