"""`dpsinkhorn privacy ledger`."""

from __future__ import annotations

import json

import pytest

from dpsinkhorn.privacy import BatchMechanism, Budget, Ledger, RecordMechanism, epsilon, read_ledger
from support.runs import finished, tiny_data, tiny_plan


@pytest.fixture
def shared(tmp_path):
    path = tmp_path / "all.jsonl"
    with Ledger.open(path, epsilon, budget=Budget(20.0, 1e-5)) as ledger:
        ledger.spend(RecordMechanism(1.0, 3.0).sampled(0.1, 1), run="scans-record-00", steps=200)
        ledger.spend(BatchMechanism(1.0, 4.0).sampled(0.1, 1), run="again-record-11", steps=30)
        ledger.spend(BatchMechanism(1.0, 4.0).sampled(0.1, 1), run="again-record-11", steps=20)
    return path


def test_what_is_spent_and_by_whom(shared, run):
    before = shared.read_bytes()
    status, out, _ = run("privacy ledger", shared, "--json")
    found = json.loads(out)
    assert status == 0
    assert found["budget_epsilon"] == 20
    with Ledger.open(shared, epsilon) as ledger:
        assert found["epsilon"] == pytest.approx(ledger.epsilon(), rel=1e-12)
        assert found["digest"] == ledger.digest
    names = [(each["name"], each["steps"]) for each in found["runs"]]
    assert names == [("scans-record-00", 200), ("again-record-11", 50)]
    parts = [each["epsilon"] for each in found["runs"]]
    assert parts[1] == pytest.approx(epsilon(BatchMechanism(1.0, 4.0).sampled(0.1, 50), 1e-5), rel=1e-9)
    assert max(parts) < found["epsilon"] < sum(parts)
    assert shared.read_bytes() == before


def test_for_people(shared, run):
    status, out, _ = run("privacy ledger", shared)
    assert status == 0
    for words in (
        "epsilon allowed",
        "epsilon spent",
        "run scans-record-00",
        "200 charges",
        "add-or-remove-one",
    ):
        assert words in out
    assert read_ledger(shared).digest in out


def test_the_folder_of_a_run(tmp_path, run):
    data = tiny_data()
    finished(tmp_path / "run", tiny_plan(data), data)
    status, out, _ = run("privacy ledger", tmp_path / "run", "--json", "--accountant", "rdp")
    assert status == 0
    assert json.loads(out)["runs"][0]["steps"] == tiny_plan(data).steps


def test_without_privacy_it_is_infinite(tmp_path, run):
    data = tiny_data()
    finished(tmp_path / "run", tiny_plan(data, "none", seed=None), data)
    found = json.loads(run("privacy ledger", tmp_path / "run", "--json")[1])
    assert found["epsilon"] is None
    assert "infinite" in run("privacy ledger", tmp_path / "run")[1]


def test_bad_input(tmp_path, run):
    (tmp_path / "text").write_text("no ledger")
    (tmp_path / "empty").mkdir()
    for name in ("missing", "text", "empty"):
        status, out, err = run("privacy ledger", tmp_path / name)
        assert (status, out) == (2, "")
        assert err.count("\n") == 1
        assert name in err
