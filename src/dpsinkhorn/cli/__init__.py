"""The command line: parse, call, print. One module per group of commands; `main` is the entry point."""

from __future__ import annotations

import typer

from dpsinkhorn.cli import (
    _output,
    audit,
    data,
    evaluate,
    export,
    ledger,
    privacy,
    report,
    reproduce,
    sample,
    train,
    transport,
)

__all__ = ["app", "main"]

app = typer.Typer(
    name="dpsinkhorn",
    help="Differentially private optimal transport and generators.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)
app.add_typer(data.app, name="data")
app.add_typer(privacy.app, name="privacy")
app.add_typer(transport.app, name="transport")
privacy.app.command("ledger")(ledger.ledger)
app.command("train")(train.train)
app.command("sample")(sample.sample)
app.command("evaluate")(evaluate.evaluate)
app.command("export")(export.export)
app.command("report")(report.report)
app.command("audit")(audit.audit)
app.command("reproduce")(reproduce.reproduce)


@app.callback(invoke_without_command=True)
def root(version: bool = typer.Option(False, "--version", help="Print the version and leave.")) -> None:
    """Differentially private optimal transport and generators."""
    if version:
        from dpsinkhorn import __version__

        typer.echo(__version__)
        raise typer.Exit


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and leave with its exit status: 0, or 2 for bad input with one line on stderr."""
    raise SystemExit(_output.run(app, arguments))
