"""What a report is made from: release, images, plan, and what the ledger adds up to. Nothing else is read.

Whatever stands in `run.json` beside the plan (where the data are, what the run is called) stays with the
curator, but for the name of a public data set. So does what follows the clock: statistics and pictures made
while training are taken when a block of steps ends, and how long that takes depends on private samples.
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from PIL import Image, UnidentifiedImageError

from dpsinkhorn.data import KNOWN
from dpsinkhorn.errors import ReportError
from dpsinkhorn.generators import ModuleClass
from dpsinkhorn.privacy import (
    Accountant,
    Budget,
    Charge,
    SecureNoise,
    SeededNoise,
    Statement,
    UnsupportedEventError,
    epsilon,
    format_epsilon,
    read_ledger,
)
from dpsinkhorn.privacy.journal import JournalDamagedError, read_journal
from dpsinkhorn.release import About, PrivacyStatement, Release, ReleaseError, grid_image, load
from dpsinkhorn.training import Plan, Run, TrainingError
from dpsinkhorn.training.account import accountant_for, charged_steps, statement_of

_SLACK = 1 + 1e-9  # of the same ε, composed in another order


@dataclass(frozen=True)
class Together:
    """ε of everything on a ledger."""

    epsilon: float
    adjacency: str
    accountant: Accountant


@dataclass(frozen=True)
class OnLedger:
    """What the ledger of a run says of it, and of others. All of ε is at the ledger's δ."""

    steps: int
    """Training steps that this run was charged, those that a crash lost included."""
    besides: tuple[Charge, ...]
    """What else it was charged: frequencies of classes."""
    epsilon: float
    """Of this run alone, by its own accountant, for adding or removing one."""
    budget: float
    """What all that is on the ledger may cost together."""
    others: bool
    """Whether others had used the data when the release was made; or have by now, where there is none."""
    later: Together | None = None
    """All that is on the ledger, where others were charged to it since the release."""


@dataclass(frozen=True)
class Findings:
    """All that a report tells. Everything in it may be shown if the release may."""

    privacy: PrivacyStatement
    """Of the release; of all that was spent so far where there is none yet."""
    release: Release | None
    """`None` while a run is not finished."""
    generator_digest: str | None = None
    """SHA-256 of the release's network."""
    plan: Plan | None = None
    """`None` where there is a release and nothing else."""
    data_name: str | None = None
    """The name of a public data set; other names are the curator's."""
    trained_with: str | None = None
    """The version of dpsinkhorn that began the run."""
    ledger: OnLedger | None = None
    """`None` where it was not at hand. Where it was, it holds the entry that the release names."""
    ledger_missing: bool = False
    """Whether a finished run has a ledger that was not found: what was spent since cannot be told."""
    ledger_moved_to: Path | None = None
    """Where it was found instead. The name of a file: for the curator, not for the page."""
    shared: bool = False
    """Whether the run's ledger is one that other runs can be charged to."""
    stated: Mapping[str, str] = field(default_factory=dict)
    """What the curator says of the release for the report alone, in the place of what the release says."""

    @property
    def about(self) -> About:
        """What the curator says of the release."""
        own = About() if self.release is None else self.release.about
        return dataclasses.replace(own, **self.stated)

    @property
    def finished(self) -> bool:
        """Whether there is a release."""
        return self.release is not None

    @property
    def releasable(self) -> bool:
        """Whether release and report may be shown to others."""
        return self.release is not None and self.release.releasable


def gather(folder: Path, generator: ModuleClass | None = None) -> Findings:
    """What there is to tell of a run, finished or not, or of a release alone; `generator` as for `load`."""
    if (folder / "run.json").exists():
        return _of_run(folder, generator)
    if not folder.is_dir():
        raise ReportError(f"there is no folder {folder}; name a run or a release")
    if not (folder / "config.json").exists():
        raise ReportError(f"{folder} is neither a run nor a release: it has no run.json and no config.json")
    return _of_release(folder, generator)


def _of_release(folder: Path, generator: ModuleClass | None) -> Findings:
    try:
        release = load(folder, generator=generator)
    except ReleaseError as error:
        raise ReportError(str(error)) from error
    if release.privacy.private and release.privacy.recomputed_epsilon() > release.privacy.epsilon * _SLACK:
        raise ReportError(f"{folder} states a lower epsilon than its charges cost; do not pass it on")
    digest = hashlib.sha256((folder / "generator.safetensors").read_bytes()).hexdigest()
    return Findings(release.privacy, release, digest)


