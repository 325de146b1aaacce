"""Several ranks: the same bits as from one, and one clear line on all of them where one fails."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from dpsinkhorn.data import from_arrays
from dpsinkhorn.ranks import joined
from dpsinkhorn.training import Run, facts_of, load_recipe, make_plan
from dpsinkhorn.training.shared_records import answer
from support.ranks import Group
from support.runs import AT_THE_END, bits, finished, tiny_data, tiny_plan

CPU = torch.device("cpu")


def small_plan(data, mechanism, **options):
    """A plan whose steps are quick, of any mechanism."""
    if mechanism == "moments":
        recipe = load_recipe("mixture").replace(
            privacy={"noise_multiplier": 2.0, "steps": 5, "clip": 3.0},
            generator={"components": 3, "frequencies": 4},
        )
    elif mechanism == "flow":
        recipe = load_recipe("flow").replace(
            privacy={"noise_multiplier": 2.0, "steps": 3, "sampling_rate": 0.2, "batch": None},
            generator={"channels": 8},
            flow={"components": 3, "frequencies": 4, "sketch_steps": 4, "updates": 2},
        )
    else:
        return tiny_plan(data, mechanism, steps=6, **options)
    return make_plan(recipe, facts_of(data), accountant="rdp", **{"seed": 3, **options})


def train(rank, folder, mechanism, options, labels, data_options):
    """In a rank: a run in a folder, from where it stands."""
    data = tiny_data(**data_options)
    with joined(30) as ranks:
        if rank:
            answer(ranks, data, CPU)
            return
        if (folder / "run.json").exists():
            run = Run.resume(folder)
        else:
            run = Run.create(folder, small_plan(data, mechanism, labels=labels, **options))
        assert run.train(data, saving=AT_THE_END, ranks=ranks)
        ranks.ask("end")


def trained(folder, count, mechanism, options=None, labels="uniform", data_options=None):
    data_options = data_options or {}
    if count == 1:
        data = tiny_data(**data_options)
        return finished(folder, small_plan(data, mechanism, labels=labels, **(options or {})), data)
    group = Group(count, train, folder, mechanism, options or {}, labels, data_options)
    assert group.wait(120) == [0] * count
    return Run.resume(folder)


class TestTheSameBits:
    @pytest.mark.parametrize(
        ("mechanism", "labels", "persons"),
        [
            ("moments", "uniform", None),
            ("moments", "released", 20),
            ("flow", "uniform", None),
            ("flow", "released", 20),
            ("batch", "released", None),
            ("image", "uniform", None),
            ("parameter", "uniform", 20),
            ("none", "uniform", None),
        ],
    )
    def test_on_any_number_of_ranks(self, mechanism, labels, persons, tmp_path):
        found = [
            bits(trained(tmp_path / str(count), count, mechanism, None, labels, {"persons": persons}).folder)
            for count in (1, 2, 3, 4)
        ]
        assert found[0] == found[1] == found[2] == found[3]
