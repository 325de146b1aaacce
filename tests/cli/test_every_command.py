"""What every command promises of its help: an example of its own, and quickly."""

from __future__ import annotations

import subprocess
import sys

import pytest

COMMANDS = (
    *("train", "sample", "evaluate", "export", "report", "audit", "compare", "reproduce"),
    *("data list", "data get", "data show", "data shard"),
    *("privacy epsilon", "privacy calibrate", "privacy ledger"),
    *("transport cost", "transport test", "transport potentials", "transport tradeoff"),
)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_an_example(run, command):
    status, out, err = run(command, "--help")
    words = " ".join(out.split())
    assert (status, err) == (0, "")
    assert f"dpsinkhorn {command} " in words[words.index("Example") :]


def test_help_is_quick():
    """It loads neither PyTorch nor the accountants."""
    code = (
        "import sys\n"
        "from dpsinkhorn.cli import main\n"
        f"for command in ('', *{COMMANDS}):\n"
        "    try:\n        main([*command.split(), '--help'])\n"
        "    except SystemExit as left:\n        assert not left.code\n"
        "slow = {'torch', 'scipy', 'dp_accounting', 'sklearn', 'matplotlib'} & set(sys.modules)\n"
        "assert not slow, slow\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
