"""`dpsinkhorn train`, as a user meets it: runs, interrupts, kill -9, and one line for whatever is wrong."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import random
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import torch
from PIL import Image

from dpsinkhorn import load
from dpsinkhorn.cli import main
from dpsinkhorn.privacy import Budget, Ledger, epsilon, read_ledger
from support.processes import Command
from support.runs import RECIPE, bits, header, lines, tiny_arrays

TINY = "--accountant rdp --checkpoint-every 0.1 --picture-every 0"


@pytest.fixture(autouse=True)
def _one_thread():
    """As in the processes of `Command`: with another number of threads sums end in other last bits."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def place(tmp_path):
    """A folder with a small data set and a small recipe."""
    images, labels, groups = tiny_arrays(persons=30)
    np.savez(tmp_path / "data.npz", images=images, labels=labels, patient=groups)
    (tmp_path / "tiny.toml").write_text(RECIPE.format(steps=12))
    (tmp_path / "long.toml").write_text(RECIPE.format(steps=500))
    return tmp_path


@pytest.fixture
def run(capsys, place, monkeypatch):
    """Run the command in the folder: exit status, stdout, stderr."""
    monkeypatch.chdir(place)

    def run(command, *more):
        with pytest.raises(SystemExit) as left:
            main(["train", *command.split(), *(str(value) for value in more)])
        captured = capsys.readouterr()
        return left.value.code or 0, captured.out, captured.err

    return run


