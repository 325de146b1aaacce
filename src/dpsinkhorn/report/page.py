"""From findings to HTML, and to a file that is there whole or not at all."""

from __future__ import annotations

import datetime
import math
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any, cast

import dp_accounting as dp  # type: ignore[import-untyped]
import jinja2
from PIL import Image

from dpsinkhorn import __version__
from dpsinkhorn.errors import ReportError
from dpsinkhorn.files import failing_as, replace_file
from dpsinkhorn.generators import ModuleClass
from dpsinkhorn.privacy import Accountant, Adjacency, Charge, compose, epsilon
from dpsinkhorn.privacy.charges import flatten
from dpsinkhorn.privacy.words import factor_in_words, format_epsilon
from dpsinkhorn.release import TRUST, USUAL_TITLE, PrivacyStatement
from dpsinkhorn.report import words
from dpsinkhorn.report.findings import Findings, Picture, gather, samples_by_class, training_log
from dpsinkhorn.report.standards import sp_800_226
from dpsinkhorn.report.words import cautions, explain, status_of
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
        "labels_in_words": words.labels_in_words(found),
        "variation": "" if release is None else words.value_in_words(release.config.variation.values),
        "curve": curve,
        "plot": curve and line_plot(curve.steps, curve.epsilons, budget if math.isfinite(budget) else None),
        "notes": [note for note in found.privacy.notes if not note.startswith(EXPECT)],
        "expected": next(
            (note.removeprefix(EXPECT) for note in found.privacy.notes if note.startswith(EXPECT)), None
        ),
        "budget": format_epsilon(budget) if math.isfinite(budget) else None,
        "allowed": format_epsilon(allowed) if math.isfinite(allowed) else None,
        "data_rows": words.data_rows(found),
        "plan_rows": words.plan_rows(found),
        "recipe_rows": words.recipe_rows(found),
        "command": command_for(found),
        "events": events_of(found.privacy),
        "data_line": words.data_line(found),
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


# ---- ε counted again, from charges, whatever blocks they were charged in: against steps, and by a reader


_POINTS = 12


@dataclass(frozen=True)
class Curve:
    """ε after some numbers of steps, from none to all. At first it is that of all else that was charged."""

    steps: tuple[int, ...]
    epsilons: tuple[float, ...]
    adjacency: str

    @property
    def table(self) -> tuple[tuple[int, float], ...]:
        """Some of the points, the last one among them."""
        return tuple(zip(self.steps, self.epsilons, strict=True))[::-3][::-1]


def steps_of(charge: Charge, step: Charge | None = None) -> int:
    """How many steps on a Poisson sample a charge is made of; none if they are not those of `step`.

    >>> from dpsinkhorn.privacy import RecordMechanism
    >>> noisy = RecordMechanism(clip=1.0, noise_multiplier=2.0)
    >>> charge = noisy.sampled(0.1, steps=100)
    >>> steps_of(charge), steps_of(charge, noisy.sampled(0.1, 1)), steps_of(charge, noisy.sampled(0.2, 1))
    (100, 100, 0)
    """
    parts = flatten(charge.event)
    kinds = dp.PoissonSampledDpEvent | dp.SampledWithoutReplacementDpEvent
    if len(parts) != 1 or not isinstance(parts[0].event, kinds):
        return 0
    if step is not None:
        expected = (step.adjacency, flatten(step.event)[0].event)
        return parts[0].count if (charge.adjacency, parts[0].event) == expected else 0
    return parts[0].count


def spending_curve(found: Findings) -> Curve | None:
    """How ε grew with the steps of this run alone, where a ledger or a plan tells which they are.

    A release alone does not say which of its charges are its own: then they are those on a Poisson sample,
    if they are all of one kind. `None` where nothing is guaranteed, no step was taken, or none can be told
    from those of other runs.

    >>> from dpsinkhorn.privacy import RecordMechanism, epsilon
    >>> from dpsinkhorn.release import PrivacyStatement
    >>> charge = RecordMechanism(clip=1.0, noise_multiplier=2.0).sampled(0.1, steps=100)
    >>> spent = epsilon(charge, 1e-5)
    >>> statement = PrivacyStatement(epsilon=spent, delta=1e-5, mechanism="record", charges=[charge])
    >>> curve = spending_curve(Findings(statement, None))
    >>> curve.steps[0], curve.steps[-1], curve.epsilons[0], curve.epsilons[-1] == spent
    (0, 100, 0.0, True)
    """
    plan, ledger, privacy = found.plan, found.ledger, found.privacy
    if plan is not None and ledger is not None:
        step, taken, besides = plan.step_charge, ledger.steps, ledger.besides
        adjacency, accountant = step.adjacency, plan.accountant
    else:
        charges = [Charge.from_json(dict(charge)) for charge in privacy.charges]
        sampled = [charge for charge in charges if steps_of(charge)]
        if found.shared or len(sampled) != 1:
            return None
        step = Charge(flatten(sampled[0].event)[0].event, sampled[0].adjacency)
        taken, besides = steps_of(sampled[0]), tuple(charge for charge in charges if charge is not sampled[0])
        adjacency, accountant = Adjacency(privacy.adjacency), cast(Accountant, privacy.accountant)
    if not privacy.private or not taken:
        return None

    def spent(count: int) -> float:
        steps = Charge(dp.SelfComposedDpEvent(step.event, count), step.adjacency)
        charges = [*besides, *([steps] if count else [])]
        return epsilon(compose(*charges, adjacency=adjacency), privacy.delta, accountant) if charges else 0.0

    # ε grows about as the root of the steps: more points where it is steep
    steps = tuple(sorted({round(taken * (index / _POINTS) ** 2) for index in range(_POINTS + 1)}))
    return Curve(steps, tuple(map(spent, steps)), adjacency.value)


