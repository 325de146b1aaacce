"""The guarantee in plain words, for someone who decides on it and never saw the project; and the banner."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from dpsinkhorn.privacy.words import at_most_sure, factor_in_words, format_epsilon, one_in
from dpsinkhorn.release import PrivacyStatement
from dpsinkhorn.report.gather import Findings

_STRONG, _BORDER, _WEAK = 1, 9, 10  # ε as researchers read it: Ponomareva and others, How to DP-fy ML, 2023
_FEW = 100  # units below which noise that hides one of them hides nearly all there is to see
_BEFORE = ((0.0001, "1 in 10,000"), (0.01, "1 in 100"), (0.5, "1 in 2 (a coin flip)"))


def explain(found: Findings) -> dict[str, Any] | None:
    """The guarantee in words, for the top of the page; `None` where there is none."""
    privacy = found.privacy
    if not privacy.private:
        return None
    two, three = (privacy.group_epsilon(size) for size in (2, 3))
    return {
        "epsilon": format_epsilon(privacy.epsilon),
        "delta": decimal(privacy.delta),
        "delta_in_words": one_in(privacy.delta),
        "factor": factor_in_words(privacy.epsilon),
        # odds grow by at most 2 e^ε, except with probability 2 δ: `privacy.words.at_most_sure` says why
        "twice_delta_in_words": one_in(min(1.0, 2 * privacy.delta)),
        "twice_factor": factor_in_words(privacy.epsilon + math.log(2)),
        "sure": [(words, _percent(before, privacy.epsilon)) for before, words in _BEFORE],
        "content": _content(privacy, two),
        "reading": _reading(found),
        "delta_reading": _delta_reading(found),
        "delta_is_large": _delta_is_large(found),
        "noise_source": "the cipher that supplied the random noise (ChaCha20) is not broken"
        if "ChaCha20" in privacy.noise
        else "nobody can predict the random numbers that the noise was made from",
        "less": _less(two),
        "several": _several(privacy, two, three),
        "public": " ".join((_size(found), *privacy.notes)),
    }


def _less(two: float) -> str:
    return "much less" if two > _STRONG else "less"


def _content(privacy: PrivacyStatement, two: float) -> str:
    """To change what a record shows is to remove one and add another: two steps under add or remove."""
    one, shows = "a record that shows", "it shows"
    if privacy.unit == "person":
        one, shows = "a person whose records show", "their records show"
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


def _delta_is_large(found: Findings) -> bool:
    """Whether δ is at or above one divided by the number of units, where that is known."""
    return (
        found.privacy.private
        and found.plan is not None
        and found.privacy.delta * found.plan.facts.units >= 1 - 1e-9
    )


def _reading(found: Findings) -> str:
    epsilon, shown = found.privacy.epsilon, format_epsilon(found.privacy.epsilon)
    if _delta_is_large(found):
        return f"That is for a small δ. Here ε is {shown}, but δ is too large to say so."
    words = "weak"
    if epsilon <= _STRONG:
        words = "strong"
    elif epsilon <= _BORDER:
        words = "reasonable"
    elif epsilon <= _WEAK:
        words = "the upper end of what is still called reasonable, at the border to weak"
    text = f"Here ε is {shown}: {words}."
    if at_most_sure(0.5, epsilon) > 0.99:
        text += (
            " The table above shows why: the proved limit alone does not stop someone with a strong "
            "suspicion from becoming almost certain."
        )
    if found.privacy.unit == "record":
        text += " For a person with several records, read it at their ε (below)."
    return text


def _delta_reading(found: Findings) -> str:
    """δ beside the number of records: above one in that many it would allow to publish one of them."""
    unit = found.privacy.unit
    should = f"It should be far below one divided by the number of {unit}s."
    if found.plan is None:
        return should
    units = found.plan.facts.units
    if _delta_is_large(found):
        return (
            f"That is too much: there are {units:,} {unit}s, and such a δ would allow publishing one of them "
            f"picked at random. {should}"
        )
    times = math.floor(1 / units / found.privacy.delta)
    below = f"{times:,} times below" if times > 1 else "just below"
    return f"{should} Here there are {units:,}, and δ is {below} that."


def _several(privacy: PrivacyStatement, two: float, three: float) -> tuple[str, str]:
    """A heading, and what holds of several records or persons together."""
    person = privacy.unit == "person"
    if two == 0:
        what = "several people taken together" if person else "a person with several records"
        return "Several at once.", f"Nothing was used yet. Once it is, {what} will be protected less."
    limits = [
        f"ε is {format_epsilon(value)} at the same δ" if math.isfinite(value) else "no limit is proved"
        for value in (two, three)
    ]
    if person:
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
        if privacy.size_is_public:
            return f"The number of {privacy.unit}s counts as public."
        return f"A number was declared in place of the number of {privacy.unit}s; that number is public."
    if facts.size_is_public:
        persons = f"{facts.units:,} persons and " if facts.grouped else ""
        return f"This page gives the exact number: {persons}{facts.records:,} records."
    if facts.grouped:
        return (
            f"A number of persons was declared ({facts.units:,}; it stands for that of records too) and "
            "is public; the true ones are protected."
        )
    return f"A number of records was declared ({facts.records:,}) and is public; the true one is protected."


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


# ---- whether a release may be passed on, as far as software can tell


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
    if _delta_is_large(found):
        doubts.append(
            (
                "Not protected as it should be: δ is too large",
                f"δ is {decimal(privacy.delta)}, and there are {_units(found)}: a δ of one "
                f"divided by their number, or more, would allow publishing one of them picked at random, "
                "whatever ε is. Train again with a far smaller one (--delta).",
            )
        )
    if found.finished and privacy.private and privacy.epsilon > _WEAK:
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
