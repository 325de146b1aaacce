"""Real processes, killed with SIGKILL at random moments and started again, and what they leave behind.

A campaign runs in a process of its own that has imported everything and computes nothing, and forks: so a
life costs milliseconds to begin, and hundreds of them fit into a minute. What a life did is counted in memory
that it shares with its parent, which outlives it: the counts are right up to the instruction before the kill.
"""

from __future__ import annotations

import json
import mmap
import os
import random
import signal
import struct
import time
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from support.processes import _CONTEXT

_WATCHED = ("open", "write", "fsync", "replace", "rename", "link", "mkdir", "unlink", "close")

Plant = Callable[[], None]
"""Puts a defect into the code, to see that a campaign notices."""


def plant_nothing() -> None: ...


def in_a_process(campaign: Callable[..., dict[str, Any]], folder: Path, *arguments: Any) -> dict[str, Any]:
    """What `campaign(folder, *arguments)` gives back, run in a fresh process; it raises as it does there."""
    answer = Path(folder) / "answer.json"
    process = _CONTEXT.Process(target=_run, args=(campaign, Path(folder), answer, arguments))
    process.start()
    process.join(3600)
    assert answer.exists(), f"the campaign ended with status {process.exitcode}"
    found = json.loads(answer.read_text())
    assert "failed" not in found, found["failed"]
    return found


def _run(campaign: Callable[..., dict[str, Any]], folder: Path, answer: Path, arguments: Any) -> None:
    import torch

    torch.set_num_threads(1)
    try:
        found = campaign(folder, *arguments)
    except BaseException:
        found = {"failed": traceback.format_exc()}
    answer.write_text(json.dumps(found))


def _refusals() -> tuple[type[Exception], ...]:
    """The errors that the command line turns into one line."""
    from dpsinkhorn.privacy.journal import JournalDamagedError, JournalLockedError
    from dpsinkhorn.release import ReleaseError
    from dpsinkhorn.training import TrainingError

    return (TrainingError, ReleaseError, JournalDamagedError, JournalLockedError)


class Tally:
    """Whole numbers by name, in memory that a killed child shares with its parent."""

    def __init__(self, *names: str) -> None:
        self._places = {name: 8 * place for place, name in enumerate(names)}
        self._memory = mmap.mmap(-1, 8 * len(names))

    def __getitem__(self, name: str) -> int:
        return int(struct.unpack_from("q", self._memory, self._places[name])[0])

    def __setitem__(self, name: str, value: int) -> None:
        struct.pack_into("q", self._memory, self._places[name], value)

    def clear(self) -> None:
        for name in self._places:
            self[name] = 0


class Death:
    """When a life ends: after some seconds, or at the n-th system call that changes files."""

    def __init__(self, rng: random.Random, seconds: float, calls: int) -> None:
        self.seconds: float | None = None
        self.call = -1
        if rng.random() < 0.5:
            self.seconds = rng.uniform(0, seconds)
        else:
            # all calls alike, or the first ones above all: creating, opening and mending
            self.call = rng.randrange(calls) if rng.random() < 0.5 else int(calls ** rng.random()) - 1
            self.share = rng.choice((0.0, 0.3, 1.0))  # of that call's work that is done before the end

    def install(self) -> None:
        """In the child: kill this process at its n-th call, before it, half-way or after it."""
        if self.seconds is not None:
            return
        left = self.call

        def wrap(name: str) -> None:
            real = getattr(os, name)

            def call(*arguments: Any, **options: Any) -> Any:
                nonlocal left
                left -= 1
                if left != -1:
                    return real(*arguments, **options)
                if self.share and name == "write":
                    handle, data = arguments
                    real(handle, bytes(data)[: max(1, round(self.share * len(data)))])
                elif self.share == 1:
                    real(*arguments, **options)
                os.kill(os.getpid(), signal.SIGKILL)
                raise AssertionError("unreachable")

            setattr(os, name, call)

        for name in _WATCHED:
            wrap(name)


def life(work: Callable[[], Any], death: Death | None = None) -> tuple[bool, str]:
    """Fork, do the work there, kill it as `death` says. Whether it was killed; else its error, or ''."""
    child, answer = _begin(work, death)
    if death is not None and death.seconds is not None:
        time.sleep(death.seconds)
        os.kill(child, signal.SIGKILL)  # of a child that has ended: it is not waited for yet, so its own
    return _end(child, answer)


def at_once(works: Sequence[Callable[[], Any]]) -> list[str]:
    """Do all of them in processes of their own, begun at the same moment: the error of each, or ''."""
    gate, opener = os.pipe()

    def behind(work: Callable[[], Any]) -> None:
        os.close(opener)
        os.read(gate, 1)  # until nobody holds the other end any more
        work()

    lives = [_begin(partial(behind, work), None) for work in works]
    os.close(opener)
    os.close(gate)
    return [_end(*each)[1] for each in lives]


def _begin(work: Callable[[], Any], death: Death | None) -> tuple[int, int]:
    """A child at work, and the pipe on which it will say what went wrong."""
    read, write = os.pipe()
    child = os.fork()
    if child:
        os.close(write)
        return child, read
    os.close(read)
    said = b""
    try:
        if death is not None:
            death.install()
        work()
    except BaseException as error:
        clean = isinstance(error, _refusals()) and len(str(error).splitlines()) == 1
        said = (str(error) if clean else traceback.format_exc()).encode()
    finally:
        while said:
            said = said[os.write(write, said) :]
        os._exit(0)


def _end(child: int, answer: int) -> tuple[bool, str]:
    said = b""
    while part := os.read(answer, 65536):
        said += part
    os.close(answer)
    _, status = os.waitpid(child, 0)
    killed = os.WIFSIGNALED(status)
    assert not killed or os.WTERMSIG(status) == signal.SIGKILL, f"signal {os.WTERMSIG(status)}"
    assert killed or os.WEXITSTATUS(status) == 0
    assert "Traceback" not in said.decode(), said.decode()
    return killed, said.decode()
