"""`dpsinkhorn transport`, as a user meets it: output, exit status, the ledger, and bad input."""

from __future__ import annotations

import csv
import io
import json
import zipfile
from types import SimpleNamespace

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from dpsinkhorn.privacy import epsilon, read_ledger
from dpsinkhorn.transport import Clouds, DirectMechanism, read_points

KEYS = {"cost", "interval", "epsilon", "delta", "method", "predicted_error", "adjacency"}


def true_cost(files, **options) -> float:
    clouds = Clouds.of(np.load(files / "x.npy"), np.load(files / "y.npy"), cost_bound=4)
    return DirectMechanism.plan(
        clouds.setting, options.get("quantity", "exact"), regularization=options.get("at", 0.0), epsilon=1
    ).value(clouds)


class TestCost:
    def test_json(self, run, files):
        status, out, err = run("cost x.npy y.npy --epsilon 5 --cost-bound 4 --json")
        found = json.loads(out)
        assert (status, err) == (0, "")
        assert set(found) >= KEYS
        assert found["method"] == "direct"
        assert found["adjacency"] == "replace-one"
        assert (found["epsilon"], found["delta"], found["seeded"]) == (5.0, 0.0, False)
        assert found["predicted_error"] == pytest.approx(4 / (150 * 5), rel=0.05)
        assert abs(found["cost"] - true_cost(files)) < 20 * found["predicted_error"]
        assert found["interval"][0] <= found["cost"] <= found["interval"][1]

    def test_noise_is_fresh_unless_seeded(self, run):
        arguments = "cost x.npy y.npy --epsilon 1 --cost-bound 4 --json"
        assert json.loads(run(arguments)[1])["cost"] != json.loads(run(arguments)[1])["cost"]
        first, second = (run(arguments, "--seed", 3) for _ in range(2))
        assert json.loads(first[1])["cost"] == json.loads(second[1])["cost"]
        assert json.loads(first[1])["seeded"] is True
        assert "not for release" in first[2]

    def test_table(self, run):
        status, out, _ = run("cost x.npy y.npy --epsilon 1 --cost-bound 4 --delta 1e-5 --regularization 4")
        assert status == 0
        for shown in ("cost", "interval", "predicted error", "replace-one", "direct", "noisy-sinkhorn"):
            assert shown in out

    @pytest.mark.parametrize(
        ("options", "quantity", "at"),
        [
            ((), "exact", 0.0),
            (("--regularization", 0.2), "entropic", 0.2),
            (("--debiased",), "divergence", 0.2),
        ],
    )
    def test_quantities(self, run, files, options, quantity, at):
        arguments = "cost x.npy y.npy --epsilon 1000 --cost-bound 4 --json"
        found = json.loads(run(arguments, *options)[1])
        assert found["quantity"] == quantity
        assert found["cost"] == pytest.approx(true_cost(files, quantity=quantity, at=at), abs=0.01)

    def test_other_methods(self, run, files):
        arguments = "cost x.npy y.npy --epsilon 100 --cost-bound 4 --json"
        found = json.loads(run(arguments, "--method", "histogram", "--support", files / "grid.npy")[1])
        assert found["method"] == "histogram"
        assert found["cost"] == pytest.approx(true_cost(files), abs=0.15)
        options = ("--method", "noisy-sinkhorn", "--delta", 1e-5, "--public", "y", "--regularization", 4)
        found = json.loads(run(arguments, *options)[1])
        assert (found["method"], found["delta"]) == ("noisy-sinkhorn", 1e-5)
        assert found["cost"] == pytest.approx(true_cost(files, quantity="entropic", at=4.0), abs=0.2)

    def test_sliced_methods(self, run):
        arguments = "cost x.npy y.npy --epsilon 1e3 --cost-bound 4 --cost euclidean --center 0.5,0.5 --json"
        found = json.loads(run(arguments, "--method", "sliced")[1])
        assert (found["quantity"], found["delta"]) == ("sliced", 0)
        assert found["population_interval"][0] < found["cost"] < found["population_interval"][1]
        noised = json.loads(run(arguments, "--method", "smoothed-sliced", "--delta", 1e-5)[1])
        assert noised["cost"] == pytest.approx(found["cost"], abs=0.1)
        status, _, err = run(arguments, "--method", "sliced", "--center", "0.5,a")
        assert (status, err.count("\n")) == (2, 1)
        assert "--center must be numbers" in err
        status, out, _ = run("cost x.npy y.npy --epsilon 1 --cost-bound 4")
        assert (status, "the populations'" in out) == (0, True)

    def test_a_linear_program(self, run, files):
        arguments = "cost x.npy y.npy --epsilon 1e4 --cost-bound 4 --json --method linear-program"
        found = json.loads(run(arguments, "--support", files / "grid.npy")[1])
        assert found["cost"] == pytest.approx(true_cost(files), abs=0.15)
        status, _, err = run(arguments)
        assert (status, err.count("\n")) == (2, 1)
        assert "needs a public support" in err

    def test_costs(self, run):
        costs = {}
        for name in ("sqeuclidean", "cityblock", "l1l2"):
            arguments = "cost x.npy y.npy --epsilon 1e4 --cost-bound 9 --json"
            costs[name] = json.loads(run(arguments, "--cost", name, "--regularization", 9)[1])["cost"]
        assert costs["l1l2"] == pytest.approx(costs["sqeuclidean"] + costs["cityblock"], abs=0.05)


