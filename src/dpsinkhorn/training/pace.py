"""When a run looks at its ledger, writes a checkpoint, draws a picture: so rarely that it costs little."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

from dpsinkhorn.training.account import Account
from dpsinkhorn.training.trainer import Block

_REST = 100  # times as long as it took, until something is done again
_CHECKPOINT_REST = 30  # likewise, for a checkpoint, since a crash costs more than a picture
_LONGEST_REST = 60.0  # seconds without a checkpoint, even where the disk is slow


@dataclass(frozen=True)
class Saving:
    """How often a run writes things down. None of it changes what is learnt, or ε."""

    checkpoint_seconds: float | None = None
    """Between checkpoints. By default they come from the first block on, as often as takes 3 % of the time,
    and at least every minute."""
    picture_steps: int = 500
    """Between pictures, at least: they are fewer where they would cost time. 0: none while training."""


class Pace:
    """When the next of each is due, in a run that stands at `step`."""

    def __init__(self, account: Account, saving: Saving, step: int) -> None:
        self._account = account
        self._saving = saving
        self._looks, self._drawing = _Sparingly(_REST), _Sparingly(_REST)
        self._saves = _Sparingly(_CHECKPOINT_REST)
        self._seen = step - 1
        self._pictures = self._pictures_by(step)
        self.spent = 0.0
        """No less than ε of all that was on record after the last block."""

    def look(self, block: Block) -> float | None:
        """ε of all that is on record; None while it is not worth computing, since `spent` is above it.

        Between looks `spent` is ε at a step ahead, as far as the run will come until the next one.
        """
        final = block.step >= block.horizon
        if not (final or block.step > self._seen or self._looks.due):
            return None
        ahead = int(1.5 * self._looks.rest * block.steps / max(block.seconds, 1e-9))
        self._seen = min(block.step + ahead, block.horizon)
        with self._looks.done():
            found = self._account.epsilon_by(block.step)
            self.spent = self._account.epsilon_by(self._seen) if self._seen > block.step else found
        return found

    def checkpoint_due(self) -> bool:
        """Whether it is time for one."""
        seconds = self._saving.checkpoint_seconds
        return self._saves.rested(min(self._saves.rest, _LONGEST_REST) if seconds is None else seconds)

    def checkpoint(self) -> AbstractContextManager[None]:
        """Within it a checkpoint is written."""
        return self._saves.done()

    def picture_due(self, step: int) -> bool:
        """Whether there were enough steps since the last one, and enough time."""
        return self._pictures_by(step) > self._pictures and self._drawing.due

    @contextmanager
    def picture(self, step: int) -> Iterator[None]:
        """Within it a picture is drawn."""
        with self._drawing.done():
            yield
        self._pictures = self._pictures_by(step)

    def _pictures_by(self, step: int) -> int:
        return step // self._saving.picture_steps if self._saving.picture_steps else 0


class _Sparingly:
    """What must not take more than a small part of the time."""

    def __init__(self, times: float) -> None:
        self._times, self._last, self.rest = times, time.monotonic(), 0.0

    @property
    def due(self) -> bool:
        return self.rested(self.rest)

    def rested(self, seconds: float) -> bool:
        """Whether so much time is over; also where the clock went back, as one day some machine's will."""
        return not 0 <= time.monotonic() - self._last < seconds

    @contextmanager
    def done(self) -> Iterator[None]:
        """Within it the thing is done."""
        started = time.monotonic()
        yield
        self._last = time.monotonic()
        self.rest = self._times * (self._last - started)
