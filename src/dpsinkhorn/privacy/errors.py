"""Named errors of the privacy core. All are `ValueError`s: the request, not the machine, is at fault."""

from dpsinkhorn.errors import DPSinkhornError

__all__ = ["CalibrationError", "MixedAdjacencyError", "UnsupportedEventError"]


class MixedAdjacencyError(DPSinkhornError, ValueError):
    """Charges under different adjacencies were added up without a conversion."""


class UnsupportedEventError(DPSinkhornError, ValueError):
    """The accountant has no proved bound for an event."""


class CalibrationError(DPSinkhornError, ValueError):
    """No value of the free setting meets the budget."""
