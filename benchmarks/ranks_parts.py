"""What ranks do on this machine: the same bits by NCCL, by gloo and alone, and the parts of a step, timed.

    python benchmarks/ranks_parts.py --output parts.json
    python benchmarks/ranks_parts.py --output parts.json --scale 0.01      # a hundredth of the records
    python benchmarks/ranks_parts.py --output parts.json --model           # the table of docs/scale.md

Four runs of torchrun, one after the other: one rank; two on one GPU; two of which NCCL is to refuse one; and
eight that only talk, by gloo. The parts are those that a model for many GPUs is made of: what a rank has to
do that holds all records, an eighth of them or a sixty-fourth, what rank 0 does besides, and what is
exchanged. NCCL between GPUs is not measured: the model takes it from what others have published.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import socket
import subprocess
import sys
import tempfile
import time
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from dpsinkhorn import ranks as talk
from dpsinkhorn.data import Dataset, load_dataset
from dpsinkhorn.errors import RankLostError
from dpsinkhorn.ranks import Ranks, joined
from dpsinkhorn.training import Run, load_recipe, make_plan
from dpsinkhorn.training.records import facts_of
from dpsinkhorn.training.shared_records import SharedRecords, _Part, answer
from dpsinkhorn.training.state import TrainingState
from dpsinkhorn.training.steps import make_steps
from steps import device_name, made_up, wait

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
MANY = (1, 8, 64)  # ranks
NOISY = {"noise_multiplier": 2.0}
FLOW = {"share": 0.2, "components": 32, "frequencies": 20, "sketch_steps": 6, "updates": 1}
# by mechanism: recipe, changes, records, steps that are timed
PARTS: dict[str, tuple[str, dict[str, Any], int, int]] = {
    "record": ("grey", {"privacy": NOISY}, 60_000, 10),
    "record-million": ("grey", {"privacy": NOISY}, 1_000_000, 5),
    "moments": ("mixture", {"privacy": {**NOISY, "steps": 12}}, 1_000_000, 6),
    "flow": ("flow", {"privacy": NOISY, "flow": FLOW}, 60_000, 4),
}
TCP = 0.1  # milliseconds of gloo for each doubling of the ranks, between machines: assumed
# of NCCL, by ranks: milliseconds of an exchange of almost nothing, and bytes a millisecond
NCCL = {1: (0.0, math.inf), 8: (0.03, 370e6), 64: (0.075, 50e6)}
# on a CPU, to see that this works
SMALL: dict[str, dict[str, Any]] = {
    "grey": {"loss": {"generated": 20, "generated_per_class": 2}},
    "mixture": {"generator": {"components": 4, "frequencies": 4}},
    "flow": {"generator": {"channels": 4}},
}


def main() -> None:
    """Run the command."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--scale", type=float, default=1.0, help="of the numbers of records")
    parser.add_argument("--data", default="digits", help="of which bits are compared")
    parser.add_argument("--mechanisms", default=",".join(PARTS), help="of which parts are timed")
    parser.add_argument("--seconds", type=float, default=60, help="that a rank may keep another one waiting")
    parser.add_argument("--model", action="store_true", help="print what --output holds")
    parser.add_argument("--inside", help="what torchrun started this for")
    asked = parser.parse_args()
    if asked.inside:
        inside(asked)
        return
    if asked.model:
        model(json.loads(asked.output.read_text()))
        return
    found: dict[str, Any] = {"device": device_name(DEVICE), "torch": torch.__version__}
    with tempfile.TemporaryDirectory() as place:
        for name, count, seconds in (("one", 1, 120), ("two", 2, 90), ("refused", 2, 60), ("eight", 8, 90)):
            found[name] = started(sys.argv[1:], name, count, seconds, Path(place, f"{name}.json"))
            asked.output.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found))


