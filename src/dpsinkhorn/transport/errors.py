"""The error of this part: one line, what is wrong and what to do."""

from __future__ import annotations

__all__ = ["TransportError"]


class TransportError(ValueError):
    """Points or settings that private transport cannot work with as they are."""
