"""Runs that die between two writes that belong together, or are interrupted."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from dpsinkhorn import load
from dpsinkhorn.privacy import Ledger, epsilon, read_ledger
from dpsinkhorn.training import Run, trainer
from dpsinkhorn.training import run as run_module
from support.runs import DATA, CrashError, bits, finished, header_step, lines, steps_on_record, tiny_plan


def dies(*_arguments, **_options):
    raise CrashError


class TestCrashesBetween:
    def test_last_checkpoint_and_release(self, tmp_path, monkeypatch, draws):
        plan = tiny_plan(DATA)
        finished(tmp_path / "whole", plan, DATA)
        taken = len(draws)

        def crash(*_arguments, **_options):
            (tmp_path / "run" / ".release.abc.partial").mkdir()
            (tmp_path / "run" / ".release.abc.partial" / "README.md").write_text("half")
            raise CrashError

        run = Run.create(tmp_path / "run", plan)
        with monkeypatch.context() as patch:
            patch.setattr(run_module, "save_release", crash)
            with pytest.raises(CrashError):
                run.train(DATA)
        assert len(draws) == 2 * taken
        before = (tmp_path / "run" / "ledger.jsonl").read_bytes()
        assert Run.resume(tmp_path / "run").train(DATA)
        assert len(draws) == 2 * taken  # no step more
        assert (tmp_path / "run" / "ledger.jsonl").read_bytes() == before
        assert bits(tmp_path / "run") == bits(tmp_path / "whole")
        assert not list((tmp_path / "run").glob(".release*"))

    def test_secure_last_checkpoint_and_release(self, tmp_path, monkeypatch, draws):
        plan = tiny_plan(DATA, seed=None)

        run = Run.create(tmp_path / "run", plan)
        with monkeypatch.context() as patch:
            patch.setattr(run_module, "save_release", dies)
            with pytest.raises(CrashError):
                run.train(DATA)
        spent = read_ledger(tmp_path / "run" / "ledger.jsonl")
        assert Run.resume(tmp_path / "run").train(DATA)
        assert read_ledger(tmp_path / "run" / "ledger.jsonl") == spent
        assert len(draws) == plan.steps

    @pytest.mark.parametrize("seed", [None, 3])
    def test_spend_and_first_checkpoint(self, tmp_path, monkeypatch, seed):
        """Class frequencies are charged, then the process dies: a secure run releases, and pays, again."""
        plan = tiny_plan(DATA, seed=seed, labels="released", steps=20)

        run = Run.create(tmp_path / "run", plan)
        with monkeypatch.context() as patch:
            patch.setattr(trainer, "release_label_frequencies", dies)
            with pytest.raises(CrashError):
                run.train(DATA)
        assert not (tmp_path / "run" / "checkpoint.safetensors").exists()
        assert Run.resume(tmp_path / "run").train(DATA)
        statement = read_ledger(tmp_path / "run" / "ledger.jsonl")
        counts = [s for s in statement.spends if s.charge == plan.count_mechanism.charge()]
        assert len(counts) == (2 if seed is None else 1)
        kept = header_step(tmp_path / "run")
        privacy = load(tmp_path / "run").privacy
        assert kept == steps_on_record(tmp_path / "run" / "ledger.jsonl", plan.step_charge)
        assert kept < plan.steps if seed is None else kept == plan.steps
        assert privacy.epsilon == pytest.approx(
            epsilon(statement.total(), plan.delta, plan.accountant), rel=1e-9
        )
        assert privacy.epsilon <= plan.budget_epsilon

    def test_spend_and_the_steps_it_pays_for(self, tmp_path, monkeypatch):
        plan = tiny_plan(DATA, seed=None)
        real = Ledger.spend
        crashes = iter([True])

        def spend(self, *arguments, **options):
            real(self, *arguments, **options)
            if next(crashes, False):
                raise CrashError

        monkeypatch.setattr(Ledger, "spend", spend)
        run = Run.create(tmp_path / "run", plan)
        with pytest.raises(CrashError):
            run.train(DATA)
        assert Run.resume(tmp_path / "run").train(DATA)
        assert header_step(tmp_path / "run") == plan.steps - 1
        assert steps_on_record(tmp_path / "run" / "ledger.jsonl", plan.step_charge) == plan.steps

    def test_a_torn_line_of_statistics(self, tmp_path):
        run = Run.create(tmp_path / "run", tiny_plan(DATA))
        assert not run.train(DATA, watch=lambda _: True)
        with open(run.folder / "statistics.jsonl", "a") as file:
            file.write('{"step": 2, "epsi')
        assert Run.resume(run.folder).train(DATA)
        assert lines(run.folder)[0]["step"] == 1

    def test_an_exception_closes_the_ledger(self, tmp_path):
        plan = tiny_plan(DATA)
        run = Run.create(tmp_path / "run", plan)
        with pytest.raises(CrashError):
            run.train(DATA, watch=dies)
        with Ledger.open(run.ledger_path, epsilon) as ledger:  # not locked
            assert ledger.epsilon() > 0


needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
TESTS = Path(__file__).resolve().parents[1]
SCRIPT = """
import signal, sys, torch
from dpsinkhorn.training import Run
from support.runs import tiny_data, tiny_plan

folder, device, mechanism, after = sys.argv[1:]
def interrupt(number, frame):
    raise KeyboardInterrupt
signal.signal(signal.SIGALRM, interrupt)
blocks = 0
def watch(progress):
    global blocks
    blocks += 1
    if blocks == 3:
        signal.setitimer(signal.ITIMER_REAL, float(after))
    return False
torch.set_num_threads(1)
data = tiny_data()
run = Run.create(folder, tiny_plan(data, mechanism, seed=None, steps=1_000_000))
try:
    run.train(data, device=device, watch=watch)
except KeyboardInterrupt:
    print("interrupted")
assert not Run.resume(folder).train(data, device=device, watch=lambda progress: True)
print("gone on")
"""


@pytest.mark.parametrize(
    ("device", "mechanism", "after"),
    [
        ("cpu", "record", 0.1),
        pytest.param("cuda", "record", 0.1, marks=needs_cuda),
        pytest.param("cuda", "batch", 0.1, marks=needs_cuda),
        pytest.param("cuda", "batch", 0.4, marks=needs_cuda),
    ],
)
def test_in_the_middle_of_a_block(device, mechanism, after, tmp_path):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path])}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path / "run"), device, mechanism, str(after)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout.split("\n")) == (0, ["interrupted", "gone on", ""]), done.stderr
