"""What can be wrong with a training that was asked for."""

from __future__ import annotations

__all__ = ["TrainingError"]


class TrainingError(ValueError):
    """A training that cannot be done as asked: what is wrong and what to do, in one line."""
