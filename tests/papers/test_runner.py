"""Rows carried out: how many steps, what is kept, what goes on after an interruption."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
import torch

from dpsinkhorn.papers import FULL, QUICK, rows_of
from dpsinkhorn.papers.runner import Runner, _counted
from dpsinkhorn.papers.scales import Source, open_source
from dpsinkhorn.training import load_recipe

CPU = torch.device("cpu")
SMALL = dataclasses.replace(QUICK, steps=6, count=150)


@pytest.fixture(scope="module")
def digits() -> Source:
    return open_source("mnist", {}, SMALL, CPU)


def row_named(item: str, version: str, method: str):
    return next(row for row in rows_of(item, version) if row.method == method)


class SixtyThousand:
    """Enough of a data set for the number of steps."""

    records = 60_000


def steps_at_full_scale(item: str, version: str, method: str) -> tuple[int, float]:
    runner = Runner(None, FULL, version, CPU)
    row = row_named(item, version, method)
    source = Source("sixty thousand", SixtyThousand(), None, CPU)
    recipe = runner.recipe(row, source)
    return recipe.privacy.steps, _counted(recipe, 60_000, recipe.privacy.steps)


def test_other_noise_trains_to_the_same_published_epsilon():
    usual = load_recipe("paper-final-mnist")
    target = _counted(usual, 60_000, usual.privacy.steps)
    assert target == pytest.approx(10.0, abs=0.05)  # what the paper says
    same, _ = steps_at_full_scale("table4", "final", "noise 1.5, clip 0.5, p = 0.2, m = 1")
    assert same == 160_000
    more, counted = steps_at_full_scale("table4", "final", "noise 1.9, clip 0.5, p = 0.2, m = 1")
    assert more > 250_000  # the paper has 280,000 at this noise, for Fashion-MNIST
    assert target * 0.998 < counted <= target


def test_a_part_of_epsilon_takes_fewer_steps():
    steps, counted = steps_at_full_scale("fig4b", "first", "DP-Sinkhorn, m = 1, 0.233 of epsilon")
    whole = load_recipe("paper-first-mnist")
    target = 0.233 * _counted(whole, 60_000, whole.privacy.steps)
    assert 0.99 * target < counted <= target
    assert steps < 0.3 * 3_400_000


def test_a_result_is_kept_and_found_again(digits: Source, tmp_path):
    runner = Runner(tmp_path, SMALL, "first", CPU)
    row = row_named("table4", "first", "p = 0.2, m = 1")
    assert runner.kept(row, digits, 0) is None
    found = runner.result(row, digits, 0)
    (folder,) = (tmp_path / "runs").iterdir()
    (folder / "checkpoint.safetensors").unlink()  # it is not needed any more
    assert runner.result(row, digits, 0) == found == runner.kept(row, digits, 0)
    same = next(r for r in rows_of("table1", "first") if r.method == "DP-Sinkhorn, m = 1")
    assert runner.kept(same, digits, 0) == found, "the same training in another table"
    assert runner.kept(row, digits, 1) is None
    other = row_named("table4", "first", "p = 0.5, m = 1")
    assert runner.kept(other, digits, 0) is None
    assert found.steps == 6
    assert 0 < found.epsilon < 10
    statement = json.loads((folder / "release" / "privacy.json").read_text())
    assert statement["epsilon"] == found.epsilon
    assert statement["releasable"] is False, "seeded"


def test_an_interrupted_training_goes_on_to_the_same_generator(digits: Source, tmp_path):
    row = row_named("table4", "first", "p = 0.2, m = 3")
    whole = Runner(tmp_path / "whole", SMALL, "first", CPU).release(row, digits, 3)
    stopped = Runner(tmp_path / "broken", SMALL, "first", CPU, watch=lambda now: now.block.step >= 1)
    with pytest.raises(KeyboardInterrupt):
        stopped.release(row, digits, 3)
    again = Runner(tmp_path / "broken", SMALL, "first", CPU).release(row, digits, 3)
    for name, value in whole.generator.state_dict().items():
        assert torch.equal(value, again.generator.state_dict()[name]), name


def test_real_images_are_measured_by_the_same_code(digits: Source, tmp_path):
    runner = Runner(tmp_path, dataclasses.replace(SMALL, count=1000), "final", CPU)
    found = runner.result(row_named("table1", "final", "real data"), digits, 0)
    assert found.accuracy["logistic"] > 90
    assert found.epsilon == np.inf
    assert found.distance == pytest.approx(found.distance_floor, abs=1.0)
