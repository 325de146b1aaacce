"""Options that travel together: a dataclass, in which each is spelled once for all commands."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import typing
from collections.abc import Callable, Collection
from typing import Any

_KEYWORD = inspect.Parameter.KEYWORD_ONLY


def takes_options(*, leave_out: Collection[str] = ()) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Let a command for typer take dataclasses, of which every field is an option of its own.

    A field is declared as an option of a command is: `Annotated[..., typer.Option(...)] = default`. It may be
    a dataclass in turn. Fields to `leave_out` are no options of this command.
    """

    def fields(kind: Any) -> list[inspect.Parameter]:
        hints, own = typing.get_type_hints(kind, include_extras=True), inspect.signature(kind).parameters
        names = [name for name in own if name not in leave_out]
        return [own[name].replace(annotation=hints[name], kind=_KEYWORD) for name in names]

    def options(parameter: inspect.Parameter) -> list[inspect.Parameter]:
        if not dataclasses.is_dataclass(parameter.annotation):
            return [parameter]
        return [option for field in fields(parameter.annotation) for option in options(field)]

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
