"""All commands as one application, which imports no more of them than it needs."""

from __future__ import annotations

from importlib import import_module

import typer

_COMMANDS = (
    *("data", "privacy", "transport", "train", "sample"),
    *("evaluate", "export", "report", "audit", "compare", "reproduce"),
)


def application(command: str) -> typer.Typer:
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