def _of_run(folder: Path, generator: ModuleClass | None) -> Findings:
    try:
        run = Run.resume(folder)
    except TrainingError as error:
        raise ReportError(str(error)) from error
    name = run.settings["source"].get("data")
    try:
        found = _of_finished(run, generator) if run.done else _of_unfinished(run)
    except JournalDamagedError as error:
        raise ReportError(f"the ledger of this run cannot be trusted: {error}") from error
    except UnsupportedEventError as error:
        raise ReportError(
            f"no accountant can count what the ledger {run.ledger_path} holds: {error}"
        ) from error
    return dataclasses.replace(
        found,
        plan=run.plan,
        # a ledger in a run's own folder can have been given to others
        shared=run.settings["ledger"] is not None
        or (found.ledger is not None and (found.ledger.others or found.ledger.later is not None)),
        data_name=name if name in KNOWN else None,
        trained_with=str(run.settings["dpsinkhorn"]),
    )


def _of_finished(run: Run, generator: ModuleClass | None) -> Findings:
    """Its release, and what the ledger adds to that, where it is at hand."""
    found, path = _of_release(run.release_folder, generator), run.ledger_path
    if not path.exists():
        moved = _moved(run, found.privacy)
        if moved is None:
            return dataclasses.replace(found, ledger_missing=found.privacy.private)
        path, found = moved, dataclasses.replace(found, ledger_moved_to=moved)
    spent, known = read_ledger(path), _place(path, found.privacy)
    more = known < len(spent.spends) and math.isfinite(found.privacy.epsilon)
    if run.name not in spent.runs:
        raise ReportError(f"the ledger {path} has no charge of this run; was its run.json edited?")
    return dataclasses.replace(found, ledger=_on_ledger(run, spent, known, more=more))


def _moved(run: Run, privacy: PrivacyStatement) -> Path | None:
    """A ledger of the same name in or beside the run's folder that holds the release's entry, if any.

    Of two such, one may be an old copy: the longer one is taken, if it goes on from the other.
    """
    name, found = run.ledger_path.name, []
    for folder in (run.folder, run.folder.resolve().parent):
        try:
            history = [entry.digest for entry in read_journal(folder / name)]
        except (OSError, JournalDamagedError):
            continue
        if privacy.ledger_digest in history:
            found.append((history, folder / name))
    found.sort(key=lambda item: len(item[0]))
    if not found or any(history[-1] not in found[-1][0] for history, _ in found):
        return None
    return found[-1][1]


def _of_unfinished(run: Run) -> Findings:
    """What would be stated if the run ended now."""
    plan = run.plan
    noise = SecureNoise.description if plan.seed is None else SeededNoise.description
    if run.ledger_path.exists():
        spent = read_ledger(run.ledger_path)
        privacy = statement_of(plan, spent, noise)
    else:
        if run.settings["ledger"] is not None or (run.folder / "checkpoint.safetensors").exists():
            raise ReportError(
                f"the ledger {run.ledger_path} of this run is gone; put it back: it knows what was spent"
            )
        spent = Statement(Budget(plan.budget_epsilon, plan.delta), (), "0" * 64)
        privacy = dataclasses.replace(statement_of(plan, spent, noise), ledger_digest=None)
    return Findings(privacy, None, ledger=_on_ledger(run, spent, len(spent.spends), more=False))


def _on_ledger(run: Run, spent: Statement, known: int, *, more: bool) -> OnLedger:
    """Sum up a ledger. The release states the first `known` of its spends; `more` asks for all together."""
    plan, later = run.plan, None
    own = [spend for spend in spent.spends if spend.run == run.name]
    if more:
        total, delta = spent.total(), spent.budget.delta
        accountant = accountant_for(total, delta, plan)  # the run's own, where it can count all of it
        later = Together(epsilon(total, delta, accountant), total.adjacency.value, accountant)
    return OnLedger(
        steps=charged_steps(plan, spent, run.name),
        besides=tuple(spend.charge for spend in own if spend.charge != plan.step_charge),
        epsilon=epsilon(spent.total(run.name), plan.delta, plan.accountant) if own else 0.0,
        budget=spent.budget.epsilon,
        others=any(spend.run != run.name for spend in spent.spends[:known]),
        later=later,
    )


def _place(path: Path, privacy: PrivacyStatement) -> int:
    """How many of the spends on a run's ledger its release knows of."""
    history = [entry.digest for entry in read_journal(path)]
    if privacy.ledger_digest not in history:
        raise ReportError(
            f"the ledger {path} does not hold the entry that the release names; put the right one back"
        )
    return history.index(privacy.ledger_digest)  # the first entry is no spend


# ---- pictures: those of the finished generator, and those that a run wrote while training


