"""Every table and figure in both versions, from the data to CSV and picture, on few steps."""

from __future__ import annotations

import csv
import dataclasses
import importlib
import math

import numpy as np
import pytest
from PIL import Image

from dpsinkhorn.papers import ITEMS, QUICK, VERSIONS, ReproductionError, reproduce, to_tables
from dpsinkhorn.papers.rows import published_figures

TINY = dataclasses.replace(QUICK, name="tiny", steps=3, count=100, gradient_batches=3, patience=1)
PICTURES = {"fig2", "fig4a", "fig4b", "fig4c", "fig5"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """One for all, so that what tables have in common is trained once."""
    return tmp_path_factory.mktemp("reproduction")


@pytest.fixture(scope="module", autouse=True)
def opened_once():
    """Data that are opened once for all: the network of their features is trained on them."""
    module, kept = importlib.import_module("dpsinkhorn.papers.reproduce"), {}
    plain = module.open_source

    def open_source(name, paths, scale, device):
        if name not in kept:
            kept[name] = plain(name, paths, scale, device)
        return kept[name]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "open_source", open_source)
        yield


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("item", ITEMS)
def test_it_runs_from_end_to_end(item: str, version: str, folder):
    found = reproduce(item, folder, version=version, scale=TINY)
    files = {path.suffix: path for path in found.files}
    assert set(files) == ({".csv", ".png"} if item in PICTURES else {".csv"})
    with files[".csv"].open(encoding="utf-8") as file:
        table = list(csv.DictReader(file))
    assert table
    if item in PICTURES:
        pixels = np.asarray(Image.open(files[".png"]).convert("L"))
        assert pixels.std() > 5, "not an empty picture"
    if item.startswith("table"):
        check_table(found, table, published_figures(item, version))
        assert sum(table.row_count for table in to_tables(found.lines)) > len(table)
    if item == "fig4c":
        assert all(point.variance > 0 for points in found.spreads.values() for point in points)


def check_table(found, table, quoted):
    of_paper = [row for row in table if row["epsilon_published"]]
    assert [float(row["cnn_published"]) for row in of_paper] == [row.cnn for row in quoted]
    for line, row in zip(found.lines, table, strict=True):
        if line.row.kind == "quoted":
            assert row["epsilon"] == row["cnn"] == ""
            continue
        epsilon = float(row["epsilon"])
        private = line.row.kind == "train" and not line.row.recipe.endswith("nonprivate")
        assert math.isfinite(epsilon) == private
        assert 0 <= float(row["cnn"]) <= 100
        assert row["trained_on"]
    ours = [line for line in found.lines if line.row.kind == "train" and not line.row.recipe]
    assert all(line.values()["epsilon"] <= 10 for line in ours)


def test_rows_can_be_chosen_and_the_rest_is_found(tmp_path):
    first = reproduce("table6", tmp_path, scale=TINY, only="real")
    assert [len(line.results) for line in first.lines] == [1, 0, 0]
    second = reproduce("table6", tmp_path, scale=TINY, only="DCGAN$", seeds=[0, 1])
    assert [len(line.results) for line in second.lines] == [1, 2, 0]
    values = second.lines[1].values()
    assert values["cnn_spread"] is not None
    assert values["seeds"] == 2
    assert values["steps"] == 3


def test_the_authors_classifiers(tmp_path):
    paper, authors = (
        reproduce("table6", tmp_path, scale=TINY, only="real", protocol=protocol)
        for protocol in ("paper", "authors")
    )
    assert [path.name for path in authors.files] == ["table6-final-authors.csv"]
    assert paper.lines[0].results != authors.lines[0].results, "measured anew"


def test_fewer_steps_than_the_scale(tmp_path):
    found = reproduce("table6", tmp_path, scale=TINY, only="DCGAN", steps=2)
    assert found.lines[1].values()["steps"] == 2


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"data": {"imagenet": "x"}}, "no imagenet"),
        ({"protocol": "quick"}, "one of paper, authors"),
        ({"seeds": [3, 0, 3]}, "seeds"),
        ({"seeds": []}, "seeds"),
        ({"seeds": [-1]}, "seeds"),
        ({"only": "nothing like it"}, "no row"),
        ({"only": "("}, "regular expression"),
        ({"scale": "huge"}, "one of quick, full"),
        ({"steps": 0}, "1 or more"),
    ],
)
def test_bad_input_is_one_line(options, reason, tmp_path):
    with pytest.raises(ReproductionError, match=reason) as caught:
        reproduce("table1", tmp_path, **options)
    assert "\n" not in str(caught.value)
