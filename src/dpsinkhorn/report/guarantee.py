"""The guarantee in plain words, for someone who decides on it and never saw the project."""

from __future__ import annotations

import math
from dataclasses import dataclass

from dpsinkhorn.privacy.words import at_most_sure, factor_in_words, format_epsilon, one_in
from dpsinkhorn.release import PrivacyStatement
from dpsinkhorn.report.gather import Findings

__all__ = ["WEAK", "Guarantee", "adjacency_in_words", "decimal", "delta_is_large", "explain"]

_STRONG, _BORDER, WEAK = 1, 9, 10  # ε as researchers read it: Ponomareva and others, How to DP-fy ML, 2023
_BEFORE = ((0.0001, "1 in 10,000"), (0.01, "1 in 100"), (0.5, "1 in 2 (a coin flip)"))


@dataclass(frozen=True)
class Guarantee:
    """What the top of the page says."""

    unit_title: str
    unit_in_words: str
    adjacency: str
    epsilon: str
    delta: str
    delta_in_words: str
    factor: str
    twice_delta_in_words: str
    twice_factor: str
    """Odds grow by at most 2 e^ε, except with probability 2 δ: `privacy.words.at_most_sure` says why."""
    sure: tuple[tuple[str, str], ...]
    """Before, and at most after: how sure anyone can be that a record was in the data."""
    content: str
    """What holds of guesses about what a record shows."""
    reading: str
    """How strong such an ε is, as researchers read it."""
    delta_reading: str
    delta_is_large: bool
    noise_source: str
    """What must not be broken, or guessed."""
    not_covered: tuple[tuple[str, str], ...]
    """What it is about, and what there is to say."""


def explain(found: Findings) -> Guarantee | None:
    """The guarantee in words; `None` where there is none."""
    privacy = found.privacy
    if not privacy.private:
        return None
    unit, labelled = privacy.unit, found.plan is None or bool(found.plan.facts.classes)
    if found.release is not None:
        labelled = bool(found.release.classes)
    two, three = (privacy.group_epsilon(size) for size in (2, 3))
    return Guarantee(
        *_unit(unit, labelled, two),
        adjacency_in_words(privacy.adjacency, unit),
        format_epsilon(privacy.epsilon),
        decimal(privacy.delta),
        one_in(privacy.delta),
        factor_in_words(privacy.epsilon),
        one_in(min(1.0, 2 * privacy.delta)),
        factor_in_words(privacy.epsilon + math.log(2)),
        tuple((words, _percent(before, privacy.epsilon)) for before, words in _BEFORE),
        _content(privacy, two),
        _reading(found),
        *_delta_reading(found),
        "the cipher that supplied the random noise (ChaCha20) is not broken"
        if "ChaCha20" in privacy.noise
        else "nobody can predict the random numbers that the noise was made from",
        not_covered=_not_covered(found, two, three),
    )


def _unit(unit: str, labelled: bool, two: float) -> tuple[str, str]:
    if unit == "person":
        return (
            "One person, with all of their records",
            "A person is whoever the data give one name or number. Someone who has two counts as two.",
        )
    return (
        "One record, not one person",
        f"A record is one image{' with its label' if labelled else ''}. A person with one record is "
        f"protected as stated; with several, {_less(two)} (see below).",
    )


def _less(two: float) -> str:
    return "much less" if two > _STRONG else "less"


def _content(privacy: PrivacyStatement, two: float) -> str:
    """To change what a record shows is to remove one and add another: two steps under add or remove."""
    person = privacy.unit == "person"
    one, shows = (
        ("a person whose records show", "their records show")
        if person
        else ("a record that shows", "it shows")
    )
    if privacy.adjacency == "replace-one":
        return f"The same limit holds for any guess about what {shows}, such as a diagnosis."
    text = (
        f"The same limit holds for the guess that {one} a certain thing, such as a diagnosis, was among them."
    )
    if two == 0:  # nothing was used yet
        return text
    limit = f"ε is {format_epsilon(two)} for that" if math.isfinite(two) else "no limit is proved for that"
    return (
        f"{text} Someone who knows that a certain {privacy.unit} was there, and guesses which of two things "
        f"{shows}, is held back less: {limit}."
    )


def delta_is_large(found: Findings) -> bool:
    """Whether δ is at or above one divided by the number of units, where that is known."""
    return (
        found.privacy.private
        and found.plan is not None
        and found.privacy.delta * found.plan.facts.units >= 1 - 1e-9
    )


def _reading(found: Findings) -> str:
    privacy, epsilon = found.privacy, found.privacy.epsilon
    if delta_is_large(found):
        return f"That is for a small δ. Here ε is {format_epsilon(epsilon)}, but δ is too large to say so."
    if epsilon <= _STRONG:
        words = "strong"
    elif epsilon <= _BORDER:
        words = "reasonable"
    elif epsilon <= WEAK:
        words = "the upper end of what is still called reasonable, at the border to weak"
    else:
        words = "weak"
    text = f"Here ε is {format_epsilon(epsilon)}: {words}."
    if at_most_sure(0.5, epsilon) > 0.99:
        text += (
            " The table above shows why: the proved limit alone does not stop someone with a strong "
            "suspicion from becoming almost certain."
        )
    if privacy.unit == "record":
        text += " For a person with several records, read it at their ε (below)."
    return text


