"""Errors of the report."""

from __future__ import annotations

__all__ = ["ReportError"]


class ReportError(ValueError):
    """What is wrong and what to do, in one line."""
