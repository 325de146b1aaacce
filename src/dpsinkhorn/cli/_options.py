"""Options of the commands: each has its help beside it, and those that travel together are a dataclass."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import typing
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Annotated, Any

import typer

_KEYWORD = inspect.Parameter.KEYWORD_ONLY

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]
ReleaseArgument = Annotated[
    Path, typer.Argument(help="A release, or the folder of a run.", show_default=False)
]


def group(summary: str) -> typer.Typer:
    """Return an application for the commands of a group."""
    return typer.Typer(help=summary, no_args_is_help=True, rich_markup_mode="markdown")


def takes_options(*, leave_out: Collection[str] = ()) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Let a command for typer take options by their help alone, and dataclasses of them.

    `size: Annotated[int, "In bytes."] = 8` is the option `--size` with this help; what typer is to know
    besides is said by its own `typer.Option` or `typer.Argument`. Of a dataclass every field is an option, or
    a dataclass in turn. Fields to `leave_out` are no options of this command.
    """

    def fields(kind: Any) -> list[inspect.Parameter]:
        hints, own = typing.get_type_hints(kind, include_extras=True), inspect.signature(kind).parameters
        names = [name for name in own if name not in leave_out]
        return [own[name].replace(annotation=hints[name], kind=_KEYWORD) for name in names]

    def options(parameter: inspect.Parameter) -> list[inspect.Parameter]:
        kind = parameter.annotation
        if dataclasses.is_dataclass(kind):
            return [option for field in fields(kind) for option in options(field)]
        text = getattr(kind, "__metadata__", (None,))[0]
        if not isinstance(text, str):
            return [parameter]
        option = typer.Option("--" + parameter.name.replace("_", "-"), help=text)
        return [parameter.replace(annotation=Annotated[kind.__origin__, option])]

    def value(parameter: inspect.Parameter, given: dict[str, Any]) -> Any:
        kind = parameter.annotation
        if not dataclasses.is_dataclass(kind):
            return given[parameter.name]
        make = typing.cast(Callable[..., Any], kind)
        return make(**{field.name: value(field, given) for field in fields(kind)})

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(command, eval_str=True)
        own = [each.replace(kind=_KEYWORD) for each in signature.parameters.values()]

        @functools.wraps(command)
        def run(**given: Any) -> None:
            command(**{each.name: value(each, given) for each in own})

        expanded = [option for each in own for option in options(each)]
        run.__signature__ = signature.replace(parameters=expanded)  # type: ignore[attr-defined]
        return run

    return decorate
