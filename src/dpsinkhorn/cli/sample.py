"""`dpsinkhorn sample`: synthetic images from a release."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, TimeRemainingColumn

from dpsinkhorn.cli._shared import (
    BadInputError,
    DeviceOption,
    JsonOption,
    ReleaseArgument,
    bars,
    check_file,
    print_json,
    takes_options,
    warn,
)

if TYPE_CHECKING:
    from dpsinkhorn.release import Release

_LONG = 5_000  # images; fewer are drawn before a progress bar could be read


@takes_options()
def sample(
    folder: ReleaseArgument,
    count: Annotated[int, typer.Option(help="How many images.", show_default=False)],
    output: Annotated[Path, typer.Option(help="FILE.npz, FILE.parquet or a new folder.", show_default=False)],
    label: Annotated[str | None, "Only this class: its name or number; otherwise all."] = None,
    grid: Annotated[Path | None, "Draw a picture of some images into this .png file."] = None,
    seed: Annotated[int | None, "The same seed gives the same images; otherwise new ones."] = None,
    device: DeviceOption = None,
    fast: Annotated[bool, "bfloat16: twice as fast on processors that have it; less exact."] = False,
    vary: Annotated[
        bool, "Add the release's random warp, sharpening and grain: for training classifiers."
    ] = False,
    force: Annotated[bool, "Replace what --output and --grid name."] = False,
    as_json: JsonOption = False,
) -> None:
    """Draw synthetic images from a release.

    Example:

        dpsinkhorn sample my-run/release --count 60000 --output samples.npz --grid samples.png
    """
    from dpsinkhorn.release import ReleaseError, check_samples_path, grid_picture, load, write_samples

    try:
        if grid is not None:
            check_file(grid, ".png", "--grid", force=force)
            if os.path.abspath(output) == os.path.abspath(grid.parent):
                raise BadInputError(f"--grid {grid} lies in the folder of --output; put it elsewhere")
        check_samples_path(output, overwrite=force)
        release = load(folder)
        labels = None if label is None else _label(release, label)
        if not release.releasable and not as_json:
            warn("this release is marked NOT FOR RELEASE, and so are images drawn from it")
        started = time.perf_counter()
        columns = BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
        with bars(*columns, quiet=count < _LONG) as bar:
            drawing = bar.add_task("drawing", total=count)
            images, found = release.sample(
                count,
                labels,
                random_state=seed,
                device=device,
                precision="bfloat16" if fast else "float32",
                vary=vary,
                progress=lambda done: bar.advance(drawing, done),
            )
            writing = bar.add_task("writing", total=count)
            write_samples(
                output,
                images,
                found,
                class_names=release.class_names,
                statement={**release.statement, "variation": release.config.variation.values if vary else {}},
                overwrite=force,
                progress=lambda done: bar.advance(writing, done),
            )
        seconds = time.perf_counter() - started
        if grid is not None:
            grid_picture(images, found, grid, class_names=release.class_names)
    except ReleaseError as error:
        hint = "" if force or "exists already" not in str(error) else ", or add --force to replace it"
        raise BadInputError(f"{error}{hint}") from error
    except MemoryError as error:
        raise BadInputError(f"{count} images do not fit into memory; draw fewer at a time") from error
    _report(release, count, output, grid, seconds, vary, as_json)


def _label(release: Release, text: str) -> int | str:
    """A name of a class stays one; other digits are its number."""
    is_number = text.isascii() and text.isdigit() and len(text) < 10
    return int(text) if is_number and text not in release.class_names else text


def _report(
    release: Release, count: int, output: Path, grid: Path | None, seconds: float, vary: bool, as_json: bool
) -> None:
    privacy, added = release.privacy, release.config.variation.values if vary else {}
    if as_json:
        result: dict[str, Any] = {
            "output": str(output),
            "grid": None if grid is None else str(grid),
            "count": count,
            "image_shape": list(release.image_shape),
            "classes": release.classes,
            "variation": added,
            "seconds": round(seconds, 3),
            "epsilon": privacy.epsilon,
            "delta": privacy.delta,
            "releasable": release.releasable,
        }
        print_json(result)
        return
    picture = "" if grid is None else f", a picture of them to {grid}"
    print(f"{count:,} images written to {output}{picture} ({seconds:.1f} s).")
    if added:
        values = ", ".join(f"{name} {value:g}" for name, value in added.items())
        print(f"Added to them at random, as augmentation for classifiers (--vary): {values}.")
    elif vary:
        print("Nothing was added by --vary: this release has no variation of its own.")
    whom = f", for each {privacy.unit} it was trained on" if privacy.private else ""
    print(f"The generator they come from: {privacy.guarantee}{whom}.")
