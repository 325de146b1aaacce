"""Columns of the tables that `dpsinkhorn transport` is given: matched by name, never by luck."""

from __future__ import annotations

import json

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from dpsinkhorn.transport import TransportError, read_points, read_together

OPTIONS = ("--epsilon", 5, "--cost-bound", 4, "--seed", 1, "--json")


@pytest.fixture
def points():
    x, y = np.random.default_rng(0).random((2, 60, 2))
    return x, y * [1.0, 0.2]


def write_table(path, points, names):
    if path.suffix == ".parquet":
        pyarrow.parquet.write_table(pyarrow.table(dict(zip(names, points.T, strict=True))), path)
    else:
        np.savetxt(
            path,
            points,
            delimiter="\t" if path.suffix == ".tsv" else ",",
            header=",".join(names),
            comments="",
        )
    return path


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_the_same_names_in_another_order_are_the_same_data(run, tmp_path, points, suffix):
    x = write_table(tmp_path / "x.csv", points[0], ["age", "income"])
    y = write_table(tmp_path / f"y{suffix}", points[1], ["age", "income"])
    turned = write_table(tmp_path / f"turned{suffix}", points[1][:, ::-1], ["income", "age"])
    costs = [json.loads(run("cost", x, other, *OPTIONS)[1])["cost"] for other in (y, turned)]
    assert costs[0] == costs[1]
    np.testing.assert_array_equal(read_together([x, turned])[1], read_points(y))


@pytest.mark.parametrize("command", ["cost", "potentials", "tradeoff"])
def test_other_names_are_refused_before_any_charge(run, tmp_path, points, command):
    x = write_table(tmp_path / "x.csv", points[0], ["age", "income"])
    y = write_table(tmp_path / "y.csv", points[1], ["height", "weight"])
    ledger = tmp_path / "ledger.jsonl"
    more = {
        "cost": ("--epsilon", 1, "--ledger", ledger),
        "potentials": ("--epsilon", 1, "--ledger", ledger, "--output", tmp_path / "out.npz"),
        "tradeoff": ("--epsilons", "1", "--runs", 1),
    }
    status, out, err = run(command, x, y, "--cost-bound", 4, *more[command])
    assert (status, out) == (2, "")
    assert "the columns differ" in err
    assert "age, income" in err
    assert "height, weight" in err
    assert not ledger.exists()


def test_the_support_has_the_same_columns_too(run, tmp_path, points):
    x = write_table(tmp_path / "x.csv", points[0], ["age", "income"])
    y = write_table(tmp_path / "y.csv", points[1], ["age", "income"])
    grid = write_table(tmp_path / "grid.csv", points[1], ["height", "weight"])
    status, _, err = run("cost", x, y, *OPTIONS, "--method", "histogram", "--support", grid)
    assert status == 2
    assert "the columns differ" in err


def test_more_columns_are_refused_unless_those_to_use_are_named(tmp_path, points):
    x = write_table(tmp_path / "x.csv", points[0], ["age", "income"])
    y = write_table(tmp_path / "y.csv", np.c_[np.arange(60), points[1]], ["id", "age", "income"])
    with pytest.raises(TransportError, match="name those of both by --columns"):
        read_together([x, y])
    np.testing.assert_array_equal(read_together([x, y], ["income", "age"])[1], points[1][:, ::-1])


def test_files_without_names_go_by_position(tmp_path, points):
    x = write_table(tmp_path / "x.csv", points[0], ["age", "income"])
    numbered = write_table(tmp_path / "y.csv", points[1], ["0", "1"])
    np.save(tmp_path / "y.npy", points[1])
    for other in (numbered, tmp_path / "y.npy"):
        np.testing.assert_array_equal(read_together([x, other])[1], points[1])


def test_a_row_that_was_taken_for_names_is_not_shown(tmp_path, points):
    x = write_table(tmp_path / "x.csv", points[0], ["age", "income"])
    y = write_table(tmp_path / "y.csv", points[1], ["41.5", "NA"])
    for columns in ((), ("age",)):
        with pytest.raises(TransportError, match="has 2 columns") as caught:
            read_together([x, y], columns)
        assert "41.5" not in str(caught.value)


@pytest.mark.parametrize("name", ["Unnamed: 0", "__index_level_0__"])
@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_numbers_of_rows_are_no_coordinate(run, tmp_path, points, name, suffix):
    x, y = (
        write_table(tmp_path / f"{side}{suffix}", np.c_[np.arange(60), data], [name, "age", "income"])
        for side, data in zip("xy", points, strict=True)
    )
    status, _, err = run("cost", x, y, *OPTIONS)
    assert status == 2
    assert name in err
    assert "numbers of rows" in err
    assert "--columns" in err
    assert run("cost", x, y, *OPTIONS, "--columns", "age,income")[0] == 0


def test_columns_of_files_that_have_none_are_refused(run, tmp_path, points):
    for side, data in zip("xy", points, strict=True):
        np.save(tmp_path / f"{side}.npy", data)
    status, _, err = run("cost", tmp_path / "x.npy", tmp_path / "y.npy", *OPTIONS, "--columns", "age")
    assert status == 2
    assert "no names of columns" in err
    with pytest.raises(TransportError, match="no names of columns"):
        read_points(tmp_path / "x.npy", ["age"])


def test_columns_may_be_given_one_by_one(run, tmp_path, points):
    x, y = (
        write_table(tmp_path / f"{side}.csv", data, ["age", "income"])
        for side, data in zip("xy", points, strict=True)
    )
    at_once = run("cost", x, y, *OPTIONS, "--columns", "age,income")
    one_by_one = run("cost", x, y, *OPTIONS, "--columns", "age", "--columns", "income")
    assert at_once[0] == 0
    assert at_once[1] == one_by_one[1] != run("cost", x, y, *OPTIONS, "--columns", "income")[1]
    assert "named twice" in run("cost", x, y, *OPTIONS, "--columns", "age,age")[2]
