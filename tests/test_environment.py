"""What importing the package leaves in the environment of a process."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

SHOW = "import os; print(os.environ.get('OMP_WAIT_POLICY'))"


@pytest.mark.parametrize(
    ("script", "before", "after"),
    [
        ("import dpsinkhorn", None, "PASSIVE"),
        ("import dpsinkhorn.ot", None, "PASSIVE"),
        ("import dpsinkhorn", "ACTIVE", "ACTIVE"),
        ("import torch, dpsinkhorn", None, "None"),  # too late: torch has read it
    ],
)
def test_threads_wait_without_spinning(script, before, after):
    environment = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    if before is not None:
        environment["OMP_WAIT_POLICY"] = before
    found = subprocess.run(
        [sys.executable, "-c", f"{script}; {SHOW}"],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout.strip() == after
