"""`dpsinkhorn privacy`, as a user meets it: output, exit status, and nothing written on bad input."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest

FIRST_VERSION = "--mechanism batch --noise-multiplier 1.1 --sampling-rate 1/1200 --steps 3400000 --delta 1e-5"
FINAL_VERSION = "--mechanism image --rows 50 --noise-multiplier 1.5 --sampling-rate 1/1200 --steps 160000"
SMALL = "--noise-multiplier 2 --sampling-rate 0.01 --steps 100"


@pytest.fixture
def result(run):
    def result(command: str):
        status, out, err = run(command + " --json")
        assert (status, err) == (0, "")
        return json.loads(out)

    return result


class TestEpsilon:
    @pytest.mark.parametrize(
        ("accountant", "expected"), [("rdp", 9.09), ("rdp-classic", 9.89), ("pld", 8.46)]
    )
    def test_first_version(self, result, accountant, expected):
        found = result(f"privacy epsilon {FIRST_VERSION} --accountant {accountant}")
        assert found["epsilon"] == pytest.approx(expected, abs=0.05)
        assert found["delta"] == 1e-5
        assert found["noise_multiplier"] == 1.1
        assert found["accountant"] == accountant
        assert found["adjacency"] == "add-or-remove-one"
        assert found["event"]["count"] == 3_400_000
        assert "published_epsilon" not in found

    def test_final_version(self, result):
        found = result(f"privacy epsilon {FINAL_VERSION}")
        assert found["epsilon"] == pytest.approx(845, rel=0.02)
        assert found["published_epsilon"] == pytest.approx(10.0, abs=0.1)
        assert found["published_epsilon_is_a_guarantee"] is False
        assert found["noise_multiplier"] == 1.5
        assert found["effective_noise_multiplier"] == pytest.approx(1.5 / 50**0.5)
        assert found["event"]["event"]["event"]["noise_multiplier"] == found["effective_noise_multiplier"]

    @pytest.mark.parametrize("setting", [FIRST_VERSION, f"{FINAL_VERSION} --accountant rdp", SMALL])
    def test_no_less_is_printed_than_is_spent(self, run, result, setting):
        exact = result(f"privacy epsilon {setting}")
        out = run(f"privacy epsilon {setting}")[1]
        shown = {
            name: float(value)
            for name, value in re.findall(r"│ ((?:published )?epsilon)[^│]*│ ([0-9.]+) *│", out)
        }
        for name, value in shown.items():
            spent = exact[name.replace(" ", "_")]
            assert spent <= value <= spent * 1.001
        assert set(shown) == {"epsilon", *(["published epsilon"] if "image" in setting else [])}

    def test_a_rate_in_three_spellings(self, result):
        rest = "privacy epsilon --noise-multiplier 2 --steps 100"
        fraction = result(f"{rest} --sampling-rate 1/100")
        decimal = result(f"{rest} --sampling-rate 0.01")
        sizes = result(f"{rest} --batch-size 50 --records 5000")
        assert fraction == decimal == sizes

    def test_moments_takes_all_records(self, result, refused):
        found = result("privacy epsilon --mechanism moments --noise-multiplier 2 --steps 6")
        assert found["sampling_rate"] == 1
        assert (
            found["epsilon"]
            == result("privacy epsilon --mechanism record --noise-multiplier 2 --steps 6 --sampling-rate 1")[
                "epsilon"
            ]
        )
        back = result(f"privacy calibrate --mechanism moments --steps 6 --epsilon {found['epsilon']}")
        assert back["noise_multiplier"] == pytest.approx(2, rel=1e-3)
        assert "all records" in refused(f"privacy epsilon {SMALL} --mechanism moments")

    @pytest.mark.parametrize("mechanism", ["record", "batch", "parameter"])
    def test_mechanisms_of_one_row_cost_the_same(self, result, mechanism):
        found = result(f"privacy epsilon {SMALL} --mechanism {mechanism}")
        assert found["epsilon"] == result(f"privacy epsilon {SMALL}")["epsilon"]

    def test_the_table_says_what_the_guarantee_means(self, run):
        status, out, err = run(f"privacy epsilon {SMALL}")
        assert (status, err) == (0, "")
        words = " ".join(out.split())
        assert "epsilon" in words
        assert "add-or-remove-one" in words
        assert "Adding or removing any one record" in words

    def test_the_published_figure_is_labelled(self, run):
        _, out, _ = run(f"privacy epsilon {FINAL_VERSION} --accountant rdp")
        words = " ".join(out.split())
        assert "published epsilon (not a guarantee)" in words
        assert "not a valid guarantee" in words

    def test_a_large_delta_is_warned_of(self, run):
        status, out, err = run(
            "privacy epsilon --noise-multiplier 2 --batch-size 5 --records 100 --steps 9 --delta 0.02 --json"
        )
        assert status == 0
        assert json.loads(out)["delta"] == 0.02
        assert err.count("\n") == 1
        assert "1/records" in err


class TestCalibrate:
    def test_noise(self, result):
        found = result("privacy calibrate --epsilon 10 --sampling-rate 0.1 --steps 1000 --delta 1e-5")
        assert found["noise_multiplier"] == pytest.approx(1.758, rel=0.01)
        assert 9.9 < found["epsilon"] <= 10

    def test_steps(self, result):
        found = result("privacy calibrate --epsilon 2 --sampling-rate 0.01 --noise-multiplier 1.5")
        spent = result(
            f"privacy epsilon --sampling-rate 0.01 --noise-multiplier 1.5 --steps {found['steps']}"
        )["epsilon"]
        assert 1.99 < spent <= 2

    def test_rate(self, result):
        found = result("privacy calibrate --epsilon 2 --steps 500 --noise-multiplier 1.5 --accountant rdp")
        assert 0 < found["sampling_rate"] < 1
        assert 1.99 < found["epsilon"] <= 2

    def test_image(self, result):
        rest = "privacy calibrate --epsilon 3 --sampling-rate 0.01 --steps 200"
        one = result(f"{rest} --mechanism batch")
        many = result(f"{rest} --mechanism image --rows 25")
        assert many["noise_multiplier"] == pytest.approx(5 * one["noise_multiplier"], rel=1e-3)
        assert many["effective_noise_multiplier"] == pytest.approx(one["noise_multiplier"], rel=1e-3)

    def test_table(self, run):
        status, out, _ = run("privacy calibrate --epsilon 3 --sampling-rate 0.01 --steps 200")
        assert status == 0
        assert "noise multiplier" in out


class TestPlot:
    @pytest.mark.parametrize(
        "command",
        [
            f"privacy epsilon {SMALL}",
            f"privacy epsilon {SMALL} --mechanism image --rows 4 --json",
            "privacy epsilon --noise-multiplier 2 --sampling-rate 0.01 --steps 1",
            "privacy calibrate --epsilon 3 --sampling-rate 0.01 --steps 200 --accountant rdp",
        ],
    )
    def test_draws_a_picture(self, run, tmp_path, command):
        picture = tmp_path / "epsilon.png"
        status, _, err = run(f"{command} --plot {picture}")
        assert (status, err) == (0, "")
        assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("privacy epsilon --sampling-rate 0.01 --steps 10", "--noise-multiplier"),
        ("privacy epsilon --noise-multiplier 1 --steps 10", "--sampling-rate"),
        ("privacy epsilon --noise-multiplier 1 --sampling-rate 0.1", "--steps"),
        ("privacy epsilon --noise-multiplier 0 --sampling-rate 0.1 --steps 9", "--noise-multiplier"),
        ("privacy epsilon --noise-multiplier nan --sampling-rate 0.1 --steps 9", "--noise-multiplier"),
        ("privacy epsilon --noise-multiplier -1 --sampling-rate 0.1 --steps 9", "--noise-multiplier"),
        ("privacy epsilon --noise-multiplier 1e-200 --sampling-rate 0.1 --steps 9", "--noise-multiplier"),
        ("privacy epsilon --noise-multiplier 1e200 --sampling-rate 0.1 --steps 9", "--noise-multiplier"),
        ("privacy epsilon --noise-multiplier much --sampling-rate 0.1 --steps 9", "--noise-multiplier"),
        ("privacy epsilon --noise-multiplier 1 --sampling-rate 1/0 --steps 9", "1/1200"),
        ("privacy epsilon --noise-multiplier 1 --sampling-rate often --steps 9", "1/1200"),
        ("privacy epsilon --noise-multiplier 1 --sampling-rate 2 --steps 9", "at most 1"),
        (
            "privacy epsilon --noise-multiplier 1 --sampling-rate 0.1 --batch-size 5 --records 50 --steps 9",
            "not both",
        ),
        ("privacy epsilon --noise-multiplier 1 --batch-size 5 --steps 9", "--records"),
        ("privacy epsilon --noise-multiplier 1 --batch-size 50 --records 5 --steps 9", "--batch-size"),
        ("privacy epsilon --noise-multiplier 1 --sampling-rate 0.1 --records 0 --steps 9", "--records"),
        (f"privacy epsilon {SMALL} --steps 0", "--steps"),
        (f"privacy epsilon {SMALL} --steps {10**400}", "--steps"),
        (f"privacy epsilon {SMALL} --records {10**400}", "--records"),
        (f"privacy epsilon {SMALL} --mechanism image --rows {10**400}", "--rows"),
        (f"privacy epsilon {SMALL} --steps 1.5", "--steps"),
        (f"privacy epsilon {SMALL} --delta 0", "--delta"),
        (f"privacy epsilon {SMALL} --delta 1", "--delta"),
        (f"privacy epsilon {SMALL} --rows 3", "--rows"),
        (f"privacy epsilon {SMALL} --mechanism image", "--rows"),
        (f"privacy epsilon {SMALL} --mechanism image --rows 0", "--rows"),
        (f"privacy epsilon {SMALL} --mechanism magic", "--mechanism"),
        (f"privacy epsilon {SMALL} --accountant moments", "--accountant"),
        (f"privacy epsilon {SMALL} --nois 3", "--nois"),
        (f"privacy epsilon {SMALL} --plot curve.pdf", ".png"),
        (f"privacy epsilon {SMALL} --plot no/such/folder/curve.png", "does not exist"),
        ("privacy calibrate --sampling-rate 0.1 --steps 9", "--epsilon"),
        ("privacy calibrate --epsilon 0 --sampling-rate 0.1 --steps 9", "--epsilon"),
        ("privacy calibrate --epsilon 1 --steps 9", "exactly two"),
        ("privacy calibrate --epsilon 1 --steps 9 --sampling-rate 0.1 --noise-multiplier 1", "exactly two"),
        ("privacy calibrate --epsilon 0.1 --sampling-rate 0.5 --noise-multiplier 0.3", "larger epsilon"),
        ("privacy guess", "guess"),
        ("frobnicate", "frobnicate"),
    ],
)
def test_bad_input_is_one_line_on_stderr_and_status_2(refused, tmp_path, monkeypatch, command, says):
    monkeypatch.chdir(tmp_path)
    assert says in refused(command)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("noise", ["1e-50", "1e50"])
@pytest.mark.parametrize("accountant", ["pld", "rdp", "rdp-classic"])
def test_the_largest_settings_are_accounted_for(result, noise, accountant):
    largest = f"--mechanism image --rows {10**18} --steps {10**18} --sampling-rate 0.5"
    found = result(f"privacy epsilon {largest} --noise-multiplier {noise} --accountant {accountant}")
    assert found["epsilon"] > 0  # and no traceback; infinite would be null


def test_the_examples_of_the_help_run(run):
    from dpsinkhorn.cli import privacy

    for function in (privacy.epsilon_command, privacy.calibrate_command):
        (line,) = [line.strip() for line in function.__doc__.splitlines() if "dpsinkhorn privacy" in line]
        status, _, err = run(line.removeprefix("dpsinkhorn ") + " --accountant rdp")
        assert (status, err) == (0, "")


@pytest.mark.parametrize("command", ["--help", "privacy --help"])
def test_groups_list_their_commands(run, command):
    status, out, _ = run(command)
    assert status == 0
    assert "privacy" in out


def test_python_dash_m():
    command = [sys.executable, "-m", "dpsinkhorn", "privacy", "epsilon", *SMALL.split(), "--json"]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    assert found.stderr == ""
    assert json.loads(found.stdout)["steps"] == 100
    refused = subprocess.run([sys.executable, "-m", "dpsinkhorn", "nothing"], capture_output=True, text=True)
    assert refused.returncode == 2
