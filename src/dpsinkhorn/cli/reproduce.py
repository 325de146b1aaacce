"""`dpsinkhorn reproduce`: the tables and figures of the DP-Sinkhorn papers."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console

from dpsinkhorn.cli._shared import BadInputError, JsonOption, bar_of_trainings, print_json, takes_options
from dpsinkhorn.files import failing_as

if TYPE_CHECKING:  # they load PyTorch, which --help can do without
    from dpsinkhorn.papers import Reproduction


Version = Literal["first", "final"]
ScaleName = Literal["quick", "full"]
ProtocolName = Literal["paper", "authors"]
Item = Literal[
    "table1", "table2", "table3", "table4", "table5", "table6", "fig2", "fig4a", "fig4b", "fig4c", "fig5"
]


@takes_options()
def reproduce(
    item: Annotated[Item, typer.Argument(help="The table or figure.", show_default=False)],
    version: Annotated[
        Version | None,
        "The papers' first version (clips a batch) or final one (images); by default both for table1, else "
        "final.",
    ] = None,
    scale: Annotated[
        ScaleName, "quick: minutes on a processor, on small data; full: as in the paper."
    ] = "quick",
    out: Annotated[Path, "Folder for trainings, tables and pictures; they are found again."] = Path(
        "reproduction"
    ),
    data: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=PATH", help="Where mnist, fashion-mnist or celeba is; may be repeated."),
    ] = None,
    seeds: Annotated[str | None, "A training for each, such as 0,1,2; that is what full does."] = None,
    only: Annotated[str | None, "Carry out rows that match this, such as '^mnist DP'."] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Train for fewer steps.")] = None,
    protocol: Annotated[
        ProtocolName, "Classifiers as the paper says, or as its authors' code has them."
    ] = "paper",
    device: Annotated[str | None, "cpu or cuda; a GPU where there is one."] = None,
    as_json: JsonOption = False,
) -> None:
    """Repeat a table or figure of the DP-Sinkhorn papers: their figures beside ours, with a proved epsilon.

    What was trained before is found in --out and not trained again; an interrupted call goes on.

    Examples:

        dpsinkhorn reproduce table1

        dpsinkhorn reproduce table1 --scale full --data mnist=data/mnist --only "^mnist .*record"
    """
    from dpsinkhorn.generators import choose_device
    from dpsinkhorn.papers import reproduce as run

    place = choose_device(device, BadInputError)
    usual: tuple[Version, ...] = ("first", "final") if item == "table1" else ("final",)
    versions = usual if version is None else (version,)
    trainings = bar_of_trainings(quiet=as_json)
    with failing_as(BadInputError, f"cannot write into {out}"), trainings as (show, watch):
        found = [
            run(
                item,
                out,
                version=each,
                scale=scale,
                data=_paths(data or []),
                seeds=_seeds(seeds),
                only=only,
                steps=steps,
                protocol=protocol,
                device=place,
                progress=show,
                watch=watch,
            )
            for each in versions
        ]
    if as_json:
        parts = [_to_json(each) for each in found]
        print_json({"item": item, "scale": scale, "protocol": protocol, "versions": parts})
    else:
        for each in found:
            _show(each)


def _paths(given: list[str]) -> dict[str, str]:
    paths = {}
    for text in given:
        name, mark, path = text.partition("=")
        if not mark or not path:
            raise BadInputError(f"--data takes NAME=PATH, such as mnist=data/mnist, not {text}")
        paths[name] = path
    return paths


def _seeds(text: str | None) -> list[int] | None:
    if text is None:
        return None
    parts = text.split(",")
    if not all(part.strip().isdecimal() for part in parts):
        raise BadInputError(f"--seeds takes whole numbers with commas between, such as 0,1,2, not {text}")
    return [int(part) for part in parts]


def _show(found: Reproduction) -> None:
    from dpsinkhorn.papers import NOT_A_GUARANTEE, to_tables

    console = Console(highlight=False)
    console.print(found.title)
    for table in to_tables(found.lines):
        console.print(table)
    measures = {line.results[0].distance_name for line in found.lines if line.results}
    if measures - {"FID"}:
        console.print(
            f"Distance: the paper's is FID, ours {', '.join(sorted(measures))}: they do not compare."
        )
    if found.scale == "quick" and any(line.results for line in found.lines):
        console.print(
            "At scale quick the papers' own methods take far too few steps to learn: figures of --scale full "
            "are the ones to compare."
        )
    if any(line.published_note for line in found.lines):
        console.print(f"† as the paper has it; {NOT_A_GUARANTEE}.")
    if found.lines:
        console.print("ε of ours is proved; trainings are seeded, and so not for release.")
    for name, points in found.spreads.items():
        bias = ", ".join(f"{point.debias:g}: {point.bias:.3g}" for point in points)
        variance = ", ".join(f"{point.debias:g}: {point.variance:.3g}" for point in points)
        console.print(f"{name}\n  bias by p      {bias}\n  variance by p  {variance}")
    for path in found.files:
        print(f"Written: {path}")


def _to_json(found: Reproduction) -> dict[str, Any]:
    return {
        "version": found.version,
        "rows": [line.values() for line in found.lines],
        "gradients": {name: [asdict(p) for p in points] for name, points in found.spreads.items()},
        "files": [str(path) for path in found.files],
    }
