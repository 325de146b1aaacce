"""`dpsinkhorn privacy ledger`."""

from __future__ import annotations

import json

import pytest

from dpsinkhorn.privacy import (
    Adjacency,
    BatchMechanism,
    Budget,
    LaplaceMechanism,
    Ledger,
    RecordMechanism,
    epsilon,
    read_ledger,
)
from support.runs import DATA, finished, tiny_plan


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


TOGETHER = "which is less than their sum"


@pytest.fixture
def mixed(tmp_path):
    """A training, under add-or-remove-one, and a transport cost, under replace-one."""
    path = tmp_path / "mixed.jsonl"
    with Ledger.open(path, epsilon, budget=Budget(20.0, 1e-5)) as ledger:
        ledger.spend(RecordMechanism(1.0, 3.0).sampled(0.1, 1), run="scans-record-00", steps=200)
        ledger.spend(
            LaplaceMechanism(1.0, 1.0, Adjacency.REPLACE_ONE).charge(), run="transport-cost-record-11"
        )
    return path


def test_the_sum_is_spoken_of_only_where_it_is_more(shared, mixed, tmp_path, run):
    found = json.loads(run("privacy ledger", mixed, "--json")[1])
    assert found["epsilon"] > sum(each["epsilon"] for each in found["runs"])
    assert TOGETHER not in words_of(run("privacy ledger", mixed)[1])
    assert TOGETHER in words_of(run("privacy ledger", shared)[1])
    one = tmp_path / "one.jsonl"
    with Ledger.open(one, epsilon, budget=Budget(20.0, 1e-5)) as ledger:
        ledger.spend(BatchMechanism(1.0, 4.0).sampled(0.1, 1), run="alone-record-11", steps=20)
    assert TOGETHER not in words_of(run("privacy ledger", one)[1])


def test_each_run_has_its_own_adjacency(shared, mixed, run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "140")  # a row on a line
    found = json.loads(run("privacy ledger", mixed, "--json")[1])
    assert found["adjacency"] == "replace-one"
    assert [each["adjacency"] for each in found["runs"]] == ["add-or-remove-one", "replace-one"]
    lines = run("privacy ledger", mixed)[1].splitlines()
    for each in found["runs"]:
        (line,) = [line for line in lines if f"run {each['name']}" in line]
        assert each["adjacency"] in line
        assert ("1 charge," in line) == (each["steps"] == 1)
    lines = [line for line in run("privacy ledger", shared)[1].splitlines() if "run " in line]
    assert not any("add-or-remove-one" in line for line in lines)


def test_an_accountant_without_a_bound_is_one_line(mixed, refused):
    assert "pld" in refused("privacy ledger", mixed, "--accountant", "rdp")


def test_no_epsilon_is_rounded_down(tmp_path, run):
    path = tmp_path / "ledger"
    with Ledger.open(path, epsilon, budget=Budget(3.00004, 0.0)) as ledger:
        charge = LaplaceMechanism(1.0, 1 / 1.00004, Adjacency.REPLACE_ONE).charge()
        ledger.spend(charge, run="transport-cost-record-11")
    out = run("privacy ledger", path)[1]
    assert out.count("1.001") == 2
    assert "3.001" in out


def words_of(out):
    return " ".join(out.split())


def test_the_folder_of_a_run(tmp_path, run):
    finished(tmp_path / "run", tiny_plan(DATA), DATA)
    status, out, _ = run("privacy ledger", tmp_path / "run", "--json", "--accountant", "rdp")
    assert status == 0
    assert json.loads(out)["runs"][0]["steps"] == tiny_plan(DATA).steps


def test_without_privacy_it_is_infinite(tmp_path, run):
    finished(tmp_path / "run", tiny_plan(DATA, "none", seed=None), DATA)
    found = json.loads(run("privacy ledger", tmp_path / "run", "--json")[1])
    assert found["epsilon"] is None
    assert "infinite" in run("privacy ledger", tmp_path / "run")[1]


def test_bad_input(tmp_path, refused):
    (tmp_path / "text").write_text("no ledger")
    (tmp_path / "empty").mkdir()
    for name in ("missing", "text", "empty"):
        assert name in refused("privacy ledger", tmp_path / name)
