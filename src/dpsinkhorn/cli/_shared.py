"""What all commands share: the application, how options are declared, how results and bad input are shown."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import json
import math
import os
import sys
import typing
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from dpsinkhorn.errors import DPSinkhornError
from dpsinkhorn.files import failing_as

if TYPE_CHECKING:  # it loads PyTorch, which --help can do without
    from matplotlib.figure import Figure

    from dpsinkhorn.data import Dataset
    from dpsinkhorn.training import Progress as RunProgress

_COMMANDS = (
    *("data", "privacy", "transport", "train", "sample"),
    *("evaluate", "export", "report", "audit", "compare", "reproduce"),
)
BAD_INPUT = 2
_LARGEST_COUNT = 10**18  # of steps, rows or records; beyond it products leave the range of float64
STOPPED = 130  # exit status after Ctrl-C, as shells have it


class BadInputError(DPSinkhornError):
    """What is wrong with the input and what to do, in one line."""


class StoppedError(Exception):
    """What was stopped by Ctrl-C, and how to go on, in one line."""


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


def run(app: typer.Typer, arguments: Sequence[str] | None = None) -> int:
    """Run an application. Bad input of any kind becomes one line on stderr and exit status 2.

    Ctrl-C becomes a line too, and status 130: typer alone would leave without a word.
    """
    command = typer.main.get_command(app)
    try:
        status = command.main(args=arguments, prog_name="dpsinkhorn", standalone_mode=False)
    except DPSinkhornError as error:
        return _refuse(str(error))
    except StoppedError as stopped:
        return _stopped(str(stopped))
    except typer.Abort:
        return _stopped()
    except Exception as error:
        # click's usage errors (unknown option, value of the wrong type) all have this method
        if not hasattr(error, "format_message"):
            raise
        message = error.format_message().strip().rstrip(".")
        # without any arguments the help has been printed already and there is nothing to add
        return _refuse(f"{message}; see --help") if message else BAD_INPUT
    if status == STOPPED:
        return _stopped()
    return status if isinstance(status, int) else 0


def _stopped(message: str = "dpsinkhorn: stopped") -> int:
    print(message, file=sys.stderr)
    return STOPPED


def _refuse(message: str) -> int:
    print("dpsinkhorn: " + " ".join(message.split()), file=sys.stderr)
    return BAD_INPUT


def warn(message: str) -> None:
    """One line on stderr; the command goes on."""
    print("dpsinkhorn: warning: " + message, file=sys.stderr)


def print_json(result: Mapping[str, Any]) -> None:
    print(json_text(result))


def json_text(result: Mapping[str, Any]) -> str:
    """Return an object as JSON. Infinite numbers become null, since JSON has none.

    >>> json_text({"runs": [{"epsilon": math.inf}]}).split()
    ['{', '"runs":', '[', '{', '"epsilon":', 'null', '}', ']', '}']
    """
    return json.dumps(_finite(result), indent=2, allow_nan=False, ensure_ascii=False)


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def print_table(title: str, rows: Sequence[tuple[str, str | None]], sentences: Sequence[str]) -> None:
    """A small two-column table, without rows whose value is None, and what it means in plain words."""
    console = Console(highlight=False)
    table = Table(title=title, title_justify="left", show_header=False)
    for name, value in rows:
        if value is not None:
            table.add_row(name, value)
    console.print(table)
    for sentence in sentences:
        console.print(sentence, soft_wrap=False)


def bars(*columns: ProgressColumn, quiet: bool) -> Progress:
    """Progress bars on stderr, each with its name in front, where that is a terminal."""
    console = Console(stderr=True)
    shown = (TextColumn("{task.description}"), *columns) if columns else ()
    return Progress(*shown, console=console, transient=True, disable=quiet or not console.is_terminal)


def printable(text: str) -> str:
    """Text of a file, which may hold anything, on one line of a terminal."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def duration(seconds: float) -> str:
    """About how long, in a word or two.

    >>> duration(0.2), duration(61), duration(600), duration(9000)
    ('1 s', '61 s', '10 min', '2.5 h')
    """
    if seconds < 90:
        return f"{max(seconds, 1):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def draw_plot(path: Path, figure: Figure) -> None:
    with failing_as(BadInputError, f"cannot write --plot {path}", "; name another file"):
        figure.savefig(path, dpi=150)


