"""NumPy's scalars as arguments: the same arithmetic as with Python's numbers, and plain JSON."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

from dpsinkhorn.privacy import SeededNoise, read_ledger
from dpsinkhorn.transport import (
    DirectMechanism,
    Setting,
    measure_tradeoff,
    noisy_sinkhorn,
    private_cost,
    two_stage_cost,
)

X, Y = np.random.default_rng(0).random((2, 30, 1))
NUMBER = pytest.mark.parametrize("number", [np.float32, np.float16, np.float64])


@NUMBER
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"regularization": 0.5, "gap": 0.125},
        {"regularization": 0.25, "debiased": np.True_},
        {"method": "histogram", "support": [[0.0], [1.0]]},
        {"method": "noisy-sinkhorn", "delta": 0.0625, "regularization": 2.0},
    ],
)
def test_private_cost(tmp_path, number, options):
    numbers = {"epsilon": 1.0, "cost_bound": 2.0, "confidence": 0.5, **options}
    casted = {name: number(value) if type(value) is float else value for name, value in numbers.items()}
    path = tmp_path / "ledger.jsonl"
    plain = private_cost(X, Y, **numbers, noise=SeededNoise(0))
    found = private_cost(X, Y, **casted, noise=SeededNoise(0), ledger=path)
    assert json.dumps(found.to_json()) == json.dumps(plain.to_json())
    (spend,) = read_ledger(path).spends
    assert found.charge == plain.charge == spend.charge


@NUMBER
def test_potentials(number):
    numbers = {"epsilon": 1.0, "delta": 0.0625, "cost_bound": 2.0, "regularization": 2.0}
    plain = noisy_sinkhorn(X, Y, **numbers, noise=SeededNoise(0))
    found = noisy_sinkhorn(X, Y, **{k: number(v) for k, v in numbers.items()}, noise=SeededNoise(0))
    np.testing.assert_array_equal(found.psi, plain.psi)
    told = [
        {k: v for k, v in vars(each).items() if k not in ("phi", "psi", "charge")} for each in (found, plain)
    ]
    assert json.dumps(told[0]) == json.dumps(told[1])


@NUMBER
def test_two_stage(number):
    numbers = {"epsilon": 1.0, "delta": 0.0625, "cost_bound": 2.0, "share": 0.5, "confidence": 0.5}
    plain = two_stage_cost(X, Y, **numbers, noise=SeededNoise(0))
    found = two_stage_cost(X, Y, **{k: number(v) for k, v in numbers.items()}, noise=SeededNoise(0))
    assert json.dumps(found.to_json()) == json.dumps(plain.to_json())


@NUMBER
def test_tradeoff(number):
    numbers = {"cost_bound": 2.0, "delta": 0.0625, "regularization": 2.0}
    plain = measure_tradeoff(X, Y, **numbers, epsilons=[1.0, 2.0], runs=2)
    found = measure_tradeoff(
        X,
        Y,
        **{k: number(v) for k, v in numbers.items()},
        epsilons=np.array([1, 2], number),
        runs=np.int64(2),
    )
    assert json.dumps([vars(row) for row in found.rows]) == json.dumps([vars(row) for row in plain.rows])


@NUMBER
def test_plans(number):
    setting = Setting(np.int32(10), np.int32(20), number(2))
    assert {type(value) for value in (setting.n, setting.m, setting.dimension)} == {int}
    found = DirectMechanism.plan(setting, "exact", regularization=number(0), epsilon=number(1))
    plain = DirectMechanism.plan(Setting(10, 20, 2.0), "exact", regularization=0.0, epsilon=1.0)
    assert dataclasses.asdict(found) == dataclasses.asdict(plain)
    assert type(found.epsilon) is type(found.gap) is float
