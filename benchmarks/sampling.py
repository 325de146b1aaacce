"""Time and memory of one Poisson draw from 10^8 records, beside one uniform per record.

python benchmarks/sampling.py
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from argparse import ArgumentParser, RawDescriptionHelpFormatter

import torch

from dpsinkhorn.privacy.noise import SecureNoise
from dpsinkhorn.privacy.sampling import poisson_sample


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


if __name__ == "__main__":
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=10**8)
    parser.add_argument(
        "--one", nargs=2, metavar=("METHOD", "RATE"), help="measure one case, in this process"
    )
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.one:
        method, rate = arguments.one
        measure(method, arguments.records, float(rate), draws=3 if method == "naive" else 10)
    else:
        print(f"{'method':8} {'records':>12} {'rate':>10} {'size':>12} {'per draw':>13} {'peak memory':>12}")
        for method, rate in [
            ("skip", 1e-6),
            ("skip", 1 / 1200),
            ("skip", 1e-2),
            ("skip", 0.1),
            ("naive", 1e-2),
        ]:
            case = ["--one", method, repr(rate), "--records", str(arguments.records)]
            subprocess.run([sys.executable, __file__, *case], check=True)
