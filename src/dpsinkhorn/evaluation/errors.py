"""The error of this part: one line, what is wrong and what to do."""

from dpsinkhorn.errors import DPSinkhornError

__all__ = ["EvaluationError"]


class EvaluationError(DPSinkhornError, ValueError):
    """Images or settings that cannot be evaluated as they are."""
