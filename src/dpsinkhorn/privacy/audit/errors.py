"""What can be wrong with a request for an audit."""

from dpsinkhorn.errors import DPSinkhornError

__all__ = ["AuditError"]


class AuditError(DPSinkhornError, ValueError):
    """An audit cannot be made of what was given."""
