"""The error of this part: one line, what is wrong and what to do."""

from dpsinkhorn.errors import DPSinkhornError

__all__ = ["TransportError"]


class TransportError(DPSinkhornError, ValueError):
    """Points or settings that private transport cannot work with as they are."""
