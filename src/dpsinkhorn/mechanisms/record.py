"""Mechanism `record`: Sinkhorn written as a sum over records, each record's share clipped.

A record y is shared out among the generated images of its class by a(y) = softmax_i(-c(x_i, y) / λ),
and its share of the gradient is v(y) = [a_i(y) ∇_x c(x_i, y)]_i. The sum of the clipped shares has the
sensitivity of one share, so the signal grows with the batch and the noise does not.

Claims: docs/proofs/record-sensitivity.md, and record-rounding.md for what is computed.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from dpsinkhorn.mechanisms.shared.base import GradientMechanism, Sample, check_labels
from dpsinkhorn.mechanisms.shared.clipping import AT_ONCE, on_grid
from dpsinkhorn.mechanisms.shared.shares import SumOfShares, Tiles, arrange, cut, pixel_cost, sort_by_class
from dpsinkhorn.mechanisms.shared.steps import Drawn, FixedStep, Setting
from dpsinkhorn.mechanisms.shared.terms import Terms
from dpsinkhorn.privacy import SeededNoise
from dpsinkhorn.privacy.charges import RecordMechanism
from dpsinkhorn.privacy.noise import NoiseSource
from dpsinkhorn.ranks import over_ranks


class Record(GradientMechanism):
    """Each record's share of the gradient is clipped to C, the sum noised, the self term subtracted.

    G = (Σ_y clip(v(y), C) + σ C ξ) / B - s Σ_x' clip(v(x'), C) / n, for the n generated images x; x' are n
    more, through the same clipped functional, detached. Where the sample names persons, a person's shares
    are summed, then clipped; generated images then go in groups of like size, else the self term would be
    clipped less than the other, and drive the images apart.

    >>> from dpsinkhorn.mechanisms.shared.terms import one_pixel
    >>> barrier = Record(one_pixel(noise_multiplier=2.0))
    >>> images = nn.Parameter(torch.zeros(4, 1))
    >>> barrier.backward(images * 1, None, Sample(torch.rand(8, 1)), [images], SeededNoise(0))
    >>> images.grad.shape
    torch.Size([4, 1])
    """

    name = "record"
    summary = "each record's share of the gradient is clipped, and noise is added to their sum"
    summary_of_persons = (
        "the shares of the gradient of all of a person's records are added up, that sum is clipped, and "
        "noise is added to the sum over persons"
    )
    recipe = "grey"
    labels_are_fixed = True
    on_the_grid = True
    sums_over_records = True
    sums_are_exact = False
    unused_settings = frozenset(
        {"loss.debias", "loss.label_weight", "loss.marginals", "loss.iterations", "flow"}
    )
    resampled_learn = False

    def __init__(self, terms: Terms) -> None:
        super().__init__(terms)
        facts, loss = terms.facts, terms.loss
        self.classes, self.self_weight = facts.classes, loss.self_weight
        self.max_sample = terms.largest_sample
        self.records_per_person = max(1, round(facts.records / facts.units))
        self.cost, tile = pixel_cost(loss.ground_cost), _tile_length(terms.expected_batch, facts.classes)
        self._sum = SumOfShares(self.cost, loss.regularization, terms.clip, self.max_sample, tile)

    @classmethod
    def releases(cls, terms: Terms) -> RecordMechanism:
        return RecordMechanism(terms.clip, terms.noise_multiplier)

    @classmethod
    def check(cls, terms: Terms) -> None:
        super().check(terms)
        if terms.generated < terms.facts.classes:
            raise ValueError(
                f"{terms.generated} generated images cannot show all {terms.facts.classes} classes; raise "
                "loss.generated, or give loss.generated_per_class"
            )

    @classmethod
    def audit_settings(cls, records: int) -> dict[str, dict[str, Any]]:
        settings = super().audit_settings(records)
        settings["privacy"]["sampling_rate"] = 0.2
        return settings

    def check_step(self, terms: Terms) -> None:
        """Take a step without any records: what is wrong whatever they are is wrong there."""
        count = terms.generated + self.resampled(terms.generated)
        points = nn.Parameter(torch.zeros(count, terms.facts.pixels))
        nothing = torch.empty(0, dtype=torch.int64)
        sample = Sample(
            points=torch.empty(0, terms.facts.pixels),
            labels=nothing if self.classes else None,
            groups=nothing if terms.facts.grouped else None,
        )
        labels = torch.arange(count) % self.classes if self.classes else None
        try:
            self.backward(points * 1, labels, sample, [points], SeededNoise(0))
        except ValueError as error:
            raise ValueError(str(error).replace(" or lower max_sample", "")) from error

    def resampled(self, generated: int) -> int:
        """As many again, for the self term; none without it."""
        return generated if self.self_weight > 0 else 0

    def gradient(self, points: Tensor, labels: Tensor | None, sample: Sample, noise: NoiseSource) -> Tensor:
        n, rows = self._count(points), torch.zeros(points.shape, dtype=points.dtype, device=points.device)
        with torch.no_grad():
            rows[:n] = self._released(*self.clipped_sums(points, labels, sample), noise)
        return rows

    def fixed(self, setting: Setting) -> FixedRecord | None:
        """The same step in fixed shapes; none for persons."""
        return FixedRecord(self, self._sum, setting) if self.records_per_person == 1 else None

    def _released(
        self, total: Tensor, own: Tensor | None, noise: NoiseSource | None = None, cells: Tensor | None = None
    ) -> Tensor:
        """The gradient in the n generated images, from the two clipped sums: noised, in float64."""
        gradient = self.noised(total, noise, cells=cells) / self.terms.expected_batch
        return gradient if own is None else gradient.sub_(own, alpha=self.self_weight / len(own))

    def _count(self, points: Tensor) -> int:
        n = len(points) // 2 if self.self_weight > 0 else len(points)
        if n < 1 or n + self.resampled(n) != len(points):
            raise ValueError(f"points: {len(points)} rows are not n generated images and n resampled ones")
        return n

    def clipped(self, points: Tensor, labels: Tensor | None, sample: Sample) -> Tensor:
        """Return what is noised: the sum of clipped shares, ``(n, d)``, in float64."""
        with torch.no_grad():
            return self.clipped_sums(points, labels, sample)[0]

    def clipped_sums(
        self, points: Tensor, labels: Tensor | None, sample: Sample
    ) -> tuple[Tensor, Tensor | None]:
        """The clipped sum over the records, and that over the resampled images, if there are any."""
        check_labels(points, labels, sample, self.classes)
        n = self._count(points)
        kinds = labels if self.classes else None
        first, own = points[:n].detach(), None if kinds is None else kinds[:n]
        total = self.sum_of_shares(sample, first, own)
        if len(points) == n:
            return total, None
        # Apart, not in common products: the self term gets no noise, and not even its last bits may depend
        # on the size of the sample.
        images = self._resampled_images(points[n:].detach(), None if kinds is None else kinds[n:])
        return total, self.sum_of_shares(images, first, own)

    @over_ranks
    def sum_of_shares(self, sample: Sample, points: Tensor, labels: Tensor | None) -> Tensor:
        """The sum of the clipped shares of a sample's records, for n generated images, ``(n, d)``."""
        if len(sample.points) > self.max_sample:
            raise ValueError(f"max_sample: a sample has more than {self.max_sample} records; raise it")
        sizes = [len(points), len(sample.points)]
        images, records = sort_by_class([labels, sample.labels], sizes, self.classes, points.device)
        return self._sum(arrange(labels, len(points), images).place(on_grid(points)), sample, records)

    def _resampled_images(self, points: Tensor, labels: Tensor | None) -> Sample:
        """Generated images in the place of records."""
        if self.records_per_person == 1:
            return Sample(points, labels)
        return Sample(
            points, labels, torch.arange(len(points), device=points.device) // self.records_per_person
        )


