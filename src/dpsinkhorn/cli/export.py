"""`dpsinkhorn export`: a release in a form that needs neither this package nor PyTorch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from dpsinkhorn.cli._shared import JsonOption, ReleaseArgument, print_json, takes_options, warn


@takes_options()
def export(
    folder: ReleaseArgument,
    output: Annotated[Path, typer.Option(help="FILE.onnx.", show_default=False)],
    form: Annotated[Literal["onnx"], typer.Option("--format", help="The form.")] = "onnx",  # noqa: ARG001
    force: Annotated[bool, "Replace what --output names."] = False,
    as_json: JsonOption = False,
) -> None:
    """Write a release's generator as a file that ONNX runtimes read.

    Example:

        dpsinkhorn export my-run/release --output generator.onnx
    """
    from dpsinkhorn.release import load
    from dpsinkhorn.release.onnx import write_onnx

    release = load(folder)
    if not release.releasable and not as_json:
        warn("this release is marked NOT FOR RELEASE, and so are images drawn from it")
    write_onnx(release, output, overwrite=force)
    size, latent = output.stat().st_size, release.config.latent
    if as_json:
        print_json({"output": str(output), "format": "onnx", "bytes": size, "latent": latent})
        return
    labels = f" and labels (n,) from 0 to {release.classes - 1}" if release.classes else ""
    print(
        f"{output} ({size / 1e6:.1f} MB) takes latents (n, {latent}), uniform from 0 to 1{labels}, to images."
    )
