"""What counts as public: the one list, which releases, README, SECURITY and the guide to data all have."""

from __future__ import annotations

__all__ = ["PUBLIC_FACTS", "public_facts_sentence"]

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
"""Facts about private data that no guarantee covers."""


def public_facts_sentence() -> str:
    """Return the list as a sentence.

    >>> public_facts_sentence().startswith("These count as public: how many records")
    True
    """
    return f"These count as public: {'; '.join(PUBLIC_FACTS)}."
