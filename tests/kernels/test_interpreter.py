"""The kernels without a GPU: all tests of this folder in Triton's interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.kernels import DEVICE, INTERPRETED, triton


@pytest.mark.skipif(DEVICE == "cuda" or INTERPRETED, reason="the kernels run in this process")
@pytest.mark.skipif(triton is None, reason="THE GPU KERNELS ARE NOT TESTED; pip install triton")
def test_in_the_interpreter():
    """In one process of its own: the interpreter must be asked for before Triton is imported."""
    folder = Path(__file__).parent
    command = [sys.executable, "-m", "pytest", "-q", "-rp", "-p", "no:cacheprovider", folder]
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    for file in folder.glob("test_*.py"):
        assert f"/{file.name}::" in done.stdout or file.samefile(__file__), f"nothing passed in {file.name}"
