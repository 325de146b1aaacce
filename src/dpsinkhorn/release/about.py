"""What a curator says of a release. All of it is public: it is in the release, its card and its report."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dpsinkhorn import _checks
from dpsinkhorn.errors import ReleaseError

__all__ = ["LABEL_SOURCES", "TRUST", "USUAL_TITLE", "About"]

USUAL_TITLE = "Private image generator"  # of a release that was given none
TRUST = (
    "Whoever trained it is trusted with the data: the records were read, and the noise added, on their "
    "machine. Nobody who receives the result has to be trusted."
)
"""The trust model, in a sentence or two."""

_LONGEST = {"title": 200, "description": 2000, "contact": 200}  # 500 for the others

LABEL_SOURCES = {
    "uniform": "every class equally often, so that synthetic labels are balanced whatever the data were",
    "stated": "classes in shares that the curator stated",
    "released": "classes in the shares of the data, which were released with noise; that is part of ε",
}
"""How the distribution of synthetic labels was set, and what to say of it."""


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
        for name in (field.name for field in dataclasses.fields(self)):
            longest = _LONGEST.get(name, 500)
            _checks.text(getattr(self, name), f"the {name.replace('_', ' ')}", ReleaseError, longest=longest)
        if not self.title.strip():
            raise ReleaseError("the title must not be empty; leave it out for the usual one")

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> About:
        """Return what is said under these names; what is missing or `None` is not said."""
        names = [field.name for field in dataclasses.fields(cls)]
        return cls(**{name: values[name] for name in names if values.get(name) is not None})
