"""`dpsinkhorn train` on a disk that is full, or fills up."""

from __future__ import annotations

import numpy as np
import pytest

from support.processes import Command
from support.runs import RECIPE, bits, tiny_arrays
from support.train_command import TINY, begin, done, lines_so_far


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
