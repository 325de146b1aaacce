"""Records, images and settings chosen to overflow, underflow or poison the arithmetic of a barrier.

An `Attack` is drawn by hypothesis or by hand. `strike` puts the attacking unit into a sample and takes it out
again, and checks, in exact arithmetic, that what is noised moves by no more than is claimed.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from dpsinkhorn.mechanisms.batch import Batch
from dpsinkhorn.mechanisms.image import Image
from dpsinkhorn.mechanisms.parameter import Parameter
from dpsinkhorn.mechanisms.record import Record
from dpsinkhorn.mechanisms.shared.base import GradientMechanism, Sample
from dpsinkhorn.ot import L1L2, Cityblock, Cost, SquaredEuclidean
from dpsinkhorn.privacy import SeededNoise
from support.barriers import mechanism_of

KINDS = ("record", "batch", "image", "parameter")
N, D, CLASSES = 6, 5, 3
VALUES = (
    0.0, -0.0, 1.0, -1.0, 0.5, 1 + 2.0**-23, -1 - 2.0**-52, 2.0, -3.0, 255.0, 1e-3, 1e-30, 1e30, -1e30,
    6.1e-5, 65504.0, 1.2e-38, 1e-45, 3.4e38, -3.4e38, 1e-308, -1e-308, 5e-324, -5e-324, 1e-200, 1e200,
    1e308, -1e308, 1.7976931348623157e308, math.inf, -math.inf, math.nan,
)  # fmt: skip
TYPES = (
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int8, torch.int32, torch.int64,
)  # fmt: skip
VALUES_IN_A_TYPE = tuple(
    (value, TYPES[(number + place) % len(TYPES)], float(place))
    for number, value in enumerate(VALUES)
    for place in (0, 1)
)
VALUES_IN_EVERY_TYPE = tuple(itertools.product(VALUES, TYPES, (0.0, 0.5, 1.0)))
"""Pixels, their type, and where in the batch their record is."""
COSTS: tuple[Cost, ...] = (SquaredEuclidean(), Cityblock(), L1L2(1.0), L1L2(1e5))
COUNTS: Counter[str] = Counter()
"""How many attacks were made, and how many bad inputs they held."""


@dataclass(frozen=True)
class Attack:
    """Everything that a step is given."""

    cost: Cost
    regularization: float
    clip: float
    label_weight: float
    classes: int
    images: tuple[tuple[float, ...], ...]
    base: tuple[tuple[float, ...], ...]
    rows: tuple[tuple[float, ...], ...]
    """Of the attacking unit: one, or several of one person."""
    base_labels: tuple[int, ...]
    labels: tuple[int, ...]
    dtype: torch.dtype
    image_dtype: torch.dtype
    place: float
    """Where in the batch: 0 first, 1 last."""
    persons: bool


def rows(count: int, *, least: int = 0, width: int = D) -> st.SearchStrategy:
    """Rows of one value each, or of a mix."""
    value = st.sampled_from(VALUES)
    row = value.map(lambda v: (v,) * width) | st.tuples(*[value] * width)
    return st.lists(row, min_size=least, max_size=count).map(tuple)


LABELS = st.sampled_from((0, 1, 2, CLASSES, -1, 99, 2**31, 2**62, -(2**63), 2**63 - 1))


@st.composite
def attacks(draw: st.DrawFn) -> Attack:
    """Any combination. An attacker knows the images, and may copy one."""
    images = draw(rows(N, least=N))
    base = draw(rows(4))
    mine = draw(rows(3, least=1))
    if draw(st.booleans()):
        mine = (images[draw(st.integers(0, N - 1))], *mine[1:])
    persons = draw(st.booleans())
    mine = mine if persons else mine[:1]
    sizes = st.sampled_from((1e-99, 1e-30, 1e-3, 0.05, 1.0, 100.0, 1e30, 1e99))
    return Attack(
        cost=draw(st.sampled_from(COSTS)),
        regularization=draw(sizes),
        clip=draw(st.sampled_from((1e-4, 0.5, 1.0, 1e4, 1e30))),
        label_weight=draw(st.sampled_from((0.0, 15.0, 1e10, 1e99))),
        classes=draw(st.sampled_from((0, CLASSES))),
        images=images,
        base=base,
        rows=mine,
        base_labels=tuple(draw(LABELS) for _ in base),
        labels=tuple(draw(LABELS) for _ in mine),
        dtype=draw(st.sampled_from(TYPES)),
        image_dtype=draw(st.sampled_from((torch.float32, torch.float64))),
        place=draw(st.sampled_from((0.0, 0.5, 1.0))),
        persons=persons,
    )


def build(kind: str, attack: Attack) -> GradientMechanism:
    sigma, common = 1.3, (attack.cost, attack.regularization)
    if kind == "record":
        return mechanism_of(Record, attack.clip, sigma, *common, batch=4, classes=attack.classes, most=64)
    options = {"classes": attack.classes, "label_weight": attack.label_weight, "max_iterations": 30}
    if kind == "batch":
        return mechanism_of(Batch, attack.clip, sigma, *common, **options)
    if kind == "image":
        return mechanism_of(Image, attack.clip, sigma, *common, **options, rows=N)
    return mechanism_of(Parameter, attack.clip, sigma, *common, **options)


def strike(kind: str, attack: Attack, device: str = "cpu") -> float:
    """Both neighbours: all is finite, and the move over the sensitivity, at most 1, is given back.

    Settings that the barrier refuses are refused with and without the attacking unit, in the same words.
    """
    values = [value for part in (attack.images, attack.base, attack.rows) for row in part for value in row]
    tally(values, (*attack.base_labels, *attack.labels) if attack.classes else ())
    without, with_it = _neighbours(attack, device)
    images = tensor_of(attack.images, attack.image_dtype).to(device)
    labels = (torch.arange(N, device=device) % CLASSES) if attack.classes else None
    try:
        made = build(kind, attack)
        before = _noised(made, images, labels, without)
    except ValueError as error:
        COUNTS["refused settings"] += 1
        try:
            _noised(build(kind, attack), images, labels, with_it)
        except ValueError as other:
            _same(str(error), str(other))
            return 0.0
        raise AssertionError(f"refused without the unit only: {error}") from error
    after = _noised(made, images, labels, with_it)
    for sample in (without, with_it):
        released = _released(made, images, labels, sample)
        assert bool(torch.isfinite(released).all()), "what is released is not finite"
    return move(before, after, made.mechanism.sensitivity)


def strike_at_random(drawn: st.SearchStrategy, blow: Callable[[Any], object], **options: Any) -> None:
    """Many attacks; a function of its own for each test, as hypothesis wants it."""

    @settings(deadline=None, database=None, **options)
    @given(found=drawn)
    def run(found: Any) -> None:
        blow(found)

    run()


def strike_thousands(drawn: st.SearchStrategy, blow: Callable[[Any], object], what: str) -> None:
    """As many attacks as a long test has time for, others each time; what they held is printed."""
    before = COUNTS.copy()
    strike_at_random(drawn, blow, max_examples=5000, derandomize=False)
    counts = ", ".join(f"{count} {kind}" for kind, count in (COUNTS - before).items())
    print(f"attacks on {what}: {counts}")


def tally(values: Iterable[float], labels: Iterable[int]) -> None:
    """Count an attack by these pixels and labels."""
    COUNTS["attacks"] += 1
    COUNTS["bad numbers"] += sum(not -1 <= value <= 1 or 0 < abs(value) < 1e-37 for value in values)
    COUNTS["bad labels"] += sum(not 0 <= label < CLASSES for label in labels)


def _same(first: str, second: str) -> None:
    assert first == second


def move(before: Tensor, after: Tensor, sensitivity: float) -> float:
    """|before - after| / sensitivity, checked to be at most 1 without any rounding."""
    first, second = (value.double().flatten().tolist() for value in (before, after))
    assert all(map(math.isfinite, first)), "what is noised is not finite"
    assert all(map(math.isfinite, second)), "what is noised is not finite"
    square = sum((Fraction(a) - Fraction(b)) ** 2 for a, b in zip(first, second, strict=True))
    return root_within(square / Fraction(sensitivity) ** 2)


def root_within(share: Fraction) -> float:
    """The root of the square of a move over that of the sensitivity, checked to be at most 1."""
    assert share <= 1, f"the move is {math.sqrt(share)} times the claimed sensitivity"
    return math.sqrt(share)


def _neighbours(attack: Attack, device: str) -> tuple[Sample, Sample]:
    """A sample, and the same with the attacking unit somewhere in it."""
    at = round(attack.place * len(attack.base))
    both = attack.base[:at] + attack.rows + attack.base[at:]
    kinds = attack.base_labels[:at] + attack.labels + attack.base_labels[at:]
    numbers = [*range(at), *[10**6] * len(attack.rows), *range(at, len(attack.base))]

    def sample(points: tuple, labels: tuple, groups: list[int]) -> Sample:
        return Sample(
            tensor_of(points, attack.dtype).to(device),
            torch.tensor(labels, dtype=torch.int64, device=device) if attack.classes else None,
            torch.tensor(groups, dtype=torch.int64, device=device) if attack.persons else None,
        )

    alone = [number for number in numbers if number != 10**6]
    return sample(attack.base, attack.base_labels, alone), sample(both, kinds, numbers)


def tensor_of(values: tuple, dtype: torch.dtype, width: int = D) -> Tensor:
    """Rows of numbers in a type: whole numbers as near as it has them."""
    exact = torch.tensor(values, dtype=torch.float64).reshape(-1, width)
    if dtype.is_floating_point:
        return exact.to(dtype)
    limits = torch.iinfo(dtype)
    whole = [[limits.max if v > limits.max else limits.min if not v >= limits.min else int(v) for v in row]
             for row in values]  # fmt: skip
    return torch.tensor(whole, dtype=dtype).reshape(-1, width)


def _noised(made: GradientMechanism, images: Tensor, labels: Tensor | None, sample: Sample) -> Tensor:
    """What the barrier adds noise to."""
    own = nn.Parameter(images.clone())
    if isinstance(made, Parameter):
        return made.clipped(own * 1, labels, sample, [own])
    return made.clipped(own * 1, labels, sample)


def _released(made: GradientMechanism, images: Tensor, labels: Tensor | None, sample: Sample) -> Tensor:
    own = nn.Parameter(images.clone())
    made.backward(own * 1, labels, sample, [own], SeededNoise(5))
    assert own.grad is not None
    return own.grad