_CLASSES = 20  # shown at most
_COLUMNS = 4  # images in a row of a strip; there are two strips, side by side where the page is wide
_MEASURED = 100  # images of each for the figures, at most
_DRAWN = 500  # images in all, about: a large generator takes its time on a CPU
_ROWS = 5  # of a strip without classes
_LOGGED_PICTURES, _LOGGED_LINES = 6, 40


class Picture(NamedTuple):
    """A picture as a PNG within the page."""

    uri: str
    width: int
    height: int

    @classmethod
    def of(cls, image: Image.Image) -> Picture:
        """Encode its pixels alone: what else a PNG may carry stays behind."""
        image.info.clear()
        file = io.BytesIO()
        image.save(file, format="PNG", optimize=True)
        return cls("data:image/png;base64," + base64.b64encode(file.getvalue()).decode("ascii"), *image.size)


class ClassSamples(NamedTuple):
    """Generated images of a class, and figures of them."""

    title: str
    share: float | None
    """Of the labels that the generator draws; `None` where there are no classes."""
    shown: int
    """Images on each strip."""
    measured: int
    strips: tuple[Picture, ...]
    brightness: float
    """Mean of all pixels, 0 to 1."""
    diversity: float
    """Root mean square difference of the pixels of two images, 0 to 1: none where all are the same."""


def samples_by_class(release: Release) -> list[ClassSamples]:
    """Images of every class, twenty classes at most, always the same ones for a release."""
    numbers: Sequence[int | None] = range(min(release.classes, _CLASSES)) if release.classes else (None,)
    measured = max(2 * _COLUMNS, min(_MEASURED, _DRAWN // len(numbers)))
    found = []
    for number in numbers:
        images, _ = release.sample(measured, number, random_state=number or 0)
        shown = _COLUMNS * (_ROWS if number is None else 1)
        halves = images[:shown], images[shown : 2 * shown]
        pixels = images.reshape(len(images), -1) / 255.0
        found.append(
            ClassSamples(
                "all images" if number is None else class_title(number, release.class_names),
                None if number is None else (release.label_probabilities or ())[number],
                shown,
                measured,
                tuple(Picture.of(grid_image(half, None, columns=_COLUMNS)) for half in halves),
                brightness=float(pixels.mean()),
                # two different images: twice the unbiased variance
                diversity=math.sqrt(2 * float(pixels.var(axis=0, ddof=1).mean())),
            )
        )
    return found


def class_title(k: int, names: Sequence[str]) -> str:
    """Number and name.

    >>> class_title(1, ["well", "ill"]), class_title(1, ["0", "1"]), class_title(1, [])
    ('1: ill', '1', '1')
    """
    return f"{k}: {names[k]}" if k < len(names) and names[k] not in ("", str(k)) else str(k)


def training_log(folder: Path) -> dict[str, list[Any]]:
    """Some lines of statistics and some pictures that a run wrote, from the first to the last.

    They follow the clock, and are for the curator alone. A release has none.
    """
    statistics = folder / "statistics.jsonl"
    texts = statistics.read_text(encoding="utf-8").splitlines() if statistics.exists() else []
    lines = [line for line in map(_line, texts) if line is not None]
    paths = _some(sorted((folder / "samples").glob("step-*.png")), _LOGGED_PICTURES)
    pictures = [picture for picture in map(_logged_picture, paths) if picture is not None]
    return {"lines": _some(lines, _LOGGED_LINES), "pictures": pictures}


def _line(text: str) -> tuple[str, str, str, str] | None:
    """Step, ε, norm of the gradient, steps a second; `None` where a crash tore it, or it is being written."""
    try:
        value = json.loads(text)
        spent = value["epsilon"]
        return (
            f"{int(value['step']):,}",
            "" if spent is None else format_epsilon(float(spent)),
            f"{float(value['gradient_norm']):.4g}",
            "" if value["steps_per_second"] is None else f"{float(value['steps_per_second']):.4g}",
        )
    except (ValueError, KeyError, TypeError):
        return None


def _logged_picture(path: Path) -> tuple[int, Picture] | None:
    """The step, and the images that were generated then."""
    picture, step = curators_picture(path), path.stem[5:]
    return (int(step), picture) if picture is not None and step.isdecimal() else None


def curators_picture(path: Path) -> Picture | None:
    """A picture of a file, for the curator's page; `None` where it is none."""
    try:
        with Image.open(path) as file:
            return Picture.of(file.convert("L" if file.mode == "L" else "RGB"))
    except (OSError, ValueError, UnidentifiedImageError, Image.DecompressionBombError):
        return None


def _some(values: list[Any], most: int) -> list[Any]:
    """At most so many, evenly spread, the last one among them."""
    if len(values) <= most:
        return values
    return [values[math.ceil((index + 1) * len(values) / most) - 1] for index in range(most)]
