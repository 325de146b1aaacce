"""`dpsinkhorn transport potentials` and `tradeoff`, as a user meets them."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest

from dpsinkhorn.privacy import read_ledger


class TestPotentials:
    def test_public_side_alone(self, run, files):
        out = files / "out.npz"
        command = "potentials x.npy grid.npy --public y --epsilon 2 --cost-bound 4 --json --output"
        status, printed, _ = run(command, out)
        found = json.loads(printed)
        assert status == 0
        assert found["guaranteed"] is True
        with np.load(out) as arrays:
            assert set(arrays.files) == {"psi"}
            assert arrays["psi"].shape == (25,)

    def test_the_file_is_of_the_name_that_was_given(self, run, files):
        arguments = "potentials x.npy grid.npy --public y --epsilon 2 --cost-bound 4 --output out.NPZ"
        arguments += " --ledger ledger.jsonl"
        before = {file.name for file in files.iterdir()}
        status, out, err = run(arguments, "--budget", 5)
        assert status == 0, err
        assert "out.NPZ" in out
        new = {file.name for file in files.iterdir()} - before
        assert {name for name in new if not name.startswith("ledger.jsonl")} == {"out.NPZ"}
        written = (files / "out.NPZ").read_bytes()
        status, _, err = run(arguments)
        assert status == 2
        assert "exists already" in err
        assert (files / "out.NPZ").read_bytes() == written
        assert len(read_ledger(files / "ledger.jsonl").runs) == 1

    @pytest.mark.parametrize("length", [250, 300])
    def test_what_cannot_be_written_costs_nothing(self, refused, files, length):
        """Names too long for its draft, and for any file."""
        output = f"--output {'a' * length}.npz --ledger ledger.jsonl"
        refused(f"potentials x.npy y.npy --epsilon 1 --cost-bound 4 {output}")
        assert not list(files.glob("ledger*"))

    def test_a_write_that_fails_leaves_no_part(self, refused, files, monkeypatch):
        def fail(stream, **_):
            stream.write(b"PK")
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(np, "savez", fail)
        before = sorted(files.iterdir())
        command = "potentials x.npy y.npy --epsilon 1 --cost-bound 4 --output out.npz"
        assert "No space left" in refused(command)
        assert sorted(files.iterdir()) == before

    def test_paper_says_what_it_is(self, run, files):
        asked = ["potentials", files / "x.npy", files / "y.npy", "--mode", "paper"]
        asked += ["--epsilon", 1, "--cost-bound", 4, "--output"]
        status, printed, err = run(*asked, files / "out.npz", "--json")
        assert status == 0
        assert json.loads(printed)["guaranteed"] is False
        assert "not a valid guarantee" in err
        status, _, err = run(*asked, files / "other.npz", "--ledger", files / "ledger.jsonl")
        assert status == 2
        assert "would pass it" in err
        assert not list(files.glob("ledger*"))

    def test_noise_beyond_the_bound_is_said(self, run, files):
        arguments = "potentials x.npy y.npy --epsilon 1 --cost-bound 4"
        status, out, err = run(arguments, "--output", files / "noise.npz", "--json")
        assert status == 0
        assert min(json.loads(out)["noise_std"]) > 4
        assert "the noise exceeds the cost bound" in err
        status, out, err = run(arguments, "--output", files / "less.npz", "--epsilon", 50, "--json")
        assert status == 0
        assert max(json.loads(out)["noise_std"]) < 4
        assert err == ""

    def test_help_says_what_it_needs(self, run):
        _, out, _ = run("potentials --help")
        told = " ".join(out.replace("│", " ").split())
        assert "0 is exact transport" not in told
        assert "above 0" in told
        for command in ("cost", "potentials", "tradeoff"):
            _, out, _ = run(command, "--help")
            marked = [
                line for line in out.splitlines() if "--cost-bound" in line and "dpsinkhorn" not in line
            ]
            assert any("*" in line or "[required]" in line for line in marked)


class TestTradeoff:
    def test_a_prediction_of_the_bound_is_named_so(self, run):
        arguments = "tradeoff x.npy y.npy --cost-bound 4 --runs 1"
        status, out, _ = run(arguments, "--epsilons", 0.1)
        assert status == 0
        rows = {line.split(",")[0].strip(" │"): line for line in out.splitlines() if ", epsilon 0.1" in line}
        assert "no better than the bound" in rows["two-stage"]
        assert "no better than the bound" in rows["noisy-sinkhorn"]
        assert "no better than the bound" not in rows["direct"]
        assert "predicted 4)" not in out

    def test_errors_of_0(self, run):
        """The same data on both sides: noise below 0 is cut, and nothing is left of the error."""
        arguments = "tradeoff x.npy x.npy --cost-bound 4 --regularization 0"
        seen = set()
        for seed in range(8):
            options = f"{arguments} --runs 1 --epsilons 1,5 --seed {seed}"
            found = json.loads(run(options, "--json")[1])
            errors = {row["measured_error"] for row in found["rows"]}
            assert {row["method"] for row in found["rows"]} == {"direct"}
            assert found["worst_choice"] == 1
            seen.add(errors == {0.0})
            status, out, err = run(options, "--plot", "t.png")
            assert status == 0
            assert err.count("\n") == 1  # the warning that it is not private
            assert "1.00 times the least" in " ".join(out.split())
        assert seen == {True, False}

    def test_a_choice_that_a_perfect_method_beats(self, capsys):
        from dpsinkhorn.cli._transport import show_tradeoff
        from dpsinkhorn.transport import Tradeoff, TradeoffRow

        rows = (TradeoffRow("direct", 1.0, 0.1, 0.1, True), TradeoffRow("histogram", 1.0, 0.0, 0.2, False))
        assert Tradeoff(rows, 0.0).worst_choice() == float("inf")
        show_tradeoff(Tradeoff(rows, 0.0), False, cost_bound=1.0)
        assert "the least measured error is 0, and its own is not" in capsys.readouterr().out
        show_tradeoff(Tradeoff(rows, 0.0), True, cost_bound=1.0)
        assert json.loads(capsys.readouterr().out)["worst_choice"] is None

    @pytest.mark.parametrize("regularization", [0.03, 0.002])
    def test_a_regularization_that_the_cost_takes(self, run, files, regularization):
        """Methods that cannot be had there are left out."""
        arguments = (files / "x.npy", files / "y.npy", "--cost-bound", 4, "--regularization", regularization)
        assert run("cost", *arguments, "--epsilon", 1)[0] == 0
        status, out, err = run("tradeoff", *arguments, "--epsilons", 1, "--runs", 1, "--json")
        assert status == 0, err
        assert "two-stage" not in {row["method"] for row in json.loads(out)["rows"]}
        assert "direct" in {row["method"] for row in json.loads(out)["rows"]}

    def test_files_and_warning(self, run, files):
        status, out, err = run(
            "tradeoff x.npy y.npy --cost-bound 4 --epsilons 0.5,5 --runs 4 --regularization 4 "
            "--support grid.npy --output t.csv --plot t.png --json"
        )
        assert status == 0
        assert "not private" in err
        found = json.loads(out)
        rows = list(csv.DictReader((files / "t.csv").read_text().splitlines()))
        assert len(rows) == len(found["rows"]) == 10
        assert {row["method"] for row in rows} >= {"direct", "noisy-sinkhorn", "two-stage", "histogram"}
        assert (files / "t.png").read_bytes().startswith(b"\x89PNG")
        direct = {row["epsilon"]: float(row["measured_error"]) for row in rows if row["method"] == "direct"}
        assert direct["0.5"] > direct["5.0"]
        assert found["worst_choice"] < 2
