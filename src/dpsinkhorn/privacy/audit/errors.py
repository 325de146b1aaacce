"""What can be wrong with a request for an audit."""

from __future__ import annotations

__all__ = ["AuditError"]


class AuditError(ValueError):
    """An audit cannot be made of what was given."""
