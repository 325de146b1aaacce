"""Several ranks of one training, each a process of its own, as torchrun starts them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch.distributed as dist

from support.processes import _CONTEXT, _child


def _rank(rank: int, count: int, port: int, work: Callable[..., Any], arguments: Sequence[Any]) -> None:
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(count), LOCAL_RANK=str(rank), MASTER_ADDR="127.0.0.1")
    os.environ.update(MASTER_PORT=str(port), TORCHELASTIC_USE_AGENT_STORE="True", DPSINKHORN_USED_DATA="off")
    import torch

    torch.set_num_threads(1)
    work(rank, *arguments)


def _command(rank: int, folder: Path, arguments: Sequence[str]) -> None:
    _child(list(arguments), (folder / f"out{rank}.txt", folder / f"err{rank}.txt"), None)


class Group:
    """`work(rank, *arguments)` in as many processes as there are ranks."""

    def __init__(self, count: int, work: Callable[..., Any], *arguments: Any) -> None:
        # torchrun, too, keeps it outside of the ranks
        self._store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        port = self._store.port
        self.processes = [
            _CONTEXT.Process(target=_rank, args=(rank, count, port, work, arguments)) for rank in range(count)
        ]
        for process in self.processes:
            process.start()

    def wait(self, seconds: float = 60) -> list[int]:
        """Exit status of every rank; none may take longer."""
        end = time.monotonic() + seconds
        for process in self.processes:
            process.join(max(0.0, end - time.monotonic()))
        late = [rank for rank, process in enumerate(self.processes) if process.exitcode is None]
        for rank in late:
            self.send(rank, signal.SIGKILL)
        assert not late, f"ranks {late} hang"
        return [process.exitcode for process in self.processes]

    def send(self, rank: int, number: int) -> None:
        """A signal to one of them, if it is still there."""
        if self.processes[rank].is_alive():
            os.kill(self.processes[rank].pid, number)


class Command(Group):
    """`dpsinkhorn ARGUMENTS` on several ranks."""

    def __init__(self, count: int, folder: Path, *arguments: Any) -> None:
        folder.mkdir(exist_ok=True)
        self.folder = folder
        super().__init__(count, _command, folder, [str(argument) for argument in arguments])

    def said(self, rank: int) -> str:
        """What a rank wrote to stderr."""
        return (self.folder / f"err{rank}.txt").read_text()