class TestTwoSamples:
    def test_json_table_and_ledger(self, run, refused, files):
        arguments = "test x.npy y.npy --epsilon 2 --cost-bound 2 --effect-share 0.25"
        status, out, err = run(arguments, "--json", "--ledger", files / "ledger", "--budget", 2)
        found = json.loads(out)
        assert (status, err) == (0, "")
        assert (found["rejected"], found["p_value"], found["statistic"]) == (True, 0.05, "mmd")
        assert found["effect_interval"][0] <= found["effect"] <= found["effect_interval"][1]
        assert epsilon(read_ledger(files / "ledger").total(), 0.0) == pytest.approx(2)
        err = refused(arguments, "--ledger", files / "ledger")
        status, out, err = run(arguments, "--seed", 1)
        assert (status, "not for release" in err) == (0, True)
        for shown in ("rejected", "p-value", "effect", "probability", "replace-one", "populations"):
            assert shown in out

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ("--level 0.001", "permutations must be at least 999"),
            ("--paired", "row i of x"),
            ("--level 2", "level"),
        ],
    )
    def test_bad_input(self, refused, files, options, message):
        assert message in refused(
            f"test x.npy y.npy --epsilon 1 --cost-bound 2 {options}", "--ledger", files / "l"
        )
        assert not (files / "l").exists()


