"""`dpsinkhorn compare`: several methods on the same data, at the same epsilon, in one table and one page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from dpsinkhorn.cli._shared import (
    BadInputError,
    DataOptions,
    DeviceOption,
    JsonOption,
    SplitName,
    bar_of_trainings,
    parse_names,
    print_json,
    takes_options,
    warn,
)
from dpsinkhorn.files import failing_as, replace_file

if TYPE_CHECKING:  # they load PyTorch, which --help can do without
    from dpsinkhorn.papers import Comparison

ProtocolName = Literal["quick", "paper", "authors"]


@takes_options()
def compare(
    *,
    data: Annotated[str, "The private records: a name (`dpsinkhorn data list`) or a path."],
    epsilon: Annotated[float, "Of each method; all together cost the sum."],
    delta: Annotated[float | None, "Of each method; 1e-5 by default."] = None,
    methods: Annotated[
        str | None, "With commas between, as record,moments; by default the quick ones."
    ] = None,
    test_data: Annotated[str | None, "Real test images; by default the test part of --data."] = None,
    out: Annotated[Path, "Folder for runs, table and page; runs are found again."] = Path("comparison"),
    longest: Annotated[
        float, typer.Option(min=0.0, help="Minutes that a method not named may take to train.")
    ] = 2.0,
    protocol: Annotated[ProtocolName, "Of the classifiers, as in `dpsinkhorn evaluate`."] = "quick",
    count: Annotated[
        int | None, typer.Option(min=1, help="Generated images of each method to measure.")
    ] = None,
    seed: Annotated[int | None, "Trainings replay, and are not for release."] = None,
    device: DeviceOption = None,
    reading: DataOptions,
    as_json: JsonOption = False,
) -> None:
    """Train methods on the same data at the same epsilon, measure all alike, and lay them side by side.

    Each has a run in the folder, with a ledger of its own. Comparing N methods on the same private data costs
    the sum of their epsilons. What is trained there is not trained again; an interrupted call goes on.

    Examples:

        dpsinkhorn compare --data digits --epsilon 10

        dpsinkhorn compare --data scans.npz --test-data held-out.npz --epsilon 3 --methods moments,dp_merf
    """
    from dpsinkhorn.data import KNOWN, has_parts
    from dpsinkhorn.generators import choose_device
    from dpsinkhorn.papers import compare as run
    from dpsinkhorn.report import write_comparison

    place = choose_device(device, BadInputError)
    if test_data is None and not has_parts(data):
        raise BadInputError(f"{data} has no test part; name real images to test on (--test-data)")
    training = reading.load(data, quiet=as_json)
    part: SplitName = "test" if test_data is None or has_parts(test_data) else "train"
    test = reading.load(test_data or data, split=part, quiet=as_json)
    public = data in KNOWN and (test_data is None or test_data in KNOWN)
    with failing_as(BadInputError, f"cannot write into {out}"):
        out.mkdir(parents=True, exist_ok=True)
        with bar_of_trainings(quiet=as_json) as (show, watch):
            found = run(
                training,
                test,
                out,
                epsilon=epsilon,
                delta=delta,
                methods=None if methods is None else parse_names(methods),
                longest=60 * longest,
                protocol=protocol,
                count=count,
                seed=seed,
                device=place,
                public=public,
                progress=show,
                watch=watch,
            )
        table, page = out / "comparison.json", out / "comparison.html"
        replace_file(table, (json.dumps(found.to_json(), indent=1, ensure_ascii=False) + "\n").encode())
        write_comparison(page, found.to_json(), found.grids)
    if found.used_before:
        warn(found.used_before)
    if as_json:
        print_json({**found.to_json(), "files": [str(table), str(page)]})
    else:
        _show(found, [table, page])


def _show(found: Comparison, files: list[Path]) -> None:
    from dpsinkhorn.privacy import format_epsilon

    console, classifiers = Console(highlight=False, soft_wrap=True), list(found.methods[0].accuracy)
    table = Table(title=found.data, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("method")
    for heading in ("ε", *classifiers, "distance", "trained"):
        table.add_column(heading, justify="right", no_wrap=True)
    for each in found.methods:
        table.add_row(
            each.method + (" †" if each.published_epsilon is not None else ""),
            format_epsilon(each.epsilon),
            *(f"{each.accuracy[name]:.1f}" for name in classifiers),
            f"{each.distance:.3g}",
            "before" if each.seconds is None else f"{each.seconds:.0f} s",
        )
    if found.distance_floor is not None:
        real = [f"{found.real[name]:.1f}" for name in classifiers]
        table.add_row("real images", "-", *real, f"{found.distance_floor:.3g}", "-", style="dim")
    console.print(table)
    console.print(found.sentence)
    for each in found.methods:
        if each.published_epsilon is not None:
            counted = format_epsilon(each.published_epsilon)
            console.print(f"† its paper counts {each.method} as ε = {counted}: not a valid guarantee.")
    for other in found.left_out:
        console.print(f"Left out: {other.method}: {other.reason}")
    console.print(found.warning)
    for path in files:
        print(f"Written: {path}")