def check_plot_path(path: Path | None) -> None:
    """Refuse a picture that could not be written, before any work is done."""
    if path is not None:
        check_file(path, ".png", "--plot")


def check_file(path: Path, suffix: str, option: str, *, force: bool = True) -> None:
    """Refuse a file that could not be written, before any work is done; without `force`, one that exists."""
    if path.suffix.lower() != suffix:
        raise BadInputError(f"{option} must end in {suffix}, not {path.name}")
    if not path.parent.is_dir():
        raise BadInputError(f"the folder of {option} {path} does not exist; create it first")
    if path.is_dir():
        raise BadInputError(f"{option} {path} is a folder; name a file")
    if os.path.lexists(path) and not force:
        raise BadInputError(f"{option} {path} exists already; name another, or add --force to replace it")


# ---- options


def parse_names(text: str) -> tuple[str, ...]:
    """Names with commas between, such as `cat, dog`."""
    return tuple(name.strip() for name in text.split(","))


def parse_numbers(text: str, option: str, like: str = "") -> tuple[float, ...]:
    """Numbers with commas between; `like` has as many as there must be."""
    try:
        found = tuple(float(part) for part in text.split(","))
    except ValueError:
        found = ()
    if not found or (like and len(found) != like.count(",") + 1):
        wanted = f"two numbers like {like}" if like else "numbers with commas between"
        raise BadInputError(f"{option} must be {wanted}, not {text}")
    return found


def check_share(value: float, option: str, usual: str) -> None:
    if not 0 < value < 1:
        raise BadInputError(f"{option} must be between 0 and 1, not {value:g}; {usual} is usual")


def check_count(value: int, flag: str) -> None:
    if not 1 <= value <= _LARGEST_COUNT:
        raise BadInputError(f"{flag} must be from 1 to 10^18, not {value}")


def parse_rate(rate: str | None, batch_size: float | None, records: int | None) -> float | None:
    """The sampling rate, from a number, a fraction, or a batch size and a number of records."""
    if records is not None:
        check_count(records, "--records")
    if rate is not None:
        if batch_size is not None:
            raise BadInputError("give --sampling-rate or --batch-size, not both")
        top, slash, bottom = rate.partition("/")
        try:
            return float(top) / float(bottom) if slash else float(rate)
        except (ValueError, ZeroDivisionError):
            raise BadInputError(
                f"--sampling-rate must be a number like 0.01 or a fraction like 1/1200, not {rate}"
            ) from None
    if batch_size is not None:
        if records is None:
            raise BadInputError("--batch-size needs --records, the number of private records")
        if not 0 < batch_size <= records:
            raise BadInputError(
                f"--batch-size must be above 0 and at most --records {records}, not {batch_size:g}"
            )
        return batch_size / records
    return None


_KEYWORD = inspect.Parameter.KEYWORD_ONLY

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]
DeviceOption = Annotated[str | None, "cpu or cuda; by default the GPU where there is one."]
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


@contextmanager
def bar_of_each(*columns: ProgressColumn, quiet: bool) -> Iterator[Callable[[str, int, int], None]]:
    """Give what to call with a name, what is done of it and how much it is: a bar for each name."""
    with bars(*columns, TimeRemainingColumn(), quiet=quiet) as shown:
        tasks: dict[str, TaskID] = {}

        def progress(name: str, done: int, total: int) -> None:
            if name not in tasks:
                tasks[name] = shown.add_task(name, total=total)
            shown.update(tasks[name], completed=done)

        yield progress


