"""Ctrl-C during a training: it stops where it can go on later."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_SAME_SECONDS = 1.0  # a terminal and whatever stands between may each send the same Ctrl-C


class _Stop:
    asked = False


@contextmanager
def stop_on_interrupt() -> Iterator[_Stop]:
    """Let Ctrl-C, or a polite kill, ask the run to stop after the block of steps; a second one is immediate.

    What arrives within a second of the first is the first: `timeout`, say, signals a process and its group.
    Outside of the main thread, where no signal arrives, nothing is changed.
    """
    stop = _Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    first = 0.0

    def ask(number: int, frame: Any) -> None:
        nonlocal first
        del number, frame
        now = time.monotonic()
        if not stop.asked:
            stop.asked, first = True, now
        elif now - first > _SAME_SECONDS:
            raise KeyboardInterrupt

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
