"""What can be wrong with a training that was asked for."""

from dpsinkhorn.errors import DPSinkhornError

__all__ = ["TrainingError"]


class TrainingError(DPSinkhornError, ValueError):
    """A training that cannot be done as asked: what is wrong and what to do, in one line."""
