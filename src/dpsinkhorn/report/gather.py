"""What a report is made from: the release, the plan, and what the ledger adds up to. Nothing else is read.

Whatever stands in `run.json` beside the plan (where the data are, what the run is called) stays with the
curator, but for the name of a public data set. So does what follows the clock: statistics and pictures made
while training are taken when a block of steps ends, and how long that takes depends on private samples.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

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
    read_ledger,
)
from dpsinkhorn.privacy.journal import JournalDamagedError, read_journal
from dpsinkhorn.release import About, PrivacyStatement, Release, ReleaseError, load
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
