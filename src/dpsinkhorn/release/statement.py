"""What a release says of itself: what it guarantees, how that was computed, and what the curator says of it.

All of it is public: it is in the release, its card and its report.
"""

from __future__ import annotations

import dataclasses
import math
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from dpsinkhorn import _checks
from dpsinkhorn.errors import ReleaseError
from dpsinkhorn.privacy import (
    ACCOUNTANTS,
    Accountant,
    Adjacency,
    Charge,
    compose,
    epsilon,
    format_epsilon,
    group_epsilon,
)

USUAL_TITLE = "Private image generator"
"""The title of a release that was given none."""
TRUST = (
    "Whoever trained it is trusted with the data: the records were read, and the noise added, on their "
    "machine. Nobody who receives the result has to be trusted."
)
"""The trust model, in a sentence or two."""

_LONGEST = {"description": 2000, "purpose": 500, "legal_basis": 500, "recipients": 500}  # of others 200

LABEL_SOURCES = {
    "uniform": "every class equally often, so that synthetic labels are balanced whatever the data were",
    "stated": "classes in shares that the curator stated",
    "released": "classes in the shares of the data, which were released with noise; that is part of ε",
}
"""How the distribution of synthetic labels was set, and what to say of it."""

UNITS = ("record", "person")
_INFINITE = "infinite"  # JSON has no infinity; null could be mistaken for nothing spent
_MOST_CHARGES = 10_000


