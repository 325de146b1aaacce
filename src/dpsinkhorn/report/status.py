"""Whether a release may be passed on, as far as software can tell: the banner at the top."""

from __future__ import annotations

from typing import NamedTuple

from dpsinkhorn.privacy.words import format_epsilon
from dpsinkhorn.report.gather import Findings
from dpsinkhorn.report.guarantee import WEAK, decimal, delta_is_large

__all__ = ["Status", "cautions", "status_of"]

_FEW = 100  # units below which noise that hides one of them hides nearly all there is to see


class Status(NamedTuple):
    """Whether this may be passed on, in the banner at the top."""

    kind: str
    """`ready`, `draft` (wait, or think twice) or `stop`."""
    title: str
    sentences: tuple[str, ...]


def status_of(found: Findings) -> Status:
    """May it be passed on?"""
    reasons = found.privacy.objections
    if found.finished and not found.releasable and not reasons:
        reasons = ("whoever made it said so",)
    because = tuple(f"{reason[0].upper()}{reason[1:]}." for reason in reasons)
    doubts = cautions(found)
    said = [sentence for _, sentence in doubts]
    if found.plan is not None and found.privacy.private and found.plan.facts.units < _FEW:
        said.append(f"There are only {_units(found)}: expect the images to be mostly noise.")
    public = [f"The data are public ({found.data_name}): this run is a demonstration."]
    public = public if found.data_name else []
    if not found.finished:
        unfinished = (
            "Training still runs, or was interrupted: there is no release yet. The figures below are those "
            "of what was spent so far, and will grow. Make this page again when the run is done."
        )
        title = (
            "Not finished, and not for release" if because else "Not finished: nothing may be passed on yet"
        )
        return Status("stop" if because else "draft", title, (*because, unfinished, *said, *public))
    if because:
        no = "Neither the generator, nor images drawn from it, nor this page may be passed on."
        return Status("stop", "Not for release", (*because, no, *said, *public))
    decide = (
        "By its records, training kept to the limits below. Software cannot judge whether they are strict "
        "enough for these data, or whether the law allows a release: that is for the owner of the data (in a "
        "hospital the controller, with its data-protection officer)."
    )
    if doubts:
        return Status("draft", doubts[0][0], (*said, decide, *public))
    return Status("ready", "Technically ready for release; the decision is yours", (decide, *said, *public))


def cautions(found: Findings) -> tuple[tuple[str, str], ...]:
    """What speaks against passing it on although nothing forbids it: titles and sentences, worst first."""
    privacy, doubts = found.privacy, []
    if delta_is_large(found):
        doubts.append(
            (
                "Not protected as it should be: δ is too large",
                f"δ is {decimal(privacy.delta)}, and there are {_units(found)}: a δ of one "
                f"divided by their number, or more, would allow publishing one of them picked at random, "
                "whatever ε is. Train again with a far smaller one (--delta).",
            )
        )
    if found.finished and privacy.private and privacy.epsilon > WEAK:
        doubts.append(
            (
                "Technically ready for release, but the guarantee is weak",
                f"ε is {format_epsilon(privacy.epsilon)}: so large a privacy loss rules out little. "
                "The noise hides less than the word private suggests.",
            )
        )
    if found.ledger_missing:
        doubts.append(
            (
                "Technically ready for release, but its ledger was not found",
                "The ledger of this run was not found when this page was made. ε is what the release states; "
                "whether the same data were used again since, and what all uses cost together, is not known. "
                "Put the ledger back, or beside the run, and make this page again.",
            )
        )
    return tuple(doubts)


def _units(found: Findings) -> str:
    assert found.plan is not None
    facts = found.plan.facts
    return f"{facts.units:,} {facts.unit}s{'' if facts.size_is_public else ' (as declared)'}"
