"""Commands shown in the README and the docs run and print what is shown; tables have the figures on file."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from dpsinkhorn.training.advice import MEASURED

ROOT = Path(__file__).parents[1]
README, RESULTS = ROOT / "README.md", ROOT / "docs" / "results.md"
PAGES = [README, *sorted((ROOT / "docs").glob("*.md"))]


def shown_commands() -> list[tuple[str, list[str]]]:
    """Return every ``$ dpsinkhorn ...`` of a console block, with the lines of output shown below it."""
    commands: list[tuple[str, list[str]]] = []
    text = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    for block in re.findall(r"```console\n(.*?)```", text, re.DOTALL):
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


def test_tables_of_results():
    """The rows of `docs/results.md` are those that this prints."""
    script = ROOT / "benchmarks" / "quality_table.py"
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    printed = [line for line in done.stdout.splitlines() if line.startswith("| `")]
    assert printed
    written = RESULTS.read_text(encoding="utf-8").replace("**", "").splitlines()
    for line in printed:
        assert line in written


def test_the_readme_has_rows_of_that_table():
    rows = [line for line in README.read_text(encoding="utf-8").splitlines() if line.startswith("|")]
    assert len(rows) == 2 + 5
    assert set(rows) <= set(RESULTS.read_text(encoding="utf-8").splitlines())


def test_the_readme_is_read_in_two_minutes():
    assert len(README.read_text(encoding="utf-8").splitlines()) <= 100


def test_tables_on_the_default_recipe():
    """The docs have what `benchmarks/defaults_table.py` prints, and what to expect is what was measured."""
    script = ROOT / "benchmarks" / "defaults_table.py"
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    printed = [line for line in done.stdout.splitlines() if line]
    pages = RESULTS, ROOT / "docs" / "defaults.md", ROOT / "docs" / "experiments.md"
    written = "\n".join(page.read_text(encoding="utf-8") for page in pages)
    assert not set(printed) - set(written.splitlines())
    told = [
        f"| from {least:,.0f} |" in line and f"| {low} to {high} |" in line
        for (least, low, high), line in zip(MEASURED, printed[-len(MEASURED) :], strict=True)
    ]
    assert all(told)
