"""Files that were whole, mutated: each must be read, or refused in one clean line, in little memory and time.

A campaign runs in a process of its own, under a limit on its memory, so that a file that asks for all of it
is noticed and takes nobody else down.
"""

from __future__ import annotations

import io
import json
import multiprocessing
import random
import resource
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["dpsinkhorn.training", "dpsinkhorn.data", "pyarrow.parquet", "PIL.Image"])
ROOM = 3 * 2**30  # bytes of address space that a campaign may take on top of what it starts with
_EXTREMES = (
    0,
    1,
    0x7F,
    0x80,
    0xFF,
    0x7FFF,
    0x8000,
    0xFFFF,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**63 - 1,
    2**64 - 1,
)

_VALUES = (
    None, True, False, 0, -1, 1, 2, 10**6, 2**31, 2**63, 2**200, 0.5, -0.0, 1e-320, 1e308, float("nan"),
    float("inf"), "", "x", "\x00", "../../etc/passwd", "<script>", "9" * 999, [], [1], [[[]]], {}, {"a": 1},
)  # fmt: skip


@dataclass
class Findings:
    """What a campaign saw."""

    read: int = 0
    refused: int = 0
    slowest: float = 0.0
    peak_mib: float = 0.0
    unclean: list[str] = field(default_factory=list)

    @property
    def files(self) -> int:
        return self.read + self.refused + len(self.unclean)


def mutate(content: bytes, rng: random.Random) -> bytes:
    """One to four changes: bits, numbers, pieces cut, repeated, swapped or put in."""
    data = bytearray(content)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        size = len(data)
        at = rng.randrange(size + 1)
        kind = rng.randrange(7)
        if kind == 0 and size:
            data[rng.randrange(size)] ^= 1 << rng.randrange(8)
        elif kind == 1 and size:
            width = rng.choice((1, 2, 4, 8))
            value = rng.choice(_EXTREMES) % 256**width
            order = rng.choice(("little", "big"))
            data[at : at + width] = value.to_bytes(width, order)
        elif kind == 2:
            del data[at:]
        elif kind == 3:
            del data[at : at + rng.randrange(1, 64)]
        elif kind == 4:
            data[at:at] = rng.randbytes(rng.randrange(1, 32))
        elif kind == 5 and size:
            start = rng.randrange(size)
            data[at:at] = data[start : start + rng.randrange(1, 256)]
        elif size:  # a number in text, such as JSON has
            digits = [k for k, byte in enumerate(data) if 48 <= byte <= 57]
            if digits:
                place = rng.choice(digits)
                data[place : place + 1] = rng.choice(
                    (b"-1", b"0", b"1e999", b"NaN", b"9" * 30, b'"x"', b"null")
                )
    return bytes(data)


def mutate_file(name: str, content: bytes, rng: random.Random) -> bytes:
    """Bytes changed anywhere; or, where the file holds JSON, one value of it, so that it still parses."""
    if rng.random() < 0.5:
        if name.endswith(".json"):
            return _changed_json(content, rng)
        if name.endswith(".safetensors"):
            length = int.from_bytes(content[:8], "little")
            header = _changed_json(content[8 : 8 + length], rng)
            return len(header).to_bytes(8, "little") + header + content[8 + length :]
    return mutate(content, rng)


def _changed_json(content: bytes, rng: random.Random) -> bytes:
    whole = json.loads(content)
    node = whole
    while True:
        keys = list(node) if isinstance(node, dict) else list(range(len(node)))
        key = rng.choice(keys)
        if isinstance(node[key], (dict, list)) and node[key] and rng.random() < 0.8:
            node = node[key]
            continue
        break
    if isinstance(node, dict) and rng.random() < 0.2:
        node[rng.choice(("", "x", "__proto__", "../x", "a" * 3000))] = node.pop(key)
    else:
        node[key] = rng.choice(_VALUES)
    return json.dumps(whole).encode()


def campaign(target: str, count: int, seed: int, folder: Path, seconds: float = 3600) -> Findings:
    """Mutate the files of a target (`fuzz_targets.py`) that many times; give back what was seen."""
    answer = folder / f"{target}-{seed}.json"
    process = _CONTEXT.Process(target=_run, args=(target, count, seed, folder, answer))
    process.start()
    process.join(seconds)
    if process.exitcode is None:
        process.kill()
        raise AssertionError(f"{target}: a file in {folder} hangs")
    if not answer.exists():
        raise AssertionError(f"{target}: the process died ({process.exitcode}) on a file in {folder}")
    return Findings(**json.loads(answer.read_text()))


def _run(target: str, count: int, seed: int, folder: Path, answer: Path) -> None:
    import torch

    from support.fuzz_targets import TARGETS

    torch.set_num_threads(1)
    aim = TARGETS[target](folder)
    rng = random.Random(f"{target} {seed}")
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + ROOM, used + ROOM))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for name, content in aim.files.items():
        aim.place(name).write_bytes(content)
    aim.read()  # whole files are read
    findings = Findings()
    for number in range(count):
        name = rng.choice(list(aim.files))
        mutated = mutate_file(name, aim.files[name], rng)
        path = aim.place(name)
        path.write_bytes(mutated)
        started = time.monotonic()
        try:
            aim.read()
            findings.read += 1
        except aim.errors as error:
            if "\n" in str(error):
                _keep(findings, folder, target, number, mutated, f"more than a line: {error}")
            else:
                findings.refused += 1
        except BaseException:
            _keep(findings, folder, target, number, mutated, traceback.format_exc())
        findings.slowest = max(findings.slowest, time.monotonic() - started)
        path.write_bytes(aim.files[name])
    findings.peak_mib = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    answer.write_text(json.dumps(findings.__dict__))


def _keep(findings: Findings, folder: Path, target: str, number: int, content: bytes, why: str) -> None:
    kept = folder / f"unclean-{target}-{number}"
    kept.write_bytes(content)
    findings.unclean.append(f"{kept}: {why[-1500:]}")


def png(pixels) -> bytes:
    """Pixels as the bytes of a picture."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()