def started(arguments: list[str], name: str, count: int, seconds: float, place: Path) -> dict[str, Any]:
    """What ranks of their own found out."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(count)]
    torchrun += ["--master-addr", "127.0.0.1", "--master-port", port]
    here = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}  # whatever this machine is called
    environment = {**os.environ, **here, "OMP_NUM_THREADS": "1", "DPSINKHORN_USED_DATA": "off"}
    began = time.monotonic()
    try:
        done = subprocess.run(
            [*torchrun, __file__, *arguments, "--inside", name, "--output", str(place)],
            env=environment,
            timeout=seconds,
            capture_output=True,
            text=True,
        )
        status, said = done.returncode, done.stderr
    except subprocess.TimeoutExpired as late:
        status, said = -1, (late.stderr or b"").decode()
    found = json.loads(place.read_text()) if place.exists() else {}
    ours = [line for line in said.splitlines() if line.startswith("rank says: ")]
    said = "\n".join(line for line in said.splitlines() if line.startswith("[rank"))  # not torchrun's own
    return {
        **found,
        "status": status,
        "lines": ours,
        "said": said[-2000:],
        "seconds": round(time.monotonic() - began, 1),
    }


def inside(asked: Any) -> None:
    """In a rank."""
    torch.set_num_threads(1)
    if asked.inside == "refused":
        refused(asked.seconds)
        return
    dist.init_process_group("gloo")
    if asked.inside == "eight":
        found = talking(asked.seconds)
        if not dist.get_rank():
            asked.output.write_text(json.dumps(found))
        dist.destroy_process_group()
        return
    found = {"bits": bits(asked), "parts": {}}
    for name in asked.mechanisms.split(","):
        if asked.inside == "two" and PARTS[name][2] > 100_000:
            continue
        for of in MANY if asked.inside == "one" else (1,):
            found["parts"].setdefault(name, {})[of] = parts(name, asked, of)
            if not dist.get_rank():
                asked.output.write_text(json.dumps(found))
    dist.destroy_process_group()


def talking(seconds: float) -> dict[str, float]:
    """Milliseconds of a question without tensors, answered by a number; and of one with those of `record`."""
    cpu, found = torch.device("cpu"), {}
    with joined(seconds) as ranks:
        assert ranks is not None
        for name, rows in (("a number", 1), ("as record's at 28 x 28", 500)):
            images, sums = torch.zeros(rows, 784), torch.zeros(rows, 784, dtype=torch.float64)
            every = []
            for _ in range(30):
                dist.barrier()
                began = time.perf_counter()
                if ranks.rank:
                    ranks.asked(cpu)
                else:
                    ranks.ask("sum", {"images": images} if rows > 1 else {})
                ranks.added_up(sums if rows > 1 else sums[:, :1])
                dist.barrier()  # a rank may be done before the others are
                every.append(time.perf_counter() - began)
            found[f"{name}, ms"] = round(sorted(every)[len(every) // 2] * 1e3, 3)
    return found


def refused(seconds: float) -> None:
    """Let two ranks that share a GPU believe that each has its own."""
    if DEVICE.type == "cuda":
        talk._number_of = lambda _: int(os.environ["RANK"]) + 1
    else:  # here there is no NCCL: something else that cannot be begun

        def fails(real: Any = dist.new_group, **named: Any) -> Any:
            if named["backend"] == "nccl":
                raise dist.DistBackendError("NCCL error: none here")
            return real(**named)

        talk._number_of, dist.new_group = (lambda _: int(os.environ["RANK"]) + 1), fails
    began = time.monotonic()
    try:
        with joined(seconds) as ranks:
            assert ranks is not None
            ranks.device(DEVICE)
            if ranks.rank:
                ranks.asked(DEVICE)
            else:
                ranks.ask("end")
    except RankLostError as error:
        line = f"rank says: {os.environ['RANK']} after {time.monotonic() - began:.1f} s: {error}"
        print(line, file=sys.stderr, flush=True)
        os._exit(2)


# ---- bits


def bits(asked: Any) -> dict[str, Any]:
    """SHA-256 of the weights of seeded trainings: alone, and on the ranks there are, by NCCL and by gloo."""
    try:
        data = load_dataset(asked.data)
    except ImportError:  # digits are scikit-learn's
        data = made_up(1347, 8)
    found: dict[str, Any] = {"data": f"{data.name}, {data.records} records"}
    number_of = talk._number_of
    for mechanism in ("moments", "record"):
        for way in ("alone", "gloo", "as it comes"):
            if way == "alone" and dist.get_world_size() > 1:
                continue
            talk._number_of = (lambda _: 0) if way == "gloo" else number_of
            found[f"{mechanism}, {way}"] = weights(mechanism, data, way != "alone", asked.seconds)
    return found


def weights(mechanism: str, data: Dataset, together: bool, seconds: float) -> Any:
    """One whole seeded training; how its sums travelled, and what came out."""
    recipe, changes = ("digits", {"privacy": {**NOISY, "steps": 40}})
    if mechanism == "moments":
        recipe, changes = "mixture", {"privacy": NOISY}
    # where the number of records is not public, steps are taken one by one also by one process on a GPU
    facts = facts_of(data, records=data.records)
    plan = make_plan(load_recipe(recipe).replace(**changes), facts, accountant="rdp", seed=3)
    with tempfile.TemporaryDirectory() as place:
        if not together:
            run, by = Run.create(Path(place, "run"), plan), "nothing"
            assert run.train(data, device=DEVICE)
        else:
            with joined(seconds) as ranks:
                assert ranks is not None
                own = ranks.device(DEVICE)
                by = "gloo" if ranks._between_gpus is None else "nccl"
                if ranks.rank:
                    answer(ranks, data, own)
                    return None
                run = Run.create(Path(place, "run"), plan)
                assert run.train(data, device=own, ranks=ranks)
                ranks.ask("end")
        content = (run.release_folder / "generator.safetensors").read_bytes()
    return {"by": by, "sha": hashlib.sha256(content).hexdigest()[:16], "steps": plan.steps}


# ---- parts


class Watch:
    """Seconds and bytes of what a training asks, adds up and exchanges."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.bytes: dict[str, int] = defaultdict(int)
        self.counts: dict[str, int] = defaultdict(int)
        self._since = 0.0
        asks, adds, draws = Ranks.ask, Ranks.added_up, _Part.draw
        counted = Ranks._carried

        def ask(ranks: Ranks, question: str, values: Any = None) -> None:
            self.counts["questions"] += 1
            self._timed("exchange", asks, ranks, question, values)

        def added_up(ranks: Ranks, part: Any) -> Any:
            wait(DEVICE)
            self.seconds["sum"] += time.perf_counter() - self._since
            return self._timed("exchange", adds, ranks, part)

        def draw(part: _Part, *arguments: Any) -> Any:
            return self._timed("draw", draws, part, *arguments)

        def carried(ranks: Ranks, operation: Any, value: torch.Tensor) -> torch.Tensor:
            name = "asked" if operation is dist.broadcast else "answered"
            self.bytes[name] += value.numel() * value.element_size()
            self.counts["carried"] += value.numel() > 1000  # no header
            return counted(ranks, operation, value)

        Ranks.ask, Ranks.added_up, _Part.draw, Ranks._carried = ask, added_up, draw, carried
        self._real = asks, adds, draws, counted

    def _timed(self, name: str, real: Any, *arguments: Any) -> Any:
        wait(DEVICE)
        began = time.perf_counter()
        found = real(*arguments)
        wait(DEVICE)
        self._since = time.perf_counter()
        self.seconds[name] += self._since - began
        return found

    def begin(self) -> None:
        """Forget what was counted."""
        self.seconds.clear()
        self.bytes.clear()
        self.counts.clear()

    def close(self) -> None:
        """Leave everything as it was."""
        Ranks.ask, Ranks.added_up, _Part.draw, Ranks._carried = self._real


