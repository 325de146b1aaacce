"""`dpsinkhorn export`: a release in a form that needs neither this package nor PyTorch, or its statement."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal

import typer

from dpsinkhorn.cli._shared import JsonOption, ReleaseArgument, check_file, print_json, takes_options, warn
from dpsinkhorn.files import replace_file


@takes_options()
def export(
    folder: ReleaseArgument,
    output: Annotated[Path, typer.Option(help="FILE.onnx, or FILE.json.", show_default=False)],
    form: Annotated[
        Literal["onnx", "registry"],
        typer.Option("--format", help="The generator, or a draft for the registry of DP deployments."),
    ] = "onnx",
    force: Annotated[bool, "Replace what --output names."] = False,
    as_json: JsonOption = False,
) -> None:
    """Write a release's generator as a file that ONNX runtimes read, or what a registry asks of it.

    Examples:

        dpsinkhorn export my-run/release --output generator.onnx

        dpsinkhorn export my-run --format registry --output deployment.json
    """
    if form == "registry":
        from dpsinkhorn.report import gather, registry_entry

        check_file(output, ".json", "--output", force=force)
        entry = registry_entry(gather(folder))
        replace_file(output, json.dumps(entry, indent=2, ensure_ascii=False).encode())
        if as_json:
            print_json({"output": str(output), "format": form})
        else:
            print(f"{output}: a draft for the DP deployments registry. Fill in what is empty.")
        return
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
