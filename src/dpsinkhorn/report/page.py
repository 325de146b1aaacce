"""From findings to HTML, and to a file that is there whole or not at all."""

from __future__ import annotations

import datetime
import math
import platform
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any

import jinja2
from PIL import Image

from dpsinkhorn import __version__
from dpsinkhorn.errors import ReportError
from dpsinkhorn.files import failing_as, replace_file
from dpsinkhorn.generators import ModuleClass
from dpsinkhorn.privacy.words import factor_in_words, format_epsilon
from dpsinkhorn.release import TRUST, USUAL_TITLE
from dpsinkhorn.report import settings
from dpsinkhorn.report.curve import command_for, events_of, line_plot, spending_curve
from dpsinkhorn.report.gather import Findings, gather
from dpsinkhorn.report.guarantee import cautions, explain, status_of
from dpsinkhorn.report.pictures import Picture, samples_by_class, training_log
from dpsinkhorn.report.standards import sp_800_226
from dpsinkhorn.training.advice import EXPECT

CURATOR_ONLY = "CURATOR-ONLY"
_LONGEST_LINE = 200


@dataclass(frozen=True)
class Written:
    """What was written, and what it is about."""

    report: Path
    curator_page: Path | None
    findings: Findings
    cautions: tuple[str, ...] = ()
    """What speaks against passing it on, though nothing forbids it; the banner says it too."""


def write_report(
    folder: Path,
    *,
    output: Path | None = None,
    evaluation: Path | None = None,
    public_evaluation: bool = False,
    curator_page: bool = False,
    responsible: str | None = None,
    contact: str | None = None,
    legal_basis: str | None = None,
    recipients: str | None = None,
    made: datetime.date | None = None,
    generator: ModuleClass | None = None,
) -> Written:
    """Write the report of a run, finished or not, or of a release alone.

    Args:
        folder: A run, or a release.
        output: The page; `report.html` in the folder of a run. For a release it has to be named.
        evaluation: The JSON of `dpsinkhorn evaluate --output`. It was computed from private data without
            noise, so that it goes to a page of its own, marked as not to leave.
        public_evaluation: The curator states that it was computed from public data: it goes to the report.
        curator_page: Write the page that is not to leave, also without an evaluation.
        responsible: Who answers for the data, to be named at the top of the report.
        contact: Where that body can be reached; by default what the release says.
        legal_basis: What allows the use and the release; by default what the release says.
        recipients: Who it is for; by default what the release says.
        made: The date on the page; today's, in UTC.
        generator: The class that was trained, where it was the curator's own; as for `dpsinkhorn.load`.

    Raises:
        ReportError: What is wrong, in one line.
    """
    target = check_output(folder, output)
    found = gather(folder, generator)
    tables, pictures = None, []
    if evaluation is not None:
        from dpsinkhorn.report.evaluation import evaluation_tables, private_pictures, read_evaluation

        if found.release is None:
            raise ReportError(f"{folder} has no release yet, so that nothing was evaluated; leave it out")
        figures = read_evaluation(evaluation, found.release)
        tables = evaluation_tables(
            figures,
            found.release.class_names,
            public=public_evaluation,
            learnt_public=found.data_name is not None,
        )
        pictures = private_pictures(figures, evaluation)
    elif public_evaluation:
        raise ReportError("an evaluation is said to be public, but none is given; name its JSON")
    stated = {"contact": contact, "legal_basis": legal_basis, "recipients": recipients}
    said = {name: _one_line(text, name) for name, text in stated.items()}
    found = replace(found, stated={name: text for name, text in said.items() if text is not None})
    context = {
        **_context(found),
        "responsible": _one_line(responsible, "responsible"),
        "made": (made or datetime.datetime.now(datetime.timezone.utc).date()).isoformat(),
        "evaluation": tables if public_evaluation else None,
    }
    pages = {target: render("report.html.j2", context)}
    beside = curator_path(target) if curator_page or (tables and not public_evaluation) else None
    if beside is not None:
        private = {
            "evaluation": None if public_evaluation else tables,
            "pictures": pictures,
            "log": training_log(folder),
            "privacy": found.privacy,
        }
        pages[beside] = render("curator.html.j2", private)
    try:
        for path, page in pages.items():
            replace_file(path, page)
    except OSError as error:
        raise ReportError(f"cannot write {error.filename or target}: {error.strerror}") from error
    return Written(target, beside, found, tuple(sentence for _, sentence in cautions(found)))


