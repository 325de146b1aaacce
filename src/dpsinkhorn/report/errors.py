"""Errors of the report."""

from dpsinkhorn.errors import DPSinkhornError

__all__ = ["ReportError"]


class ReportError(DPSinkhornError, ValueError):
    """What is wrong and what to do, in one line."""
