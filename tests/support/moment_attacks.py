"""Records, centres and settings chosen to overflow, underflow or poison the arithmetic of `moments`.

As in `attacks`: a record is put among others and taken out again, and what is noised is compared in exact
arithmetic. It is looked at where noise is added, so that nothing noised is left out.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from fractions import Fraction
from unittest import mock

import torch
from hypothesis import strategies as st
from torch import Tensor

from dpsinkhorn.generators import MixtureConfig
from dpsinkhorn.mechanisms.moments import Moments
from dpsinkhorn.mechanisms.shared import base
from dpsinkhorn.mechanisms.shared.base import Sample
from dpsinkhorn.privacy import SeededNoise
from support.attacks import CLASSES, LABELS, TYPES, VALUES, root_within, rows, tally, tensor_of
from support.barriers import moments as moments_of
from support.moment_oracles import in_chunks

WIDTH = 12
SHAPES = ((1, 3, 4), (3, 2, 2), (1, 1, 12), (1, 4, 1), (1, 1, 1))
AIMS = ("given", "at the record", "around the record")
CLIPS = (1e-28, 1e-4, 0.5, 7.0, 1e4, 8e30)
RADII = (None, 1e-30, 1e-9, 0.1, 1e9, 2e30)
MOST = (2**11, 2**20, 2**31)
MATRICES = ("none", "turned", "values", "one row", "equal rows", "zero")
SIZES = (1.0, 1e-300, 1e-8, 0.5, 1e8, 1e306)
CENTRE_TYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64)

WEIGHT = Fraction(0.3)  # of a count beside a deviation
CLAIMS: dict[str, tuple[Fraction, ...]] = {
    "deviations": (1 + WEIGHT**2, (1 + WEIGHT**2) / WEIGHT**2),  # deviations, and counts
    "squares": (Fraction(1), Fraction(1, 2)),  # on the diagonal, and above, where each stands for two
    "pooled": (Fraction(1), Fraction(1, 2)),
}
"""By release: the squares of the sensitivities that its parts are noised with."""


@dataclass(frozen=True)
class MomentAttack:
    """Everything that a release is given."""

    shape: tuple[int, int, int]
    classes: int
    components: int
    frequencies: int
    clip: float
    sigma: float
    most: int
    """The number of records that there may be."""
    radius: float | None
    """Of deviations; `None` for that of the clip."""
    aim: str
    """Where the centres are: as given, all equal to the attacking record, or two at one distance from it."""
    centres: tuple[float, ...]
    """Values of the centres, over and over."""
    centre_dtype: torch.dtype
    matrix: str
    """Coordinates in which deviations are clipped; "values" has those of the centres, over and over."""
    size: float
    """What the matrix is multiplied by."""
    base: tuple[tuple[float, ...], ...]
    repeats: int
    """How often the base is there."""
    row: tuple[float, ...]
    base_labels: tuple[int, ...]
    label: int
    dtype: torch.dtype
    place: float
    """Where among the others: 0 first, 1 last."""
    cuts: tuple[int, int]
    """Records at a time, without and with the attacking one."""


@st.composite
def moment_attacks(draw: st.DrawFn) -> MomentAttack:
    """Any combination."""
    base = draw(rows(4, width=WIDTH))
    row = draw(rows(1, least=1, width=WIDTH))[0]
    cut = st.sampled_from((1, 2, 7, 64, 1000))
    return MomentAttack(
        shape=draw(st.sampled_from(SHAPES)),
        classes=draw(st.sampled_from((0, CLASSES))),
        components=draw(st.integers(1, 4)),
        frequencies=draw(st.sampled_from((1, 2, 3, 100))),
        clip=draw(st.sampled_from(CLIPS)),
        sigma=draw(st.sampled_from((1e-6, 1.3, 1e4))),
        most=draw(st.sampled_from(MOST)),
        radius=draw(st.sampled_from(RADII)),
        aim=draw(st.sampled_from(AIMS)),
        centres=tuple(draw(st.lists(st.sampled_from(VALUES), min_size=1, max_size=5))),
        centre_dtype=draw(st.sampled_from(CENTRE_TYPES)),
        matrix=draw(st.sampled_from(MATRICES)),
        size=draw(st.sampled_from(SIZES)),
        base=base,
        repeats=draw(st.sampled_from((1, 1, 1, 50))),
        row=row,
        base_labels=tuple(draw(LABELS) for _ in base),
        label=draw(LABELS),
        dtype=draw(st.sampled_from(TYPES)),
        place=draw(st.sampled_from((0.0, 0.5, 1.0))),
        cuts=(draw(cut), draw(cut)),
    )


def build(attack: MomentAttack) -> Moments:
    config = MixtureConfig(
        image_shape=attack.shape,
        classes=attack.classes,
        components=attack.components,
        frequencies=attack.frequencies,
    )
    return moments_of(config, attack.clip, attack.sigma, attack.most)


def strike(kind: str, attack: MomentAttack, device: str = "cpu") -> float:
    """All is finite, and the move over the sensitivity, at most 1, is given back.

    The move is the attacking record's own part, the same bits as if it were alone: nobody else's changes.
    """
    width = math.prod(attack.shape)
    pixels = [value for row in (*attack.base * attack.repeats, attack.row) for value in row[:width]]
    labels = (*attack.base_labels * attack.repeats, attack.label) if attack.classes else ()
    public = attack.centres if attack.aim == "given" or attack.matrix == "values" else ()
    tally((*pixels, *public), labels)
    made = build(attack)
    without, with_it, alone = samples(attack, device)
    centres = centres_of(made, attack, alone)
    before, after, own = (
        noised(kind, made, attack, in_chunks(sample, cut), centres)
        for sample, cut in ((without, attack.cuts[0]), (with_it, attack.cuts[1]), (alone, 1))
    )
    share = Fraction(0)
    for claim, parts in zip(CLAIMS[kind], zip(before, after, own, strict=True), strict=True):
        share += _square(*parts) / claim
    return root_within(share)


def samples(attack: MomentAttack, device: str) -> tuple[Sample, Sample, Sample]:
    """The others, all of them with the attacking record somewhere, and that one alone."""
    base, kinds = attack.base * attack.repeats, attack.base_labels * attack.repeats
    at = round(attack.place * len(base))
    width = math.prod(attack.shape)

    def sample(points: tuple, labels: tuple) -> Sample:
        cut = tuple(row[:width] for row in points)
        return Sample(
            tensor_of(cut, attack.dtype, width).to(device),
            torch.tensor(labels, dtype=torch.int64, device=device) if attack.classes else None,
        )

    one = (attack.row,), (attack.label,)
    return (
        sample(base, kinds),
        sample(base[:at] + one[0] + base[at:], kinds[:at] + one[1] + kinds[at:]),
        sample(*one),
    )


def centres_of(made: Moments, attack: MomentAttack, alone: Sample) -> Tensor:
    config = made.config
    shape = (config.kinds, config.components, config.coefficients)
    if attack.aim == "given":
        values = itertools.islice(itertools.cycle(attack.centres), math.prod(shape))
        given = tensor_of(tuple((value,) for value in values), attack.centre_dtype, 1)
        return given.reshape(shape).to(alone.points.device)
    centres = made.coefficients(alone.points).expand(shape).clone()
    if attack.aim == "around the record":
        centres[:, 0, 0] += 0.125
        centres[:, -1, 0] -= 0.125
    return centres


def matrix_of(made: Moments, attack: MomentAttack) -> Tensor | None:
    """The coordinates W, (k, k), of an attack."""
    k = made.config.coefficients
    if attack.matrix == "none":
        return None
    if attack.matrix == "values":
        values = list(itertools.islice(itertools.cycle(attack.centres), k * k))
        return attack.size * torch.tensor(values, dtype=torch.float64).view(k, k)
    draws = torch.randn(k, k, generator=torch.Generator().manual_seed(k), dtype=torch.float64)
    if attack.matrix == "one row":
        draws[1:] = 0
    elif attack.matrix == "equal rows":
        draws[1:] = draws[0]
    elif attack.matrix == "zero":
        draws.zero_()
    else:
        draws = torch.linalg.qr(draws)[0] / math.sqrt(k)
    return attack.size * draws


def noised(
    kind: str, made: Moments, attack: MomentAttack, records: list[Sample], centres: Tensor
) -> list[Tensor]:
    """What noise is added to; what becomes of it is finite."""
    found: list[Tensor] = []
    original = base.add_gaussian

    def watch(values: Tensor, *, sensitivity: float, **options) -> Tensor:
        assert bool(torch.isfinite(values).all()), "what is noised is not finite"
        claim = CLAIMS[kind][len(found)]
        assert Fraction(sensitivity) ** 2 >= claim * (1 - Fraction(1, 2**50)), "too little noise"
        found.append(values.clone())
        return original(values, sensitivity=sensitivity, **options)

    with mock.patch.object(base, "add_gaussian", watch):
        noise = SeededNoise(5)
        radius = made.radius if attack.radius is None else attack.radius
        matrix = matrix_of(made, attack)
        if matrix is not None:
            matrix = matrix.to(centres.device)
        if kind == "deviations":
            sums = made.deviations(records, centres, radius, noise, coordinates=matrix)
            released = [sums.deviations, sums.counts]
        else:
            pooled = kind == "pooled"
            found_squares = made.squares(records, centres, radius, noise, pooled=pooled, coordinates=matrix)
            released = [part for part in (found_squares.matrices, found_squares.counts) if part is not None]
    assert all(part.device == centres.device for part in released)
    assert all(bool(torch.isfinite(part).all()) for part in released), "what is released is not finite"
    return found


def _square(before: Tensor, after: Tensor, own: Tensor) -> Fraction:
    """|before - after|^2, without any rounding; the difference is checked to be `own`."""
    total = Fraction(0)
    for a, b, part in zip(*(values.flatten().tolist() for values in (before, after, own)), strict=True):
        if a != b or part:
            move = Fraction(b) - Fraction(a)
            assert move == Fraction(part), "a record's part depends on the company that it is in"
            total += move**2
    return total
