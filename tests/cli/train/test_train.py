"""`dpsinkhorn train`, as a user meets it: from data to a release, its help, dry runs and warnings."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import threading

import numpy as np
import pytest

from dpsinkhorn import load
from dpsinkhorn.cli import _train_output
from dpsinkhorn.privacy import Budget, epsilon, format_epsilon, read_ledger
from support.processes import Command
from support.runs import IMAGES, LABELS
from support.train_command import TINY, begin, snapshot


class TestARun:
    def test_a_recipe_is_changed(self, run, place):
        changes = "--set optimizer.learning_rate=3e-4 --set privacy.steps=3 --set loss.cost=l1l2"
        assert run(f"--data data.npz --recipe tiny.toml --out run {changes}")[0] == 0
        recipe = json.loads((place / "run" / "run.json").read_text())["plan"]["recipe"]
        assert recipe["optimizer"]["learning_rate"] == 3e-4
        assert (recipe["privacy"]["steps"], recipe["loss"]["cost"]) == (3, "l1l2")

    def test_from_data_to_release(self, run, place):
        status, out, err = run(f"--data data.npz --recipe tiny.toml --out run {TINY}")
        assert (status, err) == (0, "")
        for words in (
            "run/release",
            "samples.png",
            "Only the folder `release` may leave the building",
            "Next:",
        ):
            assert words in out
        assert {entry.name for entry in (place / "run").iterdir()} == {
            "checkpoint.safetensors",
            "ledger.jsonl",
            "ledger.jsonl.head",
            "ledger.jsonl.lock",
            "release",
            "report.html",
            "run.json",
            "statistics.jsonl",
        }
        privacy = load(place / "run").privacy
        assert privacy.releasable
        statement = read_ledger(place / "run" / "ledger.jsonl")
        assert privacy.epsilon == pytest.approx(epsilon(statement.total(), 1e-5, "rdp"))

    def test_what_is_said_of_it(self, run, place):
        said = ["--title", "Two <words>", "--purpose", "teaching", "--contact", "dpo@example.org"]
        command = f"--data data.npz --recipe tiny.toml --out run --class-names no,some,all {TINY}"
        assert run(command, *said)[0] == 0
        release = load(place / "run")
        assert (release.about.title, release.about.purpose) == ("Two <words>", "teaching")
        assert release.class_names == ("no", "some", "all")
        assert (release.label_source, release.value_range) == ("uniform", (0.0, 255.0))
        page = (place / "run" / "report.html").read_text()
        assert "<h1>Two &lt;words&gt;</h1>" in page
        assert "dpo@example.org" in page

    def test_what_cannot_be_said(self, refused):
        for flag, text in (("--title", "a\nb"), ("--contact", "x" * 201)):
            assert "must be one line" in refused(
                f"--data data.npz --recipe tiny.toml --out run {TINY}", flag, text
            )
        wrong = refused(f"--data data.npz --recipe tiny.toml --out run {TINY} --class-names a,b")
        assert "label 2" in wrong

    def test_json(self, run, place):
        status, out, err = run(f"--data data.npz --recipe tiny.toml --out run --json {TINY}")
        assert (status, err) == (0, "")
        found = json.loads(out)
        privacy = load(place / "run").privacy
        assert found == {
            "run": "run",
            "release": "run/release",
            "report": "run/report.html",
            "epsilon": privacy.epsilon,
            "delta": 1e-5,
            "steps_charged": 12,
            "steps_kept": 12,
            "releasable": True,
        }

    def test_a_budget_is_kept(self, run, place):
        status, *_ = run(f"--data data.npz --recipe tiny.toml --epsilon 3 --delta 1e-4 --out run {TINY}")
        assert status == 0
        assert 2.9 < load(place / "run").privacy.epsilon <= 3
        assert read_ledger(place / "run" / "ledger.jsonl").budget == Budget(3.0, 1e-4)

    def test_options_reach_the_plan(self, run):
        status, out, _ = run(
            "--data persons.npz --recipe tiny.toml --steps 7 --sampling-rate 1/3 --noise-multiplier 2 "
            "--clip 1.5 --labels 0.5,0.3,0.2 --records 60 --groups patient --generator dcgan "
            "--dry-run --json --accountant rdp"
        )
        plan = json.loads(out)
        assert status == 0
        assert (plan["steps"], plan["sampling_rate"], plan["noise_multiplier"]) == (7, 1 / 3, 2.0)
        assert plan["recipe"]["privacy"]["clip"] == 1.5
        assert plan["labels"] == pytest.approx([0.5, 0.3, 0.2])
        assert plan["facts"]["records"] == 60
        assert plan["facts"]["grouped"]
        assert plan["recipe"]["generator"] == {"kind": "dcgan", "latent": 2}

    def test_persons(self, run, place):
        status, out, _ = run(f"--data persons.npz --groups patient --recipe tiny.toml --out run {TINY}")
        assert status == 0
        assert "any one person, with all their records" in out
        assert load(place / "run").privacy.unit == "person"

    def test_released_labels_and_pictures(self, run, place):
        status, *_ = run(
            "--data data.npz --recipe tiny.toml --labels released --out run --accountant rdp "
            "--picture-every 5 --seed 1"
        )
        assert status == 0
        assert list((place / "run" / "samples").glob("step-*.png"))

    def test_columns_that_are_not_used_are_named(self, run, place):
        rows = IMAGES.reshape(len(IMAGES), -1)
        names = [f"pixel{i}" for i in range(rows.shape[1])]
        lines = [",".join(["patient", '"find\x07ing\x1b[2J"', *names])]
        lines += [
            ",".join([f"p{i // 2}", str(label), *map(str, row)])
            for i, (label, row) in enumerate(zip(LABELS, rows, strict=True))
        ]
        (place / "scans.csv").write_text("\n".join(lines))
        command = f"--data scans.csv --recipe tiny.toml --dry-run {TINY}"
        err = run(command)[2]
        assert "columns that are not used: patient, find?ing?[2J. One that tells whose" in err
        assert err.count("\n") == 1
        (place / "scans.csv").write_text("\n".join(lines).replace("find\x07ing\x1b[2J", "finding"))
        assert "columns that are not used" not in run(f"{command} --label finding --groups patient")[2]

    def test_lines_where_there_is_no_terminal(self, run, monkeypatch):
        monkeypatch.setattr(_train_output, "_LINE_SECONDS", 0.0)
        err = run(f"--data data.npz --recipe tiny.toml --out run {TINY}")[2]
        told = re.findall(r"^step ([0-9]+) of ([0-9]+), ε ≤ ([0-9.]+) of ([0-9.]+)$", err, re.MULTILINE)
        assert told
        steps, last, spent, allowed = told[-1]
        assert steps == last
        assert 0 < float(spent) <= float(allowed) + 0.01

    def test_the_embedded_digits(self, run, place):
        status, *_ = run(f"--data digits --noise-multiplier 5 --steps 4 --out run {TINY}")
        assert status == 0
        assert load(place / "run").image_shape == (1, 8, 8)

    def test_a_folder_with_brackets_in_its_name(self, run, place):
        status, out, _ = run(f"--data data.npz --recipe tiny.toml {TINY} --out", "a[bold]b")
        assert status == 0
        assert "a[bold]b/release" in out
        assert load(place / "a[bold]b")

    def test_a_shared_ledger(self, run, place, refused):
        command = f"--data data.npz --recipe tiny.toml --ledger all.jsonl {TINY}"
        assert run(f"{command} --out first")[0] == 0
        assert "has no room for this run" in refused(f"{command} --out second")
        assert not (place / "first" / "ledger.jsonl").exists()

    def test_a_shared_ledger_with_a_budget_of_its_own(self, run, place, refused):
        command = f"--data data.npz --recipe tiny.toml --ledger all.jsonl {TINY}"
        for bad in ("0.001", "-1", "inf", "nan"):
            assert "of this run upwards, not" in refused(f"{command} --budget {bad} --out first")
        assert "name it (--ledger)" in refused(
            f"--data data.npz --recipe tiny.toml --budget 90 --out no {TINY}"
        )
        assert not (place / "all.jsonl").exists()
        assert run(f"{command} --budget 90 --out first")[0] == 0
        assert "has its budget already" in refused(f"{command} --budget 90 --out second")
        assert run(f"{command} --out second")[0] == 0
        first, second = (load(place / name).privacy.epsilon for name in ("first", "second"))
        assert 0 < first < second < 90
        assert "was settled when the run began" in refused("--out first --resume --budget 9")


class TestHelpAndDryRun:
    @pytest.mark.parametrize("options", ["", "--out run", "--ledger all.jsonl --out run"])
    def test_nothing_is_written(self, run, place, options):
        before = snapshot(place)
        status, out, err = run(f"--data data.npz --recipe tiny.toml --dry-run --accountant rdp {options}")
        assert (status, err) == (0, "")
        words = " ".join(out.split())
        for part in ("nothing was trained, written or spent", "noise multiplier", "epsilon, delta", "MiB"):
            assert part in words
        assert snapshot(place) == before

    def test_json(self, run, place):
        before = snapshot(place)
        status, out, err = run("--data data.npz --recipe tiny.toml --dry-run --json")
        assert (status, err) == (0, "")
        plan = json.loads(out)
        assert plan["steps"] == 12
        assert plan["epsilon"] > 0
        assert plan["estimated_seconds"] >= 0
        assert plan["estimated_memory_mib"] > 0
        assert snapshot(place) == before

    def test_says_what_is_left_on_the_ledger(self, run, refused, place):
        command = "--data data.npz --recipe tiny.toml --accountant rdp --ledger all.jsonl"
        planned = json.loads(run(f"{command} --budget 90 --dry-run --json")[1])
        assert planned["ledger"] == {"allowed": 90.0, "spent": 0.0, "after": planned["epsilon"]}
        assert run(f"{command} --budget 90 --out first {TINY}")[0] == 0
        before = snapshot(place)
        second = json.loads(run(f"{command} --dry-run --json")[1])
        assert second["ledger"]["spent"] == load(place / "first").privacy.epsilon
        assert second["ledger"]["spent"] < second["ledger"]["after"] < 90
        _, out, err = run(f"{command} --dry-run")
        assert (err, "so far, " in out, "of 90 allowed" in out) == ("", True, True)
        assert "has no room for this run" in refused(f"{command} --noise-multiplier 0.1 --dry-run")
        assert "has its budget already" in refused(f"{command} --budget 90 --dry-run")
        assert snapshot(place) == before

    def test_of_a_run_that_was_begun(self, run, place):
        command = Command(
            f"train --data {place}/data.npz --recipe {place}/long.toml --out {place}/run".split(), place
        )
        command.until(lambda: (place / "run" / "statistics.jsonl").exists())
        assert command.kill_after(0)
        before = snapshot(place)
        status, out, _ = run("--out run --resume --dry-run --json")
        assert status == 0
        assert json.loads(out)["steps"] == 500
        assert snapshot(place) == before


class TestWarnings:
    @pytest.mark.parametrize(
        ("options", "words"),
        [
            ("--delta 0.02", "delta 0.02 is not below 1/records = 0.011"),
            ("--delta 0.04 --data persons.npz --groups patient", "1/persons"),
            ("--seed 1", "NOT for release"),
            ("--mechanism image", "is not a valid guarantee; what holds is"),
        ],
    )
    def test_are_one_line(self, run, options, words):
        status, _, err = run(f"--data data.npz --recipe tiny.toml --dry-run --accountant rdp {options}")
        assert status == 0
        assert err.startswith("dpsinkhorn: warning: ")
        assert err.count("\n") == 1
        assert words in err

    def test_without_privacy(self, run, place):
        status, out, err = run(f"--data data.npz --recipe tiny.toml --mechanism none --out run --json {TINY}")
        assert status == 0
        assert "trains WITHOUT privacy" in err
        found = json.loads(out)
        assert found["epsilon"] is None
        assert not found["releasable"]
        assert "NOT FOR RELEASE" in (place / "run" / "release" / "README.md").read_text().upper()

    def test_names_read_off_private_labels_stay_inside(self, run, place):
        np.savez(place / "named.npz", images=IMAGES, labels=np.array(["ant", "cat", "owl"])[LABELS])
        status, _, err = run(f"--data named.npz --recipe tiny.toml --out run {TINY}")
        assert status == 0
        assert "stay out of the release; state them with --classes" in err
        assert all(b"owl" not in content for content in snapshot(place / "run" / "release").values())
        status, _, err = run(f"--data named.npz --classes ant,cat,owl --recipe tiny.toml --out stated {TINY}")
        assert (status, err) == (0, "")
        assert load(place / "stated").class_names == ("ant", "cat", "owl")

    def test_none_where_all_is_well(self, run):
        assert run("--data data.npz --recipe tiny.toml --dry-run --accountant rdp")[2] == ""


def test_progress_is_silent_where_nobody_looks(run):
    """stderr is no terminal here: nothing but warnings."""
    _, _, err = run(f"--data data.npz --recipe tiny.toml --out run {TINY}")
    assert err == ""


def test_progress_on_a_terminal(place):
    """Steps, ε spent of the budget, time left."""
    master, slave = pty.openpty()
    shown = []

    def watch():
        with contextlib.suppress(OSError):  # the other end was closed
            while text := os.read(master, 4096):
                shown.append(text)

    reader = threading.Thread(target=watch, daemon=True)
    reader.start()
    command = Command(begin(place, "--steps 150"), place, terminal=os.ttyname(slave))
    command.process.join(60)
    os.close(slave)
    reader.join(10)
    assert command.process.exitcode == 0
    text = b"".join(shown).decode()
    budget = read_ledger(place / "run" / "ledger.jsonl").budget.epsilon
    assert "150/150" in text
    assert f"of {format_epsilon(budget)}" in text
    assert "left" in text
    os.close(master)


def test_the_same_data_on_another_ledger(run, place, monkeypatch):
    monkeypatch.setenv("DPSINKHORN_USED_DATA", str(place / "used.jsonl"))
    words = f"--data data.npz --recipe tiny.toml {TINY}"
    before = "dpsinkhorn: warning: these data were trained on before (first-record-"
    assert before not in run(f"{words} --ledger all.jsonl --budget 90 --out first")[2]
    assert before not in run(f"{words} --ledger all.jsonl --out second")[2]
    noted = (place / "used.jsonl").read_text()
    status, _, err = run(f"{words} --dry-run")
    assert status == 0
    assert before.replace("first", "second") in err
    assert (place / "used.jsonl").read_text() == noted
    assert "and 1 more), on another ledger" in run(f"{words} --out third")[2]


@pytest.fixture
def told(run, monkeypatch):
    """The last line of progress: ε, and what is said of a budget."""
    monkeypatch.setattr(_train_output, "_LINE_SECONDS", 0.0)

    def told(command):
        status, _, err = run(f"--data data.npz --recipe tiny.toml {TINY} {command}")
        assert status == 0
        lines = re.findall(r"^step 12 of 12, ε ≤ ([0-9.]+) of (.+)$", err, re.MULTILINE)
        return lines[-1]

    return told


def test_no_less_than_was_spent(told, place):
    spent, budget = told("--out run")
    stated = load(place / "run").privacy.epsilon
    assert spent == format_epsilon(stated)
    assert float(spent) >= stated
    assert budget == format_epsilon(read_ledger(place / "run" / "ledger.jsonl").budget.epsilon)


def test_all_on_a_shared_ledger_beside_what_it_allows(told, place):
    """The second run's ε counts the first: that is not to be held against its own budget."""
    told("--ledger all.jsonl --budget 90 --out first")
    spent, budget = told("--ledger all.jsonl --out second")
    assert float(spent) >= load(place / "second").privacy.epsilon > load(place / "first").privacy.epsilon
    assert budget == "90 for all on the ledger"
