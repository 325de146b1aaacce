"""Records chosen to break the arithmetic: no sensitivity is passed, and all that is released is finite."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dpsinkhorn.mechanisms.shared import class_counts, clipping
from dpsinkhorn.mechanisms.shared import sinkhorn as gradients
from dpsinkhorn.mechanisms.shared.class_counts import release_label_frequencies
from dpsinkhorn.mechanisms.shared.clipping import on_grid
from dpsinkhorn.mechanisms.shared.steps import Drawn, Setting
from dpsinkhorn.ot import L1L2
from dpsinkhorn.privacy import GaussianMechanism, SeededNoise
from dpsinkhorn.training.records import StoredRecords
from support import attacks
from support.attacks import (
    CLASSES,
    COUNTS,
    KINDS,
    VALUES,
    VALUES_IN_A_TYPE,
    VALUES_IN_EVERY_TYPE,
    Attack,
    D,
    N,
    strike,
    strike_at_random,
    strike_thousands,
)
from support.devices import each_device

PLAIN = Attack(
    cost=L1L2(1.0),
    regularization=1.0,
    clip=0.5,
    label_weight=15.0,
    classes=CLASSES,
    images=tuple((math.tanh(i - 2.5),) * (D - 1) + (-1.0,) for i in range(N)),
    base=((0.5,) * D, (-1.0,) * D, (0.0,) * D),
    rows=((1.0,) * D,),
    base_labels=(0, 1, 2),
    labels=(0,),
    dtype=torch.float32,
    image_dtype=torch.float32,
    place=0.5,
    persons=False,
)
each_kind = pytest.mark.parametrize("kind", KINDS)
attack = partial(replace, PLAIN)


@each_kind
@each_device
class TestByHand:
    """One thing at a time; each with several values of one unit."""

    def test_without_harm_it_moves(self, kind, device):
        assert strike(kind, PLAIN, device) > 0.01

    def test_values_of_a_record(self, kind, device):
        for value, dtype, place in VALUES_IN_A_TYPE:
            strike(kind, attack(rows=((value,) * D,), dtype=dtype, place=place), device)
            strike(kind, attack(rows=((value, 0.5, -0.5, 1.0, -1.0),), dtype=dtype, place=place), device)

    @pytest.mark.long
    def test_every_value_in_every_type(self, kind, device):
        for value, dtype, place in VALUES_IN_EVERY_TYPE:
            strike(kind, attack(rows=((value,) * D,), dtype=dtype, place=place), device)
            strike(kind, attack(base=((value,) * D,) * 3, dtype=dtype, place=place), device)

    def test_values_among_bad_ones(self, kind, device):
        for value in VALUES:
            strike(kind, attack(base=((value,) * D,) * 3), device)
            strike(kind, attack(rows=((-value,) * D,) * 3, labels=(0,) * 3, persons=True), device)

    def test_images(self, kind, device):
        for value in VALUES:
            strike(kind, attack(images=((value,) * D,) * N), device)
            strike(kind, attack(images=((value,) * D, *PLAIN.images[1:]), rows=((value,) * D,)), device)

    @pytest.mark.parametrize("persons", [False, True])
    def test_records_equal_to_images_and_to_each_other(self, kind, device, persons):
        for image in PLAIN.images:
            strike(kind, attack(rows=(image,), persons=persons), device)
            strike(
                kind, attack(rows=(image,), base=(image,) * 3, images=(image,) * N, persons=persons), device
            )

    def test_regularizations_and_weights(self, kind, device):
        for size in (9e99, 1e99, 1e30, 1e-30, 1e-99, 1.1e-100):
            strike(kind, attack(regularization=size), device)
            strike(kind, attack(label_weight=size), device)
            strike(kind, attack(regularization=size, rows=((math.nan,) * D,), classes=0), device)

    def test_labels(self, kind, device):
        for label in (-(2**63), -1, CLASSES, 99, 2**31, 2**63 - 1):
            strike(kind, attack(labels=(label,)), device)
            strike(kind, attack(base_labels=(label,) * 3), device)
            strike(kind, attack(labels=(label,), persons=True), device)


@each_kind
class TestAtRandom:
    """Any combination of all of it."""

    def test_a_sample(self, kind):
        strike_at_random(attacks.attacks(), partial(strike, kind), max_examples=60, derandomize=True)

    @pytest.mark.long
    @each_device
    def test_thousands(self, kind, device):
        strike_thousands(attacks.attacks(), partial(strike, kind, device=device), f"{kind}, {device}")


@pytest.mark.parametrize("kind", ["record", "batch", "image"])
@each_device
def test_steps_in_fixed_shapes(kind, device):
    """As on a GPU, where several steps are drawn at once; records came into range when they were read."""
    zeros = torch.zeros(4, dtype=torch.int64, device=device)
    if kind != "record" and device == "cpu":
        pytest.skip(f"{kind} has no steps in fixed shapes on a CPU")
    # the kernels of batch and image are not trusted with more, and are not asked
    extremes = (1e-99, 1e99) if kind == "record" else (1.1e-15, 0.9e15)
    for regularization in (*extremes, 1e-3, 1.0):
        made = attacks.build(kind, attack(regularization=regularization, classes=0))
        for value in VALUES:
            for record in (1.0, -1.0, 0.0, 0.3):
                points = torch.full((4, D), record, dtype=torch.float64)
                dtype = torch.float64 if kind == "record" else torch.float32
                held = StoredRecords(on_grid(points).float().to(device), zeros, dtype)
                step = made.fixed(Setting(N, None, 4.0, held))
                assert step is not None
                images = torch.full((N, D), value, dtype=torch.float64).float().to(device)
                images[0] = 0.3
                found = []
                for count in (3, 4):
                    inputs, fits = step.inputs_of(
                        Drawn(1, zeros[:count], torch.arange(count, device=device), zeros[:count])
                    )
                    assert bool(fits.all())
                    cells = torch.zeros(step.noise_rows, D, dtype=torch.int64, device=device)
                    row = {name: part[0] for name, part in inputs.items()}
                    found.append(step.gradient(images, None, row, cells)[:N].double())
                assert all(bool(torch.isfinite(gradient).all()) for gradient in found)
                scale = made.terms.expected_batch if kind == "record" else 1.0
                move = scale * float((found[0] - found[1]).norm()) / made.mechanism.sensitivity
                assert move <= 1 + 1e-5  # what is handed on is rounded, to a lattice and to float32
                COUNTS["attacks in fixed shapes"] += 1


NUMBERS = st.lists(st.sampled_from(VALUES) | st.floats(width=64), min_size=1, max_size=12)


@settings(max_examples=200, deadline=None)
@given(values=NUMBERS, bound=st.sampled_from((2.0**-400, 1e-100, 1e-9, 1.0, 1e9, 1e150)), rows=st.booleans())
def test_clipping_in_exact_arithmetic(values, bound, rows):
    given_values = torch.tensor(values, dtype=torch.float64)[None]
    clip = clipping.clip_rows if rows else clipping.clip_whole
    clipped = clip(given_values, bound)
    assert bool(torch.isfinite(clipped).all())
    assert _exact_square(clipped) <= Fraction(bound) ** 2


def _exact_square(values: torch.Tensor) -> Fraction:
    return sum((Fraction(value) ** 2 for value in values.flatten().tolist()), Fraction(0))


EXTREME_LABELS = (-(2**63), -(2**31), -1, 0, 1, 2, CLASSES, 2**31, 2**63 - 1)


@settings(max_examples=100, deadline=None)
@given(
    labels=st.lists(st.sampled_from(EXTREME_LABELS), max_size=6),
    more=st.lists(st.sampled_from(EXTREME_LABELS), min_size=1, max_size=4),
    bound=st.sampled_from((1e-30, 1.0, 1e30)),
)
def test_class_counts(labels, more, bound):
    """Labels that are no class, and a person with several of them."""
    groups = torch.arange(len(labels) + len(more)).clamp_(max=len(labels))
    every = torch.tensor(labels + more, dtype=torch.int64)
    ends = (len(labels), len(every))
    counts = [class_counts._clipped_counts(every[:end], CLASSES, bound, groups[:end]) for end in ends]
    attacks.move(*counts, bound)
    one = [class_counts._clipped_counts(every[:end], CLASSES, bound, None) for end in (ends[0], ends[0] + 1)]
    attacks.move(*one, bound)
    released = release_label_frequencies(
        [(every, groups)], CLASSES, GaussianMechanism(bound, 1.0), SeededNoise(0)
    )
    assert all(0 <= share <= 1 for share in released)
    assert sum(released) == pytest.approx(1)


class TestDefectsAreNoticed:
    """The attacks can succeed, on code that is wrong."""

    @pytest.mark.parametrize("kind", ["batch", "image", "parameter"])
    def test_a_clip_that_lets_nan_pass(self, kind, monkeypatch):
        monkeypatch.setattr(clipping, "_finite", lambda values: values.detach().double())
        monkeypatch.setattr(
            gradients.SinkhornMechanism, "_cross", lambda _self, x, sample: x * sample.points.double().sum()
        )
        with pytest.raises(AssertionError, match="not finite"):
            strike(kind, attack(rows=((math.nan,) * D,), classes=0))

    def test_a_norm_without_room_for_rounding(self, monkeypatch):
        """Half of all norms come out too large then, by less than a float64 shows: exact arithmetic does."""
        monkeypatch.setattr(clipping, "within", lambda bound, _additions: bound)
        random = torch.Generator().manual_seed(0)
        values = [torch.randn(8, generator=random, dtype=torch.float64) for _ in range(50)]
        squares = [_exact_square(clipping.clip_whole(value, 0.1)) for value in values]
        assert any(square > Fraction(0.1) ** 2 for square in squares)

    def test_records_that_are_not_brought_into_range(self, monkeypatch):
        for module in (clipping, gradients):
            monkeypatch.setattr(module, "tidy", lambda points: points.detach().double())
        with pytest.raises(AssertionError, match="not finite"):
            strike("record", attack(rows=((math.nan,) * D,)))
