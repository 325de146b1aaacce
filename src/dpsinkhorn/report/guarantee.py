"""The figures of the guarantee, for the words in the page's template; and the banner."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from dpsinkhorn.privacy.words import at_most_sure, factor_in_words, format_epsilon, one_in
from dpsinkhorn.report.gather import Findings

# ε as researchers read it: Ponomareva and others, How to DP-fy ML, 2023
_STRONG, _WEAK = 1, 10
_STRENGTHS = (
    (_STRONG, "strong"),
    (9, "reasonable"),
    (_WEAK, "the upper end of what is still called reasonable, at the border to weak"),
    (math.inf, "weak"),
)
_FEW = 100  # units below which noise that hides one of them hides nearly all there is to see
_BEFORE = ((0.0001, "1 in 10,000"), (0.01, "1 in 100"), (0.5, "1 in 2 (a coin flip)"))


def explain(found: Findings) -> dict[str, Any] | None:
    """Return the figures of the guarantee, as its words need them; `None` where there is none."""
    privacy = found.privacy
    if not privacy.private:
        return None
    two, three = (privacy.group_epsilon(size) for size in (2, 3))
    allowed = None if found.plan is None else 1 / found.plan.facts.units
    return {
        "epsilon": format_epsilon(privacy.epsilon),
        "delta": decimal(privacy.delta),
        "delta_in_words": one_in(privacy.delta),
        "factor": factor_in_words(privacy.epsilon),
        # odds grow by at most 2 e^ε, except with probability 2 δ: `privacy.words.at_most_sure` says why
        "twice_delta_in_words": one_in(min(1.0, 2 * privacy.delta)),
        "twice_factor": factor_in_words(privacy.epsilon + math.log(2)),
        "sure": [(words, _percent(before, privacy.epsilon)) for before, words in _BEFORE],
        "strength": next(words for most, words in _STRENGTHS if privacy.epsilon <= most),
        "almost_certain": at_most_sure(0.5, privacy.epsilon) > 0.99,
        "delta_is_large": _delta_is_large(found),
        "times_below": None if allowed is None else math.floor(allowed / privacy.delta),
        "unused": two == 0,
        "less": "much less" if two > _STRONG else "less",
        # of two and of three together; `None` where no limit is proved
        "together": [format_epsilon(value) if math.isfinite(value) else None for value in (two, three)],
    }


def _delta_is_large(found: Findings) -> bool:
    """Whether δ is at or above one divided by the number of units, where that is known."""
    return (
        found.privacy.private
        and found.plan is not None
        and found.privacy.delta * found.plan.facts.units >= 1 - 1e-9
    )


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