def _delta_reading(found: Findings) -> tuple[str, bool]:
    """δ beside the number of records: above one in that many it would allow to publish one of them."""
    if found.plan is None:
        return f"It should be far below one divided by the number of {found.privacy.unit}s.", False
    units, unit = found.plan.facts.units, found.privacy.unit
    if delta_is_large(found):
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


def _not_covered(found: Findings, two: float, three: float) -> tuple[tuple[str, str], ...]:
    """What is not guaranteed. The statement's own notes are part of it."""
    privacy = found.privacy
    return (
        _several(privacy, two, three),
        (
            "What counts as public.",
            " ".join((_size(found), *privacy.notes))
            + " What counts as public is not covered by the guarantee. If any of it is sensitive (a rare "
            "disease as the name of a class, a very small study), do not publish.",
        ),
        (
            "What is true of many.",
            "The generator is meant to learn what records have in common. That can also say something "
            "about people who are not among the data.",
        ),
        (
            "Whatever else is published from the same data.",
            "Further releases add to ε. Figures computed from private data, such as an evaluation, are not "
            "private at all.",
        ),
        (
            "Access to the machine or the run folder.",
            "Memory (the keys of the noise pass through it, and through a GPU’s where one is used), "
            "checkpoints, logs, and how long things took are not protected.",
        ),
        ("Truth.", "Generated images can be wrong, lopsided, or poor for small groups."),
    )


def _several(privacy: PrivacyStatement, two: float, three: float) -> tuple[str, str]:
    if two == 0:
        what = (
            "a person with several records" if privacy.unit == "record" else "several people taken together"
        )
        return ("Several at once.", f"Nothing was used yet. Once it is, {what} will be protected less.")
    limits = [
        f"ε is {format_epsilon(value)} at the same δ" if math.isfinite(value) else "no limit is proved"
        for value in (two, three)
    ]
    if privacy.unit == "person":
        return (
            "Groups of people.",
            f"The guarantee is for one person. For two taken together, a couple say, {limits[0]}; for three, "
            f"{limits[1]}.",
        )
    return (
        "Several records of one person.",
        f"If one person has several records here, that person is protected {_less(two)}: with two, "
        f"{limits[0]}; with three, {limits[1]}. Ask before publishing: does anyone have more than one? "
        "(Training with persons as the unit, by --groups, protects each with all of their records.)",
    )


def _size(found: Findings) -> str:
    privacy, facts = found.privacy, None if found.plan is None else found.plan.facts
    if facts is None:
        return (
            f"The number of {privacy.unit}s counts as public."
            if privacy.size_is_public
            else f"A number was declared in place of the number of {privacy.unit}s; that number is public."
        )
    if not facts.size_is_public:
        if facts.grouped:
            return (
                f"A number of persons was declared ({facts.units:,}; it stands for that of records too) and "
                "is public; the true ones are protected."
            )
        return (
            f"A number of records was declared ({facts.records:,}) and is public; the true one is protected."
        )
    persons = f"{facts.units:,} persons and " if facts.grouped else ""
    return f"This page gives the exact number: {persons}{facts.records:,} records."


def adjacency_in_words(adjacency: str, unit: str) -> str:
    """What is compared.

    >>> adjacency_in_words("replace-one", "person")
    'Replace one person'
    """
    verb = "Add or remove" if adjacency == "add-or-remove-one" else "Replace"
    return f"{verb} one {unit}"


def decimal(delta: float) -> str:
    """δ without an exponent where that can be read.

    >>> decimal(1e-5), decimal(1.5e-12)
    ('0.00001', '1.5e-12')
    """
    text = f"{delta:.12f}".rstrip("0")
    return text if float(text) == delta and len(text) <= 10 else f"{delta:g}"


def _percent(before: float, epsilon: float) -> str:
    """How sure one can be afterwards, rounded up, with as many digits as it takes to stay below 100 %."""
    against = (1 - before) * math.exp(-epsilon)
    doubt = 100 * against / (before + against)  # what is left of it, in per cent
    if doubt > 0.5:
        sure = 100 * at_most_sure(before, epsilon)
        digits = max(1, 1 - math.floor(math.log10(sure)))
        return f"{math.ceil(10**digits * sure - 1e-9) / 10**digits:.{digits}f} %"
    if doubt < 1e-9:
        return "100 % (certain: no limit)"
    digits = max(2, -math.floor(math.log10(doubt)))
    left = math.floor(doubt * 10**digits) / 10**digits
    text = f"{100 - left:.{digits}f} %"
    return text if doubt > 0.01 else f"{text} (practically certain: no useful limit)"
