"""`dpsinkhorn train` stopped by kill -9, Ctrl-C and SIGTERM, and resumed."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from dpsinkhorn import load
from dpsinkhorn.privacy import epsilon, read_ledger
from dpsinkhorn.training import Run, watching
from dpsinkhorn.training.watching import stop_on_interrupt
from support.processes import Command
from support.runs import bits, header, lines
from support.train_command import TINY, begin, done, lines_so_far, steps_on_record


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

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    def test_twice_together_is_once(self, place, number):
        """As `timeout` sends it: to a process, and to its group. No step that was paid for is lost."""
        command = Command(begin(place, "--steps 100000"), place)
        command.until(lambda: len(lines_so_far(place)) >= 4)
        command.send(number)
        time.sleep(0.02)
        command.send(number)
        status, _, err = command.wait()
        assert status == 130
        assert err.splitlines()[-1].startswith("Stopped, with a checkpoint.")
        assert header(place / "run" / "checkpoint.safetensors")["step"] == steps_on_record(place / "run")


class TestTwice:
    """What a signal does, by the clock."""

    @pytest.fixture
    def clock(self, monkeypatch):
        now = SimpleNamespace(value=50.0)
        monkeypatch.setattr(watching, "time", SimpleNamespace(monotonic=lambda: now.value))
        return now

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    def test_a_second_one_later_is_immediate(self, clock, number):
        with stop_on_interrupt() as stop:
            assert not stop.asked
            for clock.value in (50.0, 50.01, 50.9):
                signal.raise_signal(number)
                assert stop.asked
            clock.value = 51.1
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(number)

    def test_what_is_said_then(self, run, monkeypatch):
        def stopped(*_arguments, **_options):
            raise KeyboardInterrupt

        monkeypatch.setattr(Run, "train", stopped)
        status, out, err = run(f"--data data.npz --recipe tiny.toml --out run {TINY}")
        assert (status, out) == (130, "")
        assert err.splitlines()[-1] == (
            "dpsinkhorn: stopped at once; go on from the last checkpoint with --resume"
        )

    def test_handlers_are_put_back(self):
        before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
        with stop_on_interrupt():
            assert signal.getsignal(signal.SIGINT) != before[0]
        assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
