"""`dpsinkhorn audit --game replay`: what it prints, and the status it leaves with."""

from __future__ import annotations

import json

import numpy as np
import pytest

from dpsinkhorn.mechanisms import batch
from support.runs import tiny_arrays


@pytest.fixture
def replay(tmp_path):
    images, _, _ = tiny_arrays(records=50)
    np.savez(tmp_path / "own.npz", images=images)
    return f"audit --game replay --data {tmp_path / 'own.npz'}"


def test_json(run, replay):
    status, out, err = run(f"{replay} --mechanism batch --json")
    assert (status, err) == (0, "")
    found = json.loads(out)
    assert (found["game"], found["private"], found["clean"], found["records"]) == ("replay", False, True, 50)
    names = [each["mechanism"] for each in found["mechanisms"]]
    assert names == ["batch", "batch, made-up persons"]
    assert all(0 < each["move"] <= 1 and not each["violations"] for each in found["mechanisms"])


def test_a_table_and_a_defect_that_the_status_tells_of(run, replay, monkeypatch):
    monkeypatch.setattr(batch, "clip_whole", lambda values, _bound: values.double())
    status, out, _ = run(f"{replay} --mechanism batch")
    assert status == 3
    words = " ".join(out.split())
    for said in ("neighbours", "refused", "up to 50 records", "times its sensitivity", "does not hold"):
        assert said in words


@pytest.mark.long
def test_all_mechanisms_and_transport(run, replay):
    status, out, _ = run(f"{replay} --json")
    assert status == 0
    names = {each["mechanism"].partition(",")[0] for each in json.loads(out)["mechanisms"]}
    training = {"record", "moments", "batch", "image", "parameter"}
    assert names == training | {"direct", "histogram", "noisy Sinkhorn", "two-stage"}


@pytest.mark.parametrize(
    "command",
    [
        "audit --game replay --epsilon 3",
        "audit --game replay --plot some.png",
        "audit --game replay --data nowhere.csv",
        "audit --game replay --mechanism none",
        "audit --noise-multiplier 1 --groups person",
    ],
)
def test_bad_input(run, command):
    status, out, err = run(command)
    assert (status, out) == (2, "")
    assert err.startswith("dpsinkhorn: ")
    assert len(err.splitlines()) == 1
