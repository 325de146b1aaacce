"""The guarantee in plain words, for someone who decides on it and never saw the project."""

from __future__ import annotations

import math
from dataclasses import dataclass

from dpsinkhorn.privacy.words import at_most_sure, factor_in_words, one_in
from dpsinkhorn.release import PrivacyStatement, format_epsilon
from dpsinkhorn.report.gather import Findings

__all__ = ["Guarantee", "Status", "decimal", "explain", "status_of"]

_STRONG, _WEAK = 1, 10  # ε as researchers read it: Ponomareva and others, How to DP-fy ML, 2023
_BEFORE = ((0.0001, "1 in 10,000"), (0.01, "1 in 100"), (0.5, "1 in 2 (a coin flip)"))


@dataclass(frozen=True)
class Status:
    """Whether this may be passed on, in the banner at the top."""

    kind: str
    """`ok`, `draft` (wait, or think twice) or `stop`."""
    title: str
    sentences: tuple[str, ...]


@dataclass(frozen=True)
class Guarantee:
    """What the top of the page says."""

    unit: str
    """`record` or `person`."""
    unit_in_words: str
    adjacency: str
    epsilon: str
    delta: str
    delta_in_words: str
    factor: str
    reading: str
    """How strong such an ε is, as researchers read it."""
    sure: tuple[tuple[str, str], ...]
    """Before, and at most after: how sure anyone can be that a record was in the data."""
    delta_reading: str
    delta_is_large: bool
    not_covered: tuple[tuple[str, str], ...]
    """What it is about, and what there is to say."""


def status_of(found: Findings) -> Status:
    """May it be passed on?"""
    reasons = found.privacy.objections
    if found.finished and not found.releasable and not reasons:
        reasons = ("whoever made it said so",)
    because = tuple(f"{reason[0].upper()}{reason[1:]}." for reason in reasons)
    if not found.finished:
        unfinished = (
            "Training still runs, or was interrupted: there is no release yet. The figures below are those "
            "of what was spent so far, and will grow. Make this page again when the run is done."
        )
        if because:
            return Status("stop", "Not finished, and not for release", (*because, unfinished))
        return Status("draft", "Not finished: nothing may be passed on yet", (unfinished,))
    if because:
        return Status(
            "stop",
            "Not for release",
            (*because, "Neither the generator, nor images drawn from it, nor this page may be passed on."),
        )
    decide = "Whether the guarantee is strong enough for these data is for those responsible to decide."
    if found.privacy.epsilon > _WEAK:
        weak = (
            f"ε is {format_epsilon(found.privacy.epsilon)}: so large a privacy loss rules out little. "
            "The noise hides less than the word private suggests."
        )
        return Status("draft", "May be released, but the guarantee is weak", (weak, decide))
    return Status(
        "ok",
        "May be released, under the guarantee below",
        (f"Training was differentially private: the release and this page may be passed on. {decide}",),
    )


def explain(found: Findings) -> Guarantee | None:
    """The guarantee in words; `None` where there is none."""
    privacy = found.privacy
    if not privacy.private:
        return None
    unit, labelled = privacy.unit, found.plan is None or bool(found.plan.facts.classes)
    if found.release is not None:
        labelled = bool(found.release.classes)
    record = "an image together with its label" if labelled else "an image"
    verb = "Add or remove" if privacy.adjacency == "add-or-remove-one" else "Replace"
    return Guarantee(
        unit,
        f"one record: {record}" if unit == "record" else "one person, with all of their records",
        f"{verb} one {unit}",
        format_epsilon(privacy.epsilon),
        decimal(privacy.delta),
        one_in(privacy.delta),
        factor_in_words(privacy.epsilon),
        _reading(privacy.epsilon),
        tuple((words, _percent(at_most_sure(before, privacy.epsilon))) for before, words in _BEFORE),
        *_delta_reading(found),
        not_covered=_not_covered(privacy),
    )


def _reading(epsilon: float) -> str:
    if epsilon <= _STRONG:
        return "strong protection"
    return "reasonable protection" if epsilon <= _WEAK else "weak protection"


def _delta_reading(found: Findings) -> tuple[str, bool]:
    """δ beside the number of records: above one in that many it would allow to publish one of them."""
    if found.plan is None:
        return "It should be far below one divided by the number of records.", False
    units, unit = found.plan.facts.units, found.privacy.unit
    if found.privacy.delta >= 1 / units:
        return (
            f"That is too much: there are {units:,} {unit}s, and such a δ would allow publishing one of them "
            "picked at random. It should be far below one divided by their number.",
            True,
        )
    times = math.floor(1 / units / found.privacy.delta)
    below = f"{times:,} times below" if times > 1 else "just below"
    return (
        f"It should be far below one divided by the number of {unit}s. Here there are {units:,}, and δ is "
        f"{below} that.",
        False,
    )


def _not_covered(privacy: PrivacyStatement) -> tuple[tuple[str, str], ...]:
    """What is not guaranteed. The statement's own notes are part of it."""
    several = (
        (
            "Several records of one person.",
            "The guarantee is for one record. Someone with k records among the data has about k times the ε "
            f"(for three records {format_epsilon(3 * privacy.epsilon)}), and a larger δ.",
        )
        if privacy.unit == "record"
        else (
            "Groups of people.",
            "The guarantee is for one person. A family of k has about k times the ε, and a larger δ.",
        )
    )
    size = (
        f"The number of {privacy.unit}s counts as public."
        if privacy.size_is_public
        else f"A number was declared in place of the number of {privacy.unit}s; that number is public."
    )
    return (
        (
            "What is true of many.",
            "The generator is meant to learn what records have in common. That can also say something "
            "about people who are not among the data.",
        ),
        several,
        ("What counts as public.", " ".join((size, *privacy.notes))),
        (
            "Whatever else is published from the same data.",
            "Further releases add to ε. Figures computed from private data, such as an evaluation, are not "
            "private at all.",
        ),
        (
            "Access to the machine or the run folder.",
            "Checkpoints, logs, and how long things took are not protected.",
        ),
        ("Truth.", "Generated images can be wrong, lopsided, or poor for small groups."),
    )


def decimal(delta: float) -> str:
    """δ without an exponent where that can be read.

    >>> decimal(1e-5), decimal(1.5e-12)
    ('0.00001', '1.5e-12')
    """
    text = f"{delta:.12f}".rstrip("0")
    return text if float(text) == delta and len(text) <= 10 else f"{delta:g}"


def _percent(probability: float) -> str:
    """Rounded up; never 100."""
    if probability > 0.9999:
        return "more than 99.99 %"
    return (
        f"{math.ceil(probability * 1000 - 1e-9) / 10:.1f} %"
        if probability < 0.995
        else (f"{math.ceil(probability * 10000 - 1e-9) / 100:.2f} %")
    )
