"""`dpsinkhorn train --resume`: what it goes on with, and what it refuses."""

from __future__ import annotations

import json
import shutil
import signal

import numpy as np
import pytest

from dpsinkhorn import load
from support.html import read_page
from support.processes import Command
from support.runs import header_step, tiny_arrays
from support.train_command import TINY, begin, lines_so_far, steps_on_record


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

    def test_a_kill_at_half_time_keeps_nearly_half_and_is_told(self, place, run):
        files = ["--data", place / "data.npz", "--recipe", place / "long.toml", "--out", place / "run"]
        command = Command(["train", *files, "--accountant", "rdp", "--steps", "1000"], place)
        command.until(lambda: any(line["step"] >= 500 for line in lines_so_far(place)))
        assert command.kill_after(0)
        charged, kept = steps_on_record(place / "run"), header_step(place / "run")
        assert 300 < kept <= charged
        status, out, err = run("--resume --out run")
        assert status == 0
        if kept == charged:  # killed between two blocks: nothing was lost
            assert "Steps charged" not in out
            return
        assert f"Resumed: steps charged {charged:,}, steps kept {kept:,}. A crash lost the others" in err
        left = 1000 - (charged - kept)
        assert header_step(place / "run") == left
        told = f"Steps charged 1,000, steps kept {left:,}: a crash lost the others, and ε counts them."
        assert told in out
        assert told in (place / "run" / "release" / "README.md").read_text()
        privacy = load(place / "run").privacy
        assert (privacy.steps_charged, privacy.steps_kept) == (1000, left)
        page = read_page((place / "run" / "report.html").read_bytes()).text
        assert f"steps kept {left:,}; a crash lost the others" in " ".join(page.split())

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
        "option",
        [
            *("--epsilon 5", "--steps 5", "--seed 1", "--labels released", "--labels uniform", "--records 9"),
            *("--unlabelled", "--accountant pld", "--set loss.cost=l1"),
        ],
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

    def test_the_use_of_other_data_that_fit_is_noted(self, run, place, monkeypatch):
        monkeypatch.setenv("DPSINKHORN_USED_DATA", str(place / "used.jsonl"))
        assert run(f"--data data.npz --recipe tiny.toml {TINY} --out run")[0] == 0
        shutil.rmtree(place / "run" / "release")  # as if it had been killed before
        images, labels, groups = tiny_arrays(seed=1, persons=30)
        for name in ("other", "third"):
            np.savez(place / f"{name}.npz", images=images + (name == "third"), labels=labels, patient=groups)

        def digests():
            return [
                json.loads(line)["digest"] for line in (place / "used.jsonl").read_text().splitlines()[1:]
            ]

        (first,) = digests()
        assert run("--out run --resume --data other.npz --dry-run")[0] == 0
        assert digests() == [first]
        assert run("--out run --resume --data other.npz")[0] == 0
        assert len({*digests(), first}) == len(digests()) == 2
        again = run(f"--data other.npz --recipe tiny.toml {TINY} --out again --dry-run")[2]
        assert "these data were trained on before (run-record-" in again
        assert "trained on before" not in run(f"--data third.npz --recipe tiny.toml {TINY} --dry-run")[2]

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
