"""`dpsinkhorn compare`, as a user meets it."""

from __future__ import annotations

import json

import numpy as np
import pytest

from support.runs import IMAGES, LABELS


def test_one_method(run, tmp_path):
    arguments = ("--data", "digits", "--epsilon", 10, "--methods", "moments", "--count", 300, "--seed", 1)
    status, out, err = run("compare", *arguments, "--device", "cpu", "--out", tmp_path / "out")
    assert status == 0, err
    assert "moments" in out
    assert "Comparing on private data costs the sum of all epsilons: here ε = " in out
    assert "public data set" in out
    assert "CURATOR" not in (tmp_path / "out" / "comparison.html").read_text(encoding="utf-8")
    assert (tmp_path / "out" / "moments" / "release" / "privacy.json").is_file()

    status, out, err = run("compare", *arguments, "--device", "cpu", "--out", tmp_path / "out", "--json")
    assert status == 0, err
    found = json.loads(out)
    kept = json.loads((tmp_path / "out" / "comparison.json").read_text(encoding="utf-8"))
    assert found["methods"] == kept["methods"]
    assert found["methods"][0]["seconds"] is None
    assert set(found["methods"][0]["accuracy"]) == {"logistic", "mlp", "cnn"}
    assert found["together"]["epsilon"] == found["methods"][0]["epsilon"] <= 10


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--methods", "magic"], "there is no magic"),
        (["--methods", "batch", "--delta", "2"], "delta must be between 0 and 1"),
        (["--test-data", "nowhere"], "nowhere"),
        (["--device", "abacus"], "cpu or cuda"),
        (["--longest", "-1"], "--longest"),
    ],
)
def test_bad_input_is_one_line_and_status_2(run, arguments, reason, tmp_path):
    status, out, err = run(
        "compare", "--data", "digits", "--epsilon", 10, "--out", tmp_path / "out", *arguments
    )
    assert (status, out) == (2, "")
    assert reason in err
    assert err.count("\n") == 1


def test_test_images_must_be_named(run, tmp_path):
    np.savez(tmp_path / "own.npz", images=IMAGES, labels=LABELS)
    status, _, err = run("compare --epsilon 10 --data", tmp_path / "own.npz", "--out", tmp_path / "out")
    assert status == 2
    assert "--test-data" in err
