"""What can go wrong when an experiment is repeated."""

from dpsinkhorn.errors import DPSinkhornError

__all__ = ["ReproductionError"]


class ReproductionError(DPSinkhornError, ValueError):
    """One line that says what is wrong and what to do."""
