"""Several processes of one training, as torchrun starts them, and what they say to each other.

Rank 0 trains. The others only hold records: rank 0 asks all of them the same question, each answers for the
records that it holds, and the answers come together at rank 0. So there is one training state, one draw of
noise and one ledger, whatever the number of ranks. Nothing here knows what is asked.

Gloo carries questions, and what is in ordinary memory; it notices at once who is gone. NCCL carries tensors
between GPUs, and only after gloo has found that all are there: by itself it would wait for whoever is gone.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import itertools
import json
import os
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.rendezvous import rendezvous

from dpsinkhorn.errors import RankLostError

__all__ = ["SECONDS", "Others", "Ranks", "joined", "over_ranks"]

SECONDS = 600.0
"""A rank that keeps the others waiting for longer counts as stalled."""
_REMAINS = "what was spent stays on the ledger, and --resume goes on from the last checkpoint"
_TRIES = 5  # of gloo to connect to a rank that has just died, each for a whole time-out
_BETWEEN_GPUS = "nccl"
_LOOK = 1e-5  # seconds between two looks at whether it is done
_meetings, _trainings = itertools.count(), itertools.count()  # of this process, in step with the others'

F = TypeVar("F", bound=Callable[..., Any])


class Ranks:
    """The ranks of a training: this one, how many there are, and how they talk."""

    def __init__(self, seconds: float, remains: str) -> None:
        """Not for callers: use `joined`."""
        self._remains = remains
        self.rank, self.count = dist.get_rank(), dist.get_world_size()
        self._seconds = seconds
        self._store = dist.distributed_c10d._get_default_store()
        self._word = f"dpsinkhorn training {next(_trainings)} failed"
        self._between_gpus: dist.ProcessGroup | None = None
        self._fast = ""  # the kind of device whose tensors it carries
        with self._one_line():
            self._group = dist.new_group(backend="gloo", timeout=timedelta(seconds=seconds / _TRIES))
            dist.distributed_c10d._set_pg_timeout(timedelta(seconds=seconds), self._group)

    def device(self, device: torch.device) -> torch.device:
        """At every rank: return the device of this rank, and settle how tensors on it travel.

        They go by NCCL where each rank has a GPU of its own. Else they go by gloo, through ordinary memory:
        where ranks share a GPU, which NCCL refuses, or some compute on a CPU.
        """
        if device.type == "cuda":
            if device.index is None:
                local = int(os.environ.get("LOCAL_RANK", "0"))
                device = torch.device("cuda", local % torch.cuda.device_count())
            torch.cuda.set_device(device)
        own = torch.tensor([_number_of(device)])
        every = [torch.empty_like(own) for _ in range(self.count)]
        with self._one_line():
            dist.all_gather(every, own, group=self._group)
            numbers = {int(each) for each in every}
            if 0 not in numbers and len(numbers) == self.count:
                # the process ends when NCCL's own time is up: ours comes first
                patience = timedelta(seconds=2 * self._seconds)
                self._between_gpus = dist.new_group(backend=_BETWEEN_GPUS, timeout=patience)
                self._fast = device.type
                self.added_up(torch.zeros(1, device=device))  # where it cannot work, nothing is charged yet
        return device

    @property
    def carrier(self) -> str:
        """What adds up tensors on devices, and so in which order."""
        return _BETWEEN_GPUS if self._fast else "gloo"

    # ---- questions

    def ask(self, question: str, values: Mapping[str, Any] | None = None) -> None:
        """At rank 0: send a question to all others, with values that are public: tensors, or JSON."""
        values = values or {}
        tensors = {name: value for name, value in values.items() if isinstance(value, Tensor)}
        kinds = {
            name: [str(value.dtype).removeprefix("torch."), list(value.shape), value.device.type]
            for name, value in tensors.items()
        }
        plain = {name: value for name, value in values.items() if name not in tensors}
        header = json.dumps({"question": question, "values": plain, "tensors": kinds}).encode()
        self._broadcast(torch.tensor([len(header)]))
        self._broadcast(torch.frombuffer(bytearray(header), dtype=torch.uint8))
        self._all_here(tensors.values())
        for value in tensors.values():
            self._broadcast(value.detach().contiguous())

    def asked(self, device: torch.device) -> tuple[str, dict[str, Any]]:
        """At another rank: wait for the next question; return it with its values."""
        length = self._broadcast(torch.empty(1, dtype=torch.int64))
        header = json.loads(bytes(self._broadcast(torch.empty(int(length), dtype=torch.uint8)).tolist()))
        tensors = {
            name: torch.empty(shape, dtype=getattr(torch, kind), device="cpu" if place == "cpu" else device)
            for name, (kind, shape, place) in header["tensors"].items()
        }
        self._all_here(tensors.values())
        values = {name: self._broadcast(value) for name, value in tensors.items()}
        return header["question"], {**header["values"], **values}

    # ---- answers

    def added_up(self, part: Tensor | tuple[Tensor | None, ...]) -> Any:
        """At every rank: add up what the ranks have, number by number; the sum is at rank 0.

        The order of the additions is left open: a sum of whole multiples of a step that float64 holds is
        exact, and for others every order counts (docs/proofs/record-rounding.md).
        """
        parts = part if isinstance(part, tuple) else (part,)
        there = [each for each in parts if each is not None]
        flat = torch.cat([each.double().flatten() for each in there])
        self._all_here([flat])
        flat = self._carried(dist.reduce, flat)
        sums = iter(torch.split(flat, [each.numel() for each in there]))
        whole = tuple(None if each is None else next(sums).view(each.shape) for each in parts)
        return whole if isinstance(part, tuple) else whole[0]

    def gathered(self, part: list[Tensor]) -> list[Tensor]:
        """At every rank: put rows behind each other, in the order of the ranks; all of them are at rank 0."""
        with self._one_line():
            if self.rank:
                for each in (torch.tensor([len(part[0])]), *part):
                    self._wait(dist.isend(each.cpu().contiguous(), 0, group=self._group))
                return part
            every = [[each.cpu() for each in part]]
            for rank in range(1, self.count):
                rows = torch.empty(1, dtype=torch.int64)
                self._wait(dist.irecv(rows, rank, group=self._group))
                every.append([each.new_empty(int(rows), *each.shape[1:]) for each in every[0]])
                for each in every[-1]:
                    self._wait(dist.irecv(each, rank, group=self._group))
            whole = zip(part, *every, strict=True)
            return [torch.cat(pieces).to(own.device) for own, *pieces in whole]

    def words(self, own: str) -> list[str]:
        """At every rank: say a word; those of all ranks, in their order, are at rank 0."""
        (said,) = self.gathered([torch.frombuffer(bytearray(own.encode() + b"\0"), dtype=torch.uint8)])
        return bytes(said.tolist()).decode().split("\0")[:-1]

    # ---- failures

    def leave_word(self, error: BaseException) -> None:
        """Say to the others why this rank goes; the first word stands."""
        reason = " ".join(str(error).split()) or type(error).__name__
        with suppress(RuntimeError):
            self._store.compare_set(self._word, "", f"rank {self.rank}: {reason}")

    def close(self) -> None:
        """Let go of the connections: whoever waits for this rank notices."""
        if self._between_gpus is not None:
            abort = getattr(dist.distributed_c10d, "_abort_process_group", dist.destroy_process_group)
            with suppress(RuntimeError):
                abort(self._between_gpus)  # not to wait for whoever is gone
        with suppress(RuntimeError):
            dist.destroy_process_group(self._group)

    def _wait(self, work: dist.Work | None) -> None:
        assert work is not None
        work.wait(
            timedelta(seconds=self._seconds)
        )  # what is sent to one knows only the time-out of connecting

    def _broadcast(self, value: Tensor) -> Tensor:
        return self._carried(dist.broadcast, value)

    def _all_here(self, tensors: Iterable[Tensor]) -> None:
        """Before any of these goes by NCCL: find that no rank is gone."""
        if any(each.device.type == self._fast for each in tensors):
            with self._one_line():
                dist.barrier(group=self._group)

    def _carried(self, operation: Callable[..., Any], value: Tensor) -> Tensor:
        """Exchange a tensor with rank 0; return what it is then."""
        with self._one_line():
            if value.device.type != self._fast:
                there = value.cpu()
                operation(there, 0, group=self._group)
                return there.to(value.device)
            work = operation(value, 0, group=self._between_gpus, async_op=True)
            end = time.monotonic() + self._seconds
            while not work.is_completed():
                if time.monotonic() > end:
                    raise RuntimeError("timed out")
                time.sleep(_LOOK)
            if (gone := work.exception()) is not None:  # what failed counts as completed, too
                raise RuntimeError(f"NCCL: {gone}")
            work.wait()
            return value

    @contextmanager
    def _one_line(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            reason = self._reason(error)
            if not reason.startswith("rank 0:"):  # who has said what to do
                reason += f"; {self._remains}"
            raise RankLostError(reason) from error

    def _reason(self, error: RuntimeError) -> str:
        with suppress(RuntimeError):  # the store is gone with the process that kept it
            if self._store.check([self._word]):
                return str(self._store.get(self._word).decode())
        if "NCCL" in str(error):
            said = f"NCCL failed: {' '.join(str(error).split())[-300:]}; --device cpu does without it"
            self.leave_word(RuntimeError(said))
            return said
        if "timed out" in str(error).lower():
            return f"another rank gave no answer for {self._seconds:g} seconds (--rank-timeout)"
        return "the connection to another rank broke: it was killed, or its machine is gone"


@contextmanager
def joined(seconds: float = SECONDS, remains: str = _REMAINS) -> Iterator[Ranks | None]:
    """Within it this process is one of several, where torchrun or the like made it one; else there are none.

    An exception is left as a word to the others, and ends the work on all of them; `remains` tells
    them what is left of it.
    """
    own = not dist.is_initialized()
    if own and int(os.environ.get("WORLD_SIZE", "1")) < 2:
        yield None
        return
    if own:
        try:
            _meet(seconds)
        except (RuntimeError, ValueError) as error:
            reason = " ".join(str(error).split())[:200]
            raise RankLostError(f"the ranks did not find each other: {reason}; start them anew") from error
    ranks = Ranks(seconds, remains)
    try:
        yield ranks
    except RankLostError:
        raise
    except BaseException as error:
        ranks.leave_word(error)
        raise
    finally:
        ranks.close()
        if own:
            dist.destroy_process_group()


def _meet(seconds: float) -> None:
    """Wait until all ranks are there, then connect them."""
    store, rank, count = next(rendezvous("env://", timeout=timedelta(seconds=seconds)))
    store = dist.distributed_c10d.PrefixStore(f"dpsinkhorn meeting {next(_meetings)}", store)
    if store.add("dpsinkhorn ranks here", 1) == count:
        store.set("dpsinkhorn all here", "")
    store.wait(["dpsinkhorn all here"], timedelta(seconds=seconds))
    at_most = timedelta(seconds=seconds / _TRIES)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=count, timeout=at_most)


def _number_of(device: torch.device) -> int:
    """Return a number that no other GPU has; 0 where NCCL cannot be used."""
    if device.type != "cuda" or not dist.is_nccl_available():
        return 0
    own = getattr(torch.cuda.get_device_properties(device), "uuid", None)  # not before PyTorch 2.5
    if own is None:
        return 0
    name = f"{socket.gethostname()} {own}"
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:7], "big")


@dataclass(frozen=True)
class Others:
    """The other ranks, as a holder of private records that they hold too."""

    ranks: Ranks
    what: str
    """By which name they know what is held: a sample, say."""


def over_ranks(method: F) -> F:
    """Let a method that sums over records sum over those of all ranks.

    Its first argument, besides `self`, are private records. Where these say, by an attribute `others`, that
    other ranks hold more of them, all ranks are asked for the same sum, with the other arguments, which are
    public, and what they have is added up.
    """
    signature = inspect.signature(method)
    place = int("self" in signature.parameters)

    @functools.wraps(method)
    def summed(*arguments: Any, **named: Any) -> Any:
        others: Others | None = getattr(arguments[place], "others", None)
        if others is None:
            return method(*arguments, **named)
        public = list(signature.bind(*arguments, **named).arguments.items())[place + 1 :]
        others.ranks.ask(f"{others.what}.{method.__name__}", dict(public))
        return others.ranks.added_up(method(*arguments, **named))

    return cast(F, summed)