class FixedRecord(FixedStep):
    """`record` in fixed shapes: there is room for a public number of tiles of records.

    Args:
        barrier: whose step this is.
        clipped_sum: its sum over records.
        setting: the labels must be the same at every step, the records on the grid.
    """

    def __init__(self, barrier: Record, clipped_sum: SumOfShares, setting: Setting) -> None:
        generated, labels, device = setting.generated, setting.labels, setting.records.device
        self._barrier, self._sum, self._read = barrier, clipped_sum, setting.records.read
        self._n = generated
        self._classes = max(1, barrier.classes)
        kinds: list[Tensor | None] = [None, None]
        if labels is not None:
            kinds = [labels[:generated], labels[generated:]]
        extra = barrier.resampled(generated)
        own, resampled = sort_by_class(kinds, [generated, extra], barrier.classes, device)
        self._arrangement = arrange(kinds[0], generated, own)
        self._self_tiles = list(cut(resampled, clipped_sum.tile, AT_ONCE)) if extra else None
        self._capacity = math.ceil(setting.capacity / clipped_sum.tile) + self._classes

    @property
    def noise_rows(self) -> int:
        return self._n

    def inputs_of(self, drawn: Drawn) -> tuple[dict[str, Tensor], Tensor]:
        length, many, device = self._sum.tile, self._capacity, drawn.rows.device
        counts = torch.bincount(
            drawn.step * self._classes + drawn.kind, minlength=drawn.steps * self._classes
        )
        starts = (counts.cumsum(0) - counts).view(drawn.steps, self._classes)
        counts = counts.view(drawn.steps, self._classes)
        tiles = (counts + (length - 1)).div(length, rounding_mode="floor")
        ends = tiles.cumsum(1)
        every = torch.arange(many, device=device)
        kinds = torch.searchsorted(ends, every.expand(drawn.steps, many).contiguous(), right=True)
        kinds.clamp_(max=self._classes - 1)
        offset = (every - (ends - tiles).gather(1, kinds)) * length
        step = torch.arange(length, device=device)
        filled = step < (counts.gather(1, kinds) - offset).unsqueeze(-1)
        at = (starts.gather(1, kinds) + offset).unsqueeze(-1) + step
        padded = torch.cat([drawn.rows, drawn.rows.new_zeros(1)])  # there may be none at all
        rows = padded[at.clamp_(max=len(drawn.rows))]
        fits = (ends[:, -1] <= many) & (counts.sum(1) <= self._barrier.max_sample)
        return {"kinds": kinds, "rows": rows, "filled": filled}, fits

    def gradient(
        self,
        points: Tensor,
        labels: Tensor | None,  # noqa: ARG002
        inputs: dict[str, Tensor],
        cells: Tensor | None,
    ) -> Tensor:
        n, barrier = self._n, self._barrier
        generated = self._arrangement.place(on_grid(points[:n].detach()))
        many = self._sum.tiles_at_once(generated)
        pieces = [
            Tiles(kinds, rows, filled.unsqueeze(-2))
            for kinds, rows, filled in zip(
                *(torch.split(inputs[name], many) for name in ("kinds", "rows", "filled")), strict=True
            )
        ]
        total = self._sum.over_tiles(generated, pieces, self._read)
        own = None
        if self._self_tiles is not None:
            images = on_grid(points[n:].detach())
            own = self._sum.over_tiles(generated, self._self_tiles, lambda rows: images[rows])
        out = torch.zeros(points.shape, dtype=points.dtype, device=points.device)
        out[:n] = barrier._released(total, own, cells=cells)
        return out


def _tile_length(expected_batch: float, classes: int) -> int:
    """Records in a tile: about one class of an expected batch, so that tiles are few and mostly full."""
    if not classes:
        return 1024
    return min(256, max(32, 8 * math.ceil(1.5 * expected_batch / classes / 8)))
