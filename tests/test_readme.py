"""Commands that the README shows run, and print what it says they print."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

README = Path(__file__).parents[1] / "README.md"


def shown_commands() -> list[tuple[str, list[str]]]:
    """Every ``$ dpsinkhorn ...`` of a console block, with the lines of output shown below it."""
    commands: list[tuple[str, list[str]]] = []
    for block in re.findall(r"```console\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL):
        for line in block.splitlines():
            if line.startswith("$ "):
                commands.append((line[2:], []))
            elif line.strip():
                commands[-1][1].append(line.rstrip())
    return [(command, output) for command, output in commands if command.startswith("dpsinkhorn ")]


def test_there_are_commands():
    assert shown_commands()


@pytest.mark.parametrize(("command", "output"), shown_commands(), ids=[c for c, _ in shown_commands()])
def test_command(command: str, output: list[str], tmp_path: Path):
    words = [sys.executable, "-m", *shlex.split(command)]
    done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr
    printed = " ".join(done.stdout.split())
    for line in output:
        assert " ".join(line.split()) in printed


def test_table_of_results():
    """The rows of the README are those that `benchmarks/quality_table.py` prints."""
    script = README.parent / "benchmarks" / "quality_table.py"
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    printed = [line for line in done.stdout.splitlines() if line.startswith("| `")]
    assert printed
    written = README.read_text(encoding="utf-8").replace("**", "")
    for line in printed:
        assert line in written
