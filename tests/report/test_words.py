"""Figures in words: rounded to the safe side."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpsinkhorn.privacy import meaning
from dpsinkhorn.privacy.words import at_most_sure, factor_in_words, one_in
from dpsinkhorn.report.page import line_plot


@given(st.floats(0, 20))
def test_the_factor_is_never_less_than_it_is(epsilon):
    shown = float(factor_in_words(epsilon).replace(",", ""))
    assert math.exp(epsilon) * (1 - 1e-9) <= shown <= math.exp(epsilon) * 1.0101


@given(st.floats(21, 1e6))
def test_large_factors_are_powers_of_ten(epsilon):
    power = int(factor_in_words(epsilon).removeprefix("10^"))
    assert power - 1 <= epsilon / math.log(10) <= power


def test_no_guarantee_has_no_factor():
    assert factor_in_words(math.inf) == "infinity"


@given(st.floats(1e-12, 0.5))
def test_one_in_so_many_is_never_too_small(probability):
    many = int(one_in(probability).removeprefix("1 in ").replace(",", ""))
    assert 1 / many >= probability * (1 - 1e-6)
    assert 1 / (many + 1) <= probability


@given(st.floats(1e-6, 0.999), st.floats(0, 50))
def test_bayes(before, epsilon):
    """Against a world in which the limit is reached: a signal e^ε times likelier with the record."""
    likely = 0.5 if epsilon < 1 else 1.0
    present, absent = before * likely, (1 - before) * likely / math.exp(epsilon)
    assert at_most_sure(before, epsilon) == pytest.approx(present / (present + absent))


def test_whom_the_sentence_is_about():
    assert "any one record" in meaning(1, 1e-5)
    assert "any one person, with all their records" in meaning(1, 1e-5, unit="person")
    assert meaning(1, 1e-5, adjacency="replace-one").startswith("Replacing")


@given(st.integers(1, 10**9), st.floats(1e-3, 1e4), st.one_of(st.none(), st.floats(1e-3, 1e4)))
def test_plots_stay_within_their_frame(steps, top, limit):
    x = np.linspace(0, steps, 7).tolist()
    y = (top * np.sqrt(np.linspace(0, 1, 7))).tolist()
    plot = line_plot(x, y, limit)
    places = [tuple(map(float, pair.split(","))) for pair in plot.line.split()]
    for a, b in places:
        assert plot.left <= a <= plot.right
        assert plot.top <= b <= plot.bottom
    assert plot.limit is None or plot.top <= plot.limit <= plot.bottom
    assert 4 <= len(plot.x_ticks) <= 12
    assert 4 <= len(plot.y_ticks) <= 13
    for place, text in plot.y_ticks:
        assert len(text) <= 7
        assert plot.top - 0.1 <= place <= plot.bottom
