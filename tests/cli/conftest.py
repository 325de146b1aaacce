"""The command line as the tests call it."""

from __future__ import annotations

import pytest

from dpsinkhorn.cli import main


@pytest.fixture
def run(capsys):
    """Run `dpsinkhorn COMMAND`: its exit status, and what it printed to stdout and stderr."""

    def run(command: str):
        with pytest.raises(SystemExit) as left:
            main(command.split())
        captured = capsys.readouterr()
        return left.value.code or 0, captured.out, captured.err

    return run
