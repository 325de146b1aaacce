"""`dpsinkhorn audit`: what it prints, and the status it leaves with."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

from dpsinkhorn.mechanisms.shared import base
from dpsinkhorn.privacy import RecordMechanism, epsilon
from support.runs import tiny_arrays

STEP = "audit --noise-multiplier 1 --repetitions 120 --seed 0"
RUN = "audit --game run --noise-multiplier 0.5 --steps 8 --canaries 60 --seed 0"
PUBLISHED = "audit --mechanism image --noise-multiplier 1.5 --sampling-rate 1/20 --rows 50 --repetitions 800"


class TestStep:
    def test_json(self, run):
        status, out, err = run(f"{STEP} --json")
        assert (status, err) == (0, "")
        found = json.loads(out)
        assert found["claimed_epsilon"] == epsilon(RecordMechanism(1.0, 1.0).sampled(1.0, 1), 1e-5)
        bounds = [found["threshold"]["epsilon"], found["gaussian"]["epsilon"]]
        assert found["epsilon_lower_bound"] == max(bounds) > 0
        assert found["exceeds_claim"] is False
        assert (found["game"], found["repetitions"], found["confidence"]) == ("step", 120, 0.95)
        assert found["gaussian"]["assumption"] == "Gaussian trade-off"

    def test_table_and_picture(self, run, tmp_path):
        status, out, err = run(f"{STEP} --mechanism batch --plot {tmp_path / 'audit.png'}")
        assert (status, err) == (0, "")
        words = " ".join(out.split())
        for said in ("claimed epsilon", "4.378", "lower bound", "95 %", "batch", "within epsilon"):
            assert said in words
        assert (tmp_path / "audit.png").read_bytes().startswith(b"\x89PNG")

    def test_a_seed_replays(self, run):
        assert run(f"{STEP} --json") == run(f"{STEP} --json")

    def test_a_defect_is_told_by_the_status(self, run, monkeypatch):
        monkeypatch.setattr(base, "add_gaussian", lambda values, **_: values)
        status, out, _ = run(STEP)
        assert status == 3
        assert "that claim is refuted" in " ".join(out.split())
        status, out, _ = run(f"{STEP} --json")
        assert status == 3
        assert json.loads(out)["exceeds_claim"] is True

    @pytest.mark.long
    def test_the_published_claim_is_refuted_and_ours_is_not(self, run):
        status, out, _ = run(f"{PUBLISHED} --seed 0 --json --claim published")
        found = json.loads(out)
        assert status == 3
        assert found["published_epsilon"] < found["epsilon_lower_bound"] < found["claimed_epsilon"]


class TestRun:
    def test_json(self, run):
        status, out, err = run(f"{RUN} --json")
        assert (status, err) == (0, "")
        found = json.loads(out)
        assert found["game"] == "run"
        assert found["private"] is False
        assert found["claimed_epsilon"] == pytest.approx(
            epsilon(RecordMechanism(1.0, 0.5).sampled(0.2, 8), 1e-5), rel=1e-6
        )
        assert 0 < found["included"] < found["canaries"] == 60
        bounds = [bound for part in ("every_step", "final") for bound in found[part].values()]
        assert found["epsilon_lower_bound"] == max(bound["epsilon"] for bound in bounds)
        assert set(found["every_step"]) == {"steinke", "f_dp", "f_dp_gaussian"}
        assert found["every_step"]["f_dp"]["assumption"] == ""
        assert found["every_step"]["f_dp_gaussian"]["assumption"] == "Gaussian noise of unknown size"
        assert all(bound["guesses"] > 0 for bound in bounds)
        assert found["unit"] == "record"

    def test_table_and_picture(self, run, tmp_path):
        status, out, _ = run(f"{RUN} --sampling-rate 0.1 --plot {tmp_path / 'audit.png'}")
        assert status == 0
        words = " ".join(re.sub(r"(│[^│]*)│[^│]*│\n", r"\1", out).replace("│", " ").split())
        for said in (
            "from every step (Steinke et al.)",
            "from every step (f-DP, nothing assumed)",
            "from every step (f-DP, given Gaussian noise of unknown size)",
            "from the generator (the largest)",
            "keep this output with the data",
        ):
            assert said in words
        assert "guesses right" in " ".join(out.split())
        assert (tmp_path / "audit.png").read_bytes().startswith(b"\x89PNG")

    def test_options_of_the_data(self, run, tmp_path):
        """As `train` reads them: labels and persons by name, and a range that is stated."""
        images, labels, persons = tiny_arrays(persons=20)
        np.savez(tmp_path / "scans.npz", pictures=images, diagnosis=labels, patient=persons)
        status, out, err = run(
            f"audit --game run --data {tmp_path / 'scans.npz'} --image pictures --label diagnosis "
            "--groups patient --classes 3 --value-range 0,255 --noise-multiplier 1 --steps 2 --canaries 20 "
            "--seed 0 --json"
        )
        assert (status, err) == (0, "")
        found = json.loads(out)
        assert found["unit"] == "person"
        assert found["canaries"] == 20

    def test_other_mechanisms(self, run):
        status, out, _ = run(
            "audit --game run --mechanism moments --noise-multiplier 1 --steps 4 --canaries 60 --seed 0"
        )
        assert status == 0
        assert "moments" in out


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("audit", "--noise-multiplier"),
        ("audit --noise-multiplier 0", "noise_multiplier"),
        ("audit --noise-multiplier 1 --delta 0", "--delta"),
        ("audit --noise-multiplier 1 --confidence 1", "--confidence"),
        ("audit --noise-multiplier 1 --sampling-rate 2", "sampling_rate"),
        ("audit --noise-multiplier 1 --sampling-rate often", "1/1200"),
        ("audit --noise-multiplier 1 --steps 0", "steps"),
        ("audit --noise-multiplier 1 --repetitions 2", "repetitions"),
        ("audit --noise-multiplier 1 --rows 4", "--rows"),
        ("audit --noise-multiplier 1 --mechanism image", "--rows"),
        ("audit --noise-multiplier 1 --mechanism image --rows 3", "even"),
        ("audit --noise-multiplier 1 --mechanism none", "--mechanism"),
        ("audit --noise-multiplier 1 --data digits", "--data"),
        ("audit --noise-multiplier 1 --epsilon 1", "--epsilon"),
        ("audit --noise-multiplier 1 --canaries 10", "--canaries"),
        ("audit --noise-multiplier 1 --claim published", "--claim published"),
        ("audit --noise-multiplier 1 --plot audit.pdf", ".png"),
        ("audit --noise-multiplier 1 --game chess", "--game"),
        ("audit --game run", "budget"),
        ("audit --game run --epsilon 1 --noise-multiplier 1", "not both"),
        ("audit --game run --epsilon -1", "epsilon"),
        ("audit --game run --epsilon 1 --repetitions 10", "--repetitions"),
        ("audit --game run --epsilon 1 --claim published", "--claim"),
        ("audit --game run --epsilon 1 --canaries 1", "canaries"),
        ("audit --noise-multiplier 1 --groups person", "--groups"),
        ("audit --noise-multiplier 1 --unlabelled", "--unlabelled"),
        ("audit --noise-multiplier 1 --value-range 0,1", "--value-range"),
        ("audit --game run --epsilon 1 --groups person", "groups"),
        ("audit --game run --epsilon 1 --size big", "--size"),
        ("audit --game run --epsilon 1 --mechanism moments --sampling-rate 0.5", "sampling rate"),
        ("audit --game run --epsilon 1 --data no/such/file.npz", "no/such/file.npz"),
        ("audit --game run --epsilon 1 --seed -1", "seed"),
    ],
)
def test_bad_input_is_one_line_on_stderr_and_status_2(refused, tmp_path, monkeypatch, command, says):
    monkeypatch.chdir(tmp_path)
    assert says in refused(command)
    assert list(tmp_path.iterdir()) == []


def test_help_says_what_the_status_means(run):
    assert "3 if it exceeds it" in " ".join(run("audit --help")[1].split())
