"""From findings to HTML, and to a file that is there whole or not at all."""

from __future__ import annotations

import datetime
import math
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import jinja2

from dpsinkhorn import __version__
from dpsinkhorn.errors import ReportError
from dpsinkhorn.files import replace_file
from dpsinkhorn.generators import ModuleClass
from dpsinkhorn.privacy.words import factor_in_words, format_epsilon
from dpsinkhorn.report.curator import training_log
from dpsinkhorn.report.curve import spending_curve
from dpsinkhorn.report.evaluation import EvaluationTables, evaluation_tables, read_evaluation
from dpsinkhorn.report.gather import Findings, gather
from dpsinkhorn.report.guarantee import adjacency_in_words, explain
from dpsinkhorn.report.pictures import line_plot, samples_by_class
from dpsinkhorn.report.settings import data_line, data_rows, plan_rows, recipe_rows
from dpsinkhorn.report.status import cautions, status_of
from dpsinkhorn.report.verify import own_checks, with_ledger

__all__ = ["CURATOR_ONLY", "Written", "check_output", "curator_path", "write_report"]

CURATOR_ONLY = "CURATOR-ONLY"
_LONGEST_LINE = 200
_USUAL_TITLE = "Private image generator"  # of a release that was given none


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
        contact: Where that body can be reached.
        made: The date on the page; today's, in UTC.
        generator: The class that was trained, where it was the curator's own; as for `dpsinkhorn.load`.

    Raises:
        ReportError: What is wrong, in one line.
    """
    target = check_output(folder, output)
    found = gather(folder, generator)
    tables = private_tables = None
    if evaluation is not None:
        if found.release is None:
            raise ReportError(f"{folder} has no release yet, so that nothing was evaluated; leave it out")
        figures = read_evaluation(evaluation, found.release)
        names = found.release.class_names
        if public_evaluation:
            tables = evaluation_tables(figures, names, public=True)
        else:
            private_tables = evaluation_tables(figures, names, public=False)
    elif public_evaluation:
        raise ReportError("an evaluation is said to be public, but none is given; name its JSON")
    top = {
        "responsible": _one_line(responsible, "responsible"),
        "contact": _one_line(contact, "contact"),
        "made": (made or datetime.datetime.now(datetime.timezone.utc).date()).isoformat(),
    }
    page = _render("report.html.j2", {**_context(found), **top, "evaluation": tables})
    beside = curator_path(target) if curator_page or private_tables else None
    other = None if beside is None else _curator_page(folder, found, private_tables)
    try:
        replace_file(target, page)
        if beside is not None and other is not None:
            replace_file(beside, other)
    except OSError as error:
        raise ReportError(f"cannot write {error.filename or target}: {error.strerror}") from error
    return Written(target, beside, found, tuple(sentence for _, sentence in cautions(found)))


def _one_line(text: str | None, name: str) -> str | None:
    if text is not None and not (0 < len(text.strip()) <= _LONGEST_LINE and text.isprintable()):
        raise ReportError(f"--{name} must be one line of 1 to {_LONGEST_LINE} printable characters")
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


def _curator_page(folder: Path, found: Findings, tables: EvaluationTables | None) -> bytes:
    context = {"evaluation": tables, "log": training_log(folder), "privacy": found.privacy}
    return _render("curator.html.j2", context)


def _context(found: Findings) -> dict[str, Any]:
    """What the template of the report is filled with."""
    privacy, plan, release = found.privacy, found.plan, found.release
    curve = spending_curve(found)
    ledger = found.ledger
    budget = _finite(None if plan is None else plan.budget_epsilon)
    allowed = _finite(None if ledger is None else ledger.budget)
    published = privacy.published_epsilon
    return {
        "status": status_of(found),
        "found": found,
        "privacy": privacy,
        "guarantee": explain(found),
        "published": None if published is None else format_epsilon(published),
        "what": _what(found),
        "title": _title(found),
        "samples": [] if release is None else samples_by_class(release),
        "classes": 0 if release is None else release.classes,
        "curve": curve,
        "plot": None if curve is None else line_plot(curve.steps, curve.epsilons, budget),
        "budget": None if budget is None else format_epsilon(budget),
        "allowed": None if allowed is None else format_epsilon(allowed),
        "ledger": ledger,
        "data_rows": data_rows(found),
        "plan_rows": plan_rows(found),
        "recipe_rows": recipe_rows(found),
        "own_checks": own_checks(found),
        "with_ledger": with_ledger(found),
        "data_line": data_line(found),
        "fold_of_one": factor_in_words(1.0),
        "versions": {
            "dpsinkhorn": __version__,
            "dp-accounting": metadata.version("dp-accounting"),
            "torch": metadata.version("torch"),
            "Python": platform.python_version(),
        },
    }


def _finite(budget: float | None) -> float | None:
    return None if budget is None or math.isinf(budget) else budget


def _adjacency(value: str, unit: str) -> str:
    """In the middle of a sentence."""
    words = adjacency_in_words(value, unit)
    return words[0].lower() + words[1:]


def _title(found: Findings) -> str:
    """The release's own, unless it is the usual one and not true."""
    title = _USUAL_TITLE if found.release is None else found.release.title
    return title if found.privacy.private or title != _USUAL_TITLE else "Image generator, not private"


def _what(found: Findings) -> str:
    rows = dict(data_rows(found))
    classes = "" if rows["classes"].startswith("none") else f", {rows['classes']} classes"
    return f"{rows['images']}{classes}"


def _render(template: str, context: Mapping[str, Any]) -> bytes:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("dpsinkhorn.report", "pages"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["epsilon"] = format_epsilon
    environment.filters["adjacency"] = _adjacency
    return environment.get_template(template).render(**context).encode("utf-8")
