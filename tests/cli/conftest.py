"""The command line as the tests call it."""

from __future__ import annotations

import pytest
import torch

from dpsinkhorn.cli import main


@pytest.fixture
def run(capsys):
    """Run `dpsinkhorn COMMAND`: its exit status, and what it printed to stdout and stderr.

    The command is split at spaces; what comes after it is handed on as it is.
    """

    def run(command: str, *more: object):
        with pytest.raises(SystemExit) as left:
            main([*command.split(), *(str(value) for value in more)])
        captured = capsys.readouterr()
        return left.value.code or 0, captured.out, captured.err

    return run


@pytest.fixture
def refused(run):
    """The one line of a refusal: status 2, nothing on stdout."""

    def refused(*command: object) -> str:
        status, out, err = run(*command)
        assert (status, out, err.count("\n")) == (2, "", 1), err
        assert err.startswith("dpsinkhorn: ")
        return err

    return refused


@pytest.fixture
def one_thread():
    """PyTorch with one thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
