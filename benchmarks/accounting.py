"""Time and result of the accountants at the papers' settings: `python benchmarks/accounting.py`."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

from dpsinkhorn.privacy import ACCOUNTANTS, ImageMechanism, calibrate, epsilon, published_epsilon

DELTA = 1e-5
RATE = 1 / 1200


def timed(label: str, compute: Callable[[], float]) -> None:
    start = time.perf_counter()
    value = compute()
    print(f"{label:<64} {value:>10.4f} {time.perf_counter() - start:>8.2f} s", flush=True)


def noise_for(target: float, steps: int, rate: float, rows: int = 1) -> float:
    return calibrate(target, DELTA, sampling_rate=rate, steps=steps, rows=rows).noise_multiplier


def main() -> None:
    print(f"{'setting':<64} {'value':>10} {'time':>10}")
    settings = {
        "first version, MNIST: sigma 1.1, 3.4 M steps": (ImageMechanism(0.5, 1.1, 1), 3_400_000),
        "final version, MNIST: 50 rows, sigma 1.5, 160,000 steps": (ImageMechanism(0.5, 1.5, 50), 160_000),
        "final version, Fashion: 50 rows, sigma 1.9, 280,000 steps": (ImageMechanism(0.5, 1.9, 50), 280_000),
    }
    for name, (mechanism, steps) in settings.items():
        charge = mechanism.sampled(RATE, steps)
        for accountant in ACCOUNTANTS:
            timed(f"{name}, {accountant}", partial(epsilon, charge, DELTA, accountant))
    timed(
        "final version, MNIST, as published (not a guarantee)",
        lambda: published_epsilon(ImageMechanism(0.5, 1.5, 50), RATE, 160_000, DELTA),
    )
    for target, steps, rate in ((10, 1000, 0.1), (10, 3000, 0.2), (1, 3000, 0.2), (10, 3_400_000, RATE)):
        timed(
            f"noise for epsilon {target}, {steps} steps at rate {rate:.4g}",
            partial(noise_for, target, steps, rate),
        )
    timed(
        "steps for epsilon 10, sigma 1.1 at rate 1/1200",
        lambda: calibrate(10, DELTA, noise_multiplier=1.1, sampling_rate=RATE).steps,
    )
    timed(
        "rate for epsilon 10, sigma 1.1, 3.4 M steps",
        lambda: calibrate(10, DELTA, noise_multiplier=1.1, steps=3_400_000).sampling_rate,
    )
    timed(
        "noise per row for epsilon 10, 50 rows, 160,000 steps at 1/1200",
        partial(noise_for, 10, 160_000, RATE, rows=50),
    )


if __name__ == "__main__":
    main()
