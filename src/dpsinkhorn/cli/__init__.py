"""The command line: parse, call, print. One module per group of commands; `main` is the entry point."""

from __future__ import annotations

import sys
from importlib import import_module
from io import TextIOWrapper

import typer

from dpsinkhorn.cli._shared import run

__all__ = ["main"]

_COMMANDS = (
    *("data", "privacy", "transport", "train", "sample"),
    *("evaluate", "export", "report", "audit", "compare", "reproduce"),
)


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and leave with its exit status: 0, or 2 for bad input with one line on stderr."""
    for stream in (sys.stdout, sys.stderr):
        _write_greek(stream)
    given = sys.argv[1:] if arguments is None else arguments
    raise SystemExit(run(_application(given[0] if given else ""), given))


def _write_greek(stream: object) -> None:
    """Have a stream write UTF-8 where its own encoding has no ε, as that of a file or pipe on Windows."""
    if isinstance(stream, TextIOWrapper):
        try:
            "ε≤".encode(stream.encoding)
        except UnicodeEncodeError:
            stream.reconfigure(encoding="utf-8", errors=stream.errors)


def _application(command: str) -> typer.Typer:
    """Return the application with this command alone, so that no other is imported; else with all of them."""
    app = typer.Typer(
        name="dpsinkhorn",
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode="markdown",
        pretty_exceptions_enable=False,
    )
    app.callback(invoke_without_command=True)(_root)
    for name in (command,) if command in _COMMANDS else _COMMANDS:
        module = import_module(f"dpsinkhorn.cli.{name}")
        if hasattr(module, "app"):
            app.add_typer(module.app, name=name)
        else:
            app.command(name)(getattr(module, name))
    return app


def _root(version: bool = typer.Option(False, "--version", help="Print the version and leave.")) -> None:
    """Differentially private optimal transport and generators."""
    if version:
        from dpsinkhorn import __version__

        typer.echo(__version__)
        raise typer.Exit
