"""Error against ε on real digits: measured beside predicted, and what `auto` takes."""

from __future__ import annotations

import csv

import numpy as np
import pytest
from sklearn.datasets import load_digits

from dpsinkhorn.transport import TransportError, draw_tradeoff, measure_tradeoff, write_tradeoff
from dpsinkhorn.transport.tradeoff import PAPER


def digits(label: int) -> np.ndarray:
    """Mean grey of the four quarters of each digit of a class."""
    images, labels = load_digits(return_X_y=True)
    return (images[labels == label].reshape(-1, 2, 4, 2, 4) / 16).mean(axis=(2, 4)).reshape(-1, 4)


@pytest.fixture(scope="module")
def found():
    support = np.stack(np.meshgrid(*[np.array([0.15, 0.4, 0.65])] * 4), -1).reshape(-1, 4)
    return measure_tradeoff(
        digits(0),
        digits(1),
        cost_bound=0.5,
        epsilons=(0.1, 1.0, 10.0),
        regularization=0.5,
        support=support,
        runs=15,
    )


def test_auto_is_never_worse_than_twice_the_best(found):
    assert found.worst_choice() <= 2
    assert [row.method for row in found.rows if row.chosen] == ["direct"] * 3


def test_direct_error_is_what_is_predicted(found):
    rows = [row for row in found.rows if row.method == "direct"]
    for row in rows:
        assert row.predicted_error == pytest.approx(0.5 / (178 * row.epsilon), rel=0.03)
    ratios = [row.measured_error / row.predicted_error for row in rows]
    assert np.mean(ratios) == pytest.approx(1, abs=0.5)  # of 45 draws whose mean is 1: within 3.4 deviations


def test_every_error_falls_with_epsilon(found):
    names = {row.method for row in found.rows}
    assert names == {"direct", "noisy-sinkhorn", PAPER, "two-stage", "histogram"}
    for name in names:
        first, *_, last = [row for row in found.rows if row.method == name]
        assert last.measured_error < first.measured_error
        assert last.predicted_error < first.predicted_error


@pytest.fixture(scope="module")
def of_distances():
    support = np.stack(np.meshgrid(*[np.array([0.2, 0.6])] * 4), -1).reshape(-1, 4)
    return measure_tradeoff(
        digits(0),
        digits(1),
        cost_bound=0.7,
        cost="euclidean",
        center=[0.4] * 4,
        epsilons=(1.0, 100.0),
        regularization=0.0,
        support=support,
        runs=12,
    )


def test_every_method_for_distances_errs_as_it_predicts(of_distances):
    names = ["direct", "histogram", "linear-program", "sliced", "smoothed-sliced"]
    assert list(dict.fromkeys(row.method for row in of_distances.rows)) == names
    for row in of_distances.rows:
        assert row.predicted_error / 4 < row.own_error < 4 * row.predicted_error
        binned = row.method in ("histogram", "linear-program")
        assert binned or row.measured_error == row.own_error
        assert row.chosen == (
            row.method == "direct"
        )  # though sliced, which estimates another value, has less


def test_binning_is_in_the_measured_error_alone(of_distances):
    (row,) = (row for row in of_distances.rows if (row.method, row.epsilon) == ("histogram", 100.0))
    assert row.measured_error > 5 * row.own_error


def test_written_and_drawn(found, tmp_path):
    write_tradeoff(found, tmp_path / "t.csv")
    rows = list(csv.DictReader((tmp_path / "t.csv").read_text().splitlines()))
    assert [float(row["measured_error"]) for row in rows] == [row.measured_error for row in found.rows]
    draw_tradeoff(found, tmp_path / "t.png")
    assert (tmp_path / "t.png").stat().st_size > 10_000


@pytest.mark.parametrize(("change", "message"), [({"runs": 0}, "runs"), ({"epsilons": []}, "epsilon")])
def test_bad_input(change, message):
    with pytest.raises(TransportError, match=message):
        measure_tradeoff([0.0], [1.0], cost_bound=1, **change)
