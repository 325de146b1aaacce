"""Ctrl-C while a command trains: the training stops where it can go on later."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["stop_on_interrupt"]


class _Stop:
    asked = False


@contextmanager
def stop_on_interrupt() -> Iterator[_Stop]:
    """Ctrl-C, or a polite kill, asks the run to stop after the block of steps; a second one is immediate."""
    stop = _Stop()

    def ask(number: int, frame: Any) -> None:
        del frame
        stop.asked = True
        signal.signal(number, signal.default_int_handler)

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