def _one_line(text: str | None, name: str) -> str | None:
    if text is not None and not (0 < len(text.strip()) <= _LONGEST_LINE and text.isprintable()):
        option = name.replace("_", "-")
        raise ReportError(f"--{option} must be one line of 1 to {_LONGEST_LINE} printable characters")
    return text


def check_output(folder: Path, output: Path | None) -> Path:
    """Where the page goes; refuses what could not, or should not, be written."""
    is_run = (folder / "run.json").exists()
    if output is None:
        if not is_run and (folder / "config.json").exists():
            raise ReportError("nothing is added to a release: say where its report goes (--output FILE.html)")
        return folder / "report.html"
    if output.suffix.lower() != ".html":
        raise ReportError(f"the report is a page: {output} must end in .html")
    if not output.parent.is_dir():
        raise ReportError(f"the folder of {output} does not exist; create it first")
    if output.is_dir():
        raise ReportError(f"{output} is a folder; name a file")
    release = (folder / "release" if is_run else folder).resolve()
    if release in output.resolve().parents:
        raise ReportError(f"{output} lies in the release; put it elsewhere")
    return output


def curator_path(report: Path) -> Path:
    """The page that is not to leave, beside the report.

    >>> curator_path(Path("runs/digits/report.html")).name
    'report-CURATOR-ONLY.html'
    """
    return report.with_name(f"{report.stem}-{CURATOR_ONLY}{report.suffix}")


def _context(found: Findings) -> dict[str, Any]:
    """What the template of the report is filled with."""
    plan, release, curve = found.plan, found.release, spending_curve(found)
    budget = math.inf if plan is None else plan.budget_epsilon
    allowed = math.inf if found.ledger is None else found.ledger.budget
    return {
        "status": status_of(found),
        "found": found,
        "about": found.about,
        "privacy": found.privacy,
        "ledger": found.ledger,
        "guarantee": explain(found),
        "points": sp_800_226(found) if found.privacy.private else [],
        "trust": TRUST,
        "title": _title(found),
        "samples": [] if release is None else samples_by_class(release),
        "classes": 0 if release is None else release.classes,
        "labels_in_words": settings.labels_in_words(found),
        "variation": "" if release is None else settings.value_in_words(release.config.variation.values),
        "curve": curve,
        "plot": curve and line_plot(curve.steps, curve.epsilons, budget if math.isfinite(budget) else None),
        "notes": [note for note in found.privacy.notes if not note.startswith(EXPECT)],
        "expected": next(
            (note.removeprefix(EXPECT) for note in found.privacy.notes if note.startswith(EXPECT)), None
        ),
        "budget": format_epsilon(budget) if math.isfinite(budget) else None,
        "allowed": format_epsilon(allowed) if math.isfinite(allowed) else None,
        "data_rows": settings.data_rows(found),
        "plan_rows": settings.plan_rows(found),
        "recipe_rows": settings.recipe_rows(found),
        "command": command_for(found),
        "events": events_of(found.privacy),
        "data_line": settings.data_line(found),
        "fold_of_one": factor_in_words(1.0),
        "versions": {
            "dpsinkhorn": __version__,
            "dp-accounting": metadata.version("dp-accounting"),
            "torch": metadata.version("torch"),
            "Python": platform.python_version(),
        },
    }


def _title(found: Findings) -> str:
    """The release's own, unless it is the usual one and not true."""
    title = found.about.title
    return title if found.privacy.private or title != USUAL_TITLE else "Image generator, not private"


def render(template: str, context: Mapping[str, Any]) -> bytes:
    """Return a page, filled with what it shows."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("dpsinkhorn.report", "pages"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["epsilon"] = format_epsilon
    environment.filters["adjacency"] = lambda value, unit: (
        f"{'add or remove' if value == 'add-or-remove-one' else 'replace'} one {unit}"
    )
    return environment.get_template(template).render(**context).encode("utf-8")


def write_comparison(output: Path, found: Mapping[str, Any], grids: Mapping[str, Image.Image]) -> None:
    """Write the page of a comparison.

    Args:
        output: The page.
        found: Figures, as `Comparison.to_json` gives them.
        grids: A picture of each method, by its name.
    """
    pictures = {name: Picture.of(grid) for name, grid in grids.items()}
    classifiers = list(found["methods"][0]["accuracy"])
    context = {**found, "pictures": pictures, "classifiers": classifiers}
    with failing_as(ReportError, f"cannot write {output}"):
        replace_file(output, render("comparison.html.j2", context))