def snapshot(folder):
    """All that is in a folder, with content."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }


@pytest.fixture
def refused(run, place):
    """The one line of a refusal. Status 2, nothing on stdout, nothing written."""

    def refused(command, *more):
        before = snapshot(place)
        status, out, err = run(command, *more)
        assert (status, out) == (2, "")
        errors = [line for line in err.splitlines() if not line.startswith("dpsinkhorn: warning: ")]
        assert len(errors) == 1, err
        assert errors[0].startswith("dpsinkhorn: ")
        assert snapshot(place) == before
        return errors[0]

    return refused


def begin(place, *options):
    """Arguments of a run of 500 steps, some of a second, in the folder `run`."""
    files = ["--data", place / "data.npz", "--recipe", place / "long.toml", "--out", place / "run"]
    return ["train", *files, *TINY.split(), *(part for option in options for part in option.split())]


def steps_on_record(folder):
    return sum(spend.steps for spend in read_ledger(folder / "ledger.jsonl").spends)


class TestARun:
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
            "releasable": True,
        }

    def test_a_budget_is_kept(self, run, place):
        status, *_ = run(f"--data data.npz --recipe tiny.toml --epsilon 3 --delta 1e-4 --out run {TINY}")
        assert status == 0
        assert 2.9 < load(place / "run").privacy.epsilon <= 3
        assert read_ledger(place / "run" / "ledger.jsonl").budget == Budget(3.0, 1e-4)

    def test_options_reach_the_plan(self, run):
        status, out, _ = run(
            "--data data.npz --recipe tiny.toml --steps 7 --sampling-rate 1/3 --noise-multiplier 2 "
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
        status, out, _ = run(f"--data data.npz --groups patient --recipe tiny.toml --out run {TINY}")
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

    def test_the_embedded_digits(self, run, place):
        status, *_ = run(f"--data digits --noise-multiplier 5 --steps 3 --out run {TINY}")
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


class TestHelpAndDryRun:
    def test_help_has_an_example(self, run):
        status, out, _ = run("--help")
        assert status == 0
        assert "dpsinkhorn train --data digits --epsilon 10 --out runs/digits" in " ".join(out.split())

    def test_help_is_quick(self):
        """It loads neither PyTorch nor the accountants."""
        code = (
            "import sys\n"
            "from dpsinkhorn.cli import main\n"
            "for args in (['--help'], ['train', '--help'], ['privacy', 'epsilon', '--help']):\n"
            "    try:\n        main(args)\n    except SystemExit as left:\n        assert not left.code\n"
            "slow = {'torch', 'scipy', 'dp_accounting', 'sklearn', 'matplotlib'} & set(sys.modules)\n"
            "assert not slow, slow\n"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr

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
            ("--delta 0.04 --groups patient", "1/persons"),
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
        images, labels, _ = tiny_arrays()
        np.savez(place / "named.npz", images=images, labels=np.array(["ant", "bee", "cat"])[labels])
        status, _, err = run(f"--data named.npz --recipe tiny.toml --out run {TINY}")
        assert status == 0
        assert "stay out of the release; state them with --classes" in err
        assert all(b"bee" not in content for content in snapshot(place / "run" / "release").values())
        status, _, err = run(f"--data named.npz --classes ant,bee,cat --recipe tiny.toml --out stated {TINY}")
        assert (status, err) == (0, "")
        assert load(place / "stated").class_names == ("ant", "bee", "cat")

    def test_none_where_all_is_well(self, run):
        assert run("--data data.npz --recipe tiny.toml --dry-run --accountant rdp")[2] == ""


class TestBadOptions:
    @pytest.mark.parametrize(
        ("command", "words"),
        [
            ("--recipe tiny.toml --out run", "give --data"),
            ("--data data.npz --recipe tiny.toml", "give --out"),
            ("--data data.npz --epsilon 3 --noise-multiplier 2 --out run", "not both"),
            ("--data data.npz --recipe no.toml --out run", "there is no recipe file no.toml"),
            ("--data data.npz --recipe minst --out run", "unknown recipe 'minst'; choose"),
            ("--data data.npz --recipe broken.toml --out run", "is not TOML"),
            ("--data data.npz --recipe tiny.toml --generator diffusion --out run", "generator: "),
            ("--data data.npz --recipe tiny.toml --mechanism none --epsilon 3 --out run", "has no epsilon"),
            ("--data data.npz --recipe tiny.toml --mechanism magic --out run", "--mechanism"),
            ("--data data.npz --recipe tiny.toml --epsilon 0 --out run", "epsilon must be a positive"),
            ("--data data.npz --recipe tiny.toml --epsilon inf --out run", "epsilon must be a positive"),
            ("--data data.npz --recipe tiny.toml --delta 2 --out run", "delta must be between 0 and 1"),
            ("--data data.npz --recipe tiny.toml --steps 0 --out run", "steps must be a positive"),
            ("--data data.npz --recipe tiny.toml --clip -1 --out run", "clip must be a positive"),
            ("--data data.npz --recipe tiny.toml --clip 1e-12 --out run", "raise clip"),
            ("--data data.npz --recipe tiny.toml --sampling-rate 2 --out run", "at most 1"),
            ("--data data.npz --recipe tiny.toml --sampling-rate x --out run", "a number like 0.01"),
            ("--data data.npz --recipe tiny.toml --sampling-rate 0.001 --out run", "fewer than one expected"),
            ("--data data.npz --recipe paper-first-mnist --records 10 --out run", "fewer than one expected"),
            ("--data data.npz --recipe tiny.toml --records 0 --out run", "1 or more"),
            ("--data data.npz --recipe tiny.toml --labels half --out run", "--labels must be uniform"),
            ("--data data.npz --recipe tiny.toml --labels 0.5,0.5 --out run", "2 label probabilities for 3"),
            ("--data data.npz --recipe tiny.toml --seed -3 --out run", "a seed is a whole number"),
            ("--data data.npz --recipe tiny.toml --seed 99999999999999999999999 --out run", "a seed is"),
            ("--data data.npz --recipe tiny.toml --device tpu --out run", "there is no device"),
            ("--data data.npz --recipe tiny.toml --device meta --out run", "there is no device"),
            ("--data data.npz --recipe tiny.toml --device cuda:99 --out run", "there is no device"),
            ("--data data.npz --recipe tiny.toml --checkpoint-every -1 --out run", "--checkpoint-every"),
            ("--data data.npz --recipe tiny.toml --ledger . --out run", "is a folder"),
            ("--data data.npz --recipe tiny.toml --ledger tiny.toml --out run", "tiny.toml"),
            ("--data data.npz --recipe tiny.toml --fast --out run", "--fast"),
            ("--data data.npz --recipe tiny.toml --out full", "is not empty; choose another folder"),
            ("--data data.npz --recipe tiny.toml --out tiny.toml", "is a file; choose another folder"),
            ("--data data.npz --recipe tiny.toml --out tiny.toml/run", "Not a directory"),
            ("--out run --resume", "holds no run to resume"),
            ("--resume", "give --out"),
        ],
    )
    def test_one_line_and_nothing_written(self, refused, place, command, words):
        (place / "broken.toml").write_text("steps = = 5")
        (place / "full").mkdir()
        (place / "full" / "thesis.tex").write_text("precious")
        assert words in refused(command)

    def test_an_epsilon_that_cannot_be_met(self, refused):
        line = refused(
            "--data data.npz --recipe tiny.toml --epsilon 0.001 --steps 1000000000 --sampling-rate 1 "
            "--out run --accountant rdp"
        )
        assert "epsilon 0.001 at delta 1e-05 cannot be met with 1000000000 steps" in line

    def test_a_folder_that_holds_another_run(self, run, refused):
        assert run(f"--data data.npz --recipe tiny.toml --out run {TINY}")[0] == 0
        assert "already holds a run; resume it, or" in refused("--data data.npz --recipe tiny.toml --out run")
        assert "is finished: its release is in run/release" in refused("--out run --resume")

    @pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
    def test_a_folder_that_cannot_be_written(self, refused, place):
        (place / "locked").mkdir(mode=0o500)
        assert "Permission denied" in refused("--data data.npz --recipe tiny.toml --out locked/run")

    def test_a_folder_of_the_system_that_cannot_be_written(self, refused):
        line = refused("--data data.npz --recipe tiny.toml --out /proc/run")
        assert "the run cannot begin: /proc/run" in line


class TestBadData:
    @pytest.fixture
    def npz(self, place, refused):
        def npz(words, *options, **arrays):
            np.savez(place / "bad.npz", **arrays)
            assert words in refused("--data bad.npz --recipe tiny.toml --out run", *options)

        return npz

    images = np.zeros((12, 4, 4), np.uint8)

    def test_a_label_that_is_missing(self, npz):
        npz("missing in row 11", images=self.images, labels=np.array([0.0] * 11 + [np.nan]))

    def test_labels_that_are_negative(self, npz):
        npz("must not be negative", images=self.images, labels=np.arange(12) - 1)

    def test_labels_that_are_fractions(self, npz):
        npz("must be whole numbers", images=self.images, labels=np.arange(12) / 2)

    def test_fewer_labels_than_images(self, npz):
        npz("12 images but 5 labels", images=self.images, labels=np.arange(5))

    def test_more_classes_than_stated(self, npz):
        npz("with the 3 classes stated", "--classes", "3", images=self.images, labels=np.arange(12) % 4)

    def test_an_empty_class(self, npz):
        npz("class 1 has no records", images=self.images, labels=np.arange(12) % 2 * 2)
        npz("classes 2, 3 have no records", "--classes", "4", images=self.images, labels=np.arange(12) % 2)

    def test_no_records(self, npz):
        npz("the data set is empty", images=self.images[:0], labels=np.arange(0))

    def test_floats(self, npz):
        values = np.zeros((12, 4, 4))
        values[7, 1, 2] = np.nan
        npz("image 7 (counted from 0) holds nan", images=values)
        values[7, 1, 2] = 1.5
        npz("outside of the range 0 to 1", images=values)
        npz("outside of the range 0 to 1.2", "--value-range", "0,1.2", images=values)

    def test_pictures_of_mixed_size(self, place, refused):
        (place / "pictures" / "cats").mkdir(parents=True)
        for number, size in enumerate(((4, 4), (4, 5))):
            Image.new("L", size).save(place / "pictures" / "cats" / f"{number}.png")
        refused("--data pictures --recipe tiny.toml --out run")

    def test_nothing_there(self, refused):
        assert "there is no file or folder nowhere" in refused("--data nowhere --recipe tiny.toml --out run")


class TestResume:
    @pytest.fixture
    def begun(self, place):
        """A run that was killed in the middle."""

        def begun(*options):
            command = Command(begin(place, *options), place)
            command.until(lambda: (place / "run" / "statistics.jsonl").exists())
            assert command.kill_after(0.05)
            return place / "run"

        return begun

    def test_from_another_folder(self, begun, run, monkeypatch, tmp_path_factory):
        folder = begun()
        monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
        assert run("--resume --out", folder)[0] == 0
        assert load(folder).privacy.releasable

    def test_relative_paths_are_kept_in_full(self, run, place):
        np.save(place / "pixels.npy", tiny_arrays()[0])
        np.save(place / "classes.npy", tiny_arrays()[1])
        status, *_ = run(f"--data pixels.npy --label classes.npy --recipe tiny.toml --out run {TINY}")
        assert status == 0
        source = json.loads((place / "run" / "run.json").read_text())["source"]
        assert source == {"data": str(place / "pixels.npy"), "label": str(place / "classes.npy")}

    @pytest.mark.parametrize(
        "option", ["--epsilon 5", "--steps 5", "--seed 1", "--labels released", "--records 9", "--unlabelled"]
    )
    def test_what_was_settled_stays(self, begun, refused, option):
        begun()
        name = option.split()[0]
        assert f"{name} was settled when the run began" in refused(f"--out run --resume {option}")

    def test_other_data_are_refused(self, begun, refused, place):
        begun()
        images, labels, groups = tiny_arrays(records=91, persons=30)
        np.savez(place / "other.npz", images=images, labels=labels, patient=groups)
        assert "not the data of the run: records: 91" in refused("--out run --resume --data other.npz")

    def test_damage(self, begun, refused):
        folder = begun()
        path = folder / "checkpoint.safetensors"
        whole = path.read_bytes()
        path.write_bytes(whole[:200])
        assert "is not a checkpoint that can be read" in refused("--out run --resume")
        path.write_bytes(whole.replace(b'"version":"1"', b'"version":"8"'))
        assert "is a checkpoint of version 8, not 1" in refused("--out run --resume")
        path.write_bytes(whole)
        settings = (folder / "run.json").read_text()
        (folder / "run.json").write_text(settings[:50])
        assert "run.json cannot be read" in refused("--out run --resume")
        (folder / "run.json").write_text(settings)
        ledger = (folder / "ledger.jsonl").read_bytes()
        (folder / "ledger.jsonl").write_bytes(ledger.replace(b'"steps":1', b'"steps":0', 1))
        assert "ledger" in refused("--out run --resume")

    def test_two_at_once(self, place, refused):
        command = Command(begin(place, "--steps 100000"), place)
        command.until(lambda: (place / "run" / "statistics.jsonl").exists())
        command.send(signal.SIGSTOP)  # it holds the ledger, and writes nothing while we look
        try:
            line = refused("--out run --resume")
            assert "is open for writing elsewhere" in line
        finally:
            command.send(signal.SIGCONT)
            assert command.kill_after(0)


class TestKilled:
    """kill -9 at random moments, several times, then to the end."""

    @staticmethod
    def survive(place, options, choices, kills):
        arguments = (
            f"train --data {place}/data.npz --recipe {place}/long.toml --out {place}/run {TINY} {options}"
        )
        start = [*arguments.split()]
        resume = f"train --out {place}/run --resume --checkpoint-every 0.1 --picture-every 40".split()
        killed = 0
        for _ in range(20):
            begun = (place / "run" / "run.json").exists()
            command = Command(resume if begun else start, place)
            if killed == kills:
                assert command.wait()[0] == 0, command.streams[1].read_text()
                return killed
            if begun or choices.random() < 0.8:  # else at any moment of the start, too
                before = len(lines_so_far(place))
                command.until(lambda seen=before: len(lines_so_far(place)) > seen or done(place))
            killed += command.kill_after(choices.uniform(0, 0.5))
            if done(place):
                return killed
        raise AssertionError("never done")

    def test_seeded_runs_end_in_the_same_bits(self, place, run):
        assert run(f"--data data.npz --recipe long.toml --out whole --seed 3 {TINY}")[0] == 0
        killed = self.survive(place, "--seed 3", random.Random(), kills=4)
        assert killed >= 2
        assert bits(place / "run") == bits(place / "whole")
        assert steps_on_record(place / "run") == 500

    def test_secure_runs_pay_for_what_was_lost(self, place):
        killed = self.survive(place, "", random.Random(), kills=3)
        assert killed >= 1
        statement = read_ledger(place / "run" / "ledger.jsonl")
        privacy = load(place / "run").privacy
        kept = header(place / "run" / "checkpoint.safetensors")["step"]
        # steps that are known to have been taken: each time the count falls back, those before are lost
        taken, last = 0, 0
        for line in lines_so_far(place):
            taken += line["step"] - last if line["step"] > last else 0
            last = line["step"]
        assert kept < 500
        assert kept <= taken <= steps_on_record(place / "run") == 500
        assert privacy.epsilon == pytest.approx(epsilon(statement.total(), 1e-5, "rdp"), rel=1e-12)
        assert privacy.epsilon <= statement.budget.epsilon
        assert privacy.ledger_digest == statement.digest
        assert privacy.releasable
        assert not [name for name in os.listdir(place / "run") if name.endswith(".partial")]


def done(place):
    return (place / "run" / "release").exists()


def lines_so_far(place):
    path = place / "run" / "statistics.jsonl"
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text.splitlines() if line.endswith("}")]


class TestInterrupted:
    def test_ctrl_c_in_a_process_of_its_own(self, place, run):
        """The command as it is installed: Ctrl-C leaves a checkpoint and says how to go on."""
        command = [sys.executable, "-m", "dpsinkhorn", "train", "--data", "data.npz", "--recipe", "long.toml"]
        command += ["--out", "run", "--seed", "3", "--accountant", "rdp", "--steps", "900"]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        with subprocess.Popen(
            command, cwd=place, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as process:
            end = time.monotonic() + 60
            while len(lines_so_far(place)) < 3:
                assert process.poll() is None, process.stderr.read()
                assert time.monotonic() < end
                time.sleep(0.01)
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=30)
        assert process.returncode == 130
        assert out == ""
        assert err.splitlines()[1:] == [
            "Stopped, with a checkpoint. Go on with: dpsinkhorn train --out run --resume"
        ]
        stopped = header(place / "run" / "checkpoint.safetensors")["step"]
        assert 0 < stopped < 900
        assert stopped == lines(place / "run")[-1]["step"]  # no step was lost
        assert run("--out run --resume")[0] == 0
        assert run(f"--data data.npz --recipe long.toml --steps 900 --out whole --seed 3 {TINY}")[0] == 0
        assert bits(place / "run") == bits(place / "whole")

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    def test_again_and_again(self, place, number, run):
        command = Command(begin(place, "--seed 3"), place)
        interrupted = 0
        for _ in range(5):
            before = len(lines_so_far(place))
            command.until(lambda seen=before: len(lines_so_far(place)) > seen or done(place))
            command.send(number)
            status, _, err = command.wait()
            if status == 0:
                break
            assert status == 130, err
            interrupted += 1
            assert err.splitlines()[-1].startswith("Stopped, with a checkpoint.")
            assert steps_on_record(place / "run") == header(place / "run" / "checkpoint.safetensors")["step"]
            command = Command(["train", "--out", place / "run", "--resume"], place)
        else:
            assert command.wait()[0] == 0
        assert interrupted >= 1
        assert run(f"--data data.npz --recipe long.toml --out whole --seed 3 {TINY}")[0] == 0
        assert bits(place / "run") == bits(place / "whole")

    def test_before_training_began(self, place):
        """While the noise is calibrated, say: one clean line, and nothing is there."""
        slow = "--epsilon 5 --steps 1000000 --labels released"  # a second of accounting at least
        arguments = f"train --data {place}/data.npz --recipe {place}/tiny.toml --out {place}/run {slow}"
        command = Command(arguments.split(), place)
        command.until(command.started.exists)
        time.sleep(0.2)
        command.send(signal.SIGINT)
        status, out, err = command.wait()
        assert (status, out) == (130, "")
        assert err in ("dpsinkhorn: stopped before training began\n", "dpsinkhorn: stopped\n")
        assert not (place / "run").exists()

    def test_twice_stops_at_once(self, place):
        command = Command(begin(place, "--steps 100000"), place)
        command.until(lambda: len(lines_so_far(place)) >= 4)
        command.send(signal.SIGINT)
        time.sleep(0.02)
        command.send(signal.SIGINT)
        status, _, err = command.wait()
        assert status == 130
        last = err.splitlines()[-1]
        assert last.startswith(("dpsinkhorn: stopped at once; go on from", "Stopped, with a checkpoint."))


class TestAFullDisk:
    @pytest.mark.parametrize("limit", [900, 2_500])
    def test_one_line_and_a_run_that_goes_on(self, place, run, limit):
        """No file may grow beyond a limit: the write fails as on a full disk."""
        assert run(f"--data data.npz --recipe long.toml --out whole --seed 3 {TINY}")[0] == 0
        status, out, err = Command(begin(place, "--seed 3"), place, file_limit=limit).wait()
        assert (status, out) == (2, "")
        assert [line for line in err.splitlines() if "warning" not in line] == [err.splitlines()[-1]]
        assert "File too large" in err
        if not (place / "run").exists():
            return
        assert not list((place / "run").glob("*.partial"))
        assert run("--out run --resume")[0] == 0
        assert bits(place / "run") == bits(place / "whole")

    def test_later_on(self, place, run):
        """The disk fills up while training: the last checkpoint is whole."""
        assert run(f"--data data.npz --recipe long.toml --out whole --seed 3 {TINY}")[0] == 0
        size = (place / "whole" / "checkpoint.safetensors").stat().st_size
        first = Command(begin(place, "--seed 3"), place)
        first.until(lambda: len(lines_so_far(place)) >= 2)
        assert first.kill_after(0.15)
        kept = (place / "run" / "checkpoint.safetensors").read_bytes()
        resume = ["train", "--out", place / "run", "--resume", "--checkpoint-every", "0.1"]
        status, out, err = Command(resume, place, file_limit=size - 1000).wait()
        assert (status, out) == (2, "")
        assert "File too large; mend that, then resume: the last checkpoint is whole" in err
        assert (place / "run" / "checkpoint.safetensors").read_bytes() == kept
        assert run("--out run --resume")[0] == 0
        assert bits(place / "run") == bits(place / "whole")

    def test_where_the_release_does_not_fit(self, place, run):
        """Everything was learnt; the release is written on resuming, and nothing more is spent."""
        images, labels, _ = tiny_arrays(records=400, classes=20)  # a large picture for a small generator
        np.savez(place / "data.npz", images=images, labels=labels)
        (place / "tiny.toml").write_text(RECIPE.format(steps=12).replace("[8]", "[2]"))
        options = f"--data {place}/data.npz --recipe {place}/tiny.toml --seed 3 {TINY}"
        assert run(f"{options} --out whole")[0] == 0
        picture = (place / "whole" / "release" / "samples.png").stat().st_size
        others = [path for path in (place / "whole").iterdir() if path.is_file() and path.suffix != ".html"]
        assert picture > max(path.stat().st_size for path in others)
        command = Command(["train", *options.split(), "--out", place / "run"], place, file_limit=picture - 1)
        status, _, err = command.wait()
        assert status == 2
        assert "cannot write the release" in err
        assert not done(place)
        spent = (place / "run" / "ledger.jsonl").read_bytes()
        assert run("--out run --resume")[0] == 0
        assert (place / "run" / "ledger.jsonl").read_bytes() == spent
        assert bits(place / "run") == bits(place / "whole")


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
    assert f"of {budget:g}" in text
    assert "left" in text
    os.close(master)


def test_a_ledger_of_another_delta(refused, place):
    Ledger.open(place / "all.jsonl", epsilon, budget=Budget(9.0, 1e-6)).close()
    assert "give delta 1e-06" in refused("--data data.npz --recipe tiny.toml --ledger all.jsonl --out run")
