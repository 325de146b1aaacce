"""The error of this part: one line, what is wrong and what to do."""

from __future__ import annotations

__all__ = ["EvaluationError"]


class EvaluationError(ValueError):
    """Images or settings that cannot be evaluated as they are."""
