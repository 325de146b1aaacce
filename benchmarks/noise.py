"""Speed of the noise sources, and the search for repeated blocks of draws.

python benchmarks/noise.py                      # samples per second, CPU and, if there is one, CUDA
python benchmarks/noise.py --repeats 100000000  # no block of 8 draws occurs twice in 10^8 (2 GB of memory)
"""

from __future__ import annotations

import time
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Callable

import numpy as np
import torch

from dpsinkhorn.privacy.noise import SecureNoise, SeededNoise, add_gaussian, laplace_cells, normal_cells


def rate(draw: Callable[[], object], count: int, device: str) -> float:
    """Best of five, in millions per second, after a warm-up."""
    best = float("inf")
    for turn in range(6):
        start = time.perf_counter()
        draw()
        if device == "cuda":
            torch.cuda.synchronize()
        if turn:
            best = min(best, time.perf_counter() - start)
    return count / best / 1e6


def speed(count: int) -> None:
    secure, seeded = SecureNoise(), SeededNoise(0)
    print(f"{count:,} draws a time, {torch.get_num_threads()} CPU thread(s); millions per second")
    for device in ["cpu"] + ["cuda"] * torch.cuda.is_available():
        name = torch.cuda.get_device_name() if device == "cuda" else "CPU"
        values = torch.zeros(count, device=device)

        def noised(values: torch.Tensor = values) -> torch.Tensor:
            return add_gaussian(values, sensitivity=1.0, noise_multiplier=1.0, noise=secure)

        runs: dict[str, Callable[[], object]] = {
            "64-bit words, secure": lambda d=device: secure.words(count, device=d),  # type: ignore[misc]
            "gaussian, secure": lambda d=device: normal_cells(secure, (count,), device=d),  # type: ignore[misc]
            "gaussian, seeded": lambda d=device: normal_cells(seeded, (count,), device=d),  # type: ignore[misc]
            "laplace, secure": lambda d=device: laplace_cells(secure, (count,), device=d),  # type: ignore[misc]
            "add_gaussian, secure": noised,
            "torch.randn, for comparison": lambda d=device: torch.randn(count, device=d),  # type: ignore[misc]
        }
        for what, draw in runs.items():
            print(f"  {name:12} {what:28} {rate(draw, count, device):10.1f}")


def repeats(count: int, block: int) -> None:
    """Half of the draws seeded, half secure, in steps of a million; every window of `block` is hashed."""
    start = time.perf_counter()
    cells = np.empty(count, dtype=np.int64)
    sources = [SeededNoise(0), SecureNoise()]
    for turn, at in enumerate(range(0, count, 1_000_000)):
        part = cells[at : at + 1_000_000]
        part[:] = normal_cells(sources[turn % 2], part.shape).numpy()
    hashes = np.zeros(count - block + 1, dtype=np.uint64)
    for offset in range(block):
        hashes *= np.uint64(0x9E3779B97F4A7C15)
        hashes += cells[offset : len(hashes) + offset].view(np.uint64)
        hashes ^= hashes >> np.uint64(29)
    hashes.sort()
    found = int((hashes[1:] == hashes[:-1]).sum())
    chance = count**2 / 2 / 2**64
    print(
        f"{count:,} draws, all windows of {block}: {found} repeated 64-bit hashes "
        f"(by chance {chance:.1e}), {time.perf_counter() - start:.0f} s"
    )


if __name__ == "__main__":
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=4_000_000)
    parser.add_argument("--repeats", type=int, default=0, metavar="DRAWS")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    if arguments.repeats:
        repeats(arguments.repeats, block=8)
    else:
        speed(arguments.count)