@dataclass(frozen=True)
class Plot:
    """A line in a frame of 400 x 240, in SVG's coordinates."""

    line: str
    area: str
    x_ticks: tuple[tuple[float, str], ...]
    y_ticks: tuple[tuple[float, str], ...]
    limit: float | None
    """Height of the horizontal line of a limit."""
    end: tuple[float, float]
    left: float = 44.0
    right: float = 388.0
    top: float = 18.0
    bottom: float = 200.0


def line_plot(x: Sequence[float], y: Sequence[float], limit: float | None = None) -> Plot:
    """A line from the origin on, with round ticks, and a limit that it should not pass."""
    x_top, highest = max(x), max(*y, limit or 0.0)
    x_step, y_step = _round_step(x_top), _round_step(highest)
    y_top = math.ceil(highest / y_step - 1e-9) * y_step

    def across(value: float) -> float:
        return round(Plot.left + value / x_top * (Plot.right - Plot.left), 1)

    def up(value: float) -> float:
        return round(Plot.bottom - value / y_top * (Plot.bottom - Plot.top), 1)

    places = [(across(a), up(b)) for a, b in zip(x, y, strict=True)]
    line = " ".join(f"{a},{b}" for a, b in places)
    return Plot(
        line,
        f"{Plot.left},{Plot.bottom} {line} {places[-1][0]},{Plot.bottom}",
        tuple((across(value), _tick(value)) for value in _ticks(x_top, x_step)),
        tuple((up(value), _tick(value)) for value in _ticks(y_top, y_step)),
        None if limit is None else up(limit),
        places[-1],
    )


def _round_step(top: float) -> float:
    """A step of 1, 2 or 5 times a power of ten that fits four to ten times."""
    rough = top / 4
    power = 10.0 ** math.floor(math.log10(rough))
    return max(step * power for step in (1, 2, 5) if step * power <= rough * (1 + 1e-9))


def _ticks(top: float, step: float) -> list[float]:
    return [index * step for index in range(math.floor(top / step + 1e-9) + 1)]


def _tick(value: float) -> str:
    for unit, letter in ((1e9, " bn"), (1e6, " m"), (1e3, " k")):
        if value >= max(unit, 1e4):  # four digits still fit
            return f"{value / unit:.4g}{letter}"
    return f"{value:.4g}"


# ---- what a reader can run to check it


def command_for(found: Findings) -> str | None:
    """Return the command that computes ε again, where one does: all that was charged is steps of this plan.

    They can be those of several runs on a ledger: ε is that of all of them.
    """
    plan, charges = found.plan, found.privacy.charges
    if plan is None or not plan.private or len(charges) != 1:
        return None
    steps = steps_of(Charge.from_json(dict(charges[0])), plan.step_charge)
    rows = f" --rows {plan.generated}" if plan.kind.clips_rows else ""
    command = (
        f"dpsinkhorn privacy epsilon --mechanism {plan.recipe.privacy.mechanism}{rows} "
        f"--noise-multiplier {plan.noise_multiplier!r} --sampling-rate {plan.sampling_rate!r} "
        f"--steps {steps} --delta {plan.delta!r} --accountant {plan.accountant}"
    )
    return command if steps else None


def events_of(privacy: PrivacyStatement) -> list[tuple[str, int]]:
    """Return what was charged in dp-accounting's words, and how often; nothing where it has none for it.

    Its noise multipliers under replace-one are not ours.
    """
    found = [(_event(part.event), part.count) for part in flatten(privacy.total().event)]
    sayable = Adjacency(privacy.adjacency) is Adjacency.ADD_OR_REMOVE_ONE and all(text for text, _ in found)
    return found if sayable else []


def _event(event: dp.DpEvent) -> str:
    sampled = isinstance(event, dp.PoissonSampledDpEvent)
    inner = event.event if sampled else event
    if not isinstance(inner, dp.GaussianDpEvent):
        return ""
    text = f"dp.GaussianDpEvent({float(inner.noise_multiplier)!r})"
    return f"dp.PoissonSampledDpEvent({float(event.sampling_probability)!r}, {text})" if sampled else text