class TestFiles:
    def test_every_format_reads_the_same(self, run, files):
        x = np.load(files / "x.npy")
        np.savez(files / "x.npz", points=x, other=np.zeros(3))
        table = pyarrow.table({"a": x[:, 0], "b": x[:, 1], "name": ["n"] * len(x)})
        pyarrow.parquet.write_table(table, files / "x.parquet")
        with (files / "x.csv").open("w") as stream:
            writer = csv.writer(stream)
            writer.writerow(["a", "b", "name"])
            writer.writerows([a, b, "n"] for a, b in x.tolist())
        for name, columns in (
            ("x.npz", ["points"]),
            ("x.npz", []),
            ("x.parquet", ["a", "b"]),
            ("x.csv", ["a", "b"]),
        ):
            np.testing.assert_array_equal(read_points(files / name, columns), x)
        np.save(files / "images.npy", np.zeros((4, 3, 2), dtype=np.uint8))
        assert read_points(files / "images.npy").shape == (4, 6)
        status, out, _ = run("cost x.csv x.parquet --columns a,b --epsilon 10 --cost-bound 4 --json")
        assert status == 0
        assert json.loads(out)["cost"] < 0.3

    @pytest.mark.parametrize(
        ("content", "name", "message"),
        [
            (b"not an array", "bad.npy", "no plain NumPy array"),
            (b"PK\x03\x04broken", "bad.npz", "no plain NumPy array"),
            (b"a,b\n1,2\n1\n", "bad.csv", "as a table"),
            (b"a,b\n1,2\n1,\n", "bad.csv", "missing values"),
            (b"a,b\n1,x\n", "bad.csv", "that are no numbers"),
            (b"a,b\n", "bad.csv", "no rows"),
            (b"0.25,0.5\n1,2\n", "bad.csv", "no line of column names"),
            (b",a\n0,1\n", "bad.csv", "without a name"),
            (b"PAR1", "bad.parquet", "as a table"),
            (b"", "bad.txt", "cannot read"),
        ],
    )
    def test_bad_files(self, run, files, content, name, message):
        (files / name).write_bytes(content)
        status, out, err = run("cost", files / name, files / "y.npy", "--epsilon", 1, "--cost-bound", 4)
        assert (status, out) == (2, "")
        assert message in err
        assert len(err.strip().splitlines()) == 1

    def test_a_point_taken_for_column_names_is_not_shown(self, run, files):
        (files / "bad.csv").write_bytes(b"0.25,0.5\n1,2\n")
        status, _, err = run("cost bad.csv y.npy --epsilon 1 --cost-bound 4 --columns a,b")
        assert status == 2
        assert "0.25" not in err

    def test_numbered_columns_are_names(self, files):
        (files / "numbered.csv").write_bytes(b"0,1\n5,6\n7,8\n")
        np.testing.assert_array_equal(read_points(files / "numbered.csv"), [[5, 6], [7, 8]])

    def test_pickles_are_refused(self, run, files):
        np.save(files / "pickle.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
        status, _, err = run("cost pickle.npy y.npy --epsilon 1 --cost-bound 4")
        assert status == 2
        assert "no plain NumPy array" in err

    @pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
    def test_damaged_compressed_arrays(self, run, files, method):
        """Each place of the compressed values changed in turn: read as they were, or one line."""
        whole = files / "whole.npz"
        with zipfile.ZipFile(whole, "w", method) as archive, archive.open("points.npy", "w") as stream:
            np.lib.format.write_array(stream, np.arange(60.0).reshape(30, 2))
        content = whole.read_bytes()
        with zipfile.ZipFile(whole) as archive:
            size = archive.infolist()[0].compress_size
        refused = 0
        for place in range(40, 40 + size, 7):
            (files / "bad.npz").write_bytes(
                content[:place] + bytes([content[place] ^ 255]) + content[place + 1 :]
            )
            status, out, err = run("cost bad.npz", whole, "--epsilon", 1, "--cost-bound", 4, "--json")
            refused += status == 2
            assert (status == 2) == ("no plain NumPy array" in err) == (out == "")
            assert err.count("\n") == (1 if status == 2 else 0)
        assert refused > 10

    def test_encrypted_and_unknown_members(self, refused, files):
        np.savez(files / "plain.npz", points=np.zeros((3, 2)))
        content = (files / "plain.npz").read_bytes()
        start = content.index(b"PK\x01\x02")
        for offsets, value in (
            ((6, start + 8), 1),
            ((8, start + 10), 97),
        ):  # flags: encrypted; method: none such
            changed = bytearray(content)
            for offset in offsets:
                changed[offset] = value
            (files / "bad.npz").write_bytes(changed)
            assert "no plain NumPy array" in refused("cost bad.npz y.npy --epsilon 1 --cost-bound 4")

    def test_a_wrong_ending_does_not_matter(self, refused, files):
        """What is in the file does, also where there is no array in it."""
        x = np.load(files / "x.npy")
        (files / "array.npz").write_bytes((files / "x.npy").read_bytes())
        archive = io.BytesIO()
        np.savez(archive, points=x)
        (files / "archive.npy").write_bytes(archive.getvalue())
        for name in ("array.npz", "archive.npy"):
            np.testing.assert_array_equal(read_points(files / name), x)
        with zipfile.ZipFile(files / "text.npz", "w") as other:
            other.writestr("text.txt", "hello")
        refused("cost text.npz y.npy --epsilon 1 --cost-bound 4")


class TestLedger:
    def test_charged_and_kept_to(self, run, files):
        arguments = "cost x.npy y.npy --epsilon 1 --cost-bound 4"
        ledger = files / "ledger.jsonl"
        assert run(arguments, "--ledger", ledger, "--budget", 2.5)[0] == 0
        assert run(arguments, "--ledger", ledger)[0] == 0
        status, out, err = run(arguments, "--ledger", ledger)
        assert (status, out) == (2, "")
        assert err == (
            "dpsinkhorn: the ledger ledger.jsonl allows epsilon 2.5 at delta 0, 2 is spent, and this would "
            "pass it; nothing was spent now\n"
        )
        spent = read_ledger(ledger)
        assert epsilon(spent.total(), 0.0) == pytest.approx(2.0)
        assert len(spent.runs) == 2

    def test_one_unit_per_ledger(self, run, files):
        np.save(files / "z.npy", np.load(files / "x.npy")[:150])
        arguments = "cost z.npy y.npy --epsilon 1 --cost-bound 4"
        ledger = files / "ledger.jsonl"
        assert run(arguments, "--ledger", ledger, "--budget", 5)[0] == 0
        status, _, err = run(arguments, "--ledger", ledger, "--paired")
        assert status == 2
        assert "protect each record" in err

    def test_bad_input_leaves_no_ledger(self, run, files):
        np.save(files / "z.npy", np.zeros((4, 3)))
        ledger = files / "ledger.jsonl"
        status, _, err = run("cost x.npy z.npy --epsilon 1 --cost-bound 4 --ledger", ledger)
        assert status == 2
        assert "x and y must have the same number of columns, not 2 and 3" in err
        assert not list(files.glob("ledger*"))

    @pytest.mark.parametrize("delta", [2, -1, "nan"])
    def test_bad_delta_leaves_no_ledger(self, run, files, delta):
        status, _, err = run(
            "cost x.npy y.npy --epsilon 1 --cost-bound 4 --delta", delta, "--ledger", files / "ledger.jsonl"
        )
        assert (status, len(err.strip().splitlines())) == (2, 1)
        assert "delta must be from 0 to below 1" in err
        assert not list(files.glob("ledger*"))

    def test_something_else_is_no_ledger(self, run, files):
        (files / "other").write_text("hello")
        status, _, _ = run("cost x.npy y.npy --epsilon 1 --cost-bound 4 --ledger other")
        assert status == 2
        assert (files / "other").read_text() == "hello"


def test_costs_are_those_of_python():
    from typing import get_args

    from dpsinkhorn.cli._transport import keywords
    from dpsinkhorn.cli.transport import CostName
    from dpsinkhorn.ot import COST_NAMES, L1L2

    assert get_args(CostName) == COST_NAMES
    assert keywords(SimpleNamespace(cost="l1l2", l1_weight=0.5)) == {"cost": L1L2(0.5)}


class TestBadInput:
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            (("--epsilon", 1), "--cost-bound"),
            (("--epsilon", 0, "--cost-bound", 4), "epsilon must be a positive number, not 0\n"),
            (("--epsilon", -1, "--cost-bound", 4), "epsilon must be a positive number"),
            (("--epsilon", 1, "--cost-bound", 0), "cost_bound must be a positive number"),
            (("--cost-bound", 4), "--epsilon"),
            (("--epsilon", 1, "--cost-bound", 4, "--method", "histogram"), "support"),
            (("--epsilon", 1, "--cost-bound", 4, "--method", "noisy-sinkhorn"), "delta"),
            (("--epsilon", 1, "--cost-bound", 4, "--delta", 1), "delta"),
            (("--epsilon", 1, "--cost-bound", 4, "--budget", 1), "--ledger"),
            (("--epsilon", 1, "--cost-bound", 4, "--l1-weight", -1), "--l1-weight"),
            (("--epsilon", 1, "--cost-bound", 4, "--method", "best"), "--method"),
        ],
    )
    def test_one_line_and_status_2(self, run, files, options, message):
        before = sorted(files.iterdir())
        status, out, err = run("cost x.npy y.npy", *options)
        assert (status, out) == (2, "")
        assert message in err
        assert len(err.strip().splitlines()) == 1
        assert sorted(files.iterdir()) == before

    def test_not_finite(self, run, files):
        np.save(files / "z.npy", np.array([[np.nan, 1.0]]))
        status, _, err = run("cost z.npy y.npy --epsilon 1 --cost-bound 4")
        assert status == 2
        assert "not finite" in err

    def test_data_beyond_the_bound_are_capped_in_silence(self, run, files):
        """How many are capped is private: same output, nothing on stderr."""
        np.save(files / "far.npy", np.load(files / "x.npy") + 1e6)
        status, out, err = run("cost far.npy y.npy --epsilon 100 --cost-bound 4 --json")
        assert (status, err) == (0, "")
        assert json.loads(out)["cost"] == pytest.approx(4, abs=0.01)

    def test_other_outputs(self, run, files):
        (files / "there.npz").write_text("paid for")
        for options, message in (
            (("--output", files / "out.txt"), ".npz"),
            (("--output", files / "there.npz"), "exists already"),
            (("--output", files / "no" / "out.npz"), "does not exist"),
        ):
            status, _, err = run("potentials x.npy y.npy --epsilon 1 --cost-bound 4", *options)
            assert status == 2
            assert message in err
        status, _, err = run("tradeoff x.npy y.npy --cost-bound 4 --epsilons 1,b")
        assert status == 2
        assert "--epsilons" in err


class TestWhatIsShown:
    def test_an_entropic_cost(self, run):
        arguments = "cost x.npy y.npy --epsilon 5 --cost-bound 4"
        shown = " ".join(run(arguments, "--regularization", 0.2)[1].split())
        assert "quantity" in shown
        assert "entropic" in shown
        assert "0.2" in shown
        assert "not 0 for equal data" in shown
        shown = " ".join(run(arguments)[1].split())
        assert "entropic" not in shown
        assert "The transport cost of these samples itself" in shown

    def test_a_cost_of_binned_data(self, run, files):
        arguments = "cost x.npy y.npy --epsilon 5 --cost-bound 4"
        shown = run(arguments, "--support", files / "grid.npy", "--method", "histogram")[1]
        assert "moved to the nearest points of the support" in " ".join(shown.split())

    def test_what_predictions_leave_out(self, run):
        shown = run(
            "tradeoff x.npy y.npy --cost-bound 4 --epsilons 1 --runs 1 --regularization 4 --support grid.npy"
        )[1]
        shown = " ".join(shown.split())
        assert "Not in the prediction of two-stage" in shown
        assert "Not in the prediction of histogram" in shown
