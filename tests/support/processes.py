"""The command line in processes of its own, to be interrupted and killed.

They are forked from a server that has imported everything, so that a start takes no seconds; the server
never runs a computation, so that a fork of it is sound.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
import sys
import time
from pathlib import Path

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(
    ["dpsinkhorn.training", "dpsinkhorn.cli", "torch._dynamo", "sklearn.datasets"]
)


def _child(arguments, streams, file_limit):
    # a shell that runs the tests in the background has interrupts ignored, and children inherit that
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, path in zip((1, 2), streams, strict=True):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115
    if file_limit is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (file_limit, file_limit))
    import torch

    torch.set_num_threads(1)
    from dpsinkhorn.cli import main

    streams[0].with_suffix(".started").touch()
    try:
        main(arguments)
    except SystemExit as left:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(left.code or 0)


class Command:
    """`dpsinkhorn ARGUMENTS`, running."""

    def __init__(self, arguments, folder, *, file_limit=None, terminal=None):
        self.streams = (Path(folder) / "stdout.txt", Path(terminal or Path(folder) / "stderr.txt"))
        for stream in self.streams:
            if terminal is None or stream != self.streams[1]:
                stream.write_text("")
        self.started = self.streams[0].with_suffix(".started")
        self.started.unlink(missing_ok=True)
        texts = [str(argument) for argument in arguments]
        self.process = _CONTEXT.Process(target=_child, args=(texts, self.streams, file_limit))
        self.process.start()

    def wait(self, seconds=60):
        """Exit status, stdout, stderr."""
        self.process.join(seconds)
        assert self.process.exitcode is not None, "the command hangs"
        return self.process.exitcode, *(stream.read_text() for stream in self.streams)

    def send(self, number):
        if self.process.is_alive():
            os.kill(self.process.pid, number)

    def kill_after(self, seconds):
        """Kill -9; whether it was still running."""
        self.process.join(seconds)
        alive = self.process.is_alive()
        self.send(signal.SIGKILL)
        self.process.join()
        return alive and self.process.exitcode == -signal.SIGKILL

    def until(self, condition, seconds=60):
        end = time.monotonic() + seconds
        while not condition():
            assert self.process.is_alive(), self.streams[1].read_text()
            assert time.monotonic() < end, "waited in vain"
            time.sleep(0.005)