@contextmanager
def bar_of_trainings(
    *, quiet: bool
) -> Iterator[tuple[Callable[[str, int, int], None], Callable[[RunProgress], bool]]]:
    """Show what is done, of how many, and the step of the one in training, which Ctrl-C stops."""
    from dpsinkhorn.privacy import format_epsilon
    from dpsinkhorn.training.watching import stop_on_interrupt

    detail = TextColumn("{task.fields[detail]}")
    columns = BarColumn(), MofNCompleteColumn(), detail, TimeElapsedColumn()
    with bars(*columns, quiet=quiet) as progress, stop_on_interrupt() as stop:
        task = progress.add_task("", total=None, detail="")

        def show(what: str, done: int, total: int) -> None:
            progress.update(task, description=what, completed=done, total=total, detail="")

        def watch(now: RunProgress) -> bool:
            block, spent = now.block, format_epsilon(now.epsilon)
            progress.update(task, detail=f"step {block.step} of {block.horizon}, ε {spent}")
            return stop.asked

        try:
            yield show, watch
        except KeyboardInterrupt:
            raise StoppedError("dpsinkhorn: stopped; the same command goes on from here") from None


# ---- how data are read, by the commands that take any


SplitName = Literal["train", "test", "valid"]


@dataclass(frozen=True)
class DataOptions:
    """How data are read, as it was given."""

    image: Annotated[str | None, "Column or array that holds the images, where not found by name."] = None
    label: Annotated[
        str | None, "Where the labels are: a column, an array of an .npz, a .npy file, a CelebA attribute."
    ] = None
    unlabelled: Annotated[bool, "Leave labels out."] = False
    groups: Annotated[str | None, "Column, array or file that names the person behind each record."] = None
    classes: Annotated[str | None, "The classes: their number, or their names with commas between."] = None
    class_names: Annotated[str | None, "Public names of classes 0, 1, ..., in order: normal,pneumonia."] = (
        None
    )
    size: Annotated[str | None, "Crop and resize images to this: 32, or 32x48 (height x width)."] = None
    channels: Annotated[int | None, "Convert images to grey (1) or colour (3)."] = None
    value_range: Annotated[
        str | None, "Public range of the pixels, where not that of their type: 0,4095."
    ] = None

    @classmethod
    def of(cls, source: Mapping[str, Any]) -> DataOptions:
        """Return the options of a run, which has them in its run.json as `given` wrote them."""
        return cls(
            **{field.name: source[field.name] for field in dataclasses.fields(cls) if field.name in source}
        )

    def given(self) -> dict[str, Any]:
        """Return the options that were given, by name."""
        return {name: value for name, value in vars(self).items() if value is not None and value is not False}

    def parsed(self) -> dict[str, Any]:
        """Return the options that were given, as `load_dataset` takes them."""
        parsers: dict[str, Callable[[str], Any]] = {
            "classes": parse_classes,
            "class_names": parse_names,
            "size": parse_size,
            "value_range": lambda text: parse_numbers(text, "--value-range", "0,4095"),
        }
        return {
            name: parsers[name](value) if name in parsers else value for name, value in self.given().items()
        }

    def load(self, source: str, *, split: SplitName = "train", quiet: bool) -> Dataset:
        """Read a data set, with a progress bar on stderr while pictures are decoded."""
        from dpsinkhorn.data import load_dataset

        with bar_of_each(BarColumn(), MofNCompleteColumn(), quiet=quiet) as progress:
            pictures = functools.partial(progress, "reading pictures")
            data = load_dataset(source, split=split, progress=pictures, **self.parsed())
        if data.skipped_files:
            warn(printable(data.skipped_sentence()))
        return data

    def parts(self, source: str, *, split: SplitName = "train") -> Iterator[Dataset]:
        """Read a folder of several files one after the other; any other source is one part."""
        from dpsinkhorn.data import load_parts

        for part in load_parts(source, split=split, **self.parsed()):
            if part.skipped_files:
                warn(printable(part.skipped_sentence()))
            yield part


def parse_classes(text: str) -> int | tuple[str, ...]:
    """`10`, or `cat,dog`.

    >>> parse_classes("10"), parse_classes("cat, dog")
    (10, ('cat', 'dog'))
    """
    try:
        return int(text)
    except ValueError:
        return parse_names(text)


def parse_size(text: str) -> tuple[int, int]:
    """`32`, or `32x48`: height and width.

    >>> parse_size("32"), parse_size("32x48")
    ((32, 32), (32, 48))
    """
    try:
        sides = [int(side) for side in text.lower().split("x")]
    except ValueError:
        sides = []
    if len(sides) not in (1, 2):
        raise BadInputError(f"--size must be like 32 or 32x48 (height x width), not {text}")
    return sides[0], sides[-1]
