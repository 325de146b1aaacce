"""Records chosen to break the arithmetic of `moments`: see `test_numerical_attacks.py` for the others."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import pytest
import torch

from dpsinkhorn.mechanisms.shared import clipping
from dpsinkhorn.privacy import SeededNoise
from support import moment_attacks, moment_defects
from support.attacks import (
    CLASSES,
    VALUES,
    VALUES_IN_A_TYPE,
    VALUES_IN_EVERY_TYPE,
    strike_at_random,
    strike_thousands,
)
from support.devices import each_device, needs_cuda
from support.moment_attacks import (
    AIMS,
    CENTRE_TYPES,
    CLAIMS,
    CLIPS,
    MATRICES,
    MOST,
    RADII,
    SHAPES,
    SIZES,
    WIDTH,
    MomentAttack,
    build,
    centres_of,
    noised,
    samples,
    strike,
)
from support.moment_oracles import in_chunks

PLAIN = MomentAttack(
    shape=(1, 3, 4),
    classes=CLASSES,
    components=3,
    frequencies=3,
    clip=0.5,
    sigma=1.3,
    most=2**20,
    radius=None,
    aim="given",
    centres=(0.5, -0.25, 1.0, 0.0),
    centre_dtype=torch.float32,
    matrix="none",
    size=1.0,
    base=((0.5,) * WIDTH, (-1.0,) * WIDTH, tuple(math.sin(i) for i in range(WIDTH))),
    repeats=1,
    row=tuple(math.cos(i) for i in range(WIDTH)),
    base_labels=(0, 1, 2),
    label=0,
    dtype=torch.float32,
    place=0.5,
    cuts=(2, 3),
)
each_kind = pytest.mark.parametrize("kind", CLAIMS)
attack = partial(replace, PLAIN)


@each_kind
@each_device
class TestByHand:
    """One thing at a time."""

    def test_without_harm_it_moves_by_all_that_is_claimed(self, kind, device):
        assert 0.999 < strike(kind, PLAIN, device) <= 1
        assert 0 < strike(kind, attack(clip=100.0), device) < 0.8

    def test_values_of_a_record(self, kind, device):
        for value, dtype, place in VALUES_IN_A_TYPE:
            strike(kind, attack(row=(value,) * WIDTH, dtype=dtype, place=place), device)
            mixed = (value, 0.5, -0.5, 1.0, -1.0, -value) * 2
            strike(kind, attack(row=mixed, dtype=dtype, place=place), device)

    @pytest.mark.long
    def test_every_value_in_every_type(self, kind, device):
        for value, dtype, place in VALUES_IN_EVERY_TYPE:
            strike(kind, attack(row=(value,) * WIDTH, dtype=dtype, place=place), device)
            strike(kind, attack(base=((value,) * WIDTH,) * 3, dtype=dtype, place=place), device)

    def test_values_among_bad_ones(self, kind, device):
        for value in VALUES:
            bad = ((value,) * WIDTH, (0.3, value, -value) * 4, (1.0,) * WIDTH)
            strike(kind, attack(base=bad), device)
            strike(kind, attack(base=bad, row=(-value,) * WIDTH, clip=7.0), device)

    def test_labels(self, kind, device):
        for label in (-(2**63), -(2**31), -1, CLASSES, 99, 2**31, 2**63 - 1):
            assert strike(kind, attack(label=label), device) == 0
            assert strike(kind, attack(base_labels=(label,) * 3), device) > 0.99
            assert strike(kind, attack(label=label, classes=0), device) > 0.99

    def test_centres(self, kind, device):
        """They are public, and may be anything."""
        for number, value in enumerate(VALUES):
            dtype = CENTRE_TYPES[number % len(CENTRE_TYPES)]
            for values in ((value,), (value, 0.1, -value), (0.1, 0.1, value, 0.1, 0.1)):
                for clip in (0.5, 7.0):
                    strike(kind, attack(centres=values, clip=clip, centre_dtype=dtype), device)
                    strike(kind, attack(centres=values, clip=clip, row=(value,) * WIDTH), device)

    @pytest.mark.parametrize("aim", AIMS)
    def test_records_at_centres_and_half_way_between(self, kind, device, aim):
        for row in (*PLAIN.base, PLAIN.row, (math.nan,) * WIDTH, (1e308,) * WIDTH):
            for components in (1, 2, 4):
                for classes in (0, CLASSES):
                    same = {"row": row, "base": (row,) * 3, "base_labels": (0,) * 3}
                    strike(kind, attack(aim=aim, components=components, classes=classes, **same), device)

    @pytest.mark.parametrize("matrix", MATRICES)
    def test_coordinates(self, kind, device, matrix):
        """They are public too, and may be anything."""
        for size in SIZES:
            for row in (PLAIN.row, (math.nan,) * WIDTH, (1e308,) * WIDTH):
                for radius in (None, 1e-30, 1e-6):
                    strike(kind, attack(matrix=matrix, size=size, row=row, radius=radius), device)
        assert 0.999 < strike(kind, attack(matrix="turned", radius=1e-3), device) <= 1

    def test_values_of_coordinates(self, kind, device):
        for value in VALUES:
            for values in ((value,), (value, 0.1, -value), (0.1, 0.1, value, 0.1, 0.1)):
                for radius in (None, 1e-6):
                    bad = attack(matrix="values", centres=values, aim="around the record", radius=radius)
                    strike(kind, bad, device)

    def test_coordinates_far_from_the_centres(self, kind, device):
        """The longest deviations that there are, in a matrix that is all one row."""
        for matrix in ("one row", "equal rows", "turned"):
            for value in (1e300, -1e4, 4.0):
                for shape in SHAPES:
                    found = attack(matrix=matrix, centres=(value,), shape=shape, repeats=30, frequencies=100)
                    strike(kind, found, device)

    def test_clips_and_radii(self, kind, device):
        for clip in CLIPS:
            for aim in AIMS:
                strike(kind, attack(clip=clip, aim=aim), device)
        for radius in RADII:
            for aim in AIMS:
                strike(kind, attack(radius=radius, aim=aim), device)
                strike(kind, attack(radius=radius, aim=aim, row=(math.inf,) * WIDTH), device)

    def test_noise_of_any_size(self, kind, device):
        for sigma in (1e-100, 1e-6, 1e6):
            strike(kind, attack(sigma=sigma), device)

    def test_pieces(self, kind, device):
        for first in (1, 2, 3, 4, 1000):
            for second in (1, 2, 3, 4, 1000):
                strike(kind, attack(cuts=(first, second), repeats=3), device)

    def test_many_records(self, kind, device):
        for most in MOST:
            for clip in (1e-28, 0.5, 7.0):
                strike(kind, attack(repeats=600, most=most, clip=clip, cuts=(500, 999)), device)
        bad = ((math.nan,) * WIDTH, (1e308,) * WIDTH, (-math.inf, 1e-308) * 6)
        strike(kind, attack(repeats=600, base=bad, base_labels=(0, 0, 2**62), cuts=(1000, 7)), device)

    def test_shapes(self, kind, device):
        for shape in SHAPES:
            for frequencies in (1, 2, 100):
                for row in (PLAIN.row, (math.nan, math.inf) * 6):
                    strike(kind, attack(shape=shape, frequencies=frequencies, row=row), device)

    def test_no_others(self, kind, device):
        assert strike(kind, attack(base=(), base_labels=()), device) > 0.99


@each_kind
@each_device
class TestAtRandom:
    """Any combination of all of it."""

    def test_a_sample(self, kind, device):
        drawn = moment_attacks.moment_attacks()
        strike_at_random(drawn, partial(strike, kind, device=device), max_examples=60, derandomize=True)

    @pytest.mark.long
    def test_thousands(self, kind, device):
        drawn = moment_attacks.moment_attacks()
        strike_thousands(drawn, partial(strike, kind, device=device), f"moments, {kind}, {device}")


@needs_cuda
@each_kind
@pytest.mark.parametrize("matrix", MATRICES)
@pytest.mark.parametrize("aim", AIMS)
def test_cuda_finds_the_same_bits(kind, aim, matrix):
    """Sums are exact, so neither the order in which a device adds nor its atomic additions matter."""
    for shape in SHAPES:
        for clip in CLIPS:
            labels = (0, 0, 99)
            found = attack(shape=shape, clip=clip, aim=aim, matrix=matrix, repeats=400, base_labels=labels)
            made = build(found)
            parts = []
            for device, size in (("cpu", 64), ("cuda", 1000), ("cuda", 77)):
                _, sample, alone = samples(found, device)
                centres = centres_of(made, found, alone)
                parts.append(noised(kind, made, found, in_chunks(sample, size), centres))
            for here, there, again in zip(*parts, strict=True):
                assert torch.equal(here, there.cpu())
                assert torch.equal(there, again)


class TestDefectsAreNoticed:
    """The attacks can succeed, on code that is wrong."""

    @each_kind
    def test_records_that_are_not_brought_into_range(self, kind, monkeypatch):
        monkeypatch.setattr(clipping, "tidy", lambda points: points.detach().double().clamp(-1, 1))
        with pytest.raises(AssertionError, match="not finite"):
            strike(kind, attack(row=(math.nan,) * WIDTH))

    @each_kind
    def test_no_clip(self, kind, monkeypatch):
        moment_defects.without_clipping(monkeypatch)
        with pytest.raises(AssertionError, match="times the claimed sensitivity"):
            strike(kind, PLAIN)

    @each_kind
    def test_sums_off_the_grid(self, kind, monkeypatch):
        moment_defects.off_the_grid(monkeypatch)
        with pytest.raises(AssertionError, match="company"):
            strike(kind, attack(repeats=20))

    @each_kind
    def test_coordinates_that_are_not_finite(self, kind, monkeypatch):
        moment_defects.coordinates_that_are_not_finite(monkeypatch)
        with pytest.raises(AssertionError, match="not finite"):
            strike(kind, attack(matrix="turned", size=math.nan))

    @each_kind
    def test_coordinates_of_any_length(self, kind, monkeypatch):
        moment_defects.long_coordinates(monkeypatch)
        with pytest.raises(AssertionError, match="not finite"):
            strike(kind, attack(matrix="turned", size=1e306))

    @pytest.mark.parametrize(
        "plant", [moment_defects.deviations_as_if_alone, moment_defects.counts_as_heavy_as_deviations]
    )
    def test_too_little_noise_on_deviations_or_counts(self, plant, monkeypatch):
        plant(monkeypatch)
        with pytest.raises(AssertionError, match="too little noise"):
            strike("deviations", PLAIN)

    def test_too_little_noise(self, monkeypatch):
        moment_defects.little_noise_above_the_diagonal(monkeypatch)
        with pytest.raises(AssertionError, match="too little noise"):
            strike("squares", PLAIN)


@pytest.mark.parametrize("radius", [-1.0, 0.0, 5e-324, 1e-31, 1e31, math.inf, math.nan])
def test_a_radius_that_bounds_nothing_is_refused(radius):
    """A negative one would turn the clip off, and one so small that its inverse is infinite leaves NaN."""
    made = build(PLAIN)
    centres = torch.zeros(CLASSES, 3, 6)
    for release in (made.deviations, partial(made.squares, pooled=True)):
        with pytest.raises(ValueError, match="radius") as error:
            release([], centres, radius, SeededNoise(0))
        assert "\n" not in str(error.value)