@dataclass(frozen=True)
class PrivacyStatement:
    """What a release guarantees.

    >>> from dpsinkhorn.privacy import RecordMechanism, epsilon
    >>> training = RecordMechanism(clip=1.0, noise_multiplier=2.0).sampled(0.1, steps=100)
    >>> statement = PrivacyStatement(
    ...     epsilon=epsilon(training, 1e-5), delta=1e-5, mechanism="record", charges=[training.to_json()]
    ... )
    >>> statement.guarantee
    'ε = 2.339, δ = 1e-05'
    >>> PrivacyStatement.from_json(statement.to_json()) == statement
    True
    """

    epsilon: float
    """Infinite where nothing is guaranteed."""
    delta: float
    mechanism: str
    """Where clipping and noise stood: the name of a mechanism, such as record; or none."""
    charges: Sequence[Mapping[str, Any]]
    """Everything that was done to the private data, as `Charge.to_json` writes it."""
    adjacency: str = Adjacency.ADD_OR_REMOVE_ONE.value
    unit: str = "record"
    """Who is protected: each record, or each person with all of their records."""
    accountant: str = "pld"
    ledger_digest: str | None = None
    published_epsilon: float | None = None
    """The papers' own count for the mechanism `image`; not a guarantee."""
    size_is_public: bool = True
    """Whether the number of records (or persons) counts as known to everyone."""
    noise: str = ""
    """What the noise was drawn from."""
    seeded: bool = False
    """Whether noise or sampling can be replayed from a seed: then the release guarantees nothing."""
    notes: Sequence[str] = ()
    steps_charged: int | None = None
    """Steps of the training that ε counts; None where it had none, or nobody knows."""
    steps_kept: int | None = None
    """Of these, the steps that were learnt from: a crash loses some. None where that is not public."""

    def __post_init__(self) -> None:
        charges = tuple(charge.to_json() if isinstance(charge, Charge) else charge for charge in self.charges)
        object.__setattr__(self, "charges", charges)
        object.__setattr__(self, "notes", tuple(self.notes))
        _check_epsilon(self.epsilon, "epsilon")
        if self.published_epsilon is not None:
            _check_epsilon(self.published_epsilon, "published_epsilon")
        _checks.number(self.delta, "delta", ReleaseError, least=0, most=math.nextafter(1, 0))
        adjacencies = [adjacency.value for adjacency in Adjacency]
        _checks.choice(self.adjacency, "adjacency", ReleaseError, choices=adjacencies)
        _checks.choice(self.unit, "unit", ReleaseError, choices=UNITS)
        _checks.choice(self.accountant, "accountant", ReleaseError, choices=ACCOUNTANTS)
        _checks.text(self.mechanism, "mechanism", ReleaseError, longest=100)
        _checks.truth(self.size_is_public, "size_is_public", ReleaseError)
        _checks.truth(self.seeded, "seeded", ReleaseError)
        for text in (self.noise, *self.notes):
            _checks.text(text, "noise, and each of the notes,", ReleaseError)
        for name in ("steps_charged", "steps_kept"):
            if (steps := getattr(self, name)) is not None:
                _checks.whole(steps, name, ReleaseError, least=0, most=2**63)
        digest = self.ledger_digest
        if digest is not None and not (
            isinstance(digest, str) and len(digest) == 64 and set(digest) <= set(string.hexdigits.lower())
        ):
            raise ReleaseError("ledger_digest must be 64 hexadecimal digits")
        if len(charges) > _MOST_CHARGES:
            raise ReleaseError(f"a statement has at most {_MOST_CHARGES} charges")
        self._parsed()

    @property
    def private(self) -> bool:
        """Whether an ε is guaranteed at all."""
        return math.isfinite(self.epsilon)

    @property
    def guarantee(self) -> str:
        """ε and δ in a few words; ε is rounded up."""
        if not self.private:
            return "not private: no ε is guaranteed"
        return f"ε = {format_epsilon(self.epsilon)}, δ = {self.delta:g}"

    @property
    def lost_steps(self) -> str | None:
        """How many steps were charged and kept, in a sentence, where a crash lost some; else None."""
        charged, kept = self.steps_charged, self.steps_kept
        if charged is None or kept is None or kept >= charged:
            return None
        return f"Steps charged {charged:,}, steps kept {kept:,}: a crash lost the others, and ε counts them."

    @property
    def releasable(self) -> bool:
        """Whether what this describes may leave the curator's hands."""
        return not self.objections

    @property
    def summary(self) -> str:
        """The statement in one sentence, for a person."""
        text = f"{self.guarantee}, for each {self.unit} ({self.adjacency}, {self.accountant})"
        return f"{text}; but {', and '.join(self.objections)}" if self.objections else text

    @property
    def objections(self) -> tuple[str, ...]:
        """Why what this describes must not leave the curator's hands; none for a sound private release."""
        found = []
        if not self.private:
            found.append("it was trained without privacy and may reproduce private records")
        if self.seeded:
            found.append("its noise came from a seed: who knows it, or has another run of it, can remove it")
        return tuple(found)

    def recomputed_epsilon(self) -> float:
        """Compute ε afresh from the charges, by the accountant that the statement names."""
        return epsilon(self.total(), self.delta, cast(Accountant, self.accountant))

    def group_epsilon(self, size: int) -> float:
        """Return ε at the same δ for so many records of one person; persons, where these are the unit."""
        return group_epsilon(self.total(), self.delta, size, cast(Accountant, self.accountant))

    def total(self) -> Charge:
        """Return all charges as one."""
        return compose(*self._parsed(), adjacency=Adjacency(self.adjacency))

    def _parsed(self) -> tuple[Charge, ...]:
        try:
            return tuple(Charge.from_json(dict(charge)) for charge in self.charges)
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
            raise ReleaseError("the charges of the privacy statement are not what training writes") from None

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values; an infinite ε is the text `infinite`."""
        value = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        for name in ("epsilon", "published_epsilon"):
            value[name] = _INFINITE if value[name] == math.inf else value[name]
        value["charges"] = [dict(charge) for charge in self.charges]
        value["notes"] = list(self.notes)
        return value

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> PrivacyStatement:
        """Read back `to_json`; anything else raises `ReleaseError`."""
        expected = [field.name for field in dataclasses.fields(cls)]
        _checks.keys(value, "the privacy statement", ReleaseError, expected=expected)
        for name in ("charges", "notes"):
            if not isinstance(value[name], list):
                raise ReleaseError(f"{name} of the privacy statement must be a list")
        numbers = {name: _number_from_json(value[name], name) for name in ("epsilon", "delta")}
        published = value["published_epsilon"]
        published = published and _number_from_json(published, "published_epsilon")
        return cls(**{**value, **numbers, "published_epsilon": published})


def _number_from_json(value: Any, name: str) -> float:
    return math.inf if value == _INFINITE else _checks.number(value, name, ReleaseError)


def _check_epsilon(value: Any, name: str) -> None:
    if value != math.inf and _checks.number(value, name, ReleaseError) < 0:
        raise ReleaseError(f"{name} must be from 0 upwards")


@dataclass(frozen=True)
class About:
    """Title, description, purpose and the like: one line each, by the curator's own words.

    >>> About(title="Chest X-rays", purpose="teaching").purpose
    'teaching'
    >>> About(title="two\\nlines")
    Traceback (most recent call last):
    dpsinkhorn.errors.ReleaseError: the title must be one line of at most 200 printable characters
    """

    title: str = USUAL_TITLE
    description: str = ""
    purpose: str = ""
    contact: str = ""
    legal_basis: str = ""
    recipients: str = ""

    def __post_init__(self) -> None:
        for name, said in vars(self).items():
            what, longest = f"the {name.replace('_', ' ')}", _LONGEST.get(name, 200)
            _checks.text(said, what, ReleaseError, longest=longest)
        if not self.title.strip():
            raise ReleaseError("the title must not be empty; leave it out for the usual one")

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> About:
        """Return what is said under these names; what is missing or `None` is not said."""
        names = [field.name for field in dataclasses.fields(cls)]
        return cls(**{name: values[name] for name in names if values.get(name) is not None})
