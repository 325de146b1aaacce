"""How commands end: their exit status, and what is said."""

from __future__ import annotations

import pytest
import typer

from dpsinkhorn.cli import _shared
from dpsinkhorn.data import DataError
from dpsinkhorn.privacy import BudgetExceededError


@pytest.mark.parametrize(
    ("raised", "status", "said"),
    [
        (KeyboardInterrupt(), 130, "dpsinkhorn: stopped\n"),
        (typer.Abort(), 130, "dpsinkhorn: stopped\n"),
        (_shared.StoppedError("Stopped; go on with X"), 130, "Stopped; go on with X\n"),
        (_shared.BadInputError("no such\nfile"), 2, "dpsinkhorn: no such file\n"),
        (DataError("no labels"), 2, "dpsinkhorn: no labels\n"),
        (BudgetExceededError("too much"), 2, "dpsinkhorn: too much\n"),
        (typer.Exit(3), 3, ""),
        (None, 0, ""),
    ],
)
def test_nobody_leaves_without_a_word(raised, status, said, capsys):
    app = typer.Typer()

    @app.command()
    def command() -> None:
        if raised is not None:
            raise raised

    assert _shared.run(app, []) == status
    assert capsys.readouterr() == ("", said)
