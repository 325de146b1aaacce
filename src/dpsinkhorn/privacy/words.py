"""Privacy in plain words, for people who decide: ε, δ, whom a run protects, and what counts as public."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable

from dpsinkhorn.privacy.charges import Adjacency

_WHOM = {"record": "any one record", "person": "any one person, with all their records,"}
_CHANGES = {
    Adjacency.ADD_OR_REMOVE_ONE.value: "Adding or removing {whom} changes",
    Adjacency.REPLACE_ONE.value: "Replacing {whom} by another changes",
}
_LONGEST_FACTOR = 1e9  # above it digits say less than a power of ten

_RUN_NAME = re.compile(r"-(record|person)-[0-9a-f]{8}$")

PUBLIC_FACTS = (
    "how many records (or points) there are, and how many persons where persons are named, unless a number "
    "is declared (--records)",
    "the classes, how many they are and their names; unless they are stated (--classes), also that each of "
    "them has a record",
    "the shape of an image or a point, and the layout of the file: its format, the types of its numbers, the "
    "names of its columns, arrays and folders",
    "the range of the pixels, the bound of a cost, and all other settings",
    "that the data passed the checks of the reader",
)
"""What every statement counts as public."""


def meaning(
    epsilon: float, delta: float, *, unit: str = "record", adjacency: str = Adjacency.ADD_OR_REMOVE_ONE.value
) -> str:
    """Say what a guarantee means, in one sentence.

    >>> print(meaning(1.0, 1e-5))
    Adding or removing any one record changes the probability of anything that can be done with the release
    by a factor of at most 2.72 (e^epsilon), plus a probability of at most 1e-05 (delta).
    """
    changes = _CHANGES[adjacency].format(whom=_WHOM[unit])
    return (
        f"{changes} the probability of anything that can be done with the release by a factor of at most "
        f"{factor_in_words(epsilon)} (e^epsilon), plus a probability of at most {delta:g} (delta)."
    )


def format_epsilon(value: float, digits: int = 4) -> str:
    """ε in at most four digits, or so many, rounded up: what is printed is never less than what was spent.

    >>> format_epsilon(9.99601), format_epsilon(10.0), format_epsilon(0.12341), format_epsilon(845.21)
    ('9.997', '10', '0.1235', '845.3')
    >>> format_epsilon(2.1524712, digits=6)
    '2.15248'
    """
    return _rounded(value, digits, upwards=True)


def format_lower_bound(value: float, digits: int = 4) -> str:
    """Return what an audit shows ε to be at least, in at most four digits, rounded down.

    >>> format_lower_bound(4.38179), format_lower_bound(0.0), format_lower_bound(2.0)
    ('4.381', '0', '2')
    """
    return _rounded(value, digits, upwards=False)


def _rounded(value: float, digits: int, *, upwards: bool) -> str:
    if not math.isfinite(value) or value == 0:
        return f"{value:g}"
    text = f"{value:.{digits}g}"
    if float(text) < value if upwards else float(text) > value:
        last = 10.0 ** (math.floor(math.log10(abs(value))) + 1 - digits)
        text = f"{float(text) + (last if upwards else -last):.{digits}g}"
    return text


def factor_in_words(epsilon: float) -> str:
    """Return e^ε as people read it; rounded up, so that it is never less than what holds.

    >>> factor_in_words(0.5), factor_in_words(3), factor_in_words(10), factor_in_words(845)
    ('1.65', '20.1', '22,100', '10^367')
    """
    if epsilon > math.log(_LONGEST_FACTOR):
        return f"10^{math.ceil(epsilon / math.log(10))}" if math.isfinite(epsilon) else "infinity"
    factor = math.exp(epsilon)
    step = 10.0 ** (math.floor(math.log10(factor)) - 2)
    rounded = math.ceil(factor / step - 1e-9) * step
    return f"{rounded:,.0f}" if rounded >= 100 else f"{rounded:.3g}"


def one_in(probability: float) -> str:
    """Return a small probability as `1 in so many`; never made smaller than it is."""
    return f"1 in {math.floor(1 / probability + 1e-6):,}" if probability > 0 else "0"


def at_most_sure(before: float, epsilon: float) -> float:
    """Return the surest that anyone can become that a record is in the data, who thought so with `before`.

    Bayes' rule: ε-differential privacy multiplies the odds by at most e^ε. δ is not the probability that they
    grow by more: for the privacy loss L, (ε, δ) bounds E[(1 - e^(ε - L))_+] by δ, and L > ε can be likelier
    than that. Where L > ε + log 2, what is averaged is above 1/2; so odds grow by more than 2 e^ε, that is
    to above `at_most_sure(before, epsilon + log 2)`, with a probability of at most 2 δ.
    """
    return before / (before + (1 - before) * math.exp(-epsilon))


def new_run_name(title: str, unit: str) -> str:
    """Return a name for a run on a ledger: unlike any other, and it says whom the run protects."""
    return f"{title}-{unit}-{os.urandom(4).hex()}"


def unit_conflict(runs: Iterable[str], unit: str) -> str | None:
    """Return why a run that protects this unit cannot go with the runs of a ledger; None where it can.

    ε for records says nothing of a person with several. Whoever is protected as a person is as a record, so
    that a charge of which nobody knows whom it protects goes with records, and only with them.

    >>> unit_conflict(["a-person-01234567", "b"], "person")
    "has charges of 'b', of which it is not known whether they protect a person or a record"
    >>> unit_conflict(["a-person-01234567"], "record")
    'is of runs that protect each person'
    """
    for name in runs:
        known = _RUN_NAME.search(name)
        if known is None and unit == "person":
            return (
                f"has charges of {name!r}, of which it is not known whether they protect a person or a record"
            )
        if known is not None and known[1] != unit:
            return f"is of runs that protect each {known[1]}"
    return None


def public_facts_sentence() -> str:
    """Return the list as a sentence.

    >>> public_facts_sentence().startswith("These count as public: how many records")
    True
    """
    return f"These count as public: {'; '.join(PUBLIC_FACTS)}."
