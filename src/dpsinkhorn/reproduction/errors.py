"""What can go wrong when an experiment is repeated."""

from __future__ import annotations

__all__ = ["ReproductionError"]


class ReproductionError(ValueError):
    """One line that says what is wrong and what to do."""