def model(found: dict[str, Any]) -> None:
    """Print a table of a step on 1, 8 and 64 GPUs: from what was measured here, and what is said of networks.

    x(W) = x(1) + questions · g · log2 W + tensors · latency + bytes / bandwidth
    """
    print("| a step | 1 GPU | 8 GPUs, one machine | 64 GPUs, eight machines | t₀ | x |")
    print("|---|---|---|---|---|---|")
    for name, by_ranks in found["one"]["parts"].items():
        alone, alone_talking = (
            sorted(part[what] for part in by_ranks.values())[len(by_ranks) // 2]
            for what in ("rank 0 alone, ms", "exchange, ms")
        )
        cells, exchanges = [], []
        for of, part in by_ranks.items():
            latency, bandwidth = NCCL[int(of)]
            sent = part["asked, bytes"] + part["answered, bytes"]
            exchange = alone_talking + part.get("questions", 2) * TCP * math.log2(int(of))
            exchange += part.get("carried", 3) * latency * (int(of) > 1) + sent / bandwidth
            exchanges.append(f"{exchange:.1f}")
            cells.append(f"{alone + part.get('draw, ms', 0.0) + part['sum, ms'] + exchange:.0f} ms")
        cells += [f"{alone:.0f} ms", " / ".join(exchanges) + " ms"]
        print(f"| `{name}`, {by_ranks['1']['batch']:,.0f} records | {' | '.join(cells)} |")


class OnePart:
    """A data set of which one rank alone takes the part that it would have among many."""

    def __init__(self, whole: Dataset, of: int) -> None:
        self._whole, self._of = whole, of

    def __getattr__(self, name: str) -> Any:
        return getattr(self._whole, name)

    def part(self, *_: int) -> tuple[Dataset, int]:
        """The first one."""
        return self._whole.part(0, self._of)

    def layout_digest(self) -> str:
        """Of no use to one rank alone, and slow."""
        return ""


_made: dict[int, Dataset] = {}


def parts(name: str, asked: Any, of: int) -> dict[str, Any] | None:
    """Milliseconds and bytes of a step, of which rank 0 holds one part of so many."""
    recipe, changes, records, steps = PARTS[name]
    records = max(640, int(records * asked.scale))
    data = _made.setdefault(records, made_up(records, 28))
    if DEVICE.type != "cuda":
        changes = {**changes, **SMALL[recipe]}
    if recipe == "flow" and records < 40_960:
        changes = {**changes, "privacy": {**NOISY, "batch": records // 10}}
    plan = make_plan(load_recipe(recipe).replace(**changes), facts_of(data), accountant="rdp")
    if DEVICE.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    with joined(asked.seconds) as ranks:
        assert ranks is not None
        own = ranks.device(DEVICE)
        if ranks.rank:
            answer(ranks, data, own)
            return None
        watch = Watch()
        try:
            shared: Any = data if ranks.count > 1 else OnePart(data, of)
            state, barrier = TrainingState(plan, own), plan.build()
            together = SharedRecords(ranks, plan, shared, own)
            barrier.check_device(state)
            barrier.prepare(state, together)
            state.generator.train()
            taker = make_steps(plan, state, together, barrier, (0.1,) * 10, horizon=plan.steps)
            taker.take(2)
            watch.begin()
            wait(DEVICE)
            began = time.perf_counter()
            taker.take(steps)
            wait(DEVICE)
            whole = time.perf_counter() - began
        finally:
            watch.close()
        by = "gloo" if ranks._between_gpus is None else "nccl"
        ranks.ask("end")
    alone = whole - sum(watch.seconds.values())
    found: dict[str, Any] = {
        "by": by,
        "batch": plan.expected_batch / of if plan.kind.takes_samples else records / of,
    }
    for part, seconds in {**watch.seconds, "rank 0 alone": alone, "whole": whole}.items():
        found[f"{part}, ms"] = round(seconds / steps * 1e3, 3)
    for direction, count in watch.bytes.items():
        found[f"{direction}, bytes"] = count // steps
    for what, count in watch.counts.items():
        found[what] = round(count / steps, 2)
    if DEVICE.type == "cuda":
        found["peak, MiB"] = torch.cuda.max_memory_allocated() // 2**20
    return found


if __name__ == "__main__":
    main()
