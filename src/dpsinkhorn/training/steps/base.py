"""What takes the steps of a training."""

from __future__ import annotations

from typing import Protocol

__all__ = ["Steps"]


class Steps(Protocol):
    """Takes steps that were paid for."""

    multiple: int
    """Steps come in multiples of this, up to the horizon: randomness is drawn for as many at a time."""

    @property
    def way(self) -> str:
        """In words. A seeded run replays where its steps are taken in the same way."""
        ...

    def take(self, count: int) -> None:
        """Take `count` steps, and advance the training state by as many.

        Args:
            count: a multiple of `multiple`, or what is left to the horizon.
        """
        ...
