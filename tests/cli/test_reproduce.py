"""`dpsinkhorn reproduce`, as a user meets it."""

from __future__ import annotations

import json
import signal
from functools import partial

import pytest

from support.processes import Command


@pytest.fixture
def run(run, monkeypatch, tmp_path):
    """Run `dpsinkhorn reproduce ARGUMENTS`."""
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))  # no Inception weights of this machine
    monkeypatch.setenv("DPSINKHORN_DATA", str(tmp_path / "data"))
    return partial(run, "reproduce")


def test_one_row_of_a_table(run, tmp_path):
    arguments = ("table6", "--only", "DCGAN", "--steps", 2, "--out", tmp_path / "out", "--device", "cpu")
    status, out, err = run(*arguments, "--json")
    assert status == 0, err
    found = json.loads(out)
    (of_version,) = found["versions"]
    rows = {row["method"]: row for row in of_version["rows"]}
    assert rows["DP-Sinkhorn, DCGAN"]["cnn_published"] == 74.62
    assert rows["DP-Sinkhorn, DCGAN"]["steps"] == 2
    assert rows["real data"]["cnn"] is None
    assert (tmp_path / "out" / "quick" / "table6-final.csv").is_file()

    status, out, err = run(*arguments)
    assert status == 0, err
    assert "74.6" in out
    assert "table6-final.csv" in out
    assert "not for release" in out
    assert "10 †" in out
    assert "† as the paper has it; not a valid guarantee" in out
    assert "--scale full are the ones to compare" in " ".join(out.split())


def test_the_first_table_has_both_versions(run, tmp_path):
    """With a sound epsilon beside the published one in either."""
    arguments = ("table1", "--only", "^mnist DP-Sinkhorn, m = 1", "--steps", 1, "--out", tmp_path / "out")
    status, out, err = run(*arguments, "--device", "cpu", "--json")
    assert status == 0, err
    found = {each["version"]: each["rows"] for each in json.loads(out)["versions"]}
    assert list(found) == ["first", "final"]
    for version, rows in found.items():
        done = {row["method"]: row for row in rows if row["cnn"] is not None}
        assert set(done) == {"DP-Sinkhorn, m = 1", "DP-Sinkhorn, m = 1, within classes"}
        theirs, other = done.values()
        assert theirs["epsilon_published"] == 10.0
        assert (theirs["epsilon_published_note"] is None) == (version == "first")
        assert other["epsilon_published"] is None
        assert theirs["epsilon"] == other["epsilon"] > 0


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--data", "mnist"], "NAME=PATH"),
        (["--data", "mnist=nowhere"], "nowhere"),
        (["--seeds", "1,x"], "whole numbers"),
        (["--seeds", "0, 0"], "seeds"),
        (["--seeds", "3,0,00"], "seeds"),
        (["--only", "nothing"], "no row"),
        (["--scale", "full"], "mnist is not in"),
        (["--device", "abacus"], "cpu or cuda"),
    ],
)
def test_bad_input_is_one_line_and_status_2(run, arguments, reason, tmp_path):
    status, out, err = run("table1", "--out", tmp_path / "out", *arguments)
    assert (status, out) == (2, "")
    assert reason in err
    assert err.count("\n") == 1


def test_an_interrupt_says_how_to_go_on(tmp_path):
    arguments = [
        "reproduce",
        "table4",
        "--only",
        "p = 0.4",
        "--steps",
        "2000",
        "--out",
        str(tmp_path / "out"),
    ]
    command = Command(arguments, tmp_path)
    command.until(lambda: any((tmp_path / "out").rglob("ledger.jsonl")))
    command.send(signal.SIGINT)
    status, _, err = command.wait()
    assert status == 130
    assert "the same command goes on" in err
