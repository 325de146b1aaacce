"""How near the estimated error of private transport between histograms comes to the measured one.

    python benchmarks/histogram_error.py

500 points a side: uniform on the unit cube, normal, or in opposite corners, on grids of 25 to 125 points, at
three values of ε, exact and entropic. The estimate is made from one release, the error measured over 12.
"""

from __future__ import annotations

import numpy as np

from dpsinkhorn.privacy import SeededNoise
from dpsinkhorn.transport import Clouds, HistogramMechanism


def main() -> None:
    rng = np.random.default_rng(0)
    ratios, apart = [], 1.0
    for d, side in ((2, 5), (2, 9), (3, 5)):
        grid = np.stack(np.meshgrid(*[np.linspace(0, 1, side)] * d), -1).reshape(-1, d)
        uniform, normal = rng.random((2, 500, d)), rng.normal(0.5, 0.15, (2, 500, d))
        pairs = (
            (uniform[0], uniform[1]),
            (normal[0].clip(0, 1), (normal[1] + 0.1).clip(0, 1)),
            (0.3 * uniform[0], 0.3 * uniform[1] + 0.7),
        )
        for epsilon in (0.2, 1.0, 5.0):
            for quantity, at in (("exact", 0.0), ("entropic", 0.05 * d)):
                measured = []
                for x, y in pairs:
                    clouds = Clouds.of(x, y, cost_bound=float(d))
                    asked = {"quantity": quantity, "regularization": at}
                    plan = HistogramMechanism.plan(clouds, grid, epsilon=epsilon, **asked)  # type: ignore[arg-type]
                    precise = HistogramMechanism.plan(clouds, grid, epsilon=1e5)
                    true = precise.release(clouds, SeededNoise(99)).cost(quantity, at)  # type: ignore[arg-type]
                    found = [plan.release(clouds, SeededNoise(run)) for run in range(12)]
                    measured.append(np.mean([abs(each.cost(quantity, at) - true) for each in found]))  # type: ignore[arg-type]
                    ratios += [plan.estimated_error(each) / measured[-1] for each in found[:5]]
                apart = max(apart, max(measured) / min(measured))
    near = sum(1 / 3 < ratio < 3 for ratio in ratios)
    span = f"from {min(ratios):.2f} to {max(ratios):.2f}"
    print(f"{near} of {len(ratios)} estimates are within a factor of 3; {span}")
    print(f"errors of different data at the same public numbers: up to a factor of {apart:.0f} apart")


if __name__ == "__main__":
    main()
