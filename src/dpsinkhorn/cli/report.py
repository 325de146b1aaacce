"""`dpsinkhorn report`: one page that says what was guaranteed, and shows what came of it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dpsinkhorn.cli._shared import JsonOption, check_file, print_json, takes_options


@takes_options()
def report(
    folder: Annotated[
        Path, typer.Argument(help="The folder of a run, finished or not; or a release.", show_default=False)
    ],
    output: Annotated[Path | None, "The page; RUN/report.html by default. For a release, name it."] = None,
    evaluation: Annotated[
        Path | None, "FILE.json of `dpsinkhorn evaluate --output`. Not private: goes to a page of its own."
    ] = None,
    public_evaluation: Annotated[bool, "The data evaluated on are public: show it on the report."] = False,
    curator_page: Annotated[bool, "Also write what was noted while training; not to leave."] = False,
    responsible: Annotated[str | None, "Who answers for the data; named at the top."] = None,
    contact: Annotated[str | None, "Where questions go; named at the top."] = None,
    legal_basis: Annotated[str | None, "What allows it; in the page to sign."] = None,
    recipients: Annotated[str | None, "Who it is for; in the page to sign."] = None,
    force: Annotated[bool, "Replace what --output names."] = False,
    as_json: JsonOption = False,
) -> None:
    """Write the report of a run: one HTML page, in plain words, that may be shown if the release may.

    What is computed from private data without noise goes to a page of its own, marked CURATOR-ONLY.

    Examples:

        dpsinkhorn report runs/digits

        dpsinkhorn report runs/digits --responsible "City Hospital" --contact dpo@hospital.example

        dpsinkhorn report runs/digits --evaluation evaluation.json
    """
    from dpsinkhorn.report import check_output, write_report

    check_output(folder, output)
    if output is not None:
        check_file(output, ".html", "--output", force=force)
    written = write_report(
        folder,
        output=output,
        evaluation=evaluation,
        public_evaluation=public_evaluation,
        curator_page=curator_page,
        responsible=responsible,
        contact=contact,
        legal_basis=legal_basis,
        recipients=recipients,
    )
    found, beside = written.findings, written.curator_page
    if as_json:
        print_json(
            {
                "report": str(written.report),
                "curator_page": None if beside is None else str(beside),
                "finished": found.finished,
                "releasable": found.releasable,
                "epsilon": found.privacy.epsilon,
                "delta": found.privacy.delta,
                "warnings": list(written.cautions),
            }
        )
        return
    print(f"Report   {written.report}")
    if not found.finished:
        print("The run is not finished: make the report again when it is.")
    elif not found.releasable:
        print("NOT FOR RELEASE: the page says so, and must not be passed on either.")
    elif not written.cautions:
        print(f"Ready to be shown, if those responsible agree: {found.privacy.summary}.")
    else:
        print(f"Think twice before it is shown: {found.privacy.summary}.")
    for caution in written.cautions:
        print(f"Warning: {caution}")
    if found.ledger_moved_to is not None:
        print(
            f"The ledger is not where it was; {found.ledger_moved_to} holds the run's entries, and was read."
        )
    if beside is not None:
        print(f"Curator  {beside}")
        print("That second page is NOT private: it must not leave.")
