"""An exception from anywhere within a block of steps: the process lives to tell, and the run goes on."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

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
