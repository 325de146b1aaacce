"""Speed of the noise sources, the search for repeated blocks of draws, and what a Poisson draw takes.

python benchmarks/noise.py                      # samples per second, CPU and, if there is one, CUDA
python benchmarks/noise.py --records 100000000  # a Poisson draw from 10^8 records, beside a uniform for each
python benchmarks/noise.py --repeats 100000000  # no block of 8 draws occurs twice in 10^8 (2 GB of memory)
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Callable

import numpy as np
import torch

from dpsinkhorn.privacy.noise import SecureNoise, SeededNoise, add_gaussian, laplace_cells, normal_cells
from dpsinkhorn.privacy.sampling import poisson_sample


def speed_of(draw: Callable[[], object], count: int, device: str) -> float:
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
            print(f"  {name:12} {what:28} {speed_of(draw, count, device):10.1f}")


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


def peak_megabytes() -> float:
    """The most memory that this process ever held. Linux only: `resource` would include the parent's."""
    with open("/proc/self/status") as status:
        line = next(line for line in status if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


def draw(method: str, records: int, rate: float) -> torch.Tensor:
    if method == "naive":
        return (torch.rand(records, dtype=torch.float64) < rate).nonzero().squeeze(1)
    return poisson_sample(records, rate, SecureNoise())


def measure(method: str, records: int, rate: float, draws: int) -> None:
    """In a process of its own, so that the peak of memory is this draw's."""
    draw(method, 1000, 0.1)
    before = peak_megabytes()
    times = []
    for _ in range(draws):
        start = time.perf_counter()
        size = len(draw(method, records, rate))
        times.append(time.perf_counter() - start)
    print(
        f"{method:8} {records:>12,} {rate:>10.2e} {size:>12,} {statistics.median(times) * 1e3:>10.1f} ms "
        f"{peak_megabytes() - before:>9.1f} MB"
    )


def sampling(records: int) -> None:
    """Time and memory of draws at several rates, each in a process of its own."""
    print(f"{'method':8} {'records':>12} {'rate':>10} {'size':>12} {'per draw':>13} {'peak memory':>12}")
    for method, rate in (("skip", 1e-6), ("skip", 1 / 1200), ("skip", 1e-2), ("skip", 0.1), ("naive", 1e-2)):
        case = ["--one", method, repr(rate), "--records", str(records)]
        subprocess.run([sys.executable, __file__, *case], check=True)


if __name__ == "__main__":
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=4_000_000)
    parser.add_argument("--repeats", type=int, default=0, metavar="DRAWS")
    parser.add_argument("--records", type=int, help="measure Poisson draws from so many")
    parser.add_argument("--one", nargs=2, metavar=("METHOD", "RATE"), help="only this draw, in this process")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    if arguments.one:
        method, rate = arguments.one[0], float(arguments.one[1])
        measure(method, arguments.records, rate, draws=3 if method == "naive" else 10)
    elif arguments.records:
        sampling(arguments.records)
    elif arguments.repeats:
        repeats(arguments.repeats, block=8)
    else:
        speed(arguments.count)
