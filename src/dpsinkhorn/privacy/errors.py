"""Named errors of the privacy core. All are `ValueError`s: the request, not the machine, is at fault."""

from __future__ import annotations

__all__ = ["CalibrationError", "MixedAdjacencyError", "UnsupportedEventError"]


class MixedAdjacencyError(ValueError):
    """Charges under different adjacencies were added up without a conversion."""


class UnsupportedEventError(ValueError):
    """The accountant has no proved bound for an event."""


class CalibrationError(ValueError):
    """No value of the free setting meets the budget."""
